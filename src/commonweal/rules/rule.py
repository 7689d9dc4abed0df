"""The interface of aggregation rules: how much each client's report counts.

A rule maps the reports of a cohort and a small state to a `Decision`: the weights of the clients'
updates, in `direction = weights @ updates`, and the next state.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from commonweal.base.errors import ConfigError, DataError
from commonweal.base.tensors import State
from commonweal.data.population import Setting

__all__ = ["Decision", "Kind", "Need", "Prior", "Reports", "Rule", "Stateless", "prior_weights"]

Need = Literal["size", "loss", "score", "loss_after", "update", "labels"]
Prior = Literal["sizes", "uniform"]

BLOCK = 1 << 12  # columns of the updates that are held in float64 at a time: they fit a cache


@dataclass(frozen=True, eq=False, kw_only=True)
class Reports:
    """What S of K clients tell the server in a round.

    `losses` and `scores` are those of the received model on each client's training rows, before
    local training; `losses_after` after it. A row of `updates` is the received model minus the
    client's trained model. What no rule needs may be missing.
    """

    ids: Tensor  # (S,) int64
    sizes: Tensor  # (S,)
    losses: Tensor  # (S,)
    clients: int  # K
    scores: Tensor | None = None  # (S,)
    updates: Tensor | None = None  # (S, d)
    losses_after: Tensor | None = None  # (S,)

    def __post_init__(self) -> None:
        for each in fields(self):
            value = vars(self)[each.name]
            if each.name != "clients" and not isinstance(value, Tensor | None):
                raise DataError(
                    f"Reports {each.name} is a {type(value).__name__}: give a tensor, as by "
                    f"torch.as_tensor({each.name})"
                )

    @cached_property
    def norms(self) -> Tensor:  # (S,)
        """The Euclidean norms of the updates, in float64."""
        updates = required(self.updates, "updates")
        squares = torch.zeros(len(updates), dtype=torch.float64)
        for block in in_double(updates):
            squares += block.square().sum(1)
        return squares.sqrt()

    @cached_property
    def gram(self) -> Tensor:  # (S, S)
        """The inner products of the updates, in float64: all that direction rules need of them."""
        updates = required(self.updates, "updates")
        gram = torch.zeros(len(updates), len(updates), dtype=torch.float64)
        for block in in_double(updates):
            gram.addmm_(block, block.T)
        return gram

    def subset(self, which: Tensor) -> "Reports":
        """Keep the reports at these positions, or where a mask (S,) is true."""
        return Reports(
            ids=self.ids[which],
            sizes=self.sizes[which],
            losses=self.losses[which],
            clients=self.clients,
            scores=None if self.scores is None else self.scores[which],
            updates=None if self.updates is None else self.updates[which],
            losses_after=None if self.losses_after is None else self.losses_after[which],
        )


def in_double(updates: Tensor) -> Iterator[Tensor]:
    """Yield blocks of columns in float64, each in the place of the one before."""
    place = torch.empty(len(updates), BLOCK, dtype=torch.float64)
    for block in torch.split(updates, BLOCK, dim=1):
        yield place[:, : block.shape[1]].copy_(block)


def required(value: Tensor | None, what: str) -> Tensor:
    if value is None:
        raise ConfigError(f"this rule needs {what}, but the reports have none: add them")
    return value


@dataclass(frozen=True, eq=False)
class Decision:
    """How much each report counts, and why some do not count as they were sent."""

    weights: Tensor  # (S,) in the order of the reports
    state: State
    warnings: tuple[str, ...] = ()  # about this round, shown to the user
    dropped: dict[int, str] = field(default_factory=dict)  # not used: client id -> reason
    capped: dict[int, str] = field(default_factory=dict)  # used, but reduced: client id -> reason


class Kind(NamedTuple):
    """A rule's place among all rules, as docs/rules.md shows it."""

    family: Literal["mixture", "online", "direction", "reweighting", "combinator"]
    response: str  # how a loss enters
    update: str  # how the decision follows from it


class Rule:
    """How much each report counts. Pure: hyper-parameters are fields, memory is a value."""

    kind: ClassVar[Kind]
    grid: ClassVar[Mapping[str, tuple[float | str, ...]]] = {}  # values tried in the publication

    @property
    def mixing(self) -> bool:
        """Whether weights are at least 0 and sum to 1. A subclass may set it as an attribute."""
        return True

    @property
    def needs(self) -> frozenset[Need]:
        """What clients must send. "update": the rule looks at updates, not only at their sum."""
        return frozenset({"size", "loss"})

    def init(self, setting: Setting | int) -> State:
        """Return the state before the first round. A number stands for that many clients."""
        return {}

    def __call__(self, reports: Reports, state: State) -> Decision:
        raise NotImplementedError

    def response(self, losses: Tensor) -> Tensor | None:
        """Return the response (S,) of online learning, if the rule decides on a mixture by one."""
        return None

    def bound(self, rounds: int, clients: int) -> float | None:
        """Return the theorem's bound on the regret, if there is one."""
        return None

    def distribution(self, state: State, clients: int) -> Tensor | None:
        """Return the mixture over all clients (K,), for sampling by weight, if there is one."""
        return None

    def averaged(self, state: State, clients: int) -> Tensor | None:
        """Return the mean (K,) of the rounds' mixtures, if it is a result of the rule."""
        return None


class Stateless(Rule):
    """A rule without state: a subclass defines `weigh`."""

    def __call__(self, reports: Reports, state: State) -> Decision:
        return Decision(self.weigh(reports), state, self.warnings(reports))

    def weigh(self, reports: Reports) -> Tensor:
        """Return the weights (S,)."""
        raise NotImplementedError

    def warnings(self, reports: Reports) -> tuple[str, ...]:
        return ()


def prior_weights(reports: Reports, prior: Prior) -> Tensor:
    """Return the weights (S,) before losses are known: by sample count, or uniform."""
    if prior == "sizes":
        sizes = reports.sizes.double()
    else:
        sizes = torch.ones(len(reports.ids), dtype=torch.float64)
    return sizes / sizes.sum()
