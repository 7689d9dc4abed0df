"""The interface of trainers: how the steps of an objective are taken for a group of clients.

`local.py` has a `Trainer` for every phase of a round. `on` gives it some clients, and the `Steps`
that it returns are called with one batch after another.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.base.tensors import Tensors
from commonweal.task.task import Batch
from commonweal.training.objective import Objective
from commonweal.training.optimizers import Optimizer

EMPTY = torch.empty(0)

Memory = dict[str, Tensors]  # what the optimizer remembers, by vector


@dataclass(frozen=True, eq=False)
class Trainer:
    """Evaluates an objective for the coordinates of one phase of a round."""

    objective: Objective
    optimizer: Optimizer
    mask: Tensor | None  # (d,) the coordinates that move; None: all of them

    def on(self, vectors: Tensors, memory: Memory) -> "Steps":
        """The steps of clients with these vectors."""
        raise NotImplementedError

    def ready(self, batch: Batch) -> Batch:
        """The batches (S, B, ...) of some clients as steps take them."""
        return batch

    @property
    def first_is_shared(self) -> bool:
        """Return whether `first_updates` gives the first step from the received model."""
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
    """The steps of some clients, which change their vectors in place."""

    vectors: Tensors  # (S, ...) by name

    def __call__(self, batch: Batch, noise: Tensor, first: bool, losses: bool) -> Tensor | None:
        """Take a gradient step on batches (S, B, ...).

        Args:
            batch: The clients' batches, as `ready` gave them.
            noise: Their random numbers (S, draws).
            first: Whether it is the first step of the round.
            losses: Whether the mean losses (S,) of the batches, before the step, are returned.
        """
        raise NotImplementedError
