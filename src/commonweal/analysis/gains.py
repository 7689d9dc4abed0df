"""Who gains and who loses between two results, with an interval over seeds for every client."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from commonweal import metrics
from commonweal.analysis.compare import Result, align
from commonweal.analysis.plan import ALONE, POOLED
from commonweal.metrics import Paired

Array: TypeAlias = NDArray[np.float64]


class ClientGain(NamedTuple):
    """What one client gains, in the score's unit. Above 0 is better, also for errors."""

    client: str
    gain: float
    low: float
    high: float
    significant: bool  # with 95 % confidence, over seeds


@dataclass(frozen=True, eq=False)
class Gains:
    """The gains of one result over another, by client, the largest first."""

    label: str
    base: str
    clients: list[ClientGain]
    mean: Paired  # over clients
    changes: Array  # (seeds, clients), in the order of the base's clients
    share: float | None = None  # of the way from local to pooled training, in the mean

    @cached_property
    def better(self) -> list[ClientGain]:
        """Those that gain significantly."""
        return [client for client in self.clients if client.significant and client.gain > 0]

    @cached_property
    def worse(self) -> list[ClientGain]:
        """Those that lose significantly, the largest loss first."""
        return [client for client in self.losers if client.significant]

    @property
    def losers(self) -> list[ClientGain]:
        """Those whose mean falls, significantly or not, the largest loss first."""
        return [client for client in self.clients[::-1] if client.gain < 0]

    @property
    def unclear(self) -> int:
        """How many clients show no significant difference."""
        return len(self.clients) - len(self.better) - len(self.worse)

    @property
    def better_off(self) -> float:
        """The share of clients whose mean does not fall."""
        return 1 - len(self.losers) / max(1, len(self.clients))

    @property
    def excess_max(self) -> float:
        """The largest loss of a client; 0 if no client loses."""
        return -self.losers[0].gain if self.losers else 0.0


def gains(base: Result, other: Result) -> Gains:
    """Compare two results client by client, paired by seed.

    One seed shows no significant difference; nor does the same change in every seed, whose
    interval cannot be estimated.
    """
    names, before, after = align(base, other)
    sign = -1.0 if base.lower_is_better else 1.0
    changes = np.round(sign * (after - before), 12) + 0.0  # rounding is no gain, and -0.0 is 0
    zeros = np.zeros(len(changes))
    clients = []
    for name, change in zip(names, changes.T, strict=True):
        clients.append(ClientGain(name, *metrics.paired(change, zeros)))
    clients.sort(key=lambda client: -client.gain)
    mean = Paired(np.nan, np.nan, np.nan, False)
    if names:
        mean = metrics.paired(changes.mean(1), zeros)
    return Gains(other.label, base.label, clients, mean, changes)


def gains_over_local(results: Sequence[Result], baselines: Sequence[Result]) -> list[Gains]:
    """The gains of every result over local training; empty where that was not run."""
    named = {result.label: result for result in baselines}
    if ALONE not in named:
        return []
    local, pooled = named[ALONE], named.get(POOLED)
    compared = []
    for result in results:
        share = None if pooled is None else _share(result, local, pooled)
        compared.append(replace(gains(local, result), share=share))
    return compared


def _share(result: Result, local: Result, pooled: Result) -> float | None:
    """The part of the way from local to pooled training, by the means over clients and seeds.

    None where pooled training is no better than local training, or the result is worse.
    """
    way = float(pooled.scores.mean() - local.scores.mean())
    gone = float(result.scores.mean() - local.scores.mean())
    if result.lower_is_better:
        way, gone = -way, -gone
    return None if way <= 0 or gone < 0 else gone / way
