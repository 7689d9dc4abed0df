"""guarded: a rule that excludes implausible reports, and limits what one client can take.

Fair rules give more weight to larger losses, so one client with a false report can take over a
model. A report is implausible beside those of the cohort: its loss or the norm of its update is far
above the median, its update points against the others', or its size is impossible. Medians are
reliable as long as most reporters are honest. docs/reliability.md shows what it withstands and what
it cannot.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State
from commonweal.data.population import Setting
from commonweal.rules._outliers import (
    CLEAR,
    FEW,
    excess,
    median,
    norms_for_sizes,
    opposition,
    size_excess,
)
from commonweal.rules._table import empty_table, lookup, put
from commonweal.rules.rule import Combinator, Decision, Kind, Need, Reports, required

__all__ = ["Guarded"]

UNTRAINED = 1.5  # a loss below this many times that of the first model is always plausible
GROWTH = 10.0  # a client's size is at most this many times the one that it first reported
ABSURD = 50.0  # a size so many times the largest plausible one is a lie, not a large client
FADING = 0.9  # the weight of older evidence on whether a client's losses follow its updates
CONTRADICTION = 4.5  # so much evidence to the contrary, net and after fading, is implausible
CONTRARY = 0.8  # and so large a part of all evidence
# The least cosine with the direction taken that says how a loss should change, and the least
# relative change that says something. For clients whose losses never followed their updates so far
# small ones count too: honest ones show soon that they do.
STRONG = (0.1, 0.005)
WEAK = (0.02, 0.0005)
DOUBT = 6  # so many small ones to the contrary since a client's first report are implausible
TRUSTED = -1.0
PATIENCE = 10  # the average weight of a client begins with so many rounds of equal weights
RECOVERY = 0.5  # by how much a plausible report reduces the suspicion, which an implausible one
SUSPICION = 5.0  # raises by 1, up to this


class _Findings(NamedTuple):
    """What is implausible in a round's reports."""

    loss: Tensor  # (S,) above 1: implausible
    norm: Tensor  # (S,)
    norms: Tensor  # (S,) of the updates, for the clients' sizes
    reasons: dict[int, str]  # implausible reports
    long: dict[int, str]  # updates that are used, but shortened
    useless: Tensor  # (S,) bool: nothing of the report can be used
    suspicion: Tensor  # (S,) after this round: 1 or more excludes
    against: Tensor  # (S,) the sum of `opposition` over the client's reports
    doubt: (
        Tensor  # (S,) weak evidence to the contrary since the first report; TRUSTED: there is other
    )
    trend: Tensor  # (S,) faded sum of +1 where a loss followed the client's update, else -1
    evidence: Tensor  # (S,) faded number of the reports that count in `trend`


class _Last(NamedTuple):
    """The reporters of the last round."""

    ids: Tensor  # (S,) sorted
    losses: Tensor  # (S,)
    cosines: Tensor  # (S,) of their updates with the direction taken: above 0, losses should fall

    @classmethod
    def empty(cls) -> "_Last":
        nothing = torch.empty(0, dtype=torch.float64)
        return cls(torch.empty(0, dtype=torch.int64), nothing, nothing)

    @classmethod
    def of(cls, reports: Reports, weights: Tensor) -> "_Last":
        """The reporters, and what the direction that is taken promises each by its own update."""
        updates = required(reports.updates, "updates")
        used = weights != 0
        direction = weights[used].to(updates.dtype) @ updates[used]
        cosines = (updates @ direction).double() / (reports.norms * direction.norm())
        cosines = cosines.nan_to_num(nan=0.0)
        order = reports.ids.argsort()
        losses = reports.losses.double().nan_to_num(nan=0.0, posinf=0.0)
        return cls(reports.ids[order], losses[order], cosines[order])

    def kept(self, reports: Reports, least: tuple[float, float]) -> Tensor:
        """1 for reporters (S,) whose loss moved as promised, -1 for the contrary, else 0.

        least: the cosine and the relative change of the loss below which nothing is told
        """
        moved, changed = least
        losses = reports.losses.double()
        if len(self.ids) == 0:
            return torch.zeros_like(losses)
        place = torch.searchsorted(self.ids, reports.ids).clamp(max=len(self.ids) - 1)
        before = self.losses[place]
        change = before - losses
        told = (change.abs() > changed * before) & (self.cosines[place].abs() > moved)
        known = (self.ids[place] == reports.ids) & told
        agrees = self.cosines[place].sign() * change.sign()
        return torch.where(known, agrees, 0.0).nan_to_num(nan=0.0)


@dataclass(frozen=True)
class Guarded(Combinator):
    """the rule's weights over the reports whose loss, size, norm and direction are plausible beside
    the cohort's medians; no weight above `most` on average over a client's rounds

    rule: any rule

    Any client id is accepted. A client that joins late begins without suspicion.

    Args:
        limit: how many times the median is implausible however wide the reports spread (5
            times that with fewer than 5 reporters); less is implausible if they are close
            together, down to 4 times.
        action: "drop" an implausible report, or "cap" its loss and the norm of its update
            at the largest plausible ones; an update against the others' is dropped in any
            case.
        most: the largest weight of a client, on average over its rounds, with 5 or more
            reporters.
    """

    limit: float = 20.0
    action: Literal["drop", "cap"] = "drop"
    most: float = 0.5

    kind: ClassVar[Kind] = Kind(
        "combinator", "the rule's own, of plausible losses", "the rule's own"
    )

    def __post_init__(self) -> None:
        if self.limit <= 1:
            raise ConfigError(f"guarded limit = {self.limit}: it must be above 1")
        if not 0 < self.most <= 1:
            raise ConfigError(f"guarded most = {self.most}: it must lie between 0 and 1")

    @property
    def mixing(self) -> bool:
        return False  # the weight of an update that is shortened shrinks

    @property
    def needs(self) -> frozenset[Need]:
        return super().needs | {"update"}

    def init(self, setting: Setting | int) -> State:
        start = torch.zeros((), dtype=torch.float64)
        tables = ("sizes", "suspicion", "against", "doubt", "trend", "evidence", "total", "reports")
        return {
            "rule": self.rule.init(setting),
            "start": start,
            "last": _Last.empty()._asdict(),
            **{name: empty_table("settled", "recent") for name in tables},
        }

    def __call__(self, reports: Reports, state: State) -> Decision:
        start = torch.maximum(state["start"], _typical(reports.losses))
        lies, shrunk, sizes = self._check_sizes(reports, state["sizes"])
        checked = replace(reports, sizes=sizes)
        findings = self._findings(checked, float(start), lies, state)
        decision = self._decide(checked, findings, self.inner(state))
        smaller = {i: why for i, why in shrunk.items() if i not in decision.dropped}
        decision = replace(decision, capped=smaller | decision.capped)
        decision = self._limit_weights(reports.ids, decision, state)
        following = {
            "rule": decision.state,
            "start": start,
            "sizes": _first_sizes(reports.ids, sizes, state["sizes"]),
            "suspicion": put(state["suspicion"], reports.ids, findings.suspicion),
            "against": put(state["against"], reports.ids, findings.against),
            "doubt": put(state["doubt"], reports.ids, findings.doubt),
            "trend": put(state["trend"], reports.ids, findings.trend),
            "evidence": put(state["evidence"], reports.ids, findings.evidence),
            "last": _Last.of(reports, decision.weights)._asdict(),
            **_add_weights(reports.ids, decision.weights, state),
        }
        return replace(decision, state=following)

    def _check_sizes(
        self, reports: Reports, known: State
    ) -> tuple[dict[int, str], dict[int, str], Tensor]:
        """Whose size is a lie, whose is only too large to be used, and the sizes (S,) to use."""
        ids = reports.ids
        sizes = reports.sizes.double()
        first = lookup(known, ids)
        above = size_excess(sizes, self.limit)
        grown = (first > 0) & (sizes > GROWTH * first)
        impossible = ~(sizes >= 1) | sizes.isinf()
        large = (above > 1) & ~impossible
        if not (grown | impossible | large).any():
            return {}, {}, reports.sizes
        middle = median(torch.where(impossible, 1.0, sizes))
        lies = _why(ids, impossible, "its size is {:g}", sizes)
        lies |= _why(ids, above > ABSURD, TIMES.format("size"), sizes / middle)
        shrunk = _why(
            ids, grown, "its size is {:.3g} times the one that it first sent", sizes / first
        )
        shrunk |= _why(ids, large, TIMES.format("size"), sizes / middle)
        usable = torch.where(grown, first, sizes)
        return lies, shrunk, torch.where(large | impossible, middle, usable)

    def _findings(
        self, reports: Reports, start: float, lies: dict[int, str], state: State
    ) -> _Findings:
        ids = reports.ids
        loss = self._loss_excess(reports, start)
        norms = norms_for_sizes(reports)
        norm = excess(norms, self.limit)
        times = _ratio(norms)
        absurd = (norm > 1) & ((times > self.limit) | norm.isinf())
        # A client that is badly served pulls away from the others in the end; one that points
        # against them from its first report on does not train their model.
        against = lookup(state["against"], ids) + opposition(reports, norm.isfinite())
        opposed = against > CLEAR * (lookup(state["reports"], ids) + 1)
        last = _Last(**state["last"])
        doubt = _doubt(lookup(state["doubt"], ids), last.kept(reports, WEAK))
        kept = last.kept(reports, STRONG)
        fading = torch.where(kept == 0, 1.0, FADING)
        trend = fading * lookup(state["trend"], ids) + kept
        evidence = fading * lookup(state["evidence"], ids) + kept.abs()
        contrary = (trend < -CONTRADICTION) & (trend < -CONTRARY * evidence)
        contrary = contrary | (doubt >= DOUBT)
        reasons = dict(lies)
        reasons |= _why(ids, contrary, "its losses rise where its updates promise a fall", norm)
        reasons |= _why(ids, opposed, "its updates point against the others'", norm)
        reasons |= _why(ids, absurd, TIMES.format("update"), times)
        long = _why(ids, norm > 1, TIMES.format("update"), times)
        reasons |= _why(ids, loss > 1, TIMES.format("loss"), _ratio(reports.losses))
        implausible = torch.tensor([i in reasons for i in ids.tolist()])
        before = lookup(state["suspicion"], ids)
        suspicion = torch.where(implausible, before + 1, before - RECOVERY).clamp(0, SUSPICION)
        earlier = (suspicion >= 1) & ~implausible
        if self.action == "drop":
            reasons |= _why(ids, earlier, "earlier reports of this client were implausible", norm)
        useless = opposed | contrary | norm.isinf()
        return _Findings(
            loss, norm, norms, reasons, long, useless, suspicion, against, doubt, trend, evidence
        )

    def _loss_excess(self, reports: Reports, start: float) -> Tensor:
        """How far losses, also those after training, are above what is plausible."""
        above = torch.zeros(len(reports.ids), dtype=torch.float64)
        for losses in (reports.losses, reports.losses_after):
            if losses is not None:
                # A client may always say that the model serves it as badly as an untrained one.
                hopeless = losses.double().nan_to_num(nan=torch.inf) > UNTRAINED * start
                above = above.maximum(torch.where(hopeless, excess(losses, self.limit), 0.0))
        return above

    def _decide(self, reports: Reports, findings: _Findings, state: State) -> Decision:
        """The rule's decision on what can be used of the reports."""
        dropped = findings.reasons
        if self.action == "cap":
            dropped = {i: findings.reasons[i] for i in reports.ids[findings.useless].tolist()}
        reduced = findings.long | findings.reasons
        capped = {i: why for i, why in reduced.items() if i not in dropped}
        if not reduced:
            return self.rule(reports, state)
        shrink = _shrink(findings.norms, findings.norm <= 1)
        reports = _capped(reports, findings.loss <= 1, shrink)
        used = torch.tensor([i not in dropped for i in reports.ids.tolist()])
        if not used.any():
            return Decision(torch.zeros(len(used), dtype=torch.float64), state, dropped=dropped)
        decision = self.rule(reports.subset(used), state)
        weights = torch.zeros(len(used), dtype=decision.weights.dtype)
        weights = weights.masked_scatter(used, decision.weights) * shrink.to(weights.dtype)
        return replace(
            decision,
            weights=weights,
            dropped=dropped | decision.dropped,
            capped=capped | decision.capped,
        )

    def _limit_weights(self, ids: Tensor, decision: Decision, state: State) -> Decision:
        """Reduce the weights of clients that would exceed `most` on average over their rounds."""
        weights = decision.weights
        size = len(ids)
        share = _shares(weights)
        if size < FEW:
            return decision
        rounds = lookup(state["reports"], ids) + 1 + PATIENCE
        before = lookup(state["total"], ids) + PATIENCE / size
        allowed = (self.most * rounds - before).clamp(min=1 / size)
        over = share > allowed
        if not over.any():
            return decision
        reduced = weights * torch.where(over, allowed / share, 1.0).to(weights.dtype)
        if self.rule.mixing:
            reduced = _fill(reduced, over, weights.sum())
        text = "its weight would be {:.2g} on average over its rounds"
        capped = _why(ids, over, text, (before + share) / rounds)
        return replace(decision, weights=reduced, capped=decision.capped | capped)


TIMES = "its {} is {{:.3g}} times the cohort's median"


def _doubt(before: Tensor, kept: Tensor) -> Tensor:
    """Count evidence to the contrary (S,), until there is some for the client."""
    trusted = (before == TRUSTED) | (kept > 0)
    return torch.where(trusted, TRUSTED, before - kept.clamp(max=0))


def _why(ids: Tensor, which: Tensor, text: str, values: Tensor) -> dict[int, str]:
    """A reason for each of these clients, with its value."""
    chosen = zip(ids[which].tolist(), values[which].tolist(), strict=True)
    return {client: text.format(value) for client, value in chosen}


def _ratio(values: Tensor) -> Tensor:
    values = values.double().nan_to_num(nan=torch.inf)
    return values / median(values)


def _typical(losses: Tensor) -> Tensor:
    """The median loss, 0 if it is not finite."""
    return median(losses.double().nan_to_num(nan=torch.inf)).nan_to_num(posinf=0.0)


def _first_sizes(ids: Tensor, sizes: Tensor, known: State) -> State:
    new = lookup(known, ids) == 0
    return put(known, ids[new], sizes[new].double()) if new.any() else known


def _add_weights(ids: Tensor, weights: Tensor, state: State) -> State:
    """What clients had of the weights, and in how many rounds."""
    total = lookup(state["total"], ids) + _shares(weights)
    count = lookup(state["reports"], ids) + 1
    return {"total": put(state["total"], ids, total), "reports": put(state["reports"], ids, count)}


def _shares(weights: Tensor) -> Tensor:
    """Each client's part (S,) of the weights, whatever their signs and scale."""
    size = weights.double().abs()
    return size / size.sum().clamp(min=torch.finfo(torch.float64).tiny)


def _fill(weights: Tensor, over: Tensor, total: Tensor) -> Tensor:
    """Give the others what those over their limit lost, in proportion."""
    others = torch.where(over, 0.0, weights)
    if not (others > 0).any():
        others = (~over).to(weights.dtype)
    missing = total - weights.sum()
    return weights + missing * others / others.sum()


def _shrink(norms: Tensor, plausible: Tensor) -> Tensor:
    """The factor (S,) that limits each update to the largest plausible norm."""
    if not plausible.any():
        return torch.zeros_like(norms)
    factor = (norms[plausible].max() / norms).nan_to_num(nan=0.0)
    return torch.where(plausible, 1.0, factor)


def _capped(reports: Reports, plausible: Tensor, shrink: Tensor) -> Reports:
    losses = reports.losses.double()
    if plausible.any():
        losses = torch.where(plausible, losses, losses[plausible].max())
    updates = required(reports.updates, "updates")
    factor = shrink[:, None]
    # Zero where the factor is zero: such an update may hold infinities.
    updates = torch.where(factor > 0, updates * factor.to(updates.dtype), 0)
    return replace(reports, losses=losses, updates=updates)


ENTRIES = {"guarded": Guarded}
