"""The interface of aggregation rules: how much each client's report counts.

A rule maps the reports of a cohort and a small state to a `Decision`: the weights of the clients'
updates, in `direction = weights @ updates`, and the next state.

>>> from commonweal.rules import TERM
>>> rule = TERM(t=1.0)
>>> reports = Reports(
...     ids=torch.tensor([0, 1]),
...     sizes=torch.tensor([10, 10]),
...     losses=torch.tensor([0.5, 1.5]),
...     clients=2,
... )
>>> decision = rule(reports, rule.init(2))
>>> decision.weights
tensor([0.2689, 0.7311], dtype=torch.float64)
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from scipy.linalg.blas import dsyrk
from torch import Tensor

from commonweal.base.arguments import expect_int
from commonweal.base.errors import ConfigError, DataError, DivergedError
from commonweal.base.tensors import State, is_finite
from commonweal.data.population import Setting
from commonweal.rules.private_form import PrivateForm

Need = Literal["size", "loss", "nonnegative_loss", "score", "loss_after", "update", "labels"]
Prior = Literal["sizes", "uniform"]
Grid = dict[str, tuple[float | str, ...]]  # values of parameters that a publication tried

MIXTURE = 1e-3  # how far the sum of a mixture's weights may be from 1
COLUMNS = {  # of reports, and what one value is called where it must be finite
    "ids": None,
    "sizes": "size",
    "losses": "loss",
    "losses_after": "loss after training",
    "scores": None,
    "updates": "update",
}
# Of rules that compare losses by their ratios, which mean nothing below 0.
RATIOS: frozenset[Need] = frozenset({"size", "loss", "nonnegative_loss"})
MOST_CLIENTS = (1 << 63) - 1  # that ids of 64 bits can name
BLOCK = 1 << 14  # columns of the updates that are held in float64 at a time: they fit a cache


@dataclass(frozen=True, eq=False, kw_only=True)
class Reports:
    """The reports of S of K clients to the server in a round.

    Values that a rule cannot use raise `DataError` here, with the client's id: shapes that differ,
    an id that is no client's or given twice, a size that is not above 0, a loss or an update that
    is not finite. A score may be NaN, which means undefined. `Reports.finite` leaves such clients
    out instead.

    Attributes:
        ids: the clients (S,), as int64: their positions among all clients, from 0.
        sizes: their numbers of training samples (S,).
        losses: the received model's losses (S,) on their training samples, before local training.
        clients: K, the number of all clients.
        scores: the received model's scores (S,), higher is better.
        updates: the received model minus the client's trained model (S, d).
        losses_after: the losses (S,) after local training.
        checked: the updates are known to be finite, and are not read again to make sure.
    """

    ids: Tensor
    sizes: Tensor
    losses: Tensor
    clients: int
    scores: Tensor | None = None
    updates: Tensor | None = None
    losses_after: Tensor | None = None
    checked: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        expect_int("Reports clients", self.clients, least=1, most=MOST_CLIENTS)
        columns = self.tensors
        _check_shapes(columns)
        last = self.clients - 1
        strange = self.ids[(self.ids < 0) | (self.ids > last)].tolist()
        if strange:
            raise DataError(
                f"Reports: client {strange[0]} is none of the {self.clients} clients: an id is a "
                f"client's position, from 0 to {last}"
            )
        if self.checked:
            columns.pop("updates", None)
        for client, reason in _unusable(columns).items():
            raise DataError(
                f"Reports: {reason} (client {client}); correct it, or leave such clients out by "
                "Reports.finite(...)"
            )

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The columns that were reported, by name."""
        return {name: vars(self)[name] for name in COLUMNS if vars(self)[name] is not None}

    @classmethod
    def finite(
        cls,
        *,
        ids: Tensor,
        sizes: Tensor,
        losses: Tensor,
        clients: int,
        scores: Tensor | None = None,
        updates: Tensor | None = None,
        losses_after: Tensor | None = None,
    ) -> "tuple[Reports, dict[int, str]]":
        """Build the reports without clients whose values cannot be used.

        Returns:
            The reports, and for each client that was left out the reason, by id.

        Raises:
            DataError: no client is left, or shapes do not fit.

        >>> reports, left_out = Reports.finite(
        ...     ids=torch.tensor([4, 7]),
        ...     sizes=torch.tensor([10, 10]),
        ...     losses=torch.tensor([0.5, torch.nan]),
        ...     clients=9,
        ... )
        >>> reports.ids.tolist(), left_out
        ([4], {7: 'its loss is nan'})
        """
        columns = {"ids": ids, "sizes": sizes, "losses": losses, "losses_after": losses_after}
        columns |= {"scores": scores, "updates": updates}
        reported = {name: value for name, value in columns.items() if value is not None}
        _check_shapes(reported)
        left_out = _unusable(reported)
        usable = torch.tensor([client not in left_out for client in ids.tolist()])
        if not usable.any():
            first = int(ids[0])
            raise DataError(
                f"Reports: none of {len(ids)} clients can be used; of client {first}, "
                f"{left_out[first]}"
            )
        values = {name: value[usable] for name, value in reported.items()}
        return cls(clients=clients, checked=True, **values), left_out

    @cached_property
    def norms(self) -> Tensor:
        """The Euclidean norms (S,) of the updates, in float64."""
        updates = required(self.updates, "updates")
        squares = torch.zeros(len(updates), dtype=torch.float64)
        for block in in_double(updates):
            squares += block.square().sum(1)
        return squares.sqrt()

    @cached_property
    def gram(self) -> Tensor:
        """The inner products (S, S) of the updates, in float64: all that direction rules need."""
        updates = required(self.updates, "updates")
        gram = np.zeros((len(updates), len(updates)), order="F")
        for block in in_double(updates):  # half of a symmetric product, in twice the speed
            gram = dsyrk(1.0, block.numpy().T, beta=1.0, c=gram, trans=1, overwrite_c=1)
        return torch.from_numpy(gram + np.triu(gram, 1).T)

    def subset(self, which: Tensor) -> "Reports":
        """Keep the reports at these positions, or where a mask (S,) is true."""
        columns = {name: value[which] for name, value in self.tensors.items()}
        return Reports(clients=self.clients, checked=True, **columns)


def _check_shapes(columns: Mapping[str, Tensor]) -> None:
    """Raise DataError unless every column is a tensor with one row per client, each only once."""
    for name in ("ids", "sizes", "losses", *columns):
        value = columns.get(name)
        if not isinstance(value, Tensor):
            raise DataError(
                f"Reports {name} is a {type(value).__name__}: give a tensor, as by "
                f"torch.as_tensor({name})"
            )
        if value.layout != torch.strided or value.is_meta:
            raise DataError(
                f"Reports {name} is {value.layout} on {value.device}: give a dense tensor"
            )
        ids = columns["ids"]
        dimensions = 2 if name == "updates" else 1
        if value.ndim != dimensions or len(value) != len(ids):
            raise DataError(
                f"Reports {name} has the shape {tuple(value.shape)} for {ids.numel()} clients: "
                f"give {'(S, d)' if dimensions == 2 else '(S,)'}, one row per client"
            )
    if len(ids) == 0 or ids.is_floating_point():
        raise DataError(
            f"Reports ids = {ids.tolist()}: give the id of at least one client, as an integer"
        )
    ordered = ids.sort().values
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(repeated):
        raise DataError(
            f"Reports: client {int(repeated[0])} reports twice; keep one of its reports"
        )


def _unusable(columns: Mapping[str, Tensor]) -> dict[int, str]:
    """Return the reasons why the values of some clients cannot be used, by id."""
    reasons: dict[int, str] = {}
    for name, singular in COLUMNS.items():
        if singular is None or name not in columns:
            continue
        value = columns[name]
        usable = is_finite(value)
        if name == "sizes":
            usable = usable & (value > 0)
        for position in (~usable).nonzero()[:, 0].tolist():
            shown = "not finite" if name == "updates" else f"{float(value[position]):g}"
            reasons.setdefault(int(columns["ids"][position]), f"its {singular} is {shown}")
    return reasons


def in_double(updates: Tensor) -> Iterator[Tensor]:
    """Yield blocks of columns in float64, each in the memory of the one before."""
    place = torch.empty(len(updates), BLOCK, dtype=torch.float64)
    for block in torch.split(updates, BLOCK, dim=1):
        yield place[:, : block.shape[1]].copy_(block)


def required(value: Tensor | None, what: str) -> Tensor:
    """Return the value.

    Raises:
        ConfigError: the reports do not have it.
    """
    if value is None:
        raise ConfigError(f"this rule needs {what}, but the reports have none: add them")
    return value


class Descent(NamedTuple):
    """The promise of a direction: to first order, a client's loss falls by its rate."""

    length: float  # |d|, of the direction
    rates: Tensor  # (S,) <u_k, d>

    @classmethod
    def along(cls, weights: Tensor, gram: Tensor) -> "Descent":
        """The descent along weights @ updates, for the updates' inner products (S, S)."""
        weights = weights.double()
        rates = gram @ weights
        return cls(float((weights @ rates).clamp(min=0).sqrt()), rates)


@dataclass(frozen=True, eq=False)
class Decision:
    """The weights of the reports, and the reasons why some do not count as they were sent.

    Attributes:
        weights: the weights (S,), in the order of the reports.
        state: the rule's state for the next round.
        warnings: about this round, shown to the user.
        dropped: reports that are not used, by client id, with the reason.
        capped: reports that are used but reduced, by client id, with the reason.
        descent: the direction's length and each client's rate of descent, from rules that choose
            a direction.
    """

    weights: Tensor
    state: State
    warnings: tuple[str, ...] = ()
    dropped: dict[int, str] = field(default_factory=dict)
    capped: dict[int, str] = field(default_factory=dict)
    descent: Descent | None = None


def decide(rule: "Rule", reports: Reports, state: State) -> Decision:
    """A rule's decision on a round.

    Raises:
        ConfigError: It is none, as a rule of a user's own may return anything.
        DataError: Losses are negative, and the rule cannot use them.
        DivergedError: Its weights are not finite.
    """
    name = type(rule).__name__
    negative = negative_losses(rule.needs, reports.losses)
    if negative:
        raise DataError(f"rule {name}: {negative}")
    decision = rule(reports, state)
    if not isinstance(decision, Decision):
        raise ConfigError(f"rule {name} returns {decision!r:.80}: return a Decision")
    problem = unusable(decision.weights, len(reports.ids))
    if problem:
        raise ConfigError(f"rule {name}: {problem}; commonweal check tests rules")
    if not decision.weights.isfinite().all():
        raise DivergedError(f"rule {name}: weights are not finite: {decision.weights[:9].tolist()}")
    total = float(decision.weights.double().sum())
    if rule.kind == Rule.kind and abs(total - 1) > MIXTURE:  # its author said nothing else
        raise ConfigError(
            f"rule {name}: its weights sum to {total:.6g}, not to 1: divide them by their sum, or "
            'give the rule kind = Kind("reweighting", "", "") if the step shall be that long'
        )
    return decision


def negative_losses(needs: frozenset[Need], losses: Tensor) -> str:
    """Describe losses (S,) below 0 that a rule with these needs cannot use; empty: there are none.

    >>> negative_losses(frozenset({"size", "loss"}), torch.tensor([0.5, -1.0]))
    ''
    """
    if "nonnegative_loss" not in needs or not (losses < 0).any():
        return ""
    return (
        f"{int((losses < 0).sum())} of {len(losses)} losses are below 0 (the least is "
        f"{float(losses.min()):g}), but the rule compares losses by their ratios: choose a rule "
        "that takes any losses (afl, cvar, gifair, owa or vred), or a loss that is at least 0"
    )


def unusable(weights: object, size: int) -> str | None:
    """Describe what is wrong with the weights of so many reports, apart from their values."""
    if not isinstance(weights, Tensor):
        return f"weights are {weights!r:.80}, not a tensor"
    if weights.shape != (size,):
        return f"weights have shape {tuple(weights.shape)} for {size} reports"
    if not weights.is_floating_point():
        return f"weights are {weights.dtype}, not floating-point numbers"
    if weights.requires_grad:
        return "weights require a gradient: detach them"
    return None


class Kind(NamedTuple):
    """A rule's place among all rules, as docs/rules.md shows it."""

    family: Literal["mixture", "online", "direction", "reweighting", "combinator"]
    response: str  # how a loss enters
    update: str  # how the decision follows from it


class Rule:
    """A function from reports to their weights. Pure: fields do not change, memory is a value."""

    kind: ClassVar[Kind] = Kind("mixture", "", "")  # for authors who state none
    grid: ClassVar[Grid] = {}

    @property
    def plans_rounds(self) -> bool:
        """True if a decision depends on how many rounds there are."""
        return False

    @property
    def mixing(self) -> bool:
        """True if weights are at least 0 and sum to 1. A subclass may set it as an attribute."""
        return True

    @property
    def needs(self) -> frozenset[Need]:
        """The values that clients must send.

        "update": the rule looks at each, not at their sum only. "nonnegative_loss": losses are at
        least 0, or a round raises an error.
        """
        return frozenset({"size", "loss"})

    @property
    def local_run(self) -> str | None:
        """The folder of a run of local models whose losses the rule needs, if it names one."""
        return None

    def with_local_losses(self, losses: tuple[float, ...]) -> Self:
        """Return the rule with the losses (K,) that `local_run` asks for."""
        return self

    def init(self, setting: Setting | int) -> State:
        """Return the state before the first round. A number stands for that many clients."""
        return {}

    def __call__(self, reports: Reports, state: State) -> Decision:
        """Decide on a round."""
        raise NotImplementedError

    @property
    def logarithmic(self) -> bool:
        """True if a decision p costs -log(1 + <p, r>) under the response r; else -<p, r>."""
        return False

    def response(self, losses: Tensor) -> Tensor | None:
        """Return the response (K,) of online learning, if the rule decides on a mixture by one."""
        return None

    def cohort_response(self, losses: Tensor, clients: int) -> Tensor | None:
        """Return the response (S,) to the losses of a cohort of S of K clients."""
        return self.response(losses)

    def bound(self, rounds: int, clients: int) -> float | None:
        """Return the theorem's bound on the regret, if there is one."""
        return None

    @property
    def private(self) -> PrivateForm | None:
        """The function by which a client weighs itself, for "private"; None: it cannot do so."""
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
        weights = self.weigh(reports)
        descent = None
        if self.kind.family == "direction":
            descent = Descent.along(weights, reports.gram)
        return Decision(weights, state, self.warnings(reports), descent=descent)

    def weigh(self, reports: Reports) -> Tensor:
        """Return the weights (S,)."""
        raise NotImplementedError

    def warnings(self, reports: Reports) -> tuple[str, ...]:
        """Return what users should know about this round."""
        return ()


@dataclass(frozen=True)
class Combinator(Rule):
    """A rule around another one. What a subclass does not define is the inner rule's.

    The inner rule's state is the entry "rule" of the state: a subclass calls
    `self.rule(reports, self.inner(state))` and puts the decision's state there.

    Args:
        rule: any rule.
    """

    rule: Rule

    @property
    def mixing(self) -> bool:
        return self.rule.mixing

    @property
    def needs(self) -> frozenset[Need]:
        return self.rule.needs

    @property
    def plans_rounds(self) -> bool:
        return self.rule.plans_rounds

    @property
    def local_run(self) -> str | None:
        return self.rule.local_run

    def with_local_losses(self, losses: tuple[float, ...]) -> Self:
        return replace(self, rule=self.rule.with_local_losses(losses))

    def init(self, setting: Setting | int) -> State:
        return {"rule": self.rule.init(setting)}

    def inner(self, state: State) -> State:
        """Return the inner rule's state. An empty one is not in a checkpoint."""
        inner: State = state.get("rule", {})
        return inner

    @property
    def logarithmic(self) -> bool:
        return self.rule.logarithmic

    def response(self, losses: Tensor) -> Tensor | None:
        return self.rule.response(losses)

    def cohort_response(self, losses: Tensor, clients: int) -> Tensor | None:
        return self.rule.cohort_response(losses, clients)

    def bound(self, rounds: int, clients: int) -> float | None:
        return self.rule.bound(rounds, clients)

    def distribution(self, state: State, clients: int) -> Tensor | None:
        return self.rule.distribution(self.inner(state), clients)

    def averaged(self, state: State, clients: int) -> Tensor | None:
        return self.rule.averaged(self.inner(state), clients)


def prior_weights(reports: Reports, prior: Prior) -> Tensor:
    """Return the weights (S,) before losses are known: by sample count, or uniform."""
    sizes = reports.sizes.double()
    if prior == "uniform":
        sizes = torch.ones_like(sizes)
    return sizes / sizes.sum()
