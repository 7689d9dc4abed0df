"""Detectors of implausible reports, for `guarded`: each has its own state, test and reason.

Evidence is forgotten with time, so that honest rounds buy no credit for later attacks, and clients
that were wrongly suspected recover.
"""

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from commonweal.base.tensors import State
from commonweal.rules._outliers import (
    FEW,
    LEAST,
    cosines_to_others,
    excess,
    median,
)
from commonweal.rules._table import empty_table, lookup, put
from commonweal.rules.rule import Reports, required

__all__ = ["DETECTORS", "Detector", "Last", "Round", "Verdict"]

BUCKETS = 64  # of the sketch of an update


class Last(NamedTuple):
    """The reporters of the last round."""

    ids: Tensor  # (S,) sorted
    losses: Tensor  # (S,)
    cosines: Tensor  # (S,) of their updates with the direction taken: above 0, losses should fall
    sketches: Tensor  # (S, BUCKETS) of their updates: cosines of sketches estimate theirs

    @classmethod
    def empty(cls) -> "Last":
        nothing = torch.empty(0, dtype=torch.float64)
        return cls(torch.empty(0, dtype=torch.int64), nothing, nothing, nothing[:, None])

    @classmethod
    def of(cls, reports: Reports, weights: Tensor) -> "Last":
        """The reporters, and what the direction that is taken promises each by its own update."""
        updates = required(reports.updates, "updates")
        direction = weights.to(updates.dtype) @ updates
        lengths = reports.norms * direction.norm()
        cosines = torch.where(lengths > 0, (updates @ direction).double() / lengths, 0.0)
        order = reports.ids.argsort()
        losses = reports.losses.double()
        return cls(reports.ids[order], losses[order], cosines[order], sketch(updates)[order])

    def find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The positions (S,) of clients, and who of them reported (S,)."""
        if len(self.ids) == 0:
            return torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
        place = torch.searchsorted(self.ids, ids).clamp(max=len(self.ids) - 1)
        return place, self.ids[place] == ids


def sketch(updates: Tensor) -> Tensor:
    """Add coordinates with fixed random signs into BUCKETS sums (S, BUCKETS)."""
    clients, width = updates.shape
    position = torch.arange(width)
    signs = ((position * 2654435761) >> 13) % 2 * 2 - 1
    signed = updates.double() * signs
    sums = torch.zeros(clients, BUCKETS, dtype=torch.float64)
    return sums.index_add(1, position % BUCKETS, signed)


class Round(NamedTuple):
    """What detectors see of a round."""

    reports: Reports
    norms: Tensor  # (S,) of the updates, relative to what is usual for the clients' sizes
    last: Last
    limit: float  # times the median: implausible however wide the reports spread


class Verdict(NamedTuple):
    """Whose reports a detector finds implausible."""

    implausible: Tensor  # (S,) bool
    values: Tensor  # (S,) for the reason
    state: State


class Detector:
    """A test of reports. `reason` is a format for a client's value."""

    reason: ClassVar[str]
    useless: ClassVar[bool] = True  # nothing of such a report can be used
    tables: ClassVar[tuple[str, ...]] = ()  # numbers that it remembers of each client

    def init(self) -> State:
        return {name: empty_table("settled", "recent") for name in self.tables}

    def __call__(self, seen: Round, state: State) -> Verdict:
        raise NotImplementedError


class LargeLoss(Detector):
    """A loss far above the cohort's, of a client that cannot be served that badly.

    Nobody knows how badly a client is served but itself, and a fair rule is there for clients that
    stay at the loss of the untrained model while the others' falls. So a first loss is plausible up
    to the typical one of the untrained model, and later ones up to what was plausible before.
    """

    reason = "its loss is {:.3g} times the cohort's median"
    useless = False
    tables = ("accepted", "reports")
    badly = 1.5  # times the loss of the untrained model, or the client's own, is always plausible
    fading = 0.97

    def init(self) -> State:
        return super().init() | {"start": torch.zeros((), dtype=torch.float64)}

    def __call__(self, seen: Round, state: State) -> Verdict:
        ids = seen.reports.ids
        losses = seen.reports.losses.double()
        typical = median(losses)
        start = torch.maximum(state["start"], typical)
        accepted = self.fading * lookup(state["accepted"], ids)
        count = lookup(state["reports"], ids)
        highest = self.badly * torch.where(count == 0, start, accepted.clamp(min=float(typical)))
        above = torch.where(losses > highest, excess(losses, seen.limit), 0.0)
        after = seen.reports.losses_after
        if after is not None:
            hopeless = after.double() > highest
            above = above.maximum(torch.where(hopeless, excess(after, seen.limit), 0.0))
        implausible = above > 1
        own = torch.where(losses > highest, accepted, accepted.maximum(losses))
        following = {
            "start": start,
            "accepted": put(state["accepted"], ids, own),
            "reports": put(state["reports"], ids, count + 1),
        }
        return Verdict(implausible, losses / typical, following)


class LongUpdate(Detector):
    """An update that is absurdly long. Those that are only long are shortened by `guarded`."""

    reason = "its update is {:.3g} times the cohort's median"
    useless = False

    def __call__(self, seen: Round, state: State) -> Verdict:
        ratio = seen.norms / median(seen.norms)
        return Verdict((excess(seen.norms, seen.limit) > 1) & (ratio > seen.limit), ratio, state)


class ShortUpdate(Detector):
    """An update of nearly 0 with a loss that is not: its sender did not train."""

    reason = "its update is {:.2g} times the cohort's median, too short for its loss"
    least = 0.02  # of the median norm, for a median loss

    def __call__(self, seen: Round, state: State) -> Verdict:
        norm = median(seen.norms)
        loss = median(seen.reports.losses.double())
        ratio = seen.norms / norm
        # A loss that is too large may be false, and says nothing about the update.
        losses = seen.reports.losses.double().clamp(max=float(LEAST * loss))
        short = ratio * loss < self.least * losses
        if len(ratio) < FEW or not norm > 0 or not loss > 0:
            short = torch.zeros_like(short)
        return Verdict(short, ratio, state)


class Contrary(Detector):
    """Losses that rise where the client's own updates promise a fall."""

    reason = "its losses rise where its updates promise a fall"
    tables = ("doubt", "trend", "evidence", "slight_trend", "slight_evidence")
    fading = 0.9
    least = 4.5  # evidence to the contrary, net and after fading
    share = 0.8  # and so large a part of all evidence
    # The least cosine with the direction taken that says how a loss should change, and the least
    # relative change that says something. For clients whose losses never followed their updates so
    # far small ones count too: honest ones show soon that they do.
    strong = (0.1, 0.005)
    weak = (0.02, 0.0005)
    most_doubt = 6  # so many small ones to the contrary since a client's first report
    trusted = -1.0

    def __call__(self, seen: Round, state: State) -> Verdict:
        ids = seen.reports.ids
        follows = self._follows(seen, self.strong)
        fading = torch.where(follows == 0, 1.0, self.fading)
        trend = fading * lookup(state["trend"], ids) + follows
        evidence = fading * lookup(state["evidence"], ids) + follows.abs()
        before = lookup(state["doubt"], ids)
        slightly = self._follows(seen, self.weak)
        fading = torch.where(slightly == 0, 1.0, self.fading)
        slight_trend = fading * lookup(state["slight_trend"], ids) + slightly
        slight_evidence = fading * lookup(state["slight_evidence"], ids) + slightly.abs()
        trusted = (before == self.trusted) | (slightly > 0)
        doubt = torch.where(trusted, self.trusted, before - slightly.clamp(max=0))
        contrary = (trend < -self.least) & (trend < -self.share * evidence)
        following = {
            "doubt": put(state["doubt"], ids, doubt),
            "trend": put(state["trend"], ids, trend),
            "evidence": put(state["evidence"], ids, evidence),
            "slight_trend": put(state["slight_trend"], ids, slight_trend),
            "slight_evidence": put(state["slight_evidence"], ids, slight_evidence),
        }
        return Verdict(contrary | (doubt >= self.most_doubt), trend, following)

    def _follows(self, seen: Round, least: tuple[float, float]) -> Tensor:
        """1 for reporters (S,) whose loss moved as promised, -1 for the contrary, else 0."""
        moved, changed = least
        losses = seen.reports.losses.double()
        place, known = seen.last.find(seen.reports.ids)
        if not known.any():
            return torch.zeros_like(losses)
        before = seen.last.losses[place]
        promise = seen.last.cosines[place]
        change = before - losses
        clear = known & (change.abs() > changed * before) & (promise.abs() > moved)
        return torch.where(clear, promise.sign() * change.sign(), 0.0)


class Noise(Detector):
    """Updates that share nothing with the client's own last ones, nor with the others'."""

    reason = "its updates share {:.2g} with its own last ones, like noise"
    tables = ("shared", "rounds")
    fading = 0.8
    least_rounds = 3.0  # after fading
    usual = 0.2  # the least that the others' updates share with their last ones, for a comparison
    part = 0.25  # of what is usual

    def __call__(self, seen: Round, state: State) -> Verdict:
        ids = seen.reports.ids
        shared = lookup(state["shared"], ids)
        rounds = lookup(state["rounds"], ids)
        place, known = seen.last.find(ids)
        if known.any():
            now = sketch(required(seen.reports.updates, "updates"))
            cosines = torch.cosine_similarity(now, seen.last.sketches[place])
            shared = torch.where(known, self.fading * shared + cosines, shared)
            rounds = torch.where(known, self.fading * rounds + 1, rounds)
        mean = shared / rounds.clamp(min=1)
        enough = rounds >= self.least_rounds
        noise = torch.zeros(len(ids), dtype=torch.bool)
        if int(enough.sum()) >= FEW and median(mean[enough]) > self.usual:
            others = cosines_to_others(seen.reports)
            alien = others < max(self.part * float(median(others)), 0.05)
            noise = enough & alien & (mean < self.part * median(mean[enough]))
        following = {
            "shared": put(state["shared"], ids, shared),
            "rounds": put(state["rounds"], ids, rounds),
        }
        return Verdict(noise, mean, following)


DETECTORS: dict[str, Detector] = {
    "loss": LargeLoss(),
    "long": LongUpdate(),
    "short": ShortUpdate(),
    "contrary": Contrary(),
    "noise": Noise(),
}
