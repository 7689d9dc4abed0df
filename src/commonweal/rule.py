"""A fair server is a function from what a cohort reports to how much each report counts."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

__all__ = ["Kind", "Prior", "Reports", "Rule", "State", "Stateless", "bound", "shares"]

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
    def lengths(self) -> Tensor:  # (S,)
        """The lengths of the updates, in float64."""
        lengths: Tensor = torch.linalg.vector_norm(self.updates, dim=1, dtype=torch.float64)
        return lengths

    @cached_property
    def gram(self) -> Tensor:  # (S, S)
        """The inner products of the updates, in float64: all that direction rules need of them."""
        # By blocks of columns, so that a float64 copy of all updates is never held.
        blocks = (block.double() for block in torch.split(self.updates, 1 << 16, dim=1))
        size = len(self.updates)
        return sum((block @ block.T for block in blocks), torch.zeros(size, size, dtype=torch.float64))


class Kind(NamedTuple):
    """A rule's place among all rules, as the table of docs/rules.md prints it; every rule's file has one."""

    family: Literal["mixture", "online", "direction", "reweighting", "combinator"]
    response: str  # what a loss means to it
    leader: str  # how a decision follows from that


class Rule(Protocol):
    """How much each report counts. Pure: hyper-parameters are fields, what is remembered is a value.

    A rule may also have `bind(federation, local) -> Rule` for what it takes from an experiment, `notes(reports, state)`
    for what a person should know of a round, `rejected(reports)` for the reports it does not believe, and
    `needs_after = True` to be told the losses after local training.
    """

    def init(self, clients: int) -> State:
        """What the rule remembers before the first round, for K clients."""
        ...

    def __call__(self, reports: Reports, state: State) -> tuple[Tensor, State]:
        """The weights (S,) of the cohort's updates, in its order, and what to remember."""
        ...


def bound(rule: Any, federation: Any, local: Any) -> Any:
    """The rule with what it takes from an experiment (a client's lr, the data's domains); most take nothing."""
    return rule.bind(federation, local) if hasattr(rule, "bind") else rule


class Stateless:
    """A rule without memory: a subclass says how it weighs a cohort."""

    def init(self, clients: int) -> State:
        return {}

    def __call__(self, reports: Reports, state: State) -> tuple[Tensor, State]:
        return self.weigh(reports), state

    def weigh(self, reports: Reports) -> Tensor:
        raise NotImplementedError


Prior = Literal["sizes", "uniform"]


def shares(reports: Reports, prior: Prior) -> Tensor:
    """What each client counts before anything is known of its loss: by its rows, or all alike."""
    sizes = reports.sizes.double() if prior == "sizes" else torch.ones(len(reports.ids), dtype=torch.float64)
    return sizes / sizes.sum()
