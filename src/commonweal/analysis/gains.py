"""Who gains and who loses between two results, with an interval over seeds for every client."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from commonweal import metrics
from commonweal.analysis.compare import Result, align
from commonweal.metrics import Paired

__all__ = ["ClientGain", "Gains", "gains"]


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

    @cached_property
    def better(self) -> list[ClientGain]:
        """Those that gain significantly."""
        return [each for each in self.clients if each.significant and each.gain > 0]

    @cached_property
    def worse(self) -> list[ClientGain]:
        """Those that lose significantly, the largest loss first."""
        return [each for each in self.clients[::-1] if each.significant and each.gain < 0]

    @property
    def unclear(self) -> int:
        """How many clients show no significant difference."""
        return len(self.clients) - len(self.better) - len(self.worse)


def gains(base: Result, other: Result) -> Gains:
    """Compare two results client by client, paired by seed.

    One seed shows no significant difference; nor does the same change in every seed, whose
    interval cannot be estimated.

    Args:
        base: The result that is compared with, such as that of local training.
        other: The result whose gains are asked for.
    """
    names, before, after = align(base, other)
    sign = -1.0 if base.lower_is_better else 1.0
    change = np.round(sign * (after - before), 12)  # rounding is no gain
    zeros = np.zeros(len(change))
    clients = [
        ClientGain(name, *metrics.paired(change[:, k], zeros)) for k, name in enumerate(names)
    ]
    clients.sort(key=lambda each: -each.gain)
    mean = metrics.paired(change.mean(1), zeros) if names else Paired(np.nan, np.nan, np.nan, False)
    return Gains(other.label, base.label, clients, mean)
