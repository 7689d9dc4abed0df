"""Samples of many clients, concatenated, with offsets: client k owns offsets[k]:offsets[k + 1].

Nothing is padded: a million clients with three samples each take the memory of three million.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from commonweal.base.errors import DataError
from commonweal.data.samples import Inputs, Transform, joined_inputs, subset

CLASSIFICATION = ("cross-entropy", "binary")  # losses of tasks with one class per sample
REGRESSION = ("squared", "huber", "absolute", "poisson")  # losses of tasks with a value per sample

# What labels are. "binary": two classes, of which a model gives the odds as one number. "tokens": a
# class per token, -1 where it does not count. "survival": time and event. "own": anything, which
# a loss of the user's takes as given.
Labels = Literal["classes", "binary", "values", "survival", "tokens", "own"]
LOSSES_OF: dict[Labels, tuple[str, ...]] = {  # the usual one first
    "classes": ("cross-entropy",),
    "binary": ("binary",),
    "values": REGRESSION,
    "survival": ("cox",),
    "tokens": ("tokens",),
    "own": ("",),
}


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples of many clients, grouped by client.

    Others are made of them by `take`, `client` and `replace`, so that nothing is lost on the way.
    """

    inputs: Inputs  # (N, ...): a tensor, or a source that is indexed like one
    y: Tensor  # (N,)
    offsets: Tensor  # (K + 1,) int64
    transform: Transform | None = None  # of a client's batches, while it trains
    numbers: Tensor | None = None  # (N,) of the samples, as they were given, before the split

    @property
    def x(self) -> Tensor:
        """The inputs as one tensor, for those who need it."""
        if not isinstance(self.inputs, Tensor):
            kind = type(self.inputs).__name__
            raise DataError(
                f"samples have several inputs or are read when needed ({kind}), but this needs "
                "them as one tensor"
            )
        return self.inputs

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.inputs.shape))
        return f"<Rows: {shape} {self.inputs.dtype} of {len(self.offsets) - 1} clients>"

    @property
    def device(self) -> torch.device:
        """The device of the rows, and of computations with them. Offsets are always on the CPU."""
        return self.inputs.device

    def to(self, device: torch.device | str) -> "Rows":
        """The rows on a device."""
        if self.device == torch.device(device):
            return self
        return replace(self, inputs=self.inputs.to(device), y=self.y.to(device))

    @cached_property
    def sizes(self) -> Tensor:  # (K,)
        return self.offsets.diff()

    def client(self, client: int) -> "Rows":
        """One client's rows, as a view."""
        start = int(self.offsets[client])
        end = int(self.offsets[client + 1])
        offsets = torch.tensor([0, end - start])
        return self._part(slice(start, end), offsets)

    def take(self, index: Tensor, offsets: Tensor) -> "Rows":
        """The samples at these positions, client after client."""
        return self._part(index, offsets)

    def _part(self, index: Tensor | slice, offsets: Tensor) -> "Rows":
        numbers = None if self.numbers is None else self.numbers[index]
        inputs = subset(self.inputs, index)
        return replace(self, inputs=inputs, y=self.y[index], offsets=offsets, numbers=numbers)

    def offsets_of(self, ids: Tensor) -> Tensor:
        """The offsets of these clients' rows when concatenated, (S + 1,)."""
        zero = torch.zeros(1, dtype=torch.int64)
        return torch.cat([zero, self.sizes[ids].cumsum(0)])

    def index_of(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The row numbers of these clients, client after client, and their offsets."""
        offsets = self.offsets_of(ids)
        shift = torch.repeat_interleave(self.offsets[ids] - offsets[:-1], offsets.diff())
        return shift + torch.arange(int(offsets[-1])), offsets


def of_clients(rows: Rows, ids: Tensor) -> Rows:
    index, offsets = rows.index_of(ids)
    return rows.take(index, offsets)


def joined_rows(first: Rows, second: Rows, ids: Tensor) -> Rows:
    """The rows of some clients from two parts, client after client."""
    inputs, labels = [], []
    for client in ids.tolist():
        for part in (first.client(client), second.client(client)):
            inputs.append(part.inputs)
            labels.append(part.y)
    offsets = first.offsets_of(ids) + second.offsets_of(ids)
    y = torch.cat(labels)
    return replace(first, inputs=joined_inputs(inputs), y=y, offsets=offsets, numbers=None)


def labels_of(loss: str) -> Labels:
    """What labels a loss takes, by its name, or the import path of a user's own."""
    return next((labels for labels, losses in LOSSES_OF.items() if loss in losses), "own")


def usual_loss(labels: Labels) -> str:
    """The loss where none is named; empty: such labels suggest none."""
    return LOSSES_OF[labels][0]


def with_labels(rows: Rows, labels: Labels) -> Rows:
    """The rows with labels of the type that they are."""
    y = rows.y
    if labels in ("values", "survival"):
        y = y.to(torch.float32)
    elif labels != "own" and bool((y == y.round()).all()):
        y = y.to(torch.int64)
    return replace(rows, y=y)


def select_rows(rows: Rows, owner: np.ndarray, mask: np.ndarray) -> Rows:
    """The rows that a mask (N,) names; owner: each row's client (N,)."""
    sizes = np.bincount(owner[mask], minlength=len(rows.offsets) - 1)
    offsets = np.concatenate([[0], sizes.cumsum()]).astype(np.int64)
    return rows.take(torch.from_numpy(np.flatnonzero(mask)), torch.from_numpy(offsets))


def scale_target(y: Tensor, loss: str, log: bool = False) -> tuple[float, float] | None:
    """The mean and deviation of the labels of a regression, or of their logarithms.

    For "poisson" the logarithm of the mean, and 1: the model gives log-rates relative to it. None:
    there is no regression, or the labels are all the same.

    Raises:
        DataError: A logarithm needs labels above 0, "poisson" none below.
    """
    if loss not in REGRESSION:
        return None
    least = float(y.min())
    if least < 0 and loss == "poisson":
        raise DataError(f"loss 'poisson' is for counts, but a label is {least:g}: use another")
    if least <= 0 and log and loss != "poisson":
        raise DataError(f"target = 'log' needs labels above 0, but one is {least:g}")
    labels = y.double()
    if loss == "poisson":
        return math.log(max(float(labels.mean()), 1e-12)), 1.0
    if log:
        labels = labels.log()
    mean = float(labels.mean())
    deviation = float((labels - mean).square().mean().sqrt())
    if not math.isfinite(deviation) or deviation <= 1e-12 * abs(mean):  # but for rounding
        return None
    return mean, deviation
