"""Objectives of clients, as values that any trainer evaluates.

An `Objective` names vectors instead of holding them: those that `Client.start` returns, "received"
(the model of the message) and "noise" (the uniform random numbers of a batch). So it is static
data, the same for all clients, and is asked for once per round.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from commonweal.base.errors import ConfigError, did_you_mean
from commonweal.base.tensors import Tensors
from commonweal.task.task import Batch, Task


class Vectors(dict[str, Tensor]):
    """A client's vectors by name."""

    def __missing__(self, name: str) -> Tensor:
        raise ConfigError(
            f"the client method names a vector {name!r} that does not exist: "
            f"{did_you_mean(name, self)}"
        )


class At(NamedTuple):
    """The samples' loss is taken at a vector, and trains it."""

    vector: str = "w"

    @property
    def trains(self) -> tuple[str, ...]:
        """The vectors that the loss at this point trains."""
        return (self.vector,)


class Between(NamedTuple):
    """The samples' loss is taken at (1-m) first + m second, plus angle cos^2(first, second).

    Attributes:
        first: The name of the vector at m = 0.
        second: The name of the vector at m = 1.
        m: The mixing coefficient: a number, or the name of a vector (1,) or (layers,) such as
            "noise".
        learns: Whether the vector m takes a gradient step at the first batch of a round, within
            [0, 1].
        first_trains: Whether the loss trains both vectors, or only the second.
        angle: The factor of the squared cosine of the angle between the vectors.
    """

    first: str
    second: str
    m: float | str
    learns: bool = False
    first_trains: bool = True
    angle: float = 0.0

    @property
    def trains(self) -> tuple[str, ...]:
        """The vectors that the loss at this point trains."""
        return (self.first, self.second) if self.first_trains else (self.second,)


Point = At | Between


class Proximal(NamedTuple):
    """strength/2 |v - anchor|^2 + <linear, v> over the trainable coordinates of a vector v.

    Attributes:
        vector: The name of v.
        strength: The factor of the squared distance.
        anchor: The name of the vector that v stays near, a constant. None: v stays near 0.
        linear: The name of the vector of the linear term, a constant. None: there is no such term.
    """

    vector: str
    strength: float = 0.0
    anchor: str | None = None
    linear: str | None = None


class Reduction(NamedTuple):
    """A function from the samples' losses to the loss of a batch.

    Attributes:
        value: Gives the loss (...) from the samples' losses (..., B) and weights (..., B), which
            sum to 1 and are 0 for padding.
        derivative: Gives the derivatives (..., B) of `value` by the samples' losses. None: they are
            computed by autograd, which is slower.
    """

    value: Callable[[Tensor, Tensor], Tensor]
    derivative: Callable[[Tensor, Tensor], Tensor] | None = None

    def sample_weights(self, losses: Callable[[], Tensor], weight: Tensor) -> Tensor:
        """The factors (..., B) of the samples' gradients. losses: computes the samples' losses"""
        if self is MEAN:
            return weight
        if self.derivative is not None:
            return self.derivative(losses(), weight)
        with torch.enable_grad():
            leaf = losses().requires_grad_()
            (factors,) = torch.autograd.grad(self.value(leaf, weight).sum(), leaf)
        return factors


def _mean(losses: Tensor, weight: Tensor) -> Tensor:
    return (losses * weight).sum(-1)


MEAN = Reduction(_mean)


class Custom(NamedTuple):
    """A loss that is written in torch.

    The BatchNorm statistics of the vectors that it trains are measured on the batch, as for `At`.

    Attributes:
        loss: Gives the loss () from the task, one client's vectors by name, and its batch.
        trains: The names of the vectors that the loss trains.
    """

    loss: Callable[[Task, Tensors, Batch], Tensor]
    trains: tuple[str, ...] = ("w",)


class Objective(NamedTuple):
    """The objective of one client on a batch: the sum of all parts.

    Attributes:
        at: Where the samples' loss is taken.
        reduction: How the samples' losses become one.
        proximal: Terms in addition to the samples' loss.
        custom: A further loss; with at = () it is the whole objective.
        statistics: The points at which BatchNorm's statistics of a vector are measured, where these
            are not the points that train it.
        steps: Gradient steps on each batch.
        lr: Their learning rate. None: that of the round.
        after: Gives the vectors that these steps are followed by, from the vectors by name and the
            round's learning rate. It must be elementwise: a leading client axis is allowed.
    """

    at: tuple[Point, ...] = (At("w"),)
    reduction: Reduction = MEAN
    proximal: tuple[Proximal, ...] = ()
    custom: Custom | None = None
    statistics: tuple[tuple[str, Point], ...] = ()
    steps: int = 1
    lr: float | None = None
    after: Callable[[Tensors, float], Tensors] | None = None

    @property
    def trained(self) -> tuple[str, ...]:
        """The vectors that take gradient steps."""
        names: list[str] = []
        for point in self.at:
            names += point.trains
        names += [term.vector for term in self.proximal]
        if self.custom is not None:
            names += self.custom.trains
        return tuple(dict.fromkeys(names))

    @property
    def names(self) -> tuple[str, ...]:
        """All vectors that the parts name."""
        names = [*self.trained, *self.constants, *self.learned]
        for pair in self.pairs:
            names += [pair.first, pair.second]
            names += [pair.m] if isinstance(pair.m, str) else []
        return tuple(dict.fromkeys(names))

    @property
    def pairs(self) -> tuple[Between, ...]:
        """The points that lie between two vectors."""
        return tuple(point for point in self.at if isinstance(point, Between))

    @property
    def of_samples(self) -> "Objective":
        """The samples' losses without further terms: of the parts of a batch but the first."""
        points = (p._replace(angle=0.0) if isinstance(p, Between) else p for p in self.at)
        return self._replace(at=tuple(points), proximal=())

    @property
    def is_sum(self) -> bool:
        """Whether the objective of a batch is a sum over its samples, plus terms without them."""
        return self.reduction is MEAN and self.custom is None

    @property
    def learned(self) -> tuple[str, ...]:
        """The mixing coefficients that take a step at the first batch of a round."""
        return tuple(p.m for p in self.pairs if p.learns and isinstance(p.m, str))

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """The vectors that only the custom loss trains, whose statistics no point measures."""
        if self.custom is None:
            return ()
        measured = {name for name, _ in self.statistics}
        for point in self.at:
            measured.update(point.trains)
        return tuple(name for name in self.custom.trains if name not in measured)

    @property
    def constants(self) -> frozenset[str]:
        """The vectors that no step changes."""
        if self.after is not None:
            return frozenset({"received"})
        names = {"received"}
        for term in self.proximal:
            names.update(name for name in (term.anchor, term.linear) if name is not None)
        return frozenset(names.difference(self.trained))


class Phase(NamedTuple):
    """Epochs of a round that train the same coordinates. Momentum starts at 0 in each phase."""

    epochs: float  # passes over the samples; a fraction in the last phase only
    trains: Tensor | None = None  # the mask (d,) of the coordinates that move; None: all of them


class Value(NamedTuple):
    """An objective of one client on a batch."""

    total: Tensor  # what is minimised
    statistics: Tensors  # the new BatchNorm statistics by vector
    loss: Tensor  # the mean of the samples' losses at the first point; `total` without one


def objective_value(task: Task, objective: Objective, vectors: Tensors, batch: Batch) -> Value:
    """The objective of one client on a batch. This is the definition that all trainers follow."""
    total = batch.weight.new_zeros(())
    measured: Tensors = {}
    means = []
    for point in objective.at:
        losses, statistics = task.row_losses(_located(task, vectors, point), batch)
        total = total + objective.reduction.value(losses, batch.weight)
        measured |= dict.fromkeys(point.trains, statistics)
        means.append(_mean(losses.detach(), batch.weight))
    for term in objective.proximal:
        total = total + _proximal(task, vectors, term)
    for pair in objective.pairs:
        if pair.angle:
            first = task.trainable(vectors[pair.first])
            second = task.trainable(vectors[pair.second])
            total = total + pair.angle * _squared_cosine(first, second)
    if objective.custom is not None:
        total = total + objective.custom.loss(task, Vectors(vectors), batch)
    if task.size > task.num_trainable:
        for name, point in objective.statistics:
            if point in objective.at:
                measured[name] = measured[point.trains[-1]]
            else:
                measured[name] = _statistics(task, vectors, batch, name, point)
        for name in objective.unmeasured:
            if vectors[name].shape[-1] == task.size:
                measured[name] = _statistics(task, vectors, batch, name, At(name))
    return Value(total, measured, means[0] if means else total.detach())


def _proximal(task: Task, vectors: Tensors, term: Proximal) -> Tensor:
    v = task.trainable(vectors[term.vector])
    total = v.new_zeros(())
    if term.strength:
        distance = v
        if term.anchor is not None:
            distance = v - task.trainable(vectors[term.anchor].detach())
        total = total + term.strength / 2 * distance.square().sum()
    if term.linear is not None:
        linear = task.trainable(vectors[term.linear].detach())
        total = total + (linear * v).sum()
    return total


def _statistics(task: Task, vectors: Tensors, batch: Batch, name: str, point: Point) -> Tensor:
    """The next statistics of a vector, measured at another point."""
    n = task.num_trainable
    # The variance of a mixture is not the mixture of the variances: go on from the vector's own.
    used = torch.cat([_located(task, vectors, point)[:n], vectors[name][n:]]).detach()
    return task.row_losses(used, batch)[1]


def _located(task: Task, vectors: Tensors, point: Point) -> Tensor:
    """The vector (d,) at which the samples' loss is taken."""
    if isinstance(point, At):
        return vectors[point.vector]
    first, second = vectors[point.first], vectors[point.second]
    if not point.first_trains:
        first = first.detach()
    if not isinstance(point.m, str):
        return first.lerp(second, point.m)
    m = vectors[point.m]
    return first.lerp(second, m if m.shape[-1] == 1 else _by_coordinate(task, m))


def _by_coordinate(task: Task, m: Tensor) -> Tensor:
    """A number per layer (layers,) as one per coordinate (d,)."""
    # Expanded piece by piece: to gather by coordinate is many times slower under vmap.
    pieces = zip(task.layers, task.sizes, strict=True)
    return torch.cat([m[k : k + 1].expand(size) for k, size in pieces])


def _squared_cosine(a: Tensor, b: Tensor) -> Tensor:
    # As sums of products: vmap turns the product of two vectors into slow matrix products.
    # A model of zeros, such as logistic at its start, has no angle.
    lengths = ((a * a).sum() * (b * b).sum()).clamp(min=1e-12)
    return (a * b).sum().square() / lengths


def interpolated(task: Task, first: Tensor, second: Tensor, m: float) -> Tensor:
    """The model (1-m) first + m second, with the BatchNorm statistics of the second."""
    mixed = (1 - m) * first + m * second
    n = task.num_trainable
    return torch.cat([mixed[:n], second[n:]]) if task.has_batchnorm else mixed
