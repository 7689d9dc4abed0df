"""The closed form for stacks of linear layers: objectives of a group of clients without autograd.

Speed lives here: a step is a few batched matrix products, without autograd and vmap, and changes
the models in place. The numbers are those of `AutogradTrainer` up to rounding. Which tasks are
dense stacks is decided by their modules and their loss alone; which objectives are supported by
`DenseTrainer.of` alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn

from commonweal.base.tensors import Tensors
from commonweal.data.rows import CLASSIFICATION, REGRESSION
from commonweal.task.task import Batch, Task
from commonweal.training.objective import At, Between, Objective, Point, Proximal, Reduction
from commonweal.training.optimizers import Optimizer
from commonweal.training.trainer import EMPTY, Memory, Steps, Trainer

CLOSED = (*CLASSIFICATION, *REGRESSION)  # losses whose derivative is written down here


class Layer(NamedTuple):
    """A linear layer, where its tensors begin in the model's vector, and whether a ReLU follows."""

    outputs: int
    inputs: int
    weight: int
    bias: int | None
    relu: bool


class Affine(NamedTuple):
    """The tensors of a layer of a group, as views of the models (S, d); or of one model (d,)."""

    weight: Tensor  # (S, outputs, inputs), or (outputs, inputs)
    bias: Tensor | None  # (S, 1, outputs), or (1, outputs)
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
        """The layers of the models (S, d), or of one (d,): a change of them changes the models."""
        return [_affine(w, layer) for layer in self.layers]

    def outputs(self, w: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of the clients' models (S, d) for their samples, (S, B, outputs)."""
        return forward(self.views(w), self.inputs(x))[1]

    def gradients(
        self, layers: Sequence[Affine], batch: Batch, reduction: Reduction, lowest: int = 0
    ) -> Gradients:
        """The gradients of the losses down to the layer `lowest`.

        The layers are those of the models, or of one model for all clients. The batch has the
        inputs of the first of them.
        """
        inputs, predictions = forward(layers, batch.x)
        grad = self.output_gradients(predictions, batch, reduction)
        outputs = [grad] * len(layers)  # those below `lowest` are never used
        for k in reversed(range(lowest, len(layers) - 1)):
            above = layers[k + 1].weight
            grad = torch.bmm(grad, above) if above.ndim == 3 else grad @ above
            if layers[k].relu:
                grad.mul_(inputs[k + 1] > 0)
            outputs[k] = grad
        return Gradients(inputs, outputs, predictions)

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
        grad = _loss_gradients(self.task.loss, outputs, y[..., None])
        return grad.mul_(factors[..., None])


def _loss_gradients(loss: str, outputs: Tensor, y: Tensor) -> Tensor:
    """The derivatives of the samples' losses by outputs (S, B, outputs), for labels (S, B, 1)."""
    if loss == "cross-entropy":
        grad = outputs.softmax(-1)
        minus_one = grad.new_full((), -1.0).expand(y.shape)
        return grad.scatter_add_(-1, y, minus_one)
    if loss == "binary":
        return outputs.sigmoid() - y
    if loss == "poisson":
        return outputs.exp() - y
    error = outputs - y
    if loss == "huber":
        return error.clamp(-1, 1)
    return error.sign() if loss == "absolute" else 2 * error


@lru_cache(maxsize=16)
def dense_stack(task: Task) -> DenseStack | None:
    """The task as a dense stack; None: its module or its loss is another one."""
    if task.loss not in CLOSED:
        return None
    layers = _layers(task)
    return None if layers is None else DenseStack(task, layers)


@lru_cache(maxsize=64)
def _active_layers(stack: DenseStack, mask: Tensor | None) -> tuple[bool, ...] | None:
    """Return the layers that a mask (d,) has as a whole (no mask: all); None: it has parts of some.

    Remembered by the tensor, not by its values: masks are never changed.
    """
    if mask is None:
        return (True,) * len(stack.layers)
    active = []
    for layer in stack.layers:
        tensors = _affine(mask, layer).tensors
        some = any(bool(part.any()) for part in tensors)
        if some and not all(bool(part.all()) for part in tensors):
            return None
        active.append(some)
    return tuple(active)


@dataclass(frozen=True, eq=False)
class DenseTrainer(Trainer):
    """Evaluates an objective in closed form."""

    stack: DenseStack
    active: tuple[bool, ...]  # whether each layer moves

    @classmethod
    def of(
        cls, task: Task, objective: Objective, optimizer: Optimizer, mask: Tensor | None
    ) -> "DenseTrainer | None":
        """A trainer of some coordinates; None: this needs autograd. The only place that decides."""
        stack = dense_stack(task) if task.precision == "float32" else None
        if stack is None or not _supports(objective, optimizer):
            return None
        active = _active_layers(stack, mask)
        if active is None or not any(active) or (objective.pairs and not all(active)):
            return None
        return cls(objective, optimizer, mask, stack, active)

    def on(self, vectors: Tensors, memory: Memory) -> "DenseSteps":
        return DenseSteps(self, vectors, memory)

    def ready(self, batch: Batch) -> Batch:
        return batch._replace(inputs=self.stack.inputs(batch.x))

    @property
    def first_is_shared(self) -> bool:
        """Return whether the first step from the received model is lr times samples' gradient."""
        objective, optimizer = self.objective, self.optimizer
        if objective.at != (At("w"),) or not all(self.active):
            return False
        if objective.steps != 1 or objective.after is not None:
            return False
        for term in objective.proximal:
            is_flat = not term.strength or term.anchor == "received"
            if term.linear is not None or not is_flat:
                return False
        return optimizer.is_plain and not optimizer.momentum and not optimizer.weight_decay

    @torch.no_grad()
    def first_updates(
        self, received: Tensor, batch: Batch, place: Tensor | None, watched: Tensor
    ) -> Tensor:
        update = place
        if update is None:
            update = received.new_empty(len(batch.y), len(received))
        # The weights are the same for all clients: each layer is one product for the group.
        model = self.stack.views(received)
        grads = self.stack.gradients(model, batch, self.objective.reduction)
        layers = self.stack.views(update)
        for layer, inputs, grad in zip(layers, grads.inputs, grads.outputs, strict=True):
            _add(layer, inputs, grad, beta=0.0, alpha=self.optimizer.lr)
        if len(watched):
            watched[0] = self.stack.mean_losses(grads.predictions, batch)
        return update

    @cached_property
    def terms(self) -> dict[str, Proximal]:
        """The proximal term of each trained vector."""
        terms = {name: Proximal(name) for name in self.objective.trained}
        return terms | {term.vector: term for term in self.objective.proximal}

    @cached_property
    def pair(self) -> Between | None:
        """The two vectors between which the loss is taken."""
        return self.objective.pairs[0] if self.objective.pairs else None


def _supports(objective: Objective, optimizer: Optimizer) -> bool:
    """Return whether steps of this objective are written down here, for whole layers."""
    if objective.custom is not None:
        return False
    located: set[str] = set()
    for point in objective.at:
        located.update(point.trains)
    for term in objective.proximal:  # one for each vector with a loss
        if term.vector not in located:
            return False
        located.remove(term.vector)
        if {term.anchor, term.linear} & set(objective.trained):  # vectors move one after another
            return False
    if not objective.pairs:
        return True
    pair, *others = objective.pairs
    supports_angle = len(objective.at) == 1 and pair.first_trains and optimizer.is_plain
    return not others and (supports_angle or not pair.angle)


class DenseSteps(Steps):
    """The steps of some clients, on views of their vectors that are made once."""

    def __init__(self, trainer: DenseTrainer, vectors: Tensors, memory: Memory) -> None:
        self.trainer = trainer
        self.vectors = vectors
        self.memory = memory
        self.layers: dict[str, list[Affine]] = {}
        self.velocity: dict[str, list[Affine] | None] = {}
        for name, term in trainer.terms.items():
            for vector in (name, term.anchor, term.linear):
                if vector is not None:
                    self.layers[vector] = trainer.stack.views(vectors[vector])
            velocity = memory[name].get("velocity")
            self.velocity[name] = None if velocity is None else trainer.stack.views(velocity)
        self.mixed = EMPTY
        if trainer.pair is not None:
            first = vectors[trainer.pair.first]
            self.layers[trainer.pair.first] = trainer.stack.views(first)
            self.mixed = torch.empty_like(first)

    @torch.no_grad()
    def __call__(self, batch: Batch, noise: Tensor, first: bool, losses: bool) -> Tensor | None:
        trainer = self.trainer
        objective = trainer.objective
        predictions: dict[Point, Tensor] = {}
        grads: dict[str, list[Gradients]] = {name: [] for name in trainer.terms}
        pair = trainer.pair
        m_gradient: Tensor | None = None
        is_rotated = pair is not None and pair.angle != 0  # then nothing but the pair is trained
        if pair is not None:  # before anything moves
            m_gradient = self._pair_gradients(pair, batch, noise, grads, first and pair.learns)
            predictions[pair] = grads[pair.second][-1].predictions
            if is_rotated:
                self._rotate(pair)
        lowest = trainer.active.index(True)
        for name, parts in grads.items():  # vector by vector, as long as it is in the cache
            point = At(name)
            if point in objective.at:
                layers = self.layers[name]
                parts.append(trainer.stack.gradients(layers, batch, objective.reduction, lowest))
                predictions[point] = parts[-1].predictions
            self._descend(name, parts, is_rotated)
        if m_gradient is not None and pair is not None and isinstance(pair.m, str):
            self.vectors[pair.m].sub_(trainer.optimizer.lr * m_gradient).clamp_(0, 1)
        if not losses:
            return None
        return trainer.stack.mean_losses(predictions[objective.at[0]], batch)

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
        first, second = self.layers[pair.first], self.layers[pair.second]
        m = self._coefficients(pair, noise)  # (layers, S, 1, 1)
        layers = stack.views(mixed)
        for k, layer in enumerate(layers):
            ends = zip(first[k].tensors, second[k].tensors, strict=True)
            for (a, b), point in zip(ends, layer.tensors, strict=True):
                torch.lerp(a, b, m[k], out=point)
        reduction = self.trainer.objective.reduction
        inputs, outputs, predictions = stack.gradients(layers, batch, reduction)
        by_second = [grad * m[k] for k, grad in enumerate(outputs)]
        grads[pair.second].append(Gradients(inputs, by_second, predictions))
        if pair.first_trains:
            by_first = [grad - by_second[k] for k, grad in enumerate(outputs)]
            grads[pair.first].append(Gradients(inputs, by_first, predictions))
        if not derivative:
            return None
        total = mixed.new_zeros(len(mixed), 1)
        for k, grad in enumerate(outputs):
            change = _outputs(second[k], inputs[k]) - _outputs(first[k], inputs[k])
            total += (change * grad).sum((1, 2))[:, None]
        return total

    def _coefficients(self, pair: Between, noise: Tensor) -> Tensor:
        """The mixing coefficients (layers, S, 1, 1) of a pair."""
        if pair.m == "noise":
            m = noise
        elif isinstance(pair.m, str):
            m = self.vectors[pair.m]
        else:
            m = self.mixed.new_full((1, 1), pair.m)
        by_layer = m.expand(len(self.mixed), len(self.trainer.stack.layers))
        return by_layer.T[..., None, None]

    def _rotate(self, pair: Between) -> None:
        """Apply what is linear in both vectors of a pair: angle, weight decay and strength.

        With c = <a, b>, A = |a|^2 and B = |b|^2 the gradient of c^2 / AB by a is
        2c / AB (b - c / A a).
        """
        optimizer = self.trainer.optimizer
        a, b = self.vectors[pair.first], self.vectors[pair.second]
        before = self.mixed.copy_(a)
        cross = _inner(a, b)
        square_a = torch.linalg.vector_norm(a, dim=1, keepdim=True).square()
        square_b = torch.linalg.vector_norm(b, dim=1, keepdim=True).square()
        both = square_a * square_b
        off = 2 * pair.angle * cross / both.clamp(min=1e-12)  # as in objective_value
        for name, other, square in ((pair.first, b, square_a), (pair.second, before, square_b)):
            v = self.vectors[name]
            factor = torch.where(both < 1e-12, 0.0, -off * cross / square)
            factor = factor + (optimizer.weight_decay + self.trainer.terms[name].strength)
            velocity = self.memory[name].get("velocity")
            if velocity is None:
                v.mul_(1 - optimizer.lr * factor).addcmul_(other, -optimizer.lr * off)
            else:
                velocity.mul_(optimizer.momentum).addcmul_(v, factor).addcmul_(other, off)

    def _descend(self, name: str, parts: list[Gradients], rotated: bool) -> None:
        """Move the active layers of a vector. rotated: what `_rotate` applies is done already"""
        optimizer = self.trainer.optimizer
        term = self.trainer.terms[name]
        velocity = self.velocity[name]
        decay = 0.0 if rotated else optimizer.weight_decay + term.strength
        if not optimizer.is_plain:
            self._descend_by_gradient(name, parts)
        elif velocity is None:  # the layer itself takes the terms, times -lr
            for k, layer in self._moving(name):
                _add_all(layer, parts, k, 1 - optimizer.lr * decay, -optimizer.lr)
                self._add_constants(layer, term, k, -optimizer.lr)
        else:
            keep = 1.0 if rotated else optimizer.momentum
            for k, layer in self._moving(name):
                _add_all(velocity[k], parts, k, keep, 1.0)
                if decay:
                    _add_layer(velocity[k], layer, decay)
                self._add_constants(velocity[k], term, k, 1.0)
                _add_layer(layer, velocity[k], -optimizer.lr)

    def _descend_by_gradient(self, name: str, parts: list[Gradients]) -> None:
        """Write the gradient of a vector, and leave the step to the optimizer."""
        trainer = self.trainer
        term = trainer.terms[name]
        vector = self.vectors[name]
        grads = torch.zeros_like(vector)
        places = trainer.stack.views(grads)
        for k, layer in self._moving(name):
            _add_all(places[k], parts, k, 0.0, 1.0)
            if term.strength:
                _add_layer(places[k], layer, term.strength)
            self._add_constants(places[k], term, k, 1.0)
        mask = None if trainer.mask is None else trainer.mask.to(vector.device)
        trainer.optimizer.step(vector, grads, self.memory[name], mask)

    def _moving(self, name: str) -> Iterator[tuple[int, Affine]]:
        """The layers of a vector that move, with their numbers."""
        for k, layer in enumerate(self.layers[name]):
            if self.trainer.active[k]:
                yield k, layer

    def _add_constants(self, target: Affine, term: Proximal, k: int, factor: float) -> None:
        """Add what the gradient of a proximal term has in addition to the vector itself."""
        if term.anchor is not None and term.strength:
            _add_layer(target, self.layers[term.anchor][k], -factor * term.strength)
        if term.linear is not None:
            _add_layer(target, self.layers[term.linear][k], factor)


def _layers(task: Task) -> tuple[Layer, ...] | None:
    """The layers of a stack of Flatten, Linear and ReLU that ends in Linear; None: another one."""
    parts = _parts(task.module, "")
    begin = dict(zip(task.names, accumulate(task.sizes, initial=0), strict=False))
    layers: list[Layer] = []
    first = parts[0][1]
    if type(first) is nn.Flatten and (first.start_dim, first.end_dim) == (1, -1):
        parts = parts[1:]
    for name, part in parts:
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
    parts = []
    for key, child in module.named_children():
        parts += _parts(child, f"{name}{key}.")
    return parts


def _affine(w: Tensor, layer: Layer) -> Affine:
    size = layer.outputs * layer.inputs
    flat = w[..., layer.weight : layer.weight + size]
    weight = flat.view(*w.shape[:-1], layer.outputs, layer.inputs)
    bias = None
    if layer.bias is not None:
        bias = w[..., None, layer.bias : layer.bias + layer.outputs]
    return Affine(weight, bias, layer.relu)


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
    """Return the outputs of a layer, before a ReLU."""
    if layer.weight.ndim == 2:  # of one model for all clients
        bias = None if layer.bias is None else layer.bias[0]
        return nn.functional.linear(x, layer.weight, bias)
    if layer.bias is None:
        return torch.bmm(x, layer.weight.mT)
    return torch.baddbmm(layer.bias, x, layer.weight.mT)


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """The inner products (S, 1) of vectors (S, d), by far the fastest way without a temporary."""
    return torch.stack([torch.dot(x, y) for x, y in zip(a, b, strict=True)])[:, None]


def _add(target: Affine, inputs: Tensor, grad: Tensor, beta: float, alpha: float) -> None:
    """Set a layer to beta times itself plus alpha times its gradient, in place."""
    target.weight.baddbmm_(grad.mT, inputs, beta=beta, alpha=alpha)
    if target.bias is None:
        return
    total = grad.sum(1, keepdim=True)
    if not beta:  # the bias may not be set yet
        torch.mul(total, alpha, out=target.bias)
        return
    if beta != 1:
        target.bias.mul_(beta)
    target.bias.add_(total, alpha=alpha)


def _add_all(target: Affine, parts: list[Gradients], k: int, beta: float, alpha: float) -> None:
    """Set layer k to beta times itself plus alpha times the sum of its gradients, in place."""
    for part in parts:
        _add(target, part.inputs[k], part.outputs[k], beta, alpha)
        beta = 1.0


def _add_layer(target: Affine, layer: Affine, factor: float) -> None:
    """Add a multiple of another layer to a layer, in place."""
    for value, other in zip(target.tensors, layer.tensors, strict=True):
        value.add_(other, alpha=factor)
