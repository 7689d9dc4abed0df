"""The interface of trainers: how the steps of an objective are taken for a group of clients.

`local.py` has a `Trainer` for every phase of a round. `on` gives it some neighbouring clients, and
the `Steps` that it returns are called with one batch after another.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from commonweal.base.tensors import Tensors
from commonweal.data.rows import Rows
from commonweal.data.samples import Inputs
from commonweal.training.objective import Objective
from commonweal.training.optimizers import Optimizer
from commonweal.training.task import Batch

EMPTY = torch.empty(0)

Memory = dict[str, Tensors]  # what the optimizer remembers, by vector


@dataclass(frozen=True, eq=False)
class Trainer:
    """Evaluates an objective for the coordinates of one phase of a round."""

    objective: Objective
    optimizer: Optimizer
    mask: Tensor | None  # (d,) the coordinates that move; None: all of them

    def on(self, vectors: Tensors, memory: Memory, start: int) -> "Steps":
        """The steps of neighbouring clients with these vectors, the first at position `start`."""
        raise NotImplementedError

    @property
    def has_features(self) -> bool:
        """Whether the first epoch computes what layers that do not move give for each sample."""
        return False

    @property
    def first_is_shared(self) -> bool:
        """Whether `first_updates` gives the first step from the received model."""
        return False

    def first_updates(
        self, received: Tensor, batch: Batch, place: Tensor | None, watched: Tensor
    ) -> Tensor:
        """The updates (S, d) after the first step, where all clients start at one model (d,).

        They are written to `place`, if it is given, and the mean losses (S,) of the batches to the
        first row of `watched`, if it has rows.
        """
        raise NotImplementedError


class Steps:
    """The steps of neighbouring clients, which change their vectors in place."""

    vectors: Tensors  # (S, ...) by name

    def inputs(self, rows: Rows, index: Tensor, epoch: int) -> Inputs:
        """What the layers that move are given for the samples (S, B) with these numbers."""
        return rows.inputs[index]

    def __call__(self, batch: Batch, noise: Tensor, first: bool, losses: bool) -> Tensor | None:
        """Take a gradient step on batches (S, B, ...).

        Args:
            batch: The clients' batches, with what `inputs` gave.
            noise: Their random numbers (S, draws).
            first: Whether it is the first step of the round.
            losses: Whether the mean losses (S,) of the batches, before the step, are returned.
        """
        raise NotImplementedError


class Features:
    """What layers that are not trained give for each sample of some clients."""

    def __init__(self, sizes: np.ndarray, first_row: np.ndarray) -> None:
        self.samples = int(sizes.sum())
        begin = np.cumsum(sizes) - sizes
        self.shift = torch.from_numpy(begin - first_row)[:, None]  # (S, 1)
        self.values = EMPTY

    def get(self, index: Tensor, start: int, epoch: int, compute: Callable[[], Tensor]) -> Tensor:
        """The outputs (S, B, features) for samples (S, B), computed in epoch 0.

        start: the position of the first of these clients
        """
        places = index + self.shift[start : start + len(index)].to(index.device)
        if epoch:
            return self.values[places]
        outputs = compute()
        if not len(self.values):
            self.values = outputs.new_empty(self.samples, outputs.shape[-1])
        self.values[places] = outputs
        return outputs
