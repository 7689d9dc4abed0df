"""Is it worth it, for whom: every client's score in the federation beside its score alone.

`alone` is what a client gets by training on its own samples as well as it can, `pooled` what all
samples in one place would give: the ceiling.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from commonweal import metrics
from commonweal.analysis.compare import ALONE, POOLED, Result, align, mean_change
from commonweal.metrics import Paired

__all__ = ["ALONE", "POOLED", "Worth", "worth"]

Array: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Worth:
    """One result beside training alone. Gains are in the score's unit; above 0 is better."""

    label: str
    clients: tuple[str, ...]
    gains: Array  # (seeds, K)
    better_off: float  # the share of clients at least as well off as alone, by means over seeds
    excess_max: float  # what the client loses that loses most; 0: nobody
    share: float | None  # of the way from alone to pooled, in the mean; None: there is none

    @property
    def change(self) -> Array:
        """Each client's mean gain over seeds, (K,)."""
        return mean_change(self.gains)

    @property
    def losers(self) -> list[int]:
        """The positions of the clients that are worse off than alone, the worst first."""
        order = np.argsort(self.change, kind="stable").tolist()
        return [k for k in order if self.change[k] < 0]

    @property
    def mean(self) -> Paired:
        """The mean gain over clients, with its interval over seeds."""
        gains = self.gains.mean(1)
        return metrics.paired(gains, np.zeros_like(gains))


def worth(results: Sequence[Result], baselines: Sequence[Result]) -> list[Worth]:
    """What each result gives beside training alone; empty where that was not run."""
    named = {result.label: result for result in baselines}
    alone = named.get(ALONE)
    if alone is None:
        return []
    return [_worth(result, alone, named.get(POOLED)) for result in results]


def _worth(result: Result, alone: Result, pooled: Result | None) -> Worth:
    sign = -1.0 if result.lower_is_better else 1.0
    names, before, after = align(alone, result)
    lower = result.lower_is_better
    means = (before.mean(0), before.mean(0) + mean_change(after - before))
    return Worth(
        label=result.label,
        clients=names,
        gains=sign * (after - before),
        better_off=metrics.better_off(*means, lower_is_better=lower),
        excess_max=metrics.excess_max(*means, lower_is_better=lower),
        share=None if pooled is None else _share(sign, result, alone, pooled),
    )


def _share(sign: float, result: Result, alone: Result, pooled: Result) -> float | None:
    """The part of the way from alone to pooled, by the means over clients and seeds.

    None where pooled samples are no better than alone, or the result is below alone.
    """
    mean, low, high = (float(each.scores.mean()) for each in (result, alone, pooled))
    way = sign * (high - low)
    gone = sign * (mean - low)
    return None if way <= 0 or gone < 0 else gone / way
