"""A module, its loss and its scores, as functions of one flat vector.

The vector holds the trainable parameters first and the buffers (BatchNorm's running statistics,
counters) after them. Buffers are sent and averaged like the rest, but not trained; whole numbers
are rounded where the module reads them.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from commonweal.base.errors import ConfigError, did_you_mean
from commonweal.base.generator import shared_generator
from commonweal.base.tensors import Tensors
from commonweal.data.samples import Inputs, Stacked, leaves, zeros_like
from commonweal.models.tree_ensemble import TreeEnsemble
from commonweal.task import modules, scores
from commonweal.task.checks import check_arguments, check_module
from commonweal.task.losses import LOSSES, next_tokens
from commonweal.task.own import (
    Counted,
    LossFunction,
    OwnLoss,
    Pick,
    ScoreFunction,
    counted_by,
    function_name,
    known_loss,
    labelled,
    labelled_next,
    own_score,
    pick_outputs,
    score_name,
)
from commonweal.task.scores import Score
from commonweal.task.survival import cox_losses


class Batch(NamedTuple):
    """A mini-batch, padded. `weight` is each row's loss weight: 0 for padding, summing to 1."""

    inputs: Inputs  # (B, ...)
    y: Tensor  # (B,), or (B, L) where each token has a label
    weight: Tensor  # (B,)

    @property
    def x(self) -> Tensor:
        """The inputs, where they are one tensor."""
        assert isinstance(self.inputs, Tensor)
        return self.inputs


BYTES = 16  # of training by number of the activations: values, gradients, and the loss's copies
LOSS = "lower:loss"  # the score of a task with a loss of its own, by default


class Task:
    """A module with its loss and its score. A run starts from the module's values.

    Parameters that require no gradient are not trained.

    Args:
        module: The model, in float32.
        loss: A name in LOSSES, or a function of outputs and labels: a torch loss, or any that
            gives one loss per sample. By default what the labels suggest. "causal": each token
            (N, L) is predicted from those before; labels below 0, such as -100, do not count.
        score: A name in SCORES, or a function of a client's outputs and labels that gives a number,
            or one per sample. By default the one that suits the loss.
        also: Further scores by name, which are recorded too.
        target: The mean and deviation of the labels of a regression. The module is trained on
            scaled labels, its loss is relative to their variance; outputs and scores are in units.
        output: Picks the outputs among what the module returns. `.logits` is found without it.
        lower_is_better: Whether a lower value of `score`, where it is a function, is better.
        class_weight: By what the loss of a sample is multiplied, for each class.
        log_target: Whether `target` is of the labels' logarithms. Outputs are in units still.
        variance: The variance of all labels, for pooled R^2; by default that of `target`.
        precision: "bfloat16" computes training's forward and backward pass in mixed precision.
        counted: Where each sample's label has several positions (tokens, pixels): a function from
            labels (N, ...) to whether each position counts. By default all do but those with the
            `ignore_index` of a torch loss. Losses and sizes of clients count positions.
        batch_memory: About how many MB a forward and backward pass may take in each thread. The
            gradient of a larger batch is the sum over its parts. Batches stay whole where samples
            of a batch depend on each other (BatchNorm, contrastive losses), or a method's loss is
            not the mean over samples.

    >>> task = Task(nn.Linear(2, 3))
    >>> task.size, task.initial.shape
    (9, torch.Size([9]))
    >>> Task(nn.Linear(2, 3), loss=nn.CrossEntropyLoss(label_smoothing=0.1)).loss
    'torch.nn.modules.loss:CrossEntropyLoss'
    """

    def __init__(
        self,
        module: nn.Module,
        loss: str | LossFunction = "",
        score: str | ScoreFunction = "",
        also: tuple[str, ...] = (),
        target: tuple[float, float] | None = None,
        output: Pick | None = None,
        lower_is_better: bool = False,
        class_weight: tuple[float, ...] | None = None,
        log_target: bool = False,
        variance: float | None = None,
        precision: str = "float32",
        counted: Counted | None = None,
        batch_memory: float = 256,
    ) -> None:
        self._given = {name: value for name, value in locals().items() if name != "self"}
        check_arguments(**self._given)
        self.names_loss = loss != ""  # without a name, a run's labels may suggest another one
        function: OwnLoss | None = None
        if not isinstance(loss, str):
            counted = counted or counted_by(loss)
            function = None if known_loss(loss) else OwnLoss(loss, counted)
            loss = known_loss(loss) or function_name(loss)
        scoring: Score | None = None
        if not isinstance(score, str):
            scoring = own_score(score, lower_is_better)
            score = score_name(score, lower_is_better)
        elif function is not None and not score:
            scoring = function.as_score()
            score = LOSS
        self.module = module
        self.loss = loss or "cross-entropy"
        self.score = score or scores.DEFAULTS.get(self.loss, "accuracy")
        self.also = tuple(also)
        self.scores = tuple(dict.fromkeys((self.score, *also)))  # the main one first
        self.target = target
        self.output = output
        self.own_loss = function
        self.own_score = scoring
        self.class_weight = None if class_weight is None else tuple(class_weight)
        self.log_target = log_target or loss == "poisson"
        self.variance = variance
        self.precision = precision
        of_tokens = {"tokens": labelled, "causal": labelled_next}
        self.counted = of_tokens.get(self.loss, counted)
        self.batch_memory = batch_memory
        self._fixed_on: dict[torch.device, Tensors] = {}
        self._drawing: dict[torch.Size, bool] = {}
        self._mixing: dict[torch.Size, bool] = {}
        self._widths: dict[torch.Size, int] = {}
        self._divisible: dict[torch.Size, bool] = {}
        self._idle: dict[nn.Module, list[nn.Module]] = {}  # copies that no thread calls
        self._check_names()
        check_module(module)

    def __setattr__(self, name: str, value: object) -> None:
        if name in vars(self):
            raise ConfigError(f"{name} of a Task cannot be set: use task.replace({name}=...)")
        super().__setattr__(name, value)

    def __reduce__(self) -> "tuple[Callable[..., Task], tuple[object, ...]]":
        return _built, (type(self), self._given)  # functions within functions cannot be pickled

    def replace(self, **changes: Any) -> "Task":
        """The task with some arguments changed."""
        return _built(type(self), self._given | changes)

    def __repr__(self) -> str:
        name = type(self.module).__name__
        return f"<Task: {name} of {self.size} parameters, loss {self.loss}, score {self.score}>"

    def _check_names(self) -> None:
        if self.own_loss is None and self.loss not in LOSSES:
            raise ConfigError(f"no loss is called {self.loss!r}: {did_you_mean(self.loss, LOSSES)}")
        for name in self.scores:
            if self.names_loss:
                scores.check_score(name, self.loss)
            else:  # the loss is not known yet
                scores.find_score(name)

    @property
    def functions(self) -> dict[str, object]:
        """The user's own functions, by the argument that they were given as."""
        keys = ["score", "output", "counted"]
        if self.own_loss is not None:
            keys.insert(0, "loss")
        return {key: self._given[key] for key in keys if callable(self._given[key])}

    @cached_property
    def reporting(self) -> "Task":
        """The task with its main score only."""
        return self.replace(also=()) if self.also else self

    # The vector. A module's layers may be frozen until the task is used.

    @cached_property
    def _pieces(self) -> dict[str, Tensor]:
        pieces: dict[str, Tensor] = {}
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad:
                pieces[name] = parameter.detach()
        return pieces | modules.carried_buffers(self.module)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(self._pieces)

    @cached_property
    def shapes(self) -> list[torch.Size]:
        return [piece.shape for piece in self._pieces.values()]

    @cached_property
    def _dtypes(self) -> list[torch.dtype]:
        return [piece.dtype for piece in self._pieces.values()]

    @cached_property
    def sizes(self) -> list[int]:
        return [piece.numel() for piece in self._pieces.values()]

    @cached_property
    def size(self) -> int:
        return sum(self.sizes)

    @cached_property
    def num_trainable(self) -> int:
        """The number of trainable coordinates; those after them are buffers."""
        return sum(self.sizes[: self._num_parameters])

    @cached_property
    def _num_parameters(self) -> int:
        return sum(p.requires_grad for p in self.module.parameters())

    @cached_property
    def _buffer_names(self) -> tuple[str, ...]:
        return self.names[self._num_parameters :]

    def trainable(self, w: Tensor) -> Tensor:
        """The trainable prefix of w: without buffers w itself, as a slice's backward allocates."""
        return w if self.num_trainable == self.size else w[: self.num_trainable]

    @cached_property
    def layers(self) -> list[int]:
        """The layer number of each tensor: a weight and its bias have the same."""
        layers = [name.rpartition(".")[0] for name in self.names]
        numbers = {layer: i for i, layer in enumerate(dict.fromkeys(layers))}
        return [numbers[layer] for layer in layers]

    @cached_property
    def initial(self) -> Tensor:
        """The module's own values."""
        return torch.cat([piece.flatten().float() for piece in self._pieces.values()])

    def reinitialised(self, seed: int) -> "Task":
        """The task with another random initialisation.

        Layers that are frozen or have no `reset_parameters` keep their values.
        """
        module = modules.copied(self.module)
        with shared_generator():
            torch.manual_seed(seed)
            for _, reset in modules.resettable(module):
                reset()
        return self.replace(module=module)

    @property
    def frozen(self) -> Tensors:
        """The tensors of the module that are not in the vector: nothing changes them."""
        return modules.frozen_tensors(self.module)

    @property
    def is_network(self) -> bool:
        """True if the module is trained by gradients, as all but trees are."""
        return not isinstance(self.module, TreeEnsemble)

    @property
    def is_drawn(self) -> bool:
        """True if another initialisation draws every trained parameter."""
        drawn = {id(p) for layer, _ in modules.resettable(self.module) for p in layer.parameters()}
        return all(id(p) in drawn for p in self.module.parameters() if p.requires_grad)

    def tensors(self, w: Tensor) -> dict[str, Tensor]:
        """The vector as the module's named tensors: views, with a single cat as their backward.

        Buffers that are not in float32 are copies of their type.
        """
        pieces = zip(self.names, torch.split(w, self.sizes), self.shapes, self._dtypes, strict=True)
        tensors = {}
        for name, piece, shape, dtype in pieces:
            view = piece.view(shape)
            tensors[name] = view if dtype == torch.float32 else _as_type(view, dtype)
        return tensors

    def vector(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The vector of tensors by name, as `Record.state_dict()` gives them."""
        return torch.cat([tensors[name].flatten().float() for name in self.names])

    def module_of(self, w: Tensor) -> nn.Module:
        """A copy of the module with the vector's values, in evaluation mode.

        Its outputs are in the units of the labels: a module of a scaled target is wrapped.
        """
        module = deepcopy(self.module).eval()
        modules.fill(module, self.tensors(w))
        return self.module_in_units(module)

    def module_in_units(self, module: nn.Module) -> nn.Module:
        """A module that was trained on a scaled target, with outputs in the labels' units."""
        if self.target is None:
            return module
        return modules.InUnits(module, *self.target, self.log_target).eval()

    # Training

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of each sample (N,), of outputs and labels in the module's units."""
        function = LOSSES[self.loss] if self.own_loss is None else self.own_loss
        losses = function(outputs, y)
        return losses if self.class_weight is None else losses * self.weight_of(y)

    def weight_of(self, y: Tensor) -> Tensor:
        """The factors of the samples' losses, by their classes."""
        weights = torch.tensor(self.class_weight, dtype=torch.float32, device=y.device)
        return weights[y.long()]

    def counts(self, y: Tensor) -> Tensor | None:
        """How many positions of each sample's label count (N,); None: each sample counts as one."""
        if self.counted is None:
            return None
        return self.counted(y).reshape(len(y), -1).sum(1)

    def counted_sizes(self, y: Tensor, offsets: Tensor) -> Tensor:
        """How many samples or positions of each client count (K,)."""
        counts = self.counts(y)
        if counts is None:
            return offsets.diff()
        return scores.sum_by_client(counts.cpu(), offsets).long()

    def weighted(self, weight: Tensor, y: Tensor) -> Tensor:
        """The weights (S, B) of samples in their batches, in proportion to what counts in each."""
        counts = self.counts(y.flatten(0, 1))
        if counts is None:
            return weight
        counts = counts.view(weight.shape)
        real = weight > 0
        some = torch.where(real, counts, counts[:, :1])
        alike = (some == counts[:, :1]).all(1, keepdim=True) & (counts[:, :1] > 0)
        by_count = counts * real
        share = by_count / by_count.sum(1, keepdim=True).clamp(min=1)
        return torch.where(alike, weight, share.to(weight.dtype))

    def batch_loss(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The batch's loss in training mode, and the buffers after it (empty without buffers)."""
        losses, buffers = self.row_losses(w, batch)
        return (losses * batch.weight).sum(), buffers

    def row_losses(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The losses (B,) of the rows in training mode, and the buffers after them."""
        with self._mixed(batch.inputs):
            outputs, buffers = self._run(self._training, w, batch.inputs)
        outputs = outputs.to(w.dtype)
        y = self.scaled(batch.y)
        if self.loss == "cox":  # padding is in nobody's risk set: it left before all others
            y = torch.where(batch.weight[:, None] > 0, y, -torch.inf).nan_to_num(neginf=-1e30)
        return self.losses(outputs, y), buffers

    def _mixed(self, x: Inputs) -> AbstractContextManager[object]:
        """Mixed precision on the device of the inputs; nothing for float32, which costs no time."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(x.device.type, torch.bfloat16)

    @cached_property
    def _training(self) -> nn.Module:
        module = modules.copied(self.module, trained=True).train()
        for layer in module.modules():
            if type(layer) is nn.Linear:
                layer.__class__ = modules.TransposedLinear  # the same parameters, another forward
        return module

    def with_statistics(self, w: Tensor, x: Inputs) -> Tensor:
        """The vector with the buffers of BatchNorm replaced by the statistics of these rows."""
        with torch.no_grad():
            _, buffers = self._run(self._estimating, w, x)
        return torch.cat([w[: self.num_trainable], buffers])

    @cached_property
    def _estimating(self) -> nn.Module:
        """In training mode, with running statistics that forget everything before."""
        module = modules.copied(self.module, trained=True).eval()
        for layer in module.modules():
            if isinstance(layer, modules.BATCHNORM):
                layer.train()
                layer.momentum = 1.0
        return module

    def _run(self, module: nn.Module, w: Tensor, x: Inputs) -> tuple[Tensor, Tensor]:
        """The outputs of a module that changes its buffers, and the buffers after it."""
        given = self._copied(w)
        outputs = self._call(module, given, x)
        if not self._buffer_names:
            return outputs, w.new_empty(0)
        after = [given[name] for name in self._buffer_names]  # they may be other tensors
        for name, value in zip(self._buffer_names, after, strict=True):
            self.check_shape(name, value.shape)
        return outputs, torch.cat([value.detach().flatten().to(w.dtype) for value in after])

    def check_shape(self, name: str, shape: torch.Size) -> None:
        """Raise ConfigError where a forward pass gave a buffer of the vector another shape."""
        if shape != self._pieces[name].shape:
            raise ConfigError(
                f"forward of {type(self.module).__name__} changes its buffer {name} from shape "
                f"{tuple(self._pieces[name].shape)} to {tuple(shape)}: give it one shape in "
                "__init__"
            )

    def _copied(self, w: Tensor) -> dict[str, Tensor]:
        """The module's tensors, with copies of the buffers: modules write to them in place."""
        tensors = self.tensors(w)
        return tensors | {name: tensors[name].detach().clone() for name in self._buffer_names}

    # Calling the module

    def _call(self, module: nn.Module, given: dict[str, Tensor], x: Inputs) -> Tensor:
        """The outputs. `given` has the buffers after the call, also those that were reassigned."""
        if x.device.type != "cpu":
            given.update(self._fixed(x.device))
        given.update({o: given[name] for o, name in self._tied.items() if name in given})
        args, kwargs = self.arguments(x)
        with self._copy_of(module) as own:
            constants = self._constants(own)
            versions = [value._version for value in constants.values()]
            # Tied names have one tensor here: torch need not search for them at every call.
            result = functional_call(own, given, args, kwargs, tie_weights=False)
            after = self._constants(own)
        for (name, value), version in zip(constants.items(), versions, strict=True):
            if after.get(name) is not value or value._version != version:
                raise ConfigError(modules.changed_constant(self.module, name))
        return pick_outputs(result, self.output)

    @contextmanager
    def _copy_of(self, module: nn.Module) -> Iterator[nn.Module]:
        """A copy that no other thread calls meanwhile: a call replaces the module's tensors."""
        idle = self._idle.setdefault(module, [])
        try:
            copy = idle.pop()
        except IndexError:
            tensors = (*module.parameters(), *module.buffers())
            copy = deepcopy(module, {id(tensor): tensor for tensor in tensors})
        try:
            yield copy
        finally:
            idle.append(copy)

    def _constants(self, module: nn.Module) -> dict[str, Tensor]:
        """The buffers that are not in the vector, which no client may change."""
        if not self._constant_names:
            return {}
        buffers = dict(module.named_buffers())
        return {name: buffers[name] for name in self._constant_names if name in buffers}

    @cached_property
    def _constant_names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.module.named_buffers()) - set(self.names)

    def arguments(self, x: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """The positional and keyword arguments with which the module is called.

        Several inputs are given as they are: some may be masks or positions.
        """
        taken = x if isinstance(x, Tensor | Stacked) else x[:]
        if isinstance(taken, Tensor):
            return (self.ready_tensor(taken),), {}
        assert isinstance(taken, Stacked)
        return taken.arguments()

    def ready_tensor(self, x: Tensor) -> Tensor:
        """Convert stored rows for the model: images to [0, 1], sounds to [-1, 1]."""
        if x.dtype == torch.uint8:
            return x.to(torch.float32) / 255
        if x.dtype == torch.int16:
            return x.to(torch.float32) / 32768
        if x.is_floating_point():
            return x
        return x.to(torch.int64 if self._takes_tokens else torch.float32)

    @cached_property
    def _tied(self) -> dict[str, str]:
        """Further names of tensors, each with its first one."""
        names = {id(value): name for name, value in self._tensors(remove_duplicate=True)}
        everything = self._tensors(remove_duplicate=False)
        pairs = {name: names[id(value)] for name, value in everything}
        return {other: name for other, name in pairs.items() if other != name}

    def _tensors(self, remove_duplicate: bool) -> Iterator[tuple[str, Tensor]]:
        """The module's parameters and buffers by name."""
        yield from self.module.named_parameters(remove_duplicate=remove_duplicate)
        yield from self.module.named_buffers(remove_duplicate=remove_duplicate)

    def _fixed(self, device: torch.device) -> dict[str, Tensor]:
        """The module's tensors that are not in the vector, on the device where it computes."""
        if device not in self._fixed_on:
            self._fixed_on[device] = {n: value.to(device) for n, value in self.frozen.items()}
        return self._fixed_on[device]

    # Evaluation

    def outputs(self, w: Tensor, x: Inputs) -> Tensor:
        """The model's outputs in evaluation mode, in the units of the labels."""
        return self.in_units(self.raw_outputs(w, x))

    def raw_outputs(self, w: Tensor, x: Inputs) -> Tensor:
        """The module's outputs in evaluation mode, as it was trained to give them."""
        return self._call(self._inference, self._copied(w), x)

    @cached_property
    def _inference(self) -> nn.Module:
        return modules.copied(self.module, trained=True).eval()

    def scaled(self, y: Tensor) -> Tensor:
        """The labels as the module is trained on them."""
        if self.loss == "causal":
            return next_tokens(y)
        if self.target is None:
            return y
        mean, deviation = self.target
        if self.loss == "poisson":
            return y / math.exp(mean)
        return ((y.log() if self.log_target else y) - mean) / deviation

    def in_units(self, outputs: Tensor) -> Tensor:
        """The module's outputs in the units of the labels."""
        if self.target is None:
            return outputs.exp() if self.loss == "poisson" else outputs
        mean, deviation = self.target
        values = mean + deviation * outputs
        return values.exp() if self.log_target else values

    def find_score(self, name: str) -> Score:
        """A score by name. Pooled R^2 is against the variance of the target where that is known."""
        if self.own_score is not None and name == self.score:
            return self.own_score
        return scores.find_score(name, self.target_variance)

    @property
    def target_variance(self) -> float | None:
        """The variance of all training labels, for pooled R^2; None: it is not known."""
        if self.variance is None and self.target is not None and not self.log_target:
            return self.target[1] ** 2
        return self.variance

    def evaluate_rows(self, w: Tensor, x: Inputs, y: Tensor) -> tuple[Tensor, Tensors]:
        """Each row's loss (N,), and its statistics (N, c) for every score by name, on the CPU."""
        return self.row_results(self.raw_outputs(w, x), y)

    def row_results(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensors]:
        """Each row's loss (N,) and statistics from the module's outputs (N, c), on the CPU."""
        if self.loss == "cox":  # rows of other clients are no risk set: see `mean_losses`
            outputs, y = outputs.cpu(), y.cpu()
            losses = scores.survival_stats(outputs, y)
        else:
            # First the losses: they say where outputs do not fit.
            by_column = outputs
            if outputs.ndim == 2 and outputs.shape[1] == 2:  # torch adds up two neighbours slowly
                by_column = outputs.T.contiguous().T
            losses = self.losses(by_column, self.scaled(y)).cpu()
            counts = self.counts(y)
            if counts is not None:
                losses = torch.stack([losses, counts.to(losses)], 1)
            # Scores are in float64, which not every device has.
            y = self.scaled(y) if self.loss == "causal" else y
            outputs, y = self.in_units(outputs).cpu(), y.cpu()
        stats = {}
        for name in self.scores:
            stats[name] = self.find_score(name).row_stats(outputs, y)
        return losses, stats

    def mean_losses(self, losses: Tensor, offsets: Tensor) -> Tensor:
        """The mean loss of each client (K,), of what `evaluate_rows` gives by row."""
        if self.counted is not None:
            losses, counts = losses.unbind(1)
            total = scores.sum_by_client(losses.double() * counts, offsets)
            return total / scores.sum_by_client(counts, offsets)
        if self.loss != "cox":
            return scores.mean_by_client(losses, offsets)
        risk, y = losses[:, 0], losses[:, 1:]
        return scores.mean_by_client(cox_losses(risk, y, offsets), offsets)

    def undefined(self, y: Tensor, offsets: Tensor) -> list[int]:
        """The clients with rows whose main score is undefined."""
        own = self.score == "r2-pooled" and self.target is None and self.variance is None
        return scores.undefined("r2" if own else self.score, y, offsets)

    # Facts about the model

    @cached_property
    def _takes_tokens(self) -> bool:
        return self._has_layer(nn.Embedding, nn.EmbeddingBag)

    @cached_property
    def has_batchnorm(self) -> bool:
        return self._has_layer(modules.BATCHNORM)

    def _has_layer(self, *kinds: type[nn.Module]) -> bool:
        return any(isinstance(layer, kinds) for layer in self.module.modules())

    @cached_property
    def has_dropout(self) -> bool:
        """True if a layer draws random numbers in training."""
        return any(modules.draws(layer) for layer in self.module.modules())

    def draws_inside(self, x: Inputs) -> bool:
        """Return whether training on samples like x draws random numbers, also in forward."""
        shape = x.shape[1:]
        if shape not in self._drawing:
            args, kwargs = self.arguments(zeros_like(x, 2))
            with torch.no_grad(), shared_generator() as generator:
                before = generator.get_state()
                modules.copied(self.module).train()(*args, **kwargs)
                self._drawing[shape] = self.has_dropout or not generator.get_state().equal(before)
        return self._drawing[shape]

    def mixes(self, x: Inputs) -> bool:
        """Return whether a sample's output in training depends on the other samples of its batch.

        Padding would then change it. Modules with buffers are taken to mix samples.
        """
        if self._buffer_names or len(x) < 2:
            return bool(self._buffer_names)
        shape = x.shape[1:]
        if shape not in self._mixing:
            last = len(x) - 1
            alike = torch.tensor([0, 0], device=x.device)
            other = torch.tensor([0, last], device=x.device)
            with torch.no_grad(), shared_generator() as generator:
                outputs = []
                for rows in (alike, other):
                    generator.manual_seed(0)
                    outputs.append(self._call(self._training, self.tensors(self.initial), x[rows]))
            first, second = (values[0] for values in outputs)
            self._mixing[shape] = not torch.allclose(first, second, rtol=1e-4, atol=1e-5)
        return self._mixing[shape]

    def at_once(self, x: Inputs, y: Tensor, count: int) -> int | None:
        """The samples of a training step that `batch_memory` holds, of so many; None: all."""
        most = max(1, int(self.batch_memory * 1e6 / (BYTES * self.width(x))))
        return most if most < count and self._is_divisible(x, y) else None

    def _is_divisible(self, x: Inputs, y: Tensor) -> bool:
        """Return whether the gradient of a batch is the sum of the gradients of its parts."""
        if self.loss == "cox" or len(x) < 2 or self.mixes(x):
            return False
        shape = x.shape[1:]
        if shape not in self._divisible:
            with torch.no_grad():
                y = self.scaled(y[:2])
                outputs = self.raw_outputs(self.initial.to(x.device), x[:2])
                alone = [self.losses(outputs[k : k + 1], y[k : k + 1]) for k in range(2)]
                both = self.losses(outputs, y)
            self._divisible[shape] = torch.allclose(both, torch.cat(alone), rtol=1e-4, atol=1e-5)
        return self._divisible[shape]

    def width(self, x: Inputs) -> int:
        """The numbers that a sample of x and its activations hold, the same on every machine."""
        shape = x.shape[1:]
        if shape not in self._widths:
            row = zeros_like(x, 1)
            args, kwargs = self.arguments(row)
            activations = modules.count_activations(modules.copied(self._inference), args, kwargs)
            self._widths[shape] = activations + sum(value.numel() for value in leaves(row))
        return self._widths[shape]


def _built(kind: type[Task], given: dict[str, Any]) -> Task:
    return kind(**given)


def _as_type(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers of a vector as a buffer's type: an average of whole numbers is rounded."""
    return (values if dtype.is_floating_point else values.round()).to(dtype)
