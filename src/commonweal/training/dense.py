"""Dense stacks: losses and gradients of linear layers in closed form, for a group of clients.

Speed lives here: a group is a few batched products, without autograd and vmap, and a step of plain
SGD changes the models in place. The numbers are those of autograd up to rounding. Which tasks are
dense stacks is decided by their modules and their loss alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from commonweal.base.tensors import Tensors
from commonweal.training.task import LOSSES, Batch, Task

__all__ = ["Affine", "DenseTask", "Layer", "Pair", "PairTerms", "PlainSGD", "Pulls", "RowFactors"]
__all__ += ["dense_task", "forward"]

# Losses (S, B) and weights (S, B) of rows -> the derivatives of the objectives by these losses
RowFactors = Callable[[Tensor, Tensor], Tensor]

CLOSED = ("cross-entropy", "binary", "squared")  # losses whose derivative is written down here


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


class Pulls(NamedTuple):
    """The gradient strength (v - anchor) + slope, by layers."""

    strength: float = 0.0
    anchor: list[Affine] | None = None
    slope: list[Affine] | None = None

    def of_layer(self, k: int) -> "Pulls":
        anchor = None if self.anchor is None else [self.anchor[k]]
        return Pulls(self.strength, anchor, None if self.slope is None else [self.slope[k]])

    def above(self, k: int) -> "Pulls":
        anchor = None if self.anchor is None else self.anchor[k:]
        return Pulls(self.strength, anchor, None if self.slope is None else self.slope[k:])


class Pair(NamedTuple):
    """Two models of each client that are trained together, and the room that their steps need."""

    models: Tensor  # (S, 2, d)
    other: Tensor  # (S, 2, d): the sums of gradients of a momentum, or the next models
    mixture: Tensor  # (S, d)

    def of(self, clients: int) -> "Pair":
        """The pairs of the first clients."""
        return Pair(*(value[:clients] for value in self))

    def swapped(self) -> "Pair":
        return Pair(self.other, self.models, self.mixture)


class PairTerms(NamedTuple):
    """What the loss of a pair w, v has beside that of the rows.

    pull/2 |w - anchor|^2 + angle cos^2(w, v)
    """

    pull: float = 0.0
    anchor: Tensor | None = None
    angle: float = 0.0


class PlainSGD(NamedTuple):
    """The parameters of torch.optim.SGD."""

    lr: float
    momentum: float
    weight_decay: float


@lru_cache(maxsize=16)
def dense_task(task: Task) -> "DenseTask | None":
    """The task as one of groups, if its module is a stack of linear layers; None: it is not."""
    layers = _layers(task)
    if layers is None or task.loss not in CLOSED:
        return None
    return DenseTask(task.module, task.loss, task.score, task.also, task.target, layers)


@dataclass(frozen=True, eq=False)
class DenseTask(Task):
    """A task whose `batch_loss` takes the models of a group (S, d) and a batch of each, (S, B)."""

    stack: tuple[Layer, ...] = ()

    def batch_loss(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        losses: Tensor = _Loss.apply(w, self, batch)  # type: ignore[no-untyped-call]
        return losses, w.new_empty(len(w), 0)

    def rows(self, x: Tensor) -> Tensor:
        """The inputs of the first layer (S, B, inputs)."""
        return self.ready(x).flatten(2)

    def affine(self, w: Tensor) -> list[Affine]:
        """The layers of the models (S, d): views, so that a change of them changes the models."""
        return [_affine(w, layer) for layer in self.stack]

    def losses_and_gradients(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The clients' losses (S,) and their gradients (S, d)."""
        layers = self.affine(w)
        inputs, outputs = forward(layers, self.rows(batch.x))
        losses = self._row_losses(outputs, self._scaled(batch.y))
        slope = self.slope(outputs, batch)
        grads = torch.empty_like(w)
        targets = self.affine(grads)
        for k in reversed(range(len(layers))):
            _add(targets[k], inputs[k], slope, beta=0.0, alpha=1.0)
            if k:
                slope = _below(layers, inputs, slope, k)
        return (losses * batch.weight).sum(-1), grads

    def evaluate_rows(self, w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensors]:
        """Each row's loss (S, B) by its client's model, and its statistics (S, B, c) by name."""
        _, outputs = forward(self.affine(w), self.rows(x))
        losses, stats = self.row_results(outputs.flatten(0, 1), y.flatten())
        by_client = {name: values.view(*y.shape, -1) for name, values in stats.items()}
        return losses.view(y.shape), by_client

    def layers_in(self, mask: Tensor | None) -> tuple[bool, ...] | None:
        """Which layers a mask (d,) has as a whole (no mask: all); None: it has parts of some."""
        if mask is None:
            return (True,) * len(self.stack)
        found = []
        for layer in self.stack:
            pieces = [mask[layer.weight : layer.weight + layer.outputs * layer.inputs]]
            if layer.bias is not None:
                pieces.append(mask[layer.bias : layer.bias + layer.outputs])
            inside = torch.cat(pieces)
            if bool(inside.any()) and not bool(inside.all()):
                return None
            found.append(bool(inside.all()))
        return tuple(found)

    def first_updates(
        self,
        received: Tensor,
        batch: Batch,
        lr: float,
        update: Tensor,
        factors: RowFactors | None = None,
    ) -> None:
        """Write lr times the clients' gradients at the same model (d,) to `update` (S, d).

        The weights are the same for all: what is below a layer is one product for the group.
        """
        shared = self.affine(received[None])
        inputs, x = [], self.rows(batch.x)
        for layer in shared:
            inputs.append(x)
            bias = None if layer.bias is None else layer.bias[0, 0]
            x = nn.functional.linear(x, layer.weight[0], bias)
            x = x.relu_() if layer.relu else x
        slope = self.slope(x, batch, factors)
        targets = self.affine(update)
        for k in reversed(range(len(shared))):
            _add(targets[k], inputs[k], slope, beta=0.0, alpha=lr)
            if k:
                slope = slope @ shared[k].weight[0]
                slope = slope.mul_(inputs[k] > 0) if shared[k - 1].relu else slope

    def descend(
        self,
        layers: list[Affine],
        velocity: list[Affine] | None,
        active: tuple[bool, ...],
        batch: Batch,
        sgd: "PlainSGD",
        pulls: "Pulls",
        factors: RowFactors | None = None,
    ) -> None:
        """Take a step of SGD in the active layers, in place. `batch.x` are inputs (S, B, inputs).

        velocity: where the sums of gradients are, for a momentum
        pulls: the gradients of what the loss has beside the rows
        factors: what the rows' gradients are multiplied by (None: the rows' weights)
        """
        inputs, outputs = forward(layers, batch.x)
        slope = self.slope(outputs, batch, factors)
        lowest = active.index(True)
        for k in reversed(range(lowest, len(layers))):
            below = None if k == lowest else _below(layers, inputs, slope, k)  # before it moves
            if active[k]:
                speed = None if velocity is None else velocity[k]
                _move(layers[k], speed, inputs[k], slope, sgd, pulls.of_layer(k))
            if below is not None:
                slope = below

    def descend_pair(
        self, pair: Pair, batch: Batch, m: Tensor, both: bool, sgd: "PlainSGD", terms: PairTerms
    ) -> bool:
        """A step of SGD of two models, with the loss of the rows at the points m (S, layers).

        both: whether it trains both; otherwise the first model takes a step of its own
        Returns whether the models are now in `pair.other`.
        """
        inputs, slopes = self._slopes(self._mix(pair, m), batch)
        points = m.T[..., None, None]  # (layers, S, 1, 1)
        second = [slope * at for slope, at in zip(slopes, points, strict=True)]
        first = [slope - part for slope, part in zip(slopes, second, strict=True)]
        first_inputs = inputs
        if not both:
            first_inputs, first = self._slopes(self.affine(pair.models[:, 0]), batch)
        target, beta, alpha = _pair_start(pair, sgd, terms)
        places = [self.affine(target[:, i]) for i in (0, 1)]
        for k in range(len(self.stack)):
            _add(places[0][k], first_inputs[k], first[k], beta, alpha)
            _add(places[1][k], inputs[k], second[k], beta, alpha)
        if sgd.momentum:
            pair.models.sub_(pair.other, alpha=sgd.lr)
        return not sgd.momentum and target is pair.other

    def point_gradient(self, pair: Pair, batch: Batch, m: Tensor) -> Tensor:
        """The derivatives (S, 1) of the losses by the points m (S, layers), moved alike."""
        inputs, slopes = self._slopes(self._mix(pair, m), batch)
        first, second = (self.affine(pair.models[:, i]) for i in (0, 1))
        total = m.new_zeros(len(m), 1)
        for k, (x, slope) in enumerate(zip(inputs, slopes, strict=True)):
            difference = _outputs(second[k], x) - _outputs(first[k], x)
            total += (difference * slope).sum((1, 2))[:, None]
        return total

    def _mix(self, pair: Pair, m: Tensor) -> list[Affine]:
        """Write the points m (S, layers) between the models to the mixture."""
        first, second, mixture = map(self.affine, (*pair.models.unbind(1), pair.mixture))
        for k in range(len(self.stack)):
            ends = zip(first[k].tensors, second[k].tensors, mixture[k].tensors, strict=True)
            for a, b, point in ends:
                torch.lerp(a, b, m[:, k, None, None], out=point)
        return mixture

    def _slopes(self, layers: list[Affine], batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
        """The inputs of every layer, and the derivatives of the losses by its outputs."""
        inputs, outputs = forward(layers, batch.x)
        slopes = [self.slope(outputs, batch)]
        for k in reversed(range(1, len(layers))):
            slopes.insert(0, _below(layers, inputs, slopes[0], k))
        return inputs, slopes

    def slope(self, outputs: Tensor, batch: Batch, factors: RowFactors | None = None) -> Tensor:
        """The derivatives of the clients' losses by the outputs (S, B, outputs)."""
        y = self._scaled(batch.y)
        weight = batch.weight
        if factors is not None:
            weight = factors(self._row_losses(outputs, y), weight)
        if self.loss == "cross-entropy":
            slope = outputs.softmax(-1)
            slope.scatter_add_(-1, y[..., None], slope.new_full((), -1.0).expand(*y.shape, 1))
        elif self.loss == "binary":
            slope = outputs.sigmoid() - y[..., None]
        else:
            slope = 2 * (outputs - y[..., None])
        return slope.mul_(weight[..., None])

    def _row_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return LOSSES[self.loss](outputs.flatten(0, 1), y.flatten()).view(y.shape)


class _Loss(torch.autograd.Function):
    """The losses (S,) of a group. Their gradients are computed along with them."""

    @staticmethod
    def forward(ctx: FunctionCtx, w: Tensor, task: DenseTask, batch: Batch) -> Tensor:
        losses, grads = task.losses_and_gradients(w, batch)
        ctx.save_for_backward(grads)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, slope: Tensor) -> tuple[Tensor, None, None]:
        (grads,) = ctx.saved_tensors  # type: ignore[attr-defined]
        if bool((slope == 1).all()):  # as of a sum: no multiplication of (S, d)
            return grads, None, None
        return slope[:, None] * grads, None, None


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


def forward(layers: list[Affine], x: Tensor) -> tuple[list[Tensor], Tensor]:
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


def _pair_start(pair: Pair, sgd: PlainSGD, terms: PairTerms) -> tuple[Tensor, float, float]:
    """Begin a step by all but the rows' gradients: these are to be added to what is returned.

    The place (S, 2, d), what it is then multiplied by, and what the gradients are multiplied by.
    """
    matrix = _pair_matrix(pair.models, sgd, terms)
    if sgd.momentum and matrix is None:
        return pair.other, sgd.momentum, 1.0
    if matrix is None:
        return pair.models, 1.0, -sgd.lr
    if sgd.momentum:
        pair.other.baddbmm_(matrix, pair.models, beta=sgd.momentum)
        factor = 1.0
    else:
        matrix *= -sgd.lr
        matrix.diagonal(dim1=1, dim2=2).add_(1.0)
        torch.bmm(matrix, pair.models, out=pair.other)
        factor = -sgd.lr
    if terms.anchor is not None:
        pair.other[:, 0].sub_(terms.anchor, alpha=factor * terms.pull)
    return pair.other, 1.0, factor


def _pair_matrix(models: Tensor, sgd: PlainSGD, terms: PairTerms) -> Tensor | None:
    """The gradients of all terms but the anchor as sums of the two models, (S, 2, 2).

    With c = <w, v>, A = |w|^2 and B = |v|^2 the gradient of c^2 / AB by w is
    2c / AB (v - c / A w). None: there are no such terms.
    """
    decay = sgd.weight_decay
    if not (decay or terms.pull or terms.angle):
        return None
    matrix = models.new_zeros(len(models), 2, 2)
    matrix[:, 0, 0] = decay + terms.pull
    matrix[:, 1, 1] = decay
    if not terms.angle:
        return matrix
    products = torch.bmm(models, models.mT)
    lengths = products.diagonal(dim1=1, dim2=2)  # (S, 2)
    both = lengths.prod(-1, keepdim=True)  # (S, 1)
    cross = products[:, :1, 1]
    factor = 2 * terms.angle * cross / both.clamp(min=1e-12)  # as in squared_cosine
    matrix.diagonal(dim1=1, dim2=2).sub_(torch.where(both < 1e-12, 0.0, factor * cross / lengths))
    matrix[:, 0, 1:] = factor
    matrix[:, 1, :1] = factor
    return matrix


def _below(layers: list[Affine], inputs: list[Tensor], slope: Tensor, k: int) -> Tensor:
    """The derivatives by the outputs of the layer below layer k."""
    below = torch.bmm(slope, layers[k].weight)
    return below.mul_(inputs[k] > 0) if layers[k - 1].relu else below


def _move(
    layer: Affine,
    velocity: Affine | None,
    inputs: Tensor,
    slope: Tensor,
    sgd: PlainSGD,
    pulls: Pulls,
) -> None:
    """Move a layer by a step of SGD."""
    decay = sgd.weight_decay + pulls.strength
    target = layer if velocity is None else velocity
    if velocity is None:
        _add(target, inputs, slope, 1 - sgd.lr * decay, -sgd.lr)
    else:
        _add(target, inputs, slope, sgd.momentum, 1.0)
    # Without a velocity the layer itself takes the terms, times -lr.
    factor = -sgd.lr if velocity is None else 1.0
    if velocity is not None and decay:
        for v, w in zip(velocity.tensors, layer.tensors, strict=True):
            v.add_(w, alpha=decay)
    if pulls.anchor is not None:
        for v, a in zip(target.tensors, pulls.anchor[0].tensors, strict=True):
            v.sub_(a, alpha=factor * pulls.strength)
    if pulls.slope is not None:
        for v, s in zip(target.tensors, pulls.slope[0].tensors, strict=True):
            v.add_(s, alpha=factor)
    if velocity is not None:
        for w, v in zip(layer.tensors, velocity.tensors, strict=True):
            w.sub_(v, alpha=sgd.lr)


def _add(target: Affine, inputs: Tensor, slope: Tensor, beta: float, alpha: float) -> None:
    """Set a layer to beta times itself plus alpha times its gradient, in place."""
    target.weight.baddbmm_(slope.mT, inputs, beta=beta, alpha=alpha)
    if target.bias is None:
        return
    total = slope.sum(1, keepdim=True)
    if beta:
        target.bias.mul_(beta).add_(total, alpha=alpha)
    else:  # the bias may not be set yet
        torch.mul(total, alpha, out=target.bias)
