"""Detectors of implausible reports, for `guarded`: each has its own state, test and reason.

Evidence is forgotten with time, so that honest rounds buy no credit for later attacks, and clients
that were wrongly suspected recover.
"""

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from commonweal.base.tensors import State, Tensors
from commonweal.rules.guard._outliers import FEW, LEAST, cosines, excess
from commonweal.rules.rule import Reports, required
from commonweal.rules.sparse_table import empty_table, lookup, put_numbers

BUCKETS = 256  # of the sketch of an update


class Last(NamedTuple):
    """The last round: who reported what, and where the model went."""

    ids: Tensor  # (S,) sorted
    losses: Tensor  # (S,)
    promises: Tensor  # (S,) products of their updates with the direction taken, for their sizes
    sketches: Tensor  # (S, BUCKETS) of their updates
    direction: Tensor  # (BUCKETS,) the sketch of the direction taken

    @classmethod
    def empty(cls) -> "Last":
        nothing = torch.empty(0, dtype=torch.float64)
        sketches = torch.empty(0, BUCKETS, dtype=torch.float64)
        return cls(torch.empty(0, dtype=torch.int64), nothing, nothing, sketches, nothing)

    @classmethod
    def of(cls, seen: "SeenRound", weights: Tensor) -> "Last":
        reports = seen.reports
        updates = required(reports.updates, "updates")
        direction = weights.to(updates.dtype) @ updates
        promises = seen.shorter * (updates @ direction).double()
        order = reports.ids.argsort()
        losses = reports.losses.double()[order]
        together = weights.double() @ seen.sketches
        return cls(reports.ids[order], losses, promises[order], seen.sketches[order], together)

    def find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The positions (S,) of clients, and who of them reported (S,)."""
        if len(self.ids) == 0:
            return torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
        place = torch.searchsorted(self.ids, ids).clamp(max=len(self.ids) - 1)
        return place, self.ids[place] == ids


def sketch(updates: Tensor) -> Tensor:
    """Add coordinates with fixed random signs into BUCKETS sums (S, BUCKETS).

    Products of sketches estimate those of the updates.
    """
    clients, width = updates.shape
    position = torch.arange(width)
    signs = ((position * 2654435761) >> 13) % 2 * 2 - 1
    sums = torch.zeros(clients, BUCKETS, dtype=torch.float64)
    return sums.index_add(1, position % BUCKETS, updates.double() * signs)


class SeenRound(NamedTuple):
    """The values of a round that detectors see."""

    reports: Reports
    norms: Tensor  # (S,) of the updates, relative to what is usual for the clients' sizes
    copies: Tensor  # (S,) how many send the same update
    sketches: Tensor  # (S, BUCKETS) of the updates
    last: Last
    limit: float  # times the median: implausible however wide the reports spread

    @property
    def shorter(self) -> Tensor:
        """By what factor (S,) the updates would be shorter if all clients had the same size."""
        norms = self.reports.norms
        return torch.where(norms > 0, self.norms / norms, 1.0)


class Verdict(NamedTuple):
    """The reports that a detector finds implausible."""

    implausible: Tensor  # (S,) bool
    values: Tensor  # (S,) for the reason
    state: State


class Detector:
    """A test of reports. `reason` is a format for a client's value."""

    reason: ClassVar[str]
    tables: ClassVar[tuple[str, ...]] = ()  # numbers that it remembers of each client

    def init(self) -> State:
        return {name: empty_table() for name in self.tables}

    def __call__(self, seen: SeenRound, state: State) -> Verdict:
        raise NotImplementedError


class LargeLoss(Detector):
    """A loss far above the cohort's, of a client that cannot be served that badly.

    Nobody knows how badly a client is served but itself, and a fair rule is there for clients that
    stay at the loss of the untrained model while the others' falls. So a first loss is plausible up
    to the typical one of the untrained model, and later ones up to what was plausible before.
    """

    reason = "its loss is {:.3g} times the cohort's median"
    tables = ("accepted", "reports")
    badly = 1.5  # times the loss of the untrained model, or the client's own, is always plausible
    fading = 0.97

    def init(self) -> State:
        return super().init() | {"start": torch.zeros((), dtype=torch.float64)}

    def __call__(self, seen: SeenRound, state: State) -> Verdict:
        ids = seen.reports.ids
        losses = seen.reports.losses.double()
        typical = losses.median()
        start = torch.maximum(state["start"], typical)
        accepted = self.fading * lookup(state["accepted"], ids)
        count = lookup(state["reports"], ids)
        highest = self.badly * torch.where(count == 0, start, accepted.clamp(min=float(typical)))
        above = torch.where(losses > highest, excess(losses, seen.limit), 0.0)
        after = seen.reports.losses_after
        if after is not None:
            hopeless = after.double() > highest
            above = above.maximum(torch.where(hopeless, excess(after, seen.limit), 0.0))
        own = torch.where(losses > highest, accepted, accepted.maximum(losses))
        following = {
            "start": start,
            "accepted": put_numbers(state["accepted"], ids, own),
            "reports": put_numbers(state["reports"], ids, count + 1),
        }
        return Verdict(above > 1, losses / typical, following)


class LongUpdate(Detector):
    """An update that is absurdly long. Those that are only long are shortened by `guarded`."""

    reason = "its update is {:.3g} times the cohort's median"

    def __call__(self, seen: SeenRound, state: State) -> Verdict:
        ratio = seen.norms / seen.norms.median()
        return Verdict((excess(seen.norms, seen.limit) > 1) & (ratio > seen.limit), ratio, state)


class ShortUpdate(Detector):
    """An update of nearly 0 with a loss that is not: its sender did not train."""

    reason = "its update is {:.2g} times the cohort's median, too short for its loss"
    least = 0.02  # of the median norm, for a median loss

    def __call__(self, seen: SeenRound, state: State) -> Verdict:
        norm = seen.norms.median()
        loss = seen.reports.losses.double().median()
        ratio = seen.norms / norm
        # A loss that is too large may be false, and says nothing about the update.
        losses = seen.reports.losses.double().clamp(max=float(LEAST * loss))
        short = ratio * loss < self.least * losses
        if len(ratio) < FEW or not norm > 0 or not loss > 0:
            short = torch.zeros_like(short)
        return Verdict(short, ratio, state)


class Response(Detector):
    """Losses that do not change as the client's own updates promise.

    Along a direction D the loss of a client that sends u falls by <u, D>, times a number that is
    about the same for all who train alike: the slope of its falls over its promises, from round to
    round. Who invents losses or updates does not know how they go together, and who pushes the
    model against the others has a slope below 0 even where both sides hold each other. Rounds in
    which the model hardly moves hardly count, so that standing still is no way out. Until there is
    evidence, nobody may point against the others.
    """

    reason = "its losses do not follow its updates: by {:.2g} times what is usual"
    tables = ("products", "promised", "shared", "fallen", "rounds", "agreement")
    fading = 0.9
    enough = 2.5  # rounds of evidence, after fading
    negligible = 1e-6  # of the loss: a model that stands still is no evidence
    explained = 0.5  # the least median correlation of falls and promises, for a comparison
    lowest, highest = 0.25, 2.5  # times the median slope is plausible, within the limits
    errors = (2.0, 1.0)  # of so many standard errors below and above the estimates
    recent = 0.2  # the part of this round in the mean cosine with the others' mean update
    opposed = -0.3  # the least such cosine without evidence

    def __call__(self, seen: SeenRound, state: State) -> Verdict:
        ids = seen.reports.ids
        losses = seen.reports.losses.double()
        place, known = seen.last.find(ids)
        sums = {name: lookup(state[name], ids) for name in self.tables}
        if known.any():
            before = seen.last.losses[place]
            unit = seen.norms.median().square()
            first = seen.last.promises[place] / unit
            second = seen.shorter * (seen.sketches @ seen.last.direction) / unit
            promise = (first + second) / 2
            fall = (before - losses) / losses.median()
            # A leap says more about the loss than about the update.
            known &= (losses < LEAST * before) & (before < LEAST * losses)
            known &= fall.abs().median() > self.negligible
            # Updates of length 0 promise nothing that can be compared.
            known &= (promise.square() + fall.square()).isfinite()
            news = {
                "products": promise * fall,
                "promised": promise.square(),
                "shared": first * second,
                "fallen": fall.square(),
                "rounds": torch.ones_like(losses),
            }
            for name, new in news.items():
                sums[name] = torch.where(known, self.fading * sums[name] + new, sums[name])
        cosine = agreement(seen)
        mean = sums["agreement"]
        sums["agreement"] = torch.where(mean == 0, cosine, mean + self.recent * (cosine - mean))
        shown = (sums["rounds"] >= self.enough) & (sums["shared"] > 0)
        implausible = ~shown & (sums["agreement"] < self.opposed)
        if len(ids) < FEW:
            implausible = torch.zeros_like(implausible)
        slopes = torch.ones_like(losses)
        if int(shown.sum()) >= FEW:
            least, slopes = self._slopes(sums, shown)
            implausible |= (slopes < self.lowest) | (least > self.highest)
        following = {name: put_numbers(state[name], ids, value) for name, value in sums.items()}
        return Verdict(implausible, slopes, following)

    def _slopes(self, sums: Tensors, shown: Tensor) -> tuple[Tensor, Tensor]:
        """The least and the largest slopes (S,) that the evidence allows, 1 being the median.

        Promises have the noise of a client's batches, which flattens the slope; what the promise
        before a step and the one after it share has not. The true slope is between both estimates.
        All are 1 without evidence, and where most losses do not follow the updates.
        """
        flat = sums["products"] / sums["promised"]
        unexplained = (sums["fallen"] - flat * sums["products"]).clamp(min=0)
        error = (unexplained / sums["promised"] / (sums["rounds"] - 1)).sqrt()
        correlation = sums["products"] / (sums["promised"] * sums["fallen"]).sqrt()
        if correlation[shown].nan_to_num(0).median() < self.explained:  # 0: a loss that stays
            return torch.ones_like(flat), torch.ones_like(flat)
        steeper = sums["promised"] / sums["shared"]
        least = (flat - self.errors[0] * error) / flat[shown].median()
        largest = steeper * (flat + self.errors[1] * error) / (steeper * flat)[shown].median()
        return torch.where(shown, least, 1.0), torch.where(shown, largest, 1.0)


def agreement(seen: SeenRound) -> Tensor:
    """The cosines (S,) of the updates with their mean, in which copies and long ones count once."""
    updates = required(seen.reports.updates, "updates")
    lengths = seen.norms.clamp(min=float(seen.norms.median()))
    center = (1 / (seen.copies * lengths)).to(updates.dtype) @ updates
    products = seen.reports.norms * center.double().norm()
    return torch.where(products > 0, (updates @ center).double() / products, 0.0)


class OwnNoise(Detector):
    """Updates that share nothing with the client's own last ones, nor with the others'."""

    reason = "its updates share {:.2g} with its own last ones, like noise"
    tables = ("shared", "rounds")
    fading = 0.8
    least_rounds = 3.0  # after fading
    usual = 0.2  # the least that the others' updates share with their last ones, for a comparison
    part = 0.25  # of what is usual

    def __call__(self, seen: SeenRound, state: State) -> Verdict:
        ids = seen.reports.ids
        shared = lookup(state["shared"], ids)
        rounds = lookup(state["rounds"], ids)
        place, known = seen.last.find(ids)
        if known.any():
            cosine = torch.cosine_similarity(seen.sketches, seen.last.sketches[place])
            shared = torch.where(known, self.fading * shared + cosine, shared)
            rounds = torch.where(known, self.fading * rounds + 1, rounds)
        mean = shared / rounds.clamp(min=1)
        enough = rounds >= self.least_rounds
        noise = torch.zeros(len(ids), dtype=torch.bool)
        if int(enough.sum()) >= FEW and mean[enough].median() > self.usual:
            others = cosines(seen.reports).nanmedian(1).values
            alien = others < max(self.part * float(others.median()), 0.05)
            noise = enough & alien & (mean < self.part * mean[enough].median())
        following = {
            "shared": put_numbers(state["shared"], ids, shared),
            "rounds": put_numbers(state["rounds"], ids, rounds),
        }
        return Verdict(noise, mean, following)


DETECTORS: dict[str, Detector] = {
    "loss": LargeLoss(),
    "long": LongUpdate(),
    "short": ShortUpdate(),
    "response": Response(),
    "noise": OwnNoise(),
}
USELESS = ("short", "response", "noise")  # nothing of a report that they find can be used
