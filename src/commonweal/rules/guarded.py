"""guarded: a rule that excludes implausible reports, and limits what one client can take.

Fair rules give more weight to larger losses, so one client with a false report can take over a
model. A report is implausible next to those of the cohort, or next to what the same client reported
before: `_detectors` has the tests. Medians are reliable as long as most reporters are honest.
Whatever looks like an honest client that is badly served is believed, so weights are limited in
every round as well. docs/reliability.md shows what it withstands and what it cannot.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State
from commonweal.data.population import Setting
from commonweal.rules._detectors import DETECTORS, Last, Round
from commonweal.rules._outliers import FEW, excess, median, norms_for_sizes, size_excess
from commonweal.rules._table import empty_table, lookup, put
from commonweal.rules.rule import Combinator, Decision, Descent, Kind, Need, Reports, required

__all__ = ["Guarded"]

GROWTH = 10.0  # a client's size is at most this many times the one that it first reported
ABSURD = 50.0  # a size so many times the largest plausible one is false, not that of a large client
RECOVERY = 0.5  # by how much a plausible report reduces the suspicion, which an implausible one
SUSPICION = 5.0  # raises by 1, up to this
TOGETHER = 1 / 3  # the most that all clients at the limit of their weights have together


class _Findings(NamedTuple):
    """What is implausible in a round's reports."""

    reasons: dict[int, str]  # implausible reports
    useless: set[int]  # those of which nothing can be used
    plausible_loss: Tensor  # (S,) bool
    shrink: Tensor  # (S,) the factor that limits an update to the largest plausible norm
    long: dict[int, str]  # updates that are used, but shortened
    suspicion: Tensor  # (S,) after this round: 1 or more excludes
    states: State  # of the detectors


@dataclass(frozen=True)
class Guarded(Combinator):
    """the rule's weights over the reports whose loss, size, norm and direction are plausible next
    to the cohort's medians; no weight above `most` fair shares

    Any client id is accepted. A client that joins late begins without suspicion.

    Args:
        rule: any rule.
        limit: how many times the median is implausible however wide the reports spread (5 times
            that with fewer than 5 reporters); less is implausible if they are close together, down
            to 4 times.
        action: "drop" an implausible report, or "cap" its loss and the norm of its update at the
            largest plausible ones; reports of which nothing can be used are dropped in any case.
        most: the largest weight of a client in a round, in fair shares (1 / S, or its part of the
            samples if that is more), with 5 or more reporters. Clients at this limit have at most
            a third of the weight together.
    """

    limit: float = 20.0
    action: Literal["drop", "cap"] = "drop"
    most: float = 3.0

    kind: ClassVar[Kind] = Kind(
        "combinator", "the rule's own, of plausible losses", "the rule's own"
    )

    def __post_init__(self) -> None:
        if self.limit <= 1:
            raise ConfigError(f"guarded limit = {self.limit}: it must be above 1")
        if self.most < 1:
            raise ConfigError(f"guarded most = {self.most}: it must be at least 1, in fair shares")

    @property
    def mixing(self) -> bool:
        return False  # the weight of an update that is shortened shrinks

    @property
    def needs(self) -> frozenset[Need]:
        return super().needs | {"loss", "update"}

    def init(self, setting: Setting | int) -> State:
        return {
            **super().init(setting),
            "sizes": empty_table("settled", "recent"),
            "suspicion": empty_table("settled", "recent"),
            "last": Last.empty()._asdict(),
            **{name: detector.init() for name, detector in DETECTORS.items()},
        }

    def __call__(self, reports: Reports, state: State) -> Decision:
        false, shrunk, sizes = self._check_sizes(reports, state["sizes"])
        checked = replace(reports, sizes=sizes)
        findings = self._findings(checked, false, state)
        decision = self._decide(checked, findings, self.inner(state))
        smaller = {i: why for i, why in shrunk.items() if i not in decision.dropped}
        weights = self._limited(decision, checked)
        following = {
            "rule": decision.state,
            "sizes": _first_sizes(reports.ids, sizes, state["sizes"]),
            "suspicion": put(state["suspicion"], reports.ids, findings.suspicion),
            "last": Last.of(reports, weights)._asdict(),
            **findings.states,
        }
        descent = decision.descent
        if descent is not None:
            descent = Descent.along(weights, reports.gram)
        capped = smaller | decision.capped
        return replace(decision, weights=weights, state=following, capped=capped, descent=descent)

    def _check_sizes(
        self, reports: Reports, known: State
    ) -> tuple[dict[int, str], dict[int, str], Tensor]:
        """Whose size is false, whose is only too large to be used, and the sizes (S,) to use."""
        ids = reports.ids
        sizes = reports.sizes.double()
        first = lookup(known, ids)
        above = size_excess(sizes, self.limit)
        grown = (first > 0) & (sizes > GROWTH * first)
        large = above > 1
        if not (grown | large).any():
            return {}, {}, reports.sizes
        middle = median(sizes)
        times = "its size is {:.3g} times the cohort's median"
        false = _why(ids, above > ABSURD, times, sizes / middle)
        shrunk = _why(
            ids, grown, "its size is {:.3g} times the one that it first sent", sizes / first
        )
        shrunk |= _why(ids, large, times, sizes / middle)
        return false, shrunk, torch.where(large, middle, torch.where(grown, first, sizes))

    def _findings(self, reports: Reports, false: dict[int, str], state: State) -> _Findings:
        ids = reports.ids
        norms = norms_for_sizes(reports)
        seen = Round(reports, norms, Last(**state["last"]), self.limit)
        reasons = dict(false)
        useless: set[int] = set()
        states: State = {}
        plausible_loss = torch.ones(len(ids), dtype=torch.bool)
        for name, detector in DETECTORS.items():
            verdict = detector(seen, state.get(name, {}))
            states[name] = verdict.state
            reasons = _why(ids, verdict.implausible, detector.reason, verdict.values) | reasons
            if detector.useless:
                useless |= set(ids[verdict.implausible].tolist())
            if name == "loss":
                plausible_loss = ~verdict.implausible
        long = excess(norms, self.limit) > 1
        text = "its update is {:.3g} times the cohort's median"
        implausible = torch.tensor([client in reasons for client in ids.tolist()])
        before = lookup(state["suspicion"], ids)
        suspicion = torch.where(implausible, before + 1, before - RECOVERY).clamp(0, SUSPICION)
        if self.action == "drop":
            earlier = (suspicion >= 1) & ~implausible
            reasons |= _why(
                ids, earlier, "earlier reports of this client were implausible", suspicion
            )
        return _Findings(
            reasons,
            useless,
            plausible_loss,
            _shrink(norms, ~long),
            _why(ids, long, text, norms / median(norms)),
            suspicion,
            states,
        )

    def _decide(self, reports: Reports, findings: _Findings, state: State) -> Decision:
        """The rule's decision on what can be used of the reports."""
        reduced = findings.long | findings.reasons
        if not reduced:
            return self.rule(reports, state)
        dropped = findings.reasons
        if self.action == "cap":
            dropped = {i: why for i, why in dropped.items() if i in findings.useless}
        capped = {i: why for i, why in reduced.items() if i not in dropped}
        used = torch.tensor([i not in dropped for i in reports.ids.tolist()])
        if not used.any():
            return Decision(torch.zeros(len(used), dtype=torch.float64), state, dropped=dropped)
        reports = _capped(reports, findings.plausible_loss, findings.shrink)
        decision = self.rule(reports.subset(used), state)
        weights = torch.zeros(len(used), dtype=decision.weights.dtype)
        weights = weights.masked_scatter(used, decision.weights)
        return replace(
            decision,
            weights=weights * findings.shrink.to(weights.dtype),
            dropped=dropped | decision.dropped,
            capped=capped | decision.capped,
        )

    def _limited(self, decision: Decision, reports: Reports) -> Tensor:
        """Limit what each client moves to `most` fair shares, and give the others what is left.

        A client's fair share is 1 / S, or its part of the samples if that is more. A weight counts
        more if the update is longer than the cohort's median.
        """
        weights = decision.weights
        size = len(weights)
        if size < FEW or not weights.any():
            return weights
        total = float(weights.abs().sum())
        lengths = _relative_lengths(reports.norms)
        moved = weights.double().abs() * lengths / total
        fair = (reports.sizes.double() / reports.sizes.double().sum()).clamp(min=1 / size)
        limit = (self.most * fair).clamp(max=1)
        over = moved > limit * moved.sum()
        if not over.any():
            return weights
        # Together they have at most TOGETHER, or what is fair; the others get the rest by size.
        allowed = max(TOGETHER, float(fair[over].sum()))
        limit = limit * min(1.0, allowed / float(limit[over].sum()))
        shares = torch.where(over, limit / lengths, weights.double().abs() / total)
        missing = max(0.0, 1 - float(shares.sum()))
        dropped = torch.tensor([i in decision.dropped for i in reports.ids.tolist()])
        extra = torch.where(over | dropped, 0.0, fair)
        signed = torch.where(weights < 0, -shares, shares)
        if extra.any():
            signed = signed + missing * extra / extra.sum()
        return (total * signed).to(weights.dtype)


def _relative_lengths(norms: Tensor) -> Tensor:
    """The norms (S,) in units of the median, those below it as 1."""
    middle = median(norms)
    return (norms / middle).clamp(min=1) if middle > 0 else torch.ones_like(norms)


def _why(ids: Tensor, which: Tensor, text: str, values: Tensor) -> dict[int, str]:
    """A reason for each of these clients, with its value."""
    chosen = zip(ids[which].tolist(), values[which].tolist(), strict=True)
    return {client: text.format(value) for client, value in chosen}


def _first_sizes(ids: Tensor, sizes: Tensor, known: State) -> State:
    new = lookup(known, ids) == 0
    return put(known, ids[new], sizes[new].double()) if new.any() else known


def _shrink(norms: Tensor, plausible: Tensor) -> Tensor:
    """The factor (S,) that limits each update to the largest plausible norm."""
    if not plausible.any():
        return torch.zeros_like(norms)
    return torch.where(plausible, 1.0, norms[plausible].max() / norms)


def _capped(reports: Reports, plausible: Tensor, shrink: Tensor) -> Reports:
    """The reports with plausible losses, and updates of plausible lengths."""
    losses = reports.losses.double()
    if plausible.any():
        losses = torch.where(plausible, losses, losses[plausible].max())
    updates = required(reports.updates, "updates")
    return replace(reports, losses=losses, updates=updates * shrink[:, None].to(updates.dtype))


ENTRIES = {"guarded": Guarded}
