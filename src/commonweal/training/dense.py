"""The closed form for stacks of linear layers: objectives of a group of clients without autograd.

Speed lives here: a step is a few batched matrix products, without autograd and vmap, and changes
the models in place. The numbers are those of `AutogradTrainer` up to rounding. Which tasks are
dense stacks is decided by their modules and their loss alone; which objectives are supported by
`DenseTrainer.of` alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from commonweal.base.tensors import Tensors
from commonweal.data.rows import CLASSIFICATION, REGRESSION, Rows
from commonweal.training.objective import At, Between, Objective, Phase, Point, Proximal, Reduction
from commonweal.training.optimizers import Optimizer
from commonweal.training.task import Batch, Task

__all__ = ["Affine", "DenseStack", "DenseSteps", "DenseTrainer", "Features", "Layer"]
__all__ += ["dense_stack", "forward"]

CLOSED = (*CLASSIFICATION, *REGRESSION)  # losses whose derivative is written down here


class Layer(NamedTuple):
    """A linear layer, where its tensors begin in the model's vector, and whether a ReLU follows."""

    outputs: int
    inputs: int
    weight: int
    bias: int | None
    relu: bool


class Affine(NamedTuple):
    """The tensors of a layer of a group, as views of the models (S, d)."""

    weight: Tensor  # (S, outputs, inputs)
    bias: Tensor | None  # (S, 1, outputs)
    relu: bool

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


class Gradients(NamedTuple):
    """The gradients of a group's losses by layers, as factors of outer products."""

    inputs: list[Tensor]  # (S, B, inputs) of each layer
    outputs: list[Tensor]  # (S, B, outputs) the derivatives of the losses by its outputs
    predictions: Tensor  # (S, B, outputs) what the last layer gives


@dataclass(frozen=True, eq=False)
class DenseStack:
    """A task whose module is a stack of linear layers, for groups of models (S, d)."""

    task: Task
    layers: tuple[Layer, ...]

    def inputs(self, x: Tensor) -> Tensor:
        """The inputs of the first layer (S, B, inputs) from samples (S, B, ...)."""
        return self.task.ready_tensor(x).flatten(2)

    def views(self, w: Tensor) -> list[Affine]:
        """The layers of the models (S, d): a change of them changes the models."""
        return [_affine(w, layer) for layer in self.layers]

    def outputs(self, w: Tensor, x: Tensor) -> Tensor:
        """What the clients' models (S, d) give for their samples, (S, B, outputs)."""
        return forward(self.views(w), self.inputs(x))[1]

    def active_layers(self, mask: Tensor | None) -> tuple[bool, ...] | None:
        """Which layers a mask (d,) has as a whole (no mask: all); None: it has parts of some."""
        return (True,) * len(self.layers) if mask is None else _active_layers(self, mask)

    def gradients(
        self, layers: Sequence[Affine], batch: Batch, reduction: Reduction, lowest: int = 0
    ) -> Gradients:
        """The gradients of the losses at some models, down to a layer.

        Args:
            layers: The layers of the models, or those from some layer on.
            batch: The inputs of the first of them, labels and weights.
            reduction: How the samples' losses become one.
            lowest: The lowest layer whose gradient is needed.
        """
        inputs, predictions = forward(layers, batch.x)
        grad = self.output_gradients(predictions, batch, reduction)
        grads = [grad]
        for k in reversed(range(lowest + 1, len(layers))):
            grad = _below(layers, inputs, grad, k)
            grads.append(grad)
        grads += [grad] * lowest  # never used
        return Gradients(inputs, grads[::-1], predictions)

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The losses (S, B) of outputs (S, B, outputs), for labels in the model's units."""
        return self.task.losses(outputs.flatten(0, 1), y.flatten()).view(y.shape)

    def mean_losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The mean losses (S,) of batches."""
        losses = self.sample_losses(outputs, self.task.scaled(batch.y))
        return (losses * batch.weight).sum(-1)

    def output_gradients(self, outputs: Tensor, batch: Batch, reduction: Reduction) -> Tensor:
        """The derivatives of the clients' losses by the outputs (S, B, outputs)."""
        y = self.task.scaled(batch.y)
        factors = reduction.sample_weights(lambda: self.sample_losses(outputs, y), batch.weight)
        if self.task.class_weight is not None:
            factors = factors * self.task.weight_of(y)
        if self.task.loss == "cross-entropy":
            grad = outputs.softmax(-1)
            grad.scatter_add_(-1, y[..., None], grad.new_full((), -1.0).expand(*y.shape, 1))
        elif self.task.loss == "binary":
            grad = outputs.sigmoid() - y[..., None]
        elif self.task.loss == "poisson":
            grad = outputs.exp() - y[..., None]
        else:
            grad = _by_error(self.task.loss, outputs - y[..., None])
        return grad.mul_(factors[..., None])

    def shared_gradients(self, w: Tensor, batch: Batch, reduction: Reduction) -> Gradients:
        """The gradients of all clients' losses at the same model (d,).

        The weights are the same for all: what is below a layer is one product for the group.
        """
        layers = self.views(w[None])
        inputs, x = [], batch.x
        for layer in layers:
            inputs.append(x)
            bias = None if layer.bias is None else layer.bias[0, 0]
            x = nn.functional.linear(x, layer.weight[0], bias)
            x = x.relu_() if layer.relu else x
        grads = [self.output_gradients(x, batch, reduction)]
        for k in reversed(range(1, len(layers))):
            grad = grads[-1] @ layers[k].weight[0]
            grads.append(grad.mul_(inputs[k] > 0) if layers[k - 1].relu else grad)
        return Gradients(inputs, grads[::-1], x)


def _by_error(loss: str, error: Tensor) -> Tensor:
    """The derivatives of the losses of errors."""
    if loss == "huber":
        return error.clamp(-1, 1)
    return error.sign() if loss == "absolute" else 2 * error


@lru_cache(maxsize=16)
def dense_stack(task: Task) -> DenseStack | None:
    """The task as a dense stack; None: its module or its loss is another one."""
    layers = _layers(task)
    return None if layers is None or task.loss not in CLOSED else DenseStack(task, layers)


@lru_cache(maxsize=64)
def _active_layers(stack: DenseStack, mask: Tensor) -> tuple[bool, ...] | None:
    """Remembered by the tensor, not by its values: masks are never changed."""
    active = []
    for layer in stack.layers:
        inside = torch.cat([t.flatten() for t in _affine(mask[None], layer).tensors])
        if bool(inside.any()) and not bool(inside.all()):
            return None
        active.append(bool(inside.all()))
    return tuple(active)


class Features:
    """What layers that are not trained give for each sample of some clients."""

    def __init__(self, sizes: np.ndarray, first_row: np.ndarray) -> None:
        self.samples = int(sizes.sum())
        begin = np.cumsum(sizes) - sizes
        self.shift = torch.from_numpy(begin - first_row)[:, None]  # (S, 1)
        self.values: Tensor | None = None

    def write(self, index: Tensor, start: int, outputs: Tensor) -> None:
        """Store the outputs of samples (S, B) of the clients from position `start` on."""
        if self.values is None:
            self.values = outputs.new_empty(self.samples, outputs.shape[-1])
        self.values[self._places(index, start)] = outputs

    def read(self, index: Tensor, start: int) -> Tensor:
        """What was written for these samples."""
        assert self.values is not None  # the first epoch writes them
        return self.values[self._places(index, start)]

    def _places(self, index: Tensor, start: int) -> Tensor:
        return index + self.shift[start : start + len(index)].to(index.device)


@dataclass(frozen=True, eq=False)
class DenseTrainer:
    """Evaluates an objective in closed form, for the coordinates of one phase of a round.

    Attributes:
        stack: The model.
        objective: What is minimised.
        optimizer: How vectors move.
        mask: The coordinates (d,) that move. None: all of them.
        active: Whether each layer moves.
        frozen: How many of the lowest layers no phase has moved so far: what they give for a sample
            is computed once.
        features: What these layers give.
    """

    stack: DenseStack
    objective: Objective
    optimizer: Optimizer
    mask: Tensor | None
    active: tuple[bool, ...]
    frozen: int
    features: Features

    @classmethod
    def of(
        cls,
        task: Task,
        objective: Objective,
        optimizer: Optimizer,
        phases: tuple[Phase, ...],
        features: Features,
    ) -> "tuple[DenseTrainer, ...] | None":
        """A trainer for every phase; None: this needs autograd. The only place that decides."""
        stack = dense_stack(task)
        if stack is None or not _supports(objective, optimizer):
            return None
        active = [stack.active_layers(phase.trains) for phase in phases]
        trainers: list[DenseTrainer] = []
        for phase, layers in zip(phases, active, strict=True):
            if layers is None or not any(layers):  # a mask cuts a layer, or leaves none
                return None
            pair = next((p for p in objective.at if isinstance(p, Between)), None)
            if pair is not None and not all(layers):
                return None
            lowest = layers.index(True)
            frozen = lowest if not trainers else trainers[-1].frozen
            frozen = frozen if lowest >= frozen else 0
            trainers.append(
                cls(stack, objective, optimizer, phase.trains, layers, frozen, features)
            )
        return tuple(trainers)

    def on(self, vectors: Tensors, memory: dict[str, Tensors], start: int) -> "DenseSteps":
        """The steps of neighbouring clients from position `start` on, in place.

        Args:
            vectors: The clients' vectors (S, ...) by name.
            memory: What the optimizer remembers of each vector.
            start: The position of the first client.
        """
        return DenseSteps(self, vectors, memory, start)

    @property
    def first_is_shared(self) -> bool:
        """Whether the first step from the received model is lr times the samples' gradient."""
        o = self.objective
        terms = all(t.linear is None and t.anchor in (None, "received") for t in o.proximal)
        once = o.at == (At("w"),) and o.steps == 1 and o.after is None
        plain = self.optimizer.is_plain and not self.optimizer.momentum
        return terms and once and plain and not self.optimizer.weight_decay and all(self.active)

    @torch.no_grad()
    def first_updates(
        self, received: Tensor, batch: Batch, place: Tensor | None, losses: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The updates (S, d) after that first step, where all clients start at one model (d,).

        Args:
            received: The model.
            batch: The clients' batches.
            place: Where the updates are written. None: to a new tensor.
            losses: Whether the mean losses (S,) of the batches are returned along with them.
        """
        update = received.new_empty(len(batch.y), len(received)) if place is None else place
        batch = batch._replace(inputs=self.stack.inputs(batch.x))
        grads = self.stack.shared_gradients(received, batch, self.objective.reduction)
        layers = self.stack.views(update)
        for layer, inputs, grad in zip(layers, grads.inputs, grads.outputs, strict=True):
            _add(layer, inputs, grad, beta=0.0, alpha=self.optimizer.lr)
        return update, self.stack.mean_losses(grads.predictions, batch) if losses else None

    @cached_property
    def terms(self) -> dict[str, Proximal]:
        """The proximal term of each trained vector."""
        terms = {name: Proximal(name) for name in self.objective.trained}
        return terms | {term.vector: term for term in self.objective.proximal}

    @cached_property
    def pair(self) -> Between | None:
        """The two vectors between which the loss is taken."""
        return next((p for p in self.objective.at if isinstance(p, Between)), None)


def _supports(objective: Objective, optimizer: Optimizer) -> bool:
    """Whether steps of this objective are written down here, for whole layers."""
    vectors = [term.vector for term in objective.proximal]
    anchors = {term.anchor for term in objective.proximal}
    located = {name for point in objective.at for name in point.trains}
    if objective.custom is not None or len(set(vectors)) < len(vectors):
        return False
    if not located.issuperset(vectors):
        return False
    if anchors & set(objective.trained):  # vectors move one after the other
        return False
    pairs = [point for point in objective.at if isinstance(point, Between)]
    if not pairs:
        return True
    (pair,) = pairs[:1]
    alone = len(objective.at) == 1 and pair.first_trains and optimizer.is_plain
    return len(pairs) == 1 and (alone or not pair.angle)


class DenseSteps:
    """The steps of some clients, on views of their vectors that are made once."""

    def __init__(
        self,
        trainer: DenseTrainer,
        vectors: Tensors,
        memory: dict[str, Tensors],
        start: int,
    ) -> None:
        self.trainer = trainer
        self.vectors = vectors
        self.memory = memory
        self.start = start
        self.layers: dict[str, list[Affine]] = {}
        self.velocity: dict[str, list[Affine] | None] = {}
        for name, term in trainer.terms.items():
            for v in filter(None, (name, term.anchor, term.linear)):
                self.layers[v] = trainer.stack.views(vectors[v])[trainer.frozen :]
            velocity = memory[name].get("velocity") if trainer.optimizer.is_plain else None
            views = None if velocity is None else trainer.stack.views(velocity)[trainer.frozen :]
            self.velocity[name] = views
        self.active = trainer.active[trainer.frozen :]
        self.mixed: Tensor | None = None
        if trainer.pair is not None:
            first = trainer.pair.first
            self.layers[first] = trainer.stack.views(vectors[first])
            self.mixed = torch.empty_like(vectors[first])

    def inputs(self, rows: Rows, index: Tensor, epoch: int) -> Tensor:
        """The inputs (S, B, inputs) of the lowest layer that moves, for samples (S, B)."""
        trainer = self.trainer
        if not trainer.frozen:
            return trainer.stack.inputs(rows.x[index])
        if epoch:
            return trainer.features.read(index, self.start)
        lower = trainer.stack.views(self.vectors["w"])[: trainer.frozen]
        _, outputs = forward(lower, trainer.stack.inputs(rows.x[index]))
        trainer.features.write(index, self.start, outputs)
        return outputs

    @torch.no_grad()
    def __call__(self, batch: Batch, noise: Tensor, first: bool, losses: bool) -> Tensor | None:
        """Take a gradient step on batches (S, B, ...), in place.

        Args:
            batch: The clients' batches, with the inputs of the lowest layer that moves.
            noise: Their random numbers (S, draws).
            first: Whether it is the first step of the round.
            losses: Whether the mean losses (S,) of the batches, before the step, are returned.
        """
        trainer = self.trainer
        objective = trainer.objective
        at: dict[Point, Tensor] = {}  # what the models give at each point
        grads: dict[str, list[Gradients]] = {name: [] for name in trainer.terms}
        derivative: Tensor | None = None
        pair = trainer.pair
        if pair is not None:  # before anything moves
            derivative = self._pair_gradients(pair, batch, noise, grads, first and pair.learns)
            at[pair] = grads[pair.second][-1].predictions
            if pair.angle:
                self._rotate(pair)
        lowest = self.active.index(True)
        for name, parts in grads.items():  # vector by vector, as long as it is in the cache
            if At(name) in objective.at:
                layers = self.layers[name]
                parts.append(trainer.stack.gradients(layers, batch, objective.reduction, lowest))
                at[At(name)] = parts[-1].predictions
            rotated = pair is not None and bool(pair.angle) and name in pair.trains
            self._descend(name, parts, rotated)
        if derivative is not None and pair is not None and isinstance(pair.m, str):
            self.vectors[pair.m].sub_(trainer.optimizer.lr * derivative).clamp_(0, 1)
        return trainer.stack.mean_losses(at[objective.at[0]], batch) if losses else None

    def _pair_gradients(
        self,
        pair: Between,
        batch: Batch,
        noise: Tensor,
        grads: dict[str, list[Gradients]],
        derivative: bool,
    ) -> Tensor | None:
        """Add the gradients of the loss between two vectors to those of each.

        Returns the derivatives (S, 1) of the losses by m, if they are asked for.
        """
        stack = self.trainer.stack
        mixed = self.mixed
        assert mixed is not None  # as there is a pair
        ends = self.layers[pair.first], self.layers[pair.second]
        if pair.m == "noise":
            m = noise
        elif isinstance(pair.m, str):
            m = self.vectors[pair.m]
        else:
            m = mixed.new_full((1, 1), pair.m)
        m = m.expand(len(mixed), len(stack.layers)).T[..., None, None]  # (layers, S, 1, 1)
        layers = stack.views(mixed)
        for at, *tensors in zip(m, *ends, layers, strict=True):
            for a, b, point in zip(*(layer.tensors for layer in tensors), strict=True):
                torch.lerp(a, b, at, out=point)
        reduction = self.trainer.objective.reduction
        inputs, outputs, predictions = stack.gradients(layers, batch, reduction)
        second = [grad * at for grad, at in zip(outputs, m, strict=True)]
        grads[pair.second].append(Gradients(inputs, second, predictions))
        if pair.first_trains:
            rest = [grad - part for grad, part in zip(outputs, second, strict=True)]
            grads[pair.first].append(Gradients(inputs, rest, predictions))
        if not derivative:
            return None
        total = mixed.new_zeros(len(mixed), 1)
        for a, b, x, grad in zip(*ends, inputs, outputs, strict=True):
            total += ((_outputs(b, x) - _outputs(a, x)) * grad).sum((1, 2))[:, None]
        return total

    def _rotate(self, pair: Between) -> None:
        """Apply what is linear in both vectors of a pair: angle, weight decay and strength.

        With c = <a, b>, A = |a|^2 and B = |b|^2 the gradient of c^2 / AB by a is
        2c / AB (b - c / A a).
        """
        optimizer = self.trainer.optimizer
        names = (pair.first, pair.second)
        a, b = (self.vectors[name] for name in names)
        squares = [torch.linalg.vector_norm(v, dim=1, keepdim=True).square() for v in (a, b)]
        cross = _inner(a, b)
        both = squares[0] * squares[1]
        off = 2 * pair.angle * cross / both.clamp(min=1e-12)  # as in objective_value
        before = self.mixed
        assert before is not None  # as there is a pair
        before.copy_(a)
        for name, v, other, square in zip(names, (a, b), (b, before), squares, strict=True):
            own = torch.where(both < 1e-12, 0.0, -off * cross / square)
            own = own + (optimizer.weight_decay + self.trainer.terms[name].strength)
            velocity = self.memory[name].get("velocity")
            if velocity is None:
                v.mul_(1 - optimizer.lr * own).addcmul_(other, -optimizer.lr * off)
            else:
                velocity.mul_(optimizer.momentum).addcmul_(v, own).addcmul_(other, off)

    def _descend(self, name: str, parts: list[Gradients], rotated: bool) -> None:
        """Move the active layers of a vector. rotated: what `_rotate` applies is done already"""
        optimizer = self.trainer.optimizer
        if not optimizer.is_plain:
            self._descend_by_gradient(name, parts)
            return
        term = self.trainer.terms[name]
        layers = self.layers[name]
        velocity = self.velocity[name]
        decay = 0.0 if rotated else optimizer.weight_decay + term.strength
        target = layers if velocity is None else velocity
        # Without a velocity the layer itself takes the terms, times -lr.
        factor = -optimizer.lr if velocity is None else 1.0
        keep = 1 - optimizer.lr * decay
        if velocity is not None:
            keep = 1.0 if rotated else optimizer.momentum
        for k, layer in enumerate(layers):
            if not self.active[k]:
                continue
            _add_all(target[k], parts, k, keep, factor)
            if velocity is not None and decay:
                for v, w in zip(velocity[k].tensors, layer.tensors, strict=True):
                    v.add_(w, alpha=decay)
            self._add_constants(target[k], term, k, factor)
            if velocity is not None:
                for w, v in zip(layer.tensors, velocity[k].tensors, strict=True):
                    w.sub_(v, alpha=optimizer.lr)

    def _descend_by_gradient(self, name: str, parts: list[Gradients]) -> None:
        """Write the gradient of a vector, and leave the step to the optimizer."""
        trainer = self.trainer
        term = trainer.terms[name]
        vector = self.vectors[name]
        grads = torch.zeros_like(vector)
        places = trainer.stack.views(grads)[trainer.frozen :]
        for k, layer in enumerate(self.layers[name]):
            if not self.active[k]:
                continue
            _add_all(places[k], parts, k, 0.0, 1.0)
            if term.strength:
                for grad, w in zip(places[k].tensors, layer.tensors, strict=True):
                    grad.add_(w, alpha=term.strength)
            self._add_constants(places[k], term, k, 1.0)
        mask = None if trainer.mask is None else trainer.mask.to(vector.device)
        trainer.optimizer.step(vector, grads, self.memory[name], mask)

    def _add_constants(self, target: Affine, term: Proximal, k: int, factor: float) -> None:
        """Add what the gradient of a proximal term has beside the vector itself."""
        if term.anchor is not None and term.strength:
            anchor = self.layers[term.anchor][k]
            for v, a in zip(target.tensors, anchor.tensors, strict=True):
                v.sub_(a, alpha=factor * term.strength)
        if term.linear is not None:
            linear = self.layers[term.linear][k]
            for v, slope in zip(target.tensors, linear.tensors, strict=True):
                v.add_(slope, alpha=factor)


def _layers(task: Task) -> tuple[Layer, ...] | None:
    """The layers of a stack of Flatten, Linear and ReLU that ends in Linear; None: another one."""
    parts = _parts(task.module, "")
    begin = dict(zip(task.names, _begins(task.sizes), strict=True))
    layers: list[Layer] = []
    for number, (name, part) in enumerate(parts):
        if type(part) is nn.Flatten and number == 0 and (part.start_dim, part.end_dim) == (1, -1):
            continue
        if type(part) is nn.ReLU and layers and not layers[-1].relu:
            layers[-1] = layers[-1]._replace(relu=True)
        elif type(part) is nn.Linear and f"{name}weight" in begin:
            weight = begin.pop(f"{name}weight")
            bias = None if part.bias is None else begin.pop(f"{name}bias", -1)
            layers.append(Layer(part.out_features, part.in_features, weight, bias, relu=False))
        else:
            return None
    # What is left in `begin` is not of a linear layer; a bias at -1 is not trained.
    if not layers or layers[-1].relu or begin or any(layer.bias == -1 for layer in layers):
        return None
    return tuple(layers)


def _parts(module: nn.Module, name: str) -> list[tuple[str, nn.Module]]:
    """The parts of nested nn.Sequential in order, with the prefix of their parameters' names."""
    if module._forward_hooks or module._forward_pre_hooks:
        return [(name, nn.Identity())]  # a hook may change what the layer computes
    if type(module) is not nn.Sequential:
        return [(name, module)]
    children = [_parts(child, f"{name}{key}.") for key, child in module.named_children()]
    return [part for parts in children for part in parts]


def _begins(sizes: list[int]) -> list[int]:
    return [sum(sizes[:k]) for k in range(len(sizes))]


def _affine(w: Tensor, layer: Layer) -> Affine:
    size = layer.outputs * layer.inputs
    weight = w[:, layer.weight : layer.weight + size].view(-1, layer.outputs, layer.inputs)
    if layer.bias is None:
        return Affine(weight, None, layer.relu)
    return Affine(weight, w[:, None, layer.bias : layer.bias + layer.outputs], layer.relu)


def forward(layers: Sequence[Affine], x: Tensor) -> tuple[list[Tensor], Tensor]:
    """The inputs of every layer, and the outputs of the last one."""
    inputs = []
    for layer in layers:
        inputs.append(x)
        x = _outputs(layer, x)
        if layer.relu:
            x = x.relu_()
    return inputs, x


def _outputs(layer: Affine, x: Tensor) -> Tensor:
    """What a layer gives, before a ReLU."""
    if layer.bias is None:
        return torch.bmm(x, layer.weight.mT)
    return torch.baddbmm(layer.bias, x, layer.weight.mT)


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """The inner products (S, 1) of vectors (S, d), by far the fastest way without a temporary."""
    return torch.stack([torch.dot(x, y) for x, y in zip(a, b, strict=True)])[:, None]


def _below(layers: Sequence[Affine], inputs: list[Tensor], grad: Tensor, k: int) -> Tensor:
    """The derivatives by the outputs of the layer below layer k."""
    below = torch.bmm(grad, layers[k].weight)
    return below.mul_(inputs[k] > 0) if layers[k - 1].relu else below


def _add(target: Affine, inputs: Tensor, grad: Tensor, beta: float, alpha: float) -> None:
    """Set a layer to beta times itself plus alpha times its gradient, in place."""
    target.weight.baddbmm_(grad.mT, inputs, beta=beta, alpha=alpha)
    if target.bias is None:
        return
    total = grad.sum(1, keepdim=True)
    if beta:
        target.bias.mul_(beta).add_(total, alpha=alpha)
    else:  # the bias may not be set yet
        torch.mul(total, alpha, out=target.bias)


def _add_all(target: Affine, parts: list[Gradients], k: int, beta: float, alpha: float) -> None:
    """Set layer k to beta times itself plus alpha times the sum of its gradients, in place."""
    for part in parts:
        _add(target, part.inputs[k], part.outputs[k], beta, alpha)
        beta = 1.0
