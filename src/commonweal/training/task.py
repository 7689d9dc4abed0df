"""A module, its loss and its scores, as functions of one flat vector.

The vector holds the trainable parameters first and the floating-point buffers (BatchNorm's running
statistics) after them. Buffers are sent and averaged like the rest, but not trained.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import UninitializedParameter

from commonweal.base.arguments import expect, expect_callable, expect_names
from commonweal.base.errors import ConfigError, did_you_mean
from commonweal.base.generator import shared_generator
from commonweal.base.tensors import Tensors
from commonweal.data.samples import Inputs, Stacked, leaves, zeros_like
from commonweal.training import scores
from commonweal.training.own import (
    LossFunction,
    OwnLoss,
    OwnScore,
    Pick,
    ScoreFunction,
    function_name,
    known_loss,
    pick_outputs,
    score_name,
)
from commonweal.training.scores import Score

__all__ = ["LOSSES", "Batch", "InUnits", "Task"]


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


def _cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    # As logsumexp - logit: torch's cross_entropy has no batching rule, and is slow under vmap.
    return outputs.logsumexp(-1) - outputs.gather(-1, y[:, None]).squeeze(-1)


def _binary(outputs: Tensor, y: Tensor) -> Tensor:
    logits = outputs.squeeze(-1)
    y = y.to(outputs.dtype)
    return nn.functional.binary_cross_entropy_with_logits(logits, y, reduction="none")


def _squared(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs.squeeze(-1) - y).square()


def _huber(outputs: Tensor, y: Tensor) -> Tensor:
    """Half the squared error up to one deviation of the labels, linear beyond."""
    error = (outputs.squeeze(-1) - y).abs()
    return torch.where(error < 1, 0.5 * error.square(), error - 0.5)


def _absolute(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs.squeeze(-1) - y).abs()


def _poisson(outputs: Tensor, y: Tensor) -> Tensor:
    """Half the deviance of Poisson's distribution, at least 0. outputs: logarithms of rates"""
    log_rate = outputs.squeeze(-1)
    return log_rate.exp() - y * log_rate + torch.xlogy(y, y) - y


def _tokens(outputs: Tensor, y: Tensor) -> Tensor:
    """The mean over a row's tokens, (N, L, V), (N, L) -> (N,). Tokens with label -1 are skipped."""
    if outputs.ndim != 3:
        shape = tuple(outputs.shape[1:])
        raise ConfigError(
            f"the data labels each token, but the model gives one output per row, {shape}: "
            "take a model of sequences, such as 'lstm'"
        )
    valid = y >= 0
    labels = y.clamp(min=0)[..., None]
    losses = outputs.logsumexp(-1) - outputs.gather(-1, labels).squeeze(-1)
    return (losses * valid).sum(-1) / valid.sum(-1).clamp(min=1)


def _cox(outputs: Tensor, y: Tensor) -> Tensor:
    """Cox's negative log partial likelihood by row (Breslow's way with ties); 0 where censored.

    y: (N, 2), the time and whether there was an event. The rows are each other's risk sets.
    """
    time, event = y.unbind(-1)
    risk = outputs.squeeze(-1)
    at_risk = time[None, :] >= time[:, None]  # (N, N): who is still there at each row's time
    together = torch.where(at_risk, risk[None, :], -torch.inf).logsumexp(-1)
    return (together - risk) * event


LOSS = "lower:loss"  # the score of a task with a loss of its own, by default

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # (N, outputs), (N,) -> (N,)
    "cross-entropy": _cross_entropy,
    "binary": _binary,
    "squared": _squared,
    "huber": _huber,
    "absolute": _absolute,
    "poisson": _poisson,
    "tokens": _tokens,
    "cox": _cox,
}


@dataclass(frozen=True, eq=False, init=False)
class Task:
    """A module with its loss and its score. A run starts from the module's values.

    Parameters that require no gradient are not trained.

    Args:
        module: The model, in float32.
        loss: A name in LOSSES, or a function of outputs and labels: a torch loss, or any that
            gives one loss per sample. By default what the labels suggest.
        score: A name in SCORES, or a function of a client's outputs and labels that gives a number,
            or one per sample. By default the one that suits the loss.
        also: Further scores by name, which are recorded too.
        target: The mean and deviation of the labels of a regression. The module is trained on
            scaled labels, its loss is relative to their variance; outputs and scores are in units.
        output: Picks the outputs among what the module returns. `.logits` is found without it.
        lower_is_better: Whether a lower value of `score`, where it is a function, is better.
        class_weight: By what the loss of a sample is multiplied, for each class.
        log_target: Whether `target` is of the labels' logarithms. Outputs are in units still.
        variance: The variance of all labels, for R^2; by default that of `target`.

    >>> task = Task(nn.Linear(2, 3))
    >>> task.size, task.initial.shape
    (9, torch.Size([9]))
    >>> Task(nn.Linear(2, 3), loss=nn.CrossEntropyLoss(label_smoothing=0.1)).loss
    'torch.nn.modules.loss:CrossEntropyLoss'
    """

    module: nn.Module
    loss: str
    score: str
    also: tuple[str, ...]
    target: tuple[float, float] | None
    output: Pick | None
    lower_is_better: bool
    own_loss: OwnLoss | None
    own_score: OwnScore | None
    implied: bool  # neither the loss nor its function was given
    class_weight: tuple[float, ...] | None
    log_target: bool
    variance: float | None

    def __init__(
        self,
        module: nn.Module,
        loss: str | LossFunction = "",
        score: str | ScoreFunction = "",
        also: tuple[str, ...] = (),
        target: tuple[float, float] | None = None,
        output: Pick | None = None,
        lower_is_better: bool = False,
        own_loss: OwnLoss | None = None,
        own_score: OwnScore | None = None,
        implied: bool = False,
        class_weight: tuple[float, ...] | None = None,
        log_target: bool = False,
        variance: float | None = None,
    ) -> None:
        if not isinstance(module, nn.Module):
            raise ConfigError(f"module = {module!r}: give a torch.nn.Module")
        expect_names("also", also)
        if target is not None:
            expect("target", target, tuple, "(mean, deviation)")
            numbers = [item for item in target if isinstance(item, int | float)]
            if len(target) != 2 or len(numbers) != 2:
                raise ConfigError(f"target = {target!r}: give (mean, deviation)")
        if class_weight is not None:
            expect("class_weight", class_weight, list | tuple, "a number for each class")
            for weight in class_weight:
                expect("class_weight", weight, int | float, "a number for each class")
        expect("lower_is_better", lower_is_better, bool, "True or False")
        if output is not None:
            expect_callable("output", output, "a function that picks the outputs")
        for key, function in (("loss", loss), ("score", score)):
            if isinstance(function, type):
                raise ConfigError(f"{key} = {function!r} is a class: give {function.__name__}()")
        implied = implied or (isinstance(loss, str) and loss == "")
        if callable(loss):
            own_loss = None if known_loss(loss) else OwnLoss(loss)
            loss = known_loss(loss) or function_name(loss)
        elif not isinstance(loss, str):
            raise ConfigError(f"loss = {loss!r}: give the name of a loss, or a function")
        if callable(score):
            own_score = OwnScore(score, lower_is_better)
            score = score_name(score, lower_is_better)
        elif not isinstance(score, str):
            raise ConfigError(f"score = {score!r}: give the name of a score, or a function")
        if own_loss is not None and not score:
            own_score, score = OwnScore(own_loss, lower_is_better=True), LOSS
        loss = loss or "cross-entropy"
        values: dict[str, object] = {
            "module": module,
            "loss": loss,
            "score": score or scores.DEFAULTS.get(loss, "accuracy"),
            "also": tuple(also),
            "target": target,
            "output": output,
            "lower_is_better": lower_is_better,
            "own_loss": own_loss,
            "own_score": own_score,
            "implied": implied,
            "class_weight": None if class_weight is None else tuple(class_weight),
            "log_target": log_target or loss == "poisson",
            "variance": variance,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._check()

    def __repr__(self) -> str:
        name = type(self.module).__name__
        return f"<Task: {name} of {self.size} parameters, loss {self.loss}, score {self.score}>"

    def _check(self) -> None:
        if self.own_loss is None and self.loss not in LOSSES:
            raise ConfigError(f"no loss is called {self.loss!r}: {did_you_mean(self.loss, LOSSES)}")
        for name in self.scores:
            if self.implied:  # the loss is not known yet
                scores.find(name)
            else:
                scores.check(name, self.loss)
        kind = type(self.module).__name__
        if not any(p.requires_grad for p in self.module.parameters()):
            raise ConfigError(f"{kind} has no parameter to train")
        for name, p in self.module.named_parameters():
            if isinstance(p, UninitializedParameter) or p.is_meta:
                raise ConfigError(
                    f"{name} of {kind} has no values yet: call the module once with a batch, or "
                    "build it on the CPU"
                )
        for name, value in self._pieces.items():
            if value.dtype != torch.float32:
                raise ConfigError(
                    f"{name} of {kind} is {value.dtype}: models are trained in float32; call "
                    "module.float()"
                )
        if self.target is not None and not self.target[1] > 0:
            raise ConfigError(f"target = {self.target}: the deviation must be above 0")
        for part in self.module.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is None:
                raise ConfigError(
                    f"{type(part).__name__} has no running statistics to evaluate with: "
                    "set track_running_stats=True"
                )

    def suited_to(self, loss: str) -> "Task":
        """The task with the loss that the data suggest, unless it was given one itself."""
        if not self.implied:
            return self
        if not loss:
            name = type(self.module).__name__
            raise ConfigError(
                "labels with several numbers per sample, or of shape (N, 1), do not say which loss "
                f"fits: give one, Task({name}(...), loss=...)"
            )
        default = scores.DEFAULTS.get(self.loss, "accuracy")
        score = "" if self.score == default else self.score
        return replace(self, loss=loss, score=score, implied=False)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of each sample (N,), of outputs and labels in the module's units."""
        function = LOSSES[self.loss] if self.own_loss is None else self.own_loss
        losses = function(outputs, y)
        return losses if self.class_weight is None else losses * self.weight_of(y)

    def weight_of(self, y: Tensor) -> Tensor:
        """The factors of the samples' losses, by their classes."""
        weights = torch.tensor(self.class_weight, dtype=torch.float32, device=y.device)
        return weights[y.long()]

    @property
    def functions(self) -> dict[str, object]:
        """The user's own functions, by the argument that they were given as."""
        functions: dict[str, object] = {}
        if self.own_loss is not None:
            functions["loss"] = self.own_loss.given
        if self.own_score is not None and self.own_score.function is not self.own_loss:
            functions["score"] = self.own_score.function
        if self.output is not None:
            functions["output"] = self.output
        return functions

    @property
    def scores(self) -> tuple[str, ...]:
        """All scores, the main one first."""
        return tuple(dict.fromkeys((self.score, *self.also)))

    @cached_property
    def _pieces(self) -> dict[str, Tensor]:
        """The vector's tensors in order: trainable parameters, then floating-point buffers."""
        parameters = self.module.named_parameters()
        buffers = self.module.named_buffers()
        trainable = {name: p.detach() for name, p in parameters if p.requires_grad}
        return trainable | {name: b for name, b in buffers if b.is_floating_point()}

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(self._pieces)

    @cached_property
    def shapes(self) -> tuple[torch.Size, ...]:
        return tuple(p.shape for p in self._pieces.values())

    @cached_property
    def sizes(self) -> list[int]:
        return [p.numel() for p in self._pieces.values()]

    @cached_property
    def size(self) -> int:
        return sum(self.sizes)

    @cached_property
    def num_trainable(self) -> int:
        """The number of trainable coordinates; those after them are buffers."""
        return sum(p.numel() for p in self.module.parameters() if p.requires_grad)

    def trainable(self, w: Tensor) -> Tensor:
        """The trainable prefix of w: without buffers w itself, as a slice's backward allocates."""
        return w if self.num_trainable == self.size else w[: self.num_trainable]

    @cached_property
    def initial(self) -> Tensor:
        """The module's own values."""
        return torch.cat([p.flatten() for p in self._pieces.values()]).to(torch.float32)

    @cached_property
    def layers(self) -> list[int]:
        """The layer number of each tensor: a weight and its bias have the same."""
        layers = [name.rpartition(".")[0] for name in self.names]
        numbers = {layer: i for i, layer in enumerate(dict.fromkeys(layers))}
        return [numbers[layer] for layer in layers]

    def reinitialised(self, seed: int) -> "Task":
        """The task with another random initialisation.

        Layers that are frozen or have no `reset_parameters` keep their values.
        """
        module = deepcopy(self.module)
        with shared_generator():
            torch.manual_seed(seed)
            for _, reset in _resettable(module):
                reset()
        return replace(self, module=module)

    @property
    def is_drawn(self) -> bool:
        """Whether another initialisation draws every trained parameter."""
        drawn = {id(p) for layer, _ in _resettable(self.module) for p in layer.parameters()}
        return all(id(p) in drawn for p in self.module.parameters() if p.requires_grad)

    def tensors(self, w: Tensor) -> dict[str, Tensor]:
        """The vector as the module's named tensors: views, with a single cat as their backward."""
        pieces = zip(self.names, torch.split(w, self.sizes), self.shapes, strict=True)
        return {name: piece.view(shape) for name, piece, shape in pieces}

    def module_of(self, w: Tensor) -> nn.Module:
        """A copy of the module with the vector's values, in evaluation mode.

        Its outputs are in the units of the labels: a module of a scaled target is wrapped.
        """
        module = deepcopy(self.module).eval()
        own = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for name, value in self.tensors(w).items():
                own[name].copy_(value)
        if self.target is None:
            return module
        return InUnits(module, *self.target, self.log_target).eval()

    @cached_property
    def _training(self) -> nn.Module:
        module = deepcopy(self.module).train()
        for layer in module.modules():
            if type(layer) is nn.Linear:
                layer.__class__ = _Linear  # the same parameters, another forward
        return module

    @cached_property
    def _inference(self) -> nn.Module:
        return deepcopy(self.module).eval()

    def vector(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The vector of tensors by name, as `Record.state_dict()` gives them."""
        return torch.cat([tensors[name].flatten() for name in self.names])

    def batch_loss(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The batch's loss in training mode, and the buffers after it (empty without buffers)."""
        losses, buffers = self.row_losses(w, batch)
        return (losses * batch.weight).sum(), buffers

    def row_losses(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The losses (B,) of the rows in training mode, and the buffers after them."""
        tensors = self.tensors(w)
        # BatchNorm writes its statistics in place: give it copies.
        buffers = {name: tensors[name].detach().clone() for name in self._buffer_names}
        counters = {name: b.to(w.device, copy=True) for name, b in self._counters.items()}
        outputs = self._call(self._training, tensors | buffers | counters, batch.inputs)
        y = self.scaled(batch.y)
        if self.loss == "cox":  # padding is in nobody's risk set: it left before all others
            y = torch.where(batch.weight[:, None] > 0, y, -torch.inf).nan_to_num(neginf=-1e30)
        losses = self.losses(outputs, y)
        if not buffers:
            return losses, w.new_empty(0)
        return losses, torch.cat([buffer.flatten() for buffer in buffers.values()])

    def with_statistics(self, w: Tensor, x: Inputs) -> Tensor:
        """The vector with the buffers of BatchNorm replaced by the statistics of these rows."""
        n = self.num_trainable
        tensors = self.tensors(w)
        buffers = {name: tensors[name].detach().clone() for name in self._buffer_names}
        counters = {name: b.clone() for name, b in self._counters.items()}
        with torch.no_grad():
            self._call(self._estimating, tensors | buffers | counters, x)
        return torch.cat([w[:n], *(buffer.flatten() for buffer in buffers.values())])

    @cached_property
    def _estimating(self) -> nn.Module:
        """In training mode, with running statistics that forget everything before."""
        module = deepcopy(self.module).eval()
        for layer in module.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.train()
                layer.momentum = 1.0
        return module

    @cached_property
    def _counters(self) -> dict[str, Tensor]:
        return {name: b for name, b in self.module.named_buffers() if not b.is_floating_point()}

    @cached_property
    def _buffer_names(self) -> tuple[str, ...]:
        trainable = sum(p.requires_grad for p in self.module.parameters())
        return self.names[trainable:]

    def outputs(self, w: Tensor, x: Inputs) -> Tensor:
        """The model's outputs in evaluation mode, in the units of the labels."""
        return self.in_units(self.raw_outputs(w, x))

    def scaled(self, y: Tensor) -> Tensor:
        """The labels as the module is trained on them."""
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
        """A score by name. R^2 is against the variance of the target where that is known."""
        if self.own_score is not None and name == self.score:
            return self.own_score.score()
        variance = self.variance
        if variance is None and self.target is not None and not self.log_target:
            variance = self.target[1] ** 2
        return scores.find(name, variance)

    def _call(self, module: nn.Module, tensors: dict[str, Tensor], x: Inputs) -> Tensor:
        if x.device.type != "cpu":
            tensors = self._fixed(x.device) | tensors
        args, kwargs = self.arguments(x)
        result = functional_call(module, tensors, args, kwargs, tie_weights=self._tied)
        return pick_outputs(result, self.output)

    def arguments(self, x: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """The positional and keyword arguments with which the module is called.

        Several inputs are given as they are: some may be masks or positions.
        """
        taken = x if isinstance(x, Tensor | Stacked) else x[:]
        if isinstance(taken, Tensor):
            return (self.ready_tensor(taken),), {}
        assert isinstance(taken, Stacked)
        return taken.arguments()

    def _fixed(self, device: torch.device) -> dict[str, Tensor]:
        """The module's tensors that are not in the vector, on the device where it computes."""
        if device not in self._fixed_on:
            everything = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
            others = everything.keys() - set(self.names)
            self._fixed_on[device] = {n: everything[n].detach().to(device) for n in others}
        return self._fixed_on[device]

    @cached_property
    def _fixed_on(self) -> dict[torch.device, dict[str, Tensor]]:
        return {}

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
    def _takes_tokens(self) -> bool:
        return self._has_layer(nn.Embedding, nn.EmbeddingBag)

    @cached_property
    def has_batchnorm(self) -> bool:
        return self._has_layer(nn.modules.batchnorm._BatchNorm)

    def _has_layer(self, *kinds: type[nn.Module]) -> bool:
        return any(isinstance(layer, kinds) for layer in self.module.modules())

    @cached_property
    def _tied(self) -> bool:
        """Whether two names share a parameter: to search at every call takes as long as a layer."""
        all_names = list(self.module.named_parameters(remove_duplicate=False))
        return len(all_names) > len(list(self.module.parameters()))

    def evaluate_rows(self, w: Tensor, x: Inputs, y: Tensor) -> tuple[Tensor, Tensors]:
        """Each row's loss (N,), and its statistics (N, c) for every score by name, on the CPU."""
        return self.row_results(self.raw_outputs(w, x), y)

    def raw_outputs(self, w: Tensor, x: Inputs) -> Tensor:
        """The module's outputs in evaluation mode, as it was trained to give them."""
        return self._call(self._inference, self.tensors(w), x)

    def row_results(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensors]:
        """The same from the module's outputs (N, c)."""
        if self.loss == "cox":  # rows of other clients are no risk set: see `mean_losses`
            outputs, y = outputs.cpu(), y.cpu()
            stats = {name: self.find_score(name).row_stats(outputs, y) for name in self.scores}
            return scores.survival_stats(outputs, y), stats
        # First the losses: they say where outputs do not fit.
        losses = self.losses(outputs, self.scaled(y)).cpu()
        # Scores are in float64, which not every device has.
        outputs, y = self.in_units(outputs).cpu(), y.cpu()
        return losses, {name: self.find_score(name).row_stats(outputs, y) for name in self.scores}

    def mean_losses(self, losses: Tensor, offsets: Tensor) -> Tensor:
        """The mean loss of each client (K,), of what `evaluate_rows` gives by row."""
        if self.loss != "cox":
            return scores.mean_by_client(losses, offsets)
        values = []
        for a, b in pairwise(offsets.tolist()):
            risk, label = losses[a:b, :1], losses[a:b, 1:]
            values.append(LOSSES["cox"](risk, label).mean())
        return torch.stack(values)

    def undefined(self, y: Tensor, offsets: Tensor) -> list[int]:
        """The clients with rows whose main score is undefined."""
        own_variance = self.score == "r2" and self.target is None and self.variance is None
        return scores.undefined("r2-own" if own_variance else self.score, y, offsets)

    @cached_property
    def _widths(self) -> dict[torch.Size, int]:
        return {}

    def width(self, x: Inputs) -> int:
        """The numbers that a sample of x and its activations hold, the same on every machine."""
        shape = x.shape[1:]
        if shape not in self._widths:
            row = zeros_like(x, 1)
            args, kwargs = self.arguments(row)
            activations = _count_activations(deepcopy(self._inference), args, kwargs)
            self._widths[shape] = activations + sum(value.numel() for value in leaves(row))
        return self._widths[shape]

    @cached_property
    def has_dropout(self) -> bool:
        """Whether a layer draws random numbers in training."""
        return any(_draws(layer) for layer in self.module.modules())

    @cached_property
    def _drawing(self) -> dict[torch.Size, bool]:
        return {}

    def draws_inside(self, x: Inputs) -> bool:
        """Whether training on samples like x draws random numbers, in a layer or in a forward."""
        shape = x.shape[1:]
        if shape not in self._drawing:
            args, kwargs = self.arguments(zeros_like(x, 2))
            with torch.no_grad(), shared_generator() as generator:
                before = generator.get_state()
                deepcopy(self.module).train()(*args, **kwargs)
                self._drawing[shape] = self.has_dropout or not generator.get_state().equal(before)
        return self._drawing[shape]


class InUnits(nn.Module):
    """A module that was trained on a scaled target, with outputs in the target's units."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, module: nn.Module, mean: float, deviation: float, log: bool = False) -> None:
        super().__init__()
        self.module = module
        self.log = log  # whether mean and deviation are of the target's logarithm
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("deviation", torch.tensor(deviation))

    def forward(self, *x: Tensor, **named: Tensor) -> Tensor:
        outputs: Tensor = self.mean + self.deviation * self.module(*x, **named)
        return outputs.exp() if self.log else outputs


class _Linear(nn.Linear):
    """W x' instead of x W': under vmap the weight's gradient then needs no copy to its layout."""

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim != 2:
            return super().forward(input)
        outputs = (self.weight @ input.mT).mT
        return outputs if self.bias is None else outputs + self.bias


@runtime_checkable
class _Resettable(Protocol):
    """A layer that draws its own parameters, as those of torch.nn do."""

    def reset_parameters(self) -> None: ...


def _resettable(module: nn.Module) -> Iterator[tuple[nn.Module, Callable[[], None]]]:
    """The layers that can be initialised again, and how: a layer after those inside it."""
    for child in module.children():
        yield from _resettable(child)
    if any(not p.requires_grad for p in module.parameters(recurse=False)):
        return
    if isinstance(module, nn.MultiheadAttention | nn.Transformer):
        yield module, module._reset_parameters
    elif isinstance(module, _Resettable):
        yield module, module.reset_parameters


def _draws(layer: nn.Module) -> bool:
    """Whether a layer draws random numbers in training."""
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        return layer.p > 0
    if isinstance(layer, nn.RNNBase | nn.MultiheadAttention):
        return layer.dropout > 0
    return isinstance(layer, nn.RReLU)


def _count_activations(
    module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]
) -> int:
    """The numbers that the layers of a module give for its arguments."""
    count = 0

    def add(_module: nn.Module, _inputs: object, output: object) -> None:
        nonlocal count
        outputs = output if isinstance(output, tuple) else (output,)
        count += sum(value.numel() for value in outputs if isinstance(value, Tensor))

    for layer in module.modules():
        if not list(layer.children()):
            layer.register_forward_hook(add)
    with torch.no_grad():
        module(*args, **kwargs)
    return count
