"""guarded: protects a rule from malicious clients by leaving out and limiting their reports.

Fair rules give more weight to larger losses, so one client with a false report can take over a
model. A report is implausible next to those of the cohort, or next to what the same client reported
before: `_detectors` has the tests. Medians are reliable as long as most reporters are honest. The
strongest test is what a client does with its weight: an honest client's loss follows its update.
Whatever looks like an honest client that is badly served is believed, so that weights are kept near
fair shares in every round as well: whatever the rule asks for, one client moves the model by `most`
fair shares, and a quarter of the clients by a quarter and the budget. Clients whose losses hardly
follow their updates get less of what exceeds a fair share, and clients that send the same update
share less than one. No client may stop the others: where the rule's direction is nearly 0, the
weights are fair shares. docs/reliability.md shows what it withstands and what it cannot.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from commonweal.base.arguments import check_bounds
from commonweal.base.tensors import State
from commonweal.data.population import Setting
from commonweal.rules.guard._detectors import (
    DETECTORS,
    USELESS,
    Last,
    LongUpdate,
    SeenRound,
    Verdict,
    sketch,
)
from commonweal.rules.guard._outliers import FEW, copies, excess, norms_for_sizes
from commonweal.rules.rule import Combinator, Decision, Descent, Kind, Need, Reports, required
from commonweal.rules.sparse_table import empty_table, lookup, put_numbers

GROWTH = 10.0  # a client's size is at most this many times the one that it first reported
ABSURD = 50.0  # a size so many times the largest plausible one is false, not that of a large client
RECOVERY = 0.2  # by how much a plausible report reduces the suspicion, which an implausible one
SUSPICION = 5.0  # raises by 1, up to this
FOLLOWS = 0.5  # a loss that follows the updates by this part of what is usual is beyond doubt
LONG = 0.75  # the quantile of norms that a fair share may move: badly served clients send more
STALLED = 0.1  # a direction so much shorter than the mean update stops the training
COPIES = 1.9  # so many clients with the same update, itself included, are named


@dataclass(frozen=True)
class Guarded(Combinator):
    """the rule's weights over the reports whose loss, size and norm are plausible next to the
    cohort's medians, kept near fair shares

    A client that joins late begins without suspicion.

    Args:
        rule: any rule.
        limit: how many times the median is implausible however wide the reports spread (5 times
            that with fewer than 5 reporters); less is implausible if they are close together, down
            to 4 times.
        action: "drop" an implausible report, or "cap" its loss and the norm of its update at the
            largest plausible ones; reports of which nothing can be used are dropped in any case.
        most: how many fair shares (1 / S, or its part of the samples if that is more) a client
            moves the model by in a round, with 5 or more reporters; less, down to one, if its loss
            follows its updates by less than half of what is usual.
        budget: how much clients above their fair shares move the model by beyond these, together;
            1 leaves weights as the rule gives them.
    """

    limit: float = 20.0
    action: Literal["drop", "cap"] = "drop"
    most: float = 5.0
    budget: float = 0.4

    kind = Kind("combinator", "the rule's own, of plausible losses", "the rule's own")

    def __post_init__(self) -> None:
        check_bounds("guarded limit", self.limit, above=1)
        check_bounds("guarded most", self.most, least=1)
        check_bounds("guarded budget", self.budget, least=0, most=1)

    @property
    def mixing(self) -> bool:
        return False  # the weight of an update that is shortened shrinks

    @property
    def needs(self) -> frozenset[Need]:
        return super().needs | {"loss", "update"}

    def init(self, setting: Setting | int) -> State:
        return {
            **super().init(setting),
            "sizes": empty_table(),
            "suspicion": empty_table(),
            "last": Last.empty()._asdict(),
            **{name: detector.init() for name, detector in DETECTORS.items()},
        }

    def __call__(self, reports: Reports, state: State) -> Decision:
        ids = reports.ids
        false, shrunk, sizes = self._check_sizes(reports, state["sizes"])
        checked = replace(reports, sizes=sizes)
        sketches = sketch(required(reports.updates, "updates"))
        last = Last(**state["last"])
        seen = SeenRound(
            checked, norms_for_sizes(checked), copies(checked), sketches, last, self.limit
        )
        verdicts = {name: test(seen, state.get(name, {})) for name, test in DETECTORS.items()}
        reasons, suspicion = self._suspect(ids, verdicts, false, state["suspicion"])
        decision = self._decide(seen, verdicts, reasons, self.inner(state))
        credit = (verdicts["response"].values / FOLLOWS).clamp(0, 1)
        weights = self._limited(decision, checked, seen.copies**-2, credit)
        new = lookup(state["sizes"], ids) == 0
        following = {
            "rule": decision.state,
            "sizes": put_numbers(state["sizes"], ids[new], sizes[new])
            if new.any()
            else state["sizes"],
            "suspicion": put_numbers(state["suspicion"], ids, suspicion),
            "last": Last.of(seen, weights)._asdict(),
            **{name: verdict.state for name, verdict in verdicts.items()},
        }
        descent = None if decision.descent is None else Descent.along(weights, reports.gram)
        others = seen.copies - 1
        same = _why(ids, seen.copies >= COPIES, "its update is that of {:.2g} others", others)
        capped = {i: why for i, why in (same | shrunk).items() if i not in decision.dropped}
        capped |= decision.capped
        return replace(decision, weights=weights, state=following, capped=capped, descent=descent)

    def _check_sizes(
        self, reports: Reports, known: State
    ) -> tuple[dict[int, str], dict[int, str], Tensor]:
        """Return who gave a false size, whose is only too large, and the sizes (S,) to use."""
        ids = reports.ids
        sizes = reports.sizes.double()
        first = lookup(known, ids)
        grown = (first > 0) & (sizes > GROWTH * first)
        above = excess(sizes, self.limit, sizes=True)
        middle = sizes.median()
        times = "its size is {:.3g} times the cohort's median"
        false = _why(ids, above > ABSURD, times, sizes / middle)
        shrunk = _why(
            ids, grown, "its size is {:.3g} times the one that it first sent", sizes / first
        )
        shrunk |= _why(ids, above > 1, times, sizes / middle)
        return false, shrunk, torch.where(above > 1, middle, torch.where(grown, first, sizes))

    def _suspect(
        self, ids: Tensor, verdicts: dict[str, Verdict], false: dict[int, str], table: State
    ) -> tuple[dict[int, str], Tensor]:
        """Return the reasons not to believe reports, by client, and the suspicion (S,) after it."""
        reasons = dict(false)
        for name, verdict in verdicts.items():
            text = DETECTORS[name].reason
            reasons = _why(ids, verdict.implausible, text, verdict.values) | reasons
        implausible = _among(ids, reasons)
        before = lookup(table, ids)
        suspicion = torch.where(implausible, before + 1, before - RECOVERY).clamp(0, SUSPICION)
        if self.action == "drop":
            earlier = (suspicion >= 1) & ~implausible
            text = "earlier reports of this client were implausible"
            reasons |= _why(ids, earlier, text, suspicion)
        return reasons, suspicion

    def _decide(
        self, seen: SeenRound, verdicts: dict[str, Verdict], reasons: dict[int, str], state: State
    ) -> Decision:
        """The rule's decision on what can be used of the reports."""
        reports = seen.reports
        long = excess(seen.norms, self.limit) > 1
        times = seen.norms / seen.norms.median()
        reduced = _why(reports.ids, long, LongUpdate.reason, times) | reasons
        if not reduced:
            return self.rule(reports, state)
        dropped = reasons
        if self.action == "cap":
            implausible = [verdicts[name].implausible for name in USELESS]
            useless = _among(reports.ids, reasons) & torch.stack(implausible).any(0)
            dropped = {i: reasons[i] for i in reports.ids[useless].tolist()}
        used = ~_among(reports.ids, dropped)
        if not used.any():
            return Decision(torch.zeros(len(used), dtype=torch.float64), state, dropped=dropped)
        shrink = torch.zeros_like(seen.norms)
        if not long.all():  # to the largest plausible norm
            shrink = torch.where(long, seen.norms[~long].max() / seen.norms, 1.0)
        capped_reports = _capped(reports, ~verdicts["loss"].implausible, shrink)
        decision = self.rule(capped_reports.subset(used), state)
        weights = torch.zeros(len(used), dtype=decision.weights.dtype)
        weights = weights.masked_scatter(used, decision.weights) * shrink.to(weights.dtype)
        return replace(
            decision,
            weights=weights,
            dropped=dropped | decision.dropped,
            capped={i: why for i, why in reduced.items() if i not in dropped} | decision.capped,
        )

    def _limited(
        self, decision: Decision, reports: Reports, trust: Tensor, credit: Tensor
    ) -> Tensor:
        """Keep the weights near fair shares.

        What a client moves is its weight times the length of its update in units of the quantile
        LONG, if it is above that. A fair share is 1 / S or the client's part of the samples, times
        its trust (S,). Clients above theirs move at most `most` times as much each, of which they
        get the part `credit` (S,), and at most `budget` more together, which those below theirs
        move less.
        """
        weights = decision.weights.double()
        if len(weights) < FEW or self.budget == 1 or not weights.any():
            return decision.weights
        used = ~_among(reports.ids, decision.dropped)
        even = used / int(used.sum())
        unit = reports.norms.quantile(LONG)
        lengths = (reports.norms / unit).clamp(min=1) if unit > 0 else torch.ones_like(weights)
        length = _length(weights, reports)
        if length < STALLED * _length(even / lengths, reports):
            weights = even / lengths  # one update can cancel all others, and stop the training
        moved = weights * lengths / (weights.abs() * lengths).sum()
        sizes = torch.where(used, reports.sizes.double(), 0.0)
        part = sizes / sizes.sum()
        upper = trust * part.maximum(even)
        lower = trust * part.minimum(even)
        allowed = (self.most - 1) * trust * credit * upper
        above = _within((moved - upper).clamp(min=0).minimum(allowed), self.budget)
        below = (lower - moved).clamp(min=0)
        limited = moved.clamp(lower, upper) + above - _within(below, float(above.sum()))
        if torch.allclose(limited, moved, rtol=0, atol=1e-6):  # updates that are a little alike
            return weights.to(decision.weights.dtype)
        limited = limited / lengths
        limited = limited / limited.sum()
        # As long as the rule's direction, but at most an average.
        total = max(float(weights.abs().sum()), length / (_length(limited, reports) or 1.0))
        return (min(1.0, total) * limited).to(decision.weights.dtype)


def _length(weights: Tensor, reports: Reports) -> float:
    """Of the direction."""
    updates = required(reports.updates, "updates")
    return float((weights.to(updates.dtype) @ updates).norm())


def _within(values: Tensor, budget: float) -> Tensor:
    """The values (S,), at least 0, scaled so that they sum to at most the budget."""
    total = float(values.sum())
    return values if total <= budget else values * (budget / total)


def _why(ids: Tensor, which: Tensor, text: str, values: Tensor) -> dict[int, str]:
    """A reason for each of these clients, with its value."""
    chosen = zip(ids[which].tolist(), values[which].tolist(), strict=True)
    return {client: text.format(value) for client, value in chosen}


def _among(ids: Tensor, clients: Collection[int]) -> Tensor:
    """Return whether each client (S,) is one of these."""
    return torch.tensor([client in clients for client in ids.tolist()])


def _capped(reports: Reports, plausible: Tensor, shrink: Tensor) -> Reports:
    """The reports with plausible losses, and updates of plausible lengths."""
    losses = reports.losses.double()
    if plausible.any():
        losses = torch.where(plausible, losses, losses[plausible].max())
    updates = required(reports.updates, "updates")
    return replace(reports, losses=losses, updates=updates * shrink[:, None].to(updates.dtype))


ENTRIES = {"guarded": Guarded}
