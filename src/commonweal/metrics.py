"""How well the clients fare, and how evenly, from one score per client.

Every measure is a pure function of a (K,) vector of scores in any unit (tensor, array or list) and gives a float.
Plain, each client counts once. With `weights` w >= 0 (test rows, say) a client counts as w equal clients would, and
not at all where w = 0. With W the sum of w and m the mean (plain: all w = 1):

    mean    m = sum_i w_i x_i / W
    worst   the minimum, or the mean of the k lowest clients, k = max(1, floor(share K)); `best` likewise. K and k count
            clients, not weights; clients tied in score share their weight, so that their order never matters
    gap     best - worst
    std     sqrt(sum_i w_i (x_i - m)^2 / W), the population's
    gini    100 sum_ij w_i w_j |x_i - x_j| / (2 W^2 m), plain: 100 sum_i (2i - K - 1) x_(i) / (K sum x)
    angle   degrees between x and the all-ones vector under <a, b> = sum_i w_i a_i b_i
    kl      KL(p || w / W) in nats, p_i = w_i x_i / (W m), plain: the normalised scores against uniform

`names` of the clients serve the error messages only.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit, xlogy
from torch import Tensor

from commonweal.errors import DataError

__all__ = ["Against", "Paired", "against", "angle", "best", "gap", "gini", "improved"]
__all__ += ["kl", "mean", "paired", "spread", "std", "summary", "worst"]

Array: TypeAlias = NDArray[np.float64]
Values: TypeAlias = ArrayLike | Tensor  # (K,)
Names: TypeAlias = Sequence[str] | None  # (K,)


class Against(NamedTuple):
    """What became of the clients below (suffering) and above (thriving) the baseline's mean; see `against`."""

    suffering_improved: float  # share in [0, 1]
    suffering_change: float  # mean of score - baseline over all suffering clients
    thriving_degraded: float  # share in [0, 1]
    thriving_change: float  # mean of score - baseline over all thriving clients


class Paired(NamedTuple):
    """The mean paired difference, its confidence interval, and whether that leaves out 0; see `paired`."""

    difference: float
    low: float
    high: float
    distinguishable: bool


def mean(x: Values, weights: Values | None = None, *, names: Names = None) -> float:
    """The mean score.

    >>> mean([1, 2, 6]), mean([1, 2, 6], weights=[3, 1, 0])
    (3.0, 1.25)
    """
    x, w, exponent = _load(x, weights, names)
    return math.ldexp(_mean(x, w), exponent)


def worst(x: Values, share: float | None = None, weights: Values | None = None, *, names: Names = None) -> float:
    """The lowest score, or the mean of the lowest `share` of the clients (at least one).

    >>> worst([4, 1, 3, 2]), worst([4, 1, 3, 2], share=0.5)
    (1.0, 1.5)
    """
    x, w, exponent = _load(x, weights, names)
    x, w = _sort(x, w)
    return math.ldexp(_first(x, w, share), exponent)


def best(x: Values, share: float | None = None, weights: Values | None = None, *, names: Names = None) -> float:
    """The highest score, or the mean of the highest `share` of the clients (at least one).

    >>> best([4, 1, 3, 2]), best([4, 1, 3, 2], share=0.5)
    (4.0, 3.5)
    """
    x, w, exponent = _load(x, weights, names)
    x, w = _sort(x, w)
    return math.ldexp(_first(x[::-1], w[::-1], share), exponent)


def gap(x: Values, share: float | None = None, weights: Values | None = None, *, names: Names = None) -> float:
    """Best minus worst, each over `share` of the clients (None: one client).

    >>> gap([4, 1, 3, 2]), gap([4, 1, 3, 2], share=0.5)
    (3.0, 2.0)
    """
    return best(x, share, weights, names=names) - worst(x, share, weights, names=names)


def std(x: Values, weights: Values | None = None, *, names: Names = None) -> float:
    """The population standard deviation.

    >>> std([1, 3]), std([0, 5], weights=[4, 1])
    (1.0, 2.0)
    """
    x, w, exponent = _load(x, weights, names)
    return math.ldexp(_std(x, w), exponent)


def gini(x: Values, weights: Values | None = None, *, names: Names = None) -> float:
    """The Gini index times 100 of scores >= 0: 0 when all are equal (or all 0).

    >>> gini([1, 1, 1]), gini([0, 0, 0, 1])
    (0.0, 75.0)
    """
    x, w, _ = _load(x, weights, names, measure="the Gini index")
    return _gini(*_sort(x, w))


def angle(x: Values, weights: Values | None = None, *, names: Names = None) -> float:
    """Degrees between the scores and the all-ones vector: 0 when all are equal (or all 0).

    >>> angle([2, 2]), round(angle([1, 0]), 6)
    (0.0, 45.0)
    """
    x, w, _ = _load(x, weights, names)
    return _angle(x, w)


def kl(x: Values, weights: Values | None = None, *, names: Names = None) -> float:
    """KL divergence in nats of the normalised scores (>= 0) from an even split: 0 when all are equal (or all 0).

    >>> kl([2, 2]), round(kl([0, 0, 1]) - math.log(3), 12)
    (0.0, 0.0)
    """
    x, w, _ = _load(x, weights, names, measure="KL")
    return _kl(x, w)


def summary(x: Values, weights: Values | None = None, names: Names = None) -> dict[str, float]:
    """The figures a run records at each evaluation; plain all, `weighted_mean` added where weights are given.

    Gini and KL are nan where a score is negative (an R^2, say), so that a run need not stop for them.
    """
    v, w, exponent = _load(x, None, names)
    v = np.sort(v)
    low = {k: math.ldexp(_first(v, w, k and k / 100), exponent) for k in (None, 5, 10, 20)}
    high = {k: math.ldexp(_first(v[::-1], w, k and k / 100), exponent) for k in (None, 5, 10)}
    return {
        "mean": math.ldexp(_mean(v, w), exponent),
        **({} if weights is None else {"weighted_mean": mean(x, weights, names=names)}),
        **{"worst" if k is None else f"worst_{k}": value for k, value in low.items()},
        **{"best" if k is None else f"best_{k}": value for k, value in high.items()},
        "std": math.ldexp(_std(v, w), exponent),
        "gini": math.nan if v[0] < 0 else _gini(v, w),
        "gap": high[None] - low[None],
        "gap_10": high[10] - low[10],
        "angle": _angle(v, w),
        "kl": math.nan if v[0] < 0 else _kl(v, w),
    }


def improved(
    before: Values, after: Values, weights: Values | None = None, *, strict: bool = True, names: Names = None
) -> float:
    """The share in [0, 1] of clients whose loss fell; `strict=False` counts an unchanged loss too (AdaFed, eq. 31).

    >>> improved([1, 1, 1, 1], [0, 0, 1, 2]), improved([1, 1, 1, 1], [0, 0, 1, 2], strict=False)
    (0.5, 0.75)
    """
    old, new = _pair(before, after, names)
    return mean(new < old if strict else new <= old, weights, names=names)


def against(baseline: Values, scores: Values, *, names: Names = None) -> Against:
    """Who gained and who lost against a baseline run, FedAvg say, where higher scores are better.

    VRed, table 1: suffering clients lie below the baseline's plain mean, thriving ones above; a client exactly at the
    mean is neither. Changes are signed and average over the whole group; an empty group gives 0.

    >>> against([1, 1, 5, 5], [2, 1, 5, 4])
    Against(suffering_improved=0.5, suffering_change=0.5, thriving_degraded=0.5, thriving_change=-0.5)
    """
    old, new = _pair(baseline, scores, names)
    change, centre = new - old, mean(old)
    suffering, thriving = (change[group] if group.any() else np.zeros(1) for group in (old < centre, old > centre))
    return Against(mean(suffering > 0), mean(suffering), mean(thriving < 0), mean(thriving))


def spread(values: Values) -> tuple[float, float]:
    """The mean and the population standard deviation of one figure across seeds.

    >>> spread([1, 3])
    (2.0, 1.0)
    """
    v = _vector(values, "values", unit="seed")
    return mean(v), std(v)


def paired(a: Values, b: Values, confidence: float = 0.95) -> Paired:
    """Whether a - b, two methods' figures on the same seeds, beats the seeds' spread: Student's t interval.

    >>> paired([3, 4, 5], [1, 2, 3])
    Paired(difference=2.0, low=2.0, high=2.0, distinguishable=True)
    """
    if not 0 < confidence < 1:
        raise DataError(f"confidence must lie between 0 and 1, both excluded; got {confidence}")
    first, second = _pair(a, b, unit="seed")
    difference, deviation = spread(first - second)
    free = first.size - 1
    half = 0.0 if free else math.inf
    if deviation > 0:
        half = deviation / math.sqrt(free) * float(stdtrit(free, (1 + confidence) / 2))
    return Paired(difference, difference - half, difference + half, abs(difference) > half)


def _vector(x: Values, what: str, names: Names = None, unit: str = "client", size: int | None = None) -> Array:
    try:
        v = np.asarray(x.detach().cpu().double() if isinstance(x, Tensor) else x, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{what} must be numbers, one per {unit}; got {x!r:.80}") from error
    if v.ndim != 1 or not v.size:
        raise DataError(f"{what} must be a vector with one value per {unit}; got shape {v.shape}")
    if size not in (None, v.size):
        raise DataError(f"{what} must be {size}, one per {unit}; got {v.size}")
    if names is not None and len(names) != v.size:
        raise DataError(f"names must be {v.size}, one per {unit}; got {len(names)}")
    _refuse(~np.isfinite(v), v, f"{what} must be finite", names, unit)
    return v


def _refuse(bad: NDArray[np.bool_], v: Array, rule: str, names: Names, unit: str = "client") -> None:
    if bad.any():
        where = np.flatnonzero(bad)
        got = ", ".join(f"{v[i]} at {unit} {i if names is None else repr(names[i])}" for i in where[:5])
        raise DataError(f"{rule}; got {got}" + (f" and {len(where) - 5} more" if len(where) > 5 else ""))


def _pair(a: Values, b: Values, names: Names = None, unit: str = "client") -> tuple[Array, Array]:
    first = _vector(a, "the first values", names, unit)
    return first, _vector(b, "the second values", names, unit, first.size)


def _load(x: Values, weights: Values | None, names: Names, measure: str | None = None) -> tuple[Array, Array, int]:
    """Scores times 2 ** -exponent, weights of maximum 1, exponent; a `measure` named refuses negative scores."""
    v = _vector(x, "scores", names)
    if measure is not None:
        _refuse(v < 0, v, f"{measure} needs scores of 0 or more", names)
    w = np.ones_like(v)
    if weights is not None:
        w = _vector(weights, "weights", names, size=v.size)
        _refuse(w < 0, w, "weights must be 0 or more", names)
        if not w.any():
            raise DataError(f"weights must not all be 0; got {w.size} zeros")
        v, w = v[w > 0], w[w > 0] / w.max()
    # Scaled by a power of two, scores keep every digit, and neither sums nor squares overflow or vanish.
    exponent = int(np.frexp(np.abs(v).max())[1])
    return np.ldexp(v, -exponent), w, exponent


def _sort(x: Array, w: Array) -> tuple[Array, Array]:
    values, place, count = np.unique(x, return_inverse=True, return_counts=True)
    return np.repeat(values, count), np.repeat(np.bincount(place, w) / count, count)


def _mean(x: Array, w: Array) -> float:
    # Rounding can carry a mean past the scores; held between them, equal scores deviate by exactly 0.
    return float(min(max((w * x).sum() / w.sum(), x.min()), x.max()))


def _first(x: Array, w: Array, share: float | None) -> float:
    if share is not None and not 0 < share <= 1:
        raise DataError(f"share must be above 0 and at most 1; got {share}")
    # 0.29 * 100 is 28.999999999999996, and 29 clients are meant.
    k = 1 if share is None else max(1, math.floor(share * x.size * (1 + 1e-12)))
    return _mean(x[:k], w[:k])


def _std(x: Array, w: Array) -> float:
    return math.sqrt((w * (x - _mean(x, w)) ** 2).sum() / w.sum())


def _gini(x: Array, w: Array) -> float:
    centre, total = _mean(x, w), w.sum()
    if centre == 0:
        return 0.0
    # The ranks sum to 0, so deviations serve as well as scores and lose fewer digits.
    rank = (2 * np.cumsum(w) - w - total) / total
    return 100 * max(0.0, float((w * rank * (x - centre)).sum() / (total * centre)))


def _angle(x: Array, w: Array) -> float:
    # tan = deviation / mean; arccos would lose half the digits near 0.
    return math.degrees(math.atan2(_std(x, w), _mean(x, w)))


def _kl(x: Array, w: Array) -> float:
    centre = _mean(x, w)
    if centre == 0:
        return 0.0
    ratio = x / centre
    return max(0.0, float((w * xlogy(ratio, ratio)).sum() / w.sum()))
