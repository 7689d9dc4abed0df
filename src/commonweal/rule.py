"""A fair server is a function from what a cohort reports to how much each report counts."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["Reports", "Rule", "State"]

State = dict[str, Tensor]  # what a rule remembers: named tensors, so that it is saved without pickling


@dataclass(frozen=True, eq=False)
class Reports:
    """What a cohort of S of K clients tells the server.

    `losses` and `scores` are the received model's on each client's training rows, before local training; `after` is
    the loss after it, for the rules that ask. A row of `updates` is the received model minus the client's trained one.
    """

    ids: Tensor  # (S,) int64
    sizes: Tensor  # (S,)
    losses: Tensor  # (S,)
    scores: Tensor  # (S,)
    updates: Tensor  # (S, d)
    clients: int  # K
    after: Tensor | None = None  # (S,)

    @cached_property
    def gram(self) -> Tensor:  # (S, S)
        """The inner products of the updates, in float64: all that direction rules need of them."""
        # By blocks of columns, so that a float64 copy of all updates is never held.
        blocks = (block.double() for block in torch.split(self.updates, 1 << 16, dim=1))
        size = len(self.updates)
        return sum((block @ block.T for block in blocks), torch.zeros(size, size, dtype=torch.float64))


class Rule(Protocol):
    """How much each report counts. Pure: hyper-parameters are fields, what is remembered is a value."""

    def init(self, clients: int) -> State:
        """What the rule remembers before the first round, for K clients."""
        ...

    def __call__(self, reports: Reports, state: State) -> tuple[Tensor, State]:
        """The weights (S,) of the cohort's updates, in its order, and what to remember."""
        ...
