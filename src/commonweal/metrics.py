"""Metrics of one score per client: how good the scores are, and how even.

Every metric is a pure function of scores (K,) in any unit (tensor, array or list) and returns a
float. Without `weights` each client counts once. With weights w >= 0 (test rows, for example), a
client counts as w equal clients. With W the sum of w and m the mean:

    mean    m = sum_i w_i x_i / W
    worst   the minimum, or the mean of the k lowest clients, k = max(1, floor(share K)); K and k
            count clients, not weights. Clients with equal scores share their weight, so that their
            order does not matter. `best` likewise
    gap     best - worst
    std     sqrt(sum_i w_i (x_i - m)^2 / W), of the population
    gini    100 sum_ij w_i w_j |x_i - x_j| / (2 W^2 m);
            without weights 100 sum_i (2i - K - 1) x_(i) / (K sum x)
    angle   degrees between x and the all-ones vector under <a, b> = sum_i w_i a_i b_i
    kl      KL(p || w / W) in nats, p_i = w_i x_i / (W m): the normalised scores against equal ones

`names` of the clients are used in error messages only.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias, TypeGuard

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtri, nctdtr, ndtr, ndtri, stdtrit, xlogy
from torch import Tensor

from commonweal.base.arguments import expect, expect_int
from commonweal.base.errors import DataError
from commonweal.base.shares import wilson_bounds

__all__ = ["Against", "Paired", "against", "angle", "best", "better_off", "dkw_floor", "excess_max"]
__all__ += ["gap", "gini", "holm", "kl", "mean", "paired", "seeds_needed", "spread", "std"]
__all__ += ["summary", "wilson", "worst"]

Array: TypeAlias = NDArray[np.float64]
Scores: TypeAlias = ArrayLike | Tensor  # (K,)
Names: TypeAlias = Sequence[str] | None  # (K,)

SHOWN = 5  # bad values that an error message lists
ROUNDING = 1e-12  # differences below this part of the scores are rounding errors
TOLERANCE = 1e-9  # and so are steps below this part of the largest difference
MOST_SEEDS = 1_000_000  # that may be asked for
QUANTILES = (np.arange(10_000) + 0.5) / 10_000  # of a distribution whose mean is taken
FINE = 1e-3  # steps below this part of the largest difference change nothing


class Against(NamedTuple):
    """Changes for the clients below (suffering) and above (thriving) the baseline's mean."""

    suffering_improved: float  # fraction in [0, 1]
    suffering_change: float  # mean of score - baseline over all suffering clients
    thriving_degraded: float  # fraction in [0, 1]
    thriving_change: float  # mean of score - baseline over all thriving clients


class Paired(NamedTuple):
    """A mean paired difference over seeds, its confidence interval, and whether that excludes 0.

    `low` and `high` are NaN where no interval can be estimated: one seed, or the same difference
    in every seed. Such a difference is never significant.
    """

    difference: float
    low: float
    high: float
    significant: bool


# Metrics


def mean(x: Scores, weights: Scores | None = None, *, names: Names = None) -> float:
    """The mean score.

    >>> mean([1, 2, 6]), mean([1, 2, 6], weights=[3, 1, 0])
    (3.0, 1.25)
    """
    return _mean(*_load(x, weights, names))


def worst(
    x: Scores,
    share: float | None = None,
    weights: Scores | None = None,
    *,
    names: Names = None,
    lower_is_better: bool = False,
) -> float:
    """The lowest score, or the mean of the lowest `share` of the clients (at least one).

    lower_is_better: the scores are errors, and the highest is the worst

    >>> worst([4, 1, 3, 2]), worst([4, 1, 3, 2], share=0.5)
    (1.0, 1.5)
    """
    return _extreme(x, share, weights, names, _is_true(lower_is_better))


def best(
    x: Scores,
    share: float | None = None,
    weights: Scores | None = None,
    *,
    names: Names = None,
    lower_is_better: bool = False,
) -> float:
    """The highest score, or the mean of the highest `share` of the clients (at least one).

    lower_is_better: the scores are errors, and the lowest is the best

    >>> best([4, 1, 3, 2]), best([4, 1, 3, 2], share=0.5)
    (4.0, 3.5)
    """
    return _extreme(x, share, weights, names, not _is_true(lower_is_better))


def gap(
    x: Scores, share: float | None = None, weights: Scores | None = None, *, names: Names = None
) -> float:
    """Best minus worst, each over `share` of the clients (None: one client).

    >>> gap([4, 1, 3, 2]), gap([4, 1, 3, 2], share=0.5)
    (3.0, 2.0)
    """
    highest = _extreme(x, share, weights, names, True)
    return highest - _extreme(x, share, weights, names, False)


def std(x: Scores, weights: Scores | None = None, *, names: Names = None) -> float:
    """The population standard deviation.

    >>> std([1, 3]), std([0, 5], weights=[4, 1])
    (1.0, 2.0)
    """
    return _std(*_load(x, weights, names))


def gini(x: Scores, weights: Scores | None = None, *, names: Names = None) -> float:
    """The Gini index times 100 of scores >= 0: 0 if all are equal (or all 0).

    >>> gini([1, 1, 1]), gini([0, 0, 0, 1])
    (0.0, 75.0)
    """
    return _gini(*_sorted(*_load(x, weights, names, "the Gini index")))


def angle(x: Scores, weights: Scores | None = None, *, names: Names = None) -> float:
    """Degrees between the scores and the all-ones vector: 0 if all are equal (or all 0).

    >>> angle([2, 2]), round(angle([1, 0]), 6)
    (0.0, 45.0)
    """
    return _angle(*_load(x, weights, names))


def kl(x: Scores, weights: Scores | None = None, *, names: Names = None) -> float:
    """KL divergence in nats of the normalised scores (>= 0) from an even split: 0 if all are equal.

    >>> kl([2, 2]), round(kl([0, 0, 1]) - math.log(3), 12)
    (0.0, 0.0)
    """
    return _kl(*_load(x, weights, names, "KL"))


def summary(
    x: Scores, weights: Scores | None = None, names: Names = None, lower_is_better: bool = False
) -> dict[str, float]:
    """The metrics that a run records, without weights; `weighted_mean` is added if there are any.

    lower_is_better: the scores are errors: the highest are the worst
    Gini and KL are NaN where a score is negative (R^2, for example).
    """
    v, w = _load(x, None, names)
    v = np.sort(v)
    shares = {"": None, "_5": 0.05, "_10": 0.1, "_20": 0.2}
    low = {tail: _first(v, w, share) for tail, share in shares.items()}
    high = {tail: _first(v[::-1], w, share) for tail, share in shares.items()}
    worst, best = (high, low) if _is_true(lower_is_better) else (low, high)
    weighted = {} if weights is None else {"weighted_mean": mean(x, weights, names=names)}
    negative = v[0] < 0
    return {
        "mean": _mean(v, w),
        **weighted,
        **{f"worst{tail}": value for tail, value in worst.items()},
        **{f"best{tail}": best[tail] for tail in ("", "_5", "_10")},
        "std": _std(v, w),
        "gini": math.nan if negative else _gini(v, w),
        "gap": high[""] - low[""],
        "gap_10": high["_10"] - low["_10"],
        "angle": _angle(v, w),
        "kl": math.nan if negative else _kl(v, w),
    }


# Comparisons


def against(
    baseline: Scores, scores: Scores, *, names: Names = None, lower_is_better: bool = False
) -> Against:
    """Count who gains and who loses against a baseline run (FedAvg, for example).

    lower_is_better: the scores are errors; changes are still score - baseline

    VRed, Table 1: suffering clients have a baseline score below its mean, thriving ones above; a
    client exactly at the mean is neither. Changes are averaged over the group; 0 for an empty one.

    >>> tuple(against([1, 1, 5, 5], [2, 1, 5, 4]))
    (0.5, 0.5, 0.5, -0.5)
    """
    old, new = _pair(baseline, scores, names)
    sign = -1.0 if _is_true(lower_is_better) else 1.0
    gain = sign * (new - old)
    above = sign * (old - mean(old))
    suffering = _or_zero(gain[above < 0])
    thriving = _or_zero(gain[above > 0])
    return Against(
        mean(suffering > 0), sign * mean(suffering), mean(thriving < 0), sign * mean(thriving)
    )


def _or_zero(values: Array) -> Array:
    return values if values.size else np.zeros(1)


def better_off(alone: Scores, scores: Scores, *, lower_is_better: bool = False) -> float:
    """The share of clients that do at least as well as with local training.

    >>> better_off([0.5, 0.6, 0.7], [0.6, 0.6, 0.5])
    0.6666666666666666
    """
    return mean(_gains(alone, scores, lower_is_better) >= 0)


def excess_max(alone: Scores, scores: Scores, *, lower_is_better: bool = False) -> float:
    """The largest loss of a client against local training; 0 if no client loses.

    >>> excess_max([0.5, 0.75], [0.75, 0.5]), excess_max([0.5], [0.75])
    (0.25, 0.0)
    """
    return max(0.0, float(-_gains(alone, scores, lower_is_better).min()))


def _gains(alone: Scores, scores: Scores, lower_is_better: bool) -> Array:
    old, new = _pair(alone, scores)
    return old - new if _is_true(lower_is_better) else new - old


def seeds_needed(
    a: Scores, b: Scores, confidence: float = 0.95, most: int = 1000, power: float = 0.8
) -> int | None:
    """Return how many seeds a paired t test needs to find a mean difference like that of a - b.

    Found means significant with probability `power`, if the differences over seeds are normal with
    the mean and the variance of these.

    Returns:
        The number of seeds; None if it is above `most`, or if there is no difference or no
        variance to estimate it from.

    >>> seeds_needed([3.0, 1.0, 4.0], [1.0, 1.0, 1.0])
    9
    """
    _check_share("confidence", confidence)
    _check_share("power", power)
    expect_int("most", most, least=2, most=MOST_SEEDS)
    differences, error, _ = _differences(a, b)
    difference = mean(differences)
    if math.isnan(error) or difference == 0:
        return None
    effect = abs(difference) / (error * math.sqrt(differences.size))
    for seeds in range(2, most + 1):
        critical = float(stdtrit(seeds - 1, (1 + confidence) / 2))
        if _power(seeds, effect * math.sqrt(seeds), critical) >= power:
            return seeds
    return None


def _power(seeds: int, shift: float, critical: float) -> float:
    """The probability that a t statistic, shifted by so many standard errors, is significant."""
    freedom = seeds - 1
    reached = nctdtr(freedom, shift, -critical) + 1 - nctdtr(freedom, shift, critical)
    if math.isnan(reached):  # it has no value for some large shifts
        # The mean over quantiles of the variance, given which the statistic is normal.
        scale = np.sqrt(chdtri(freedom, QUANTILES) / freedom)
        reached = ndtr(shift - critical * scale).mean()
    return float(reached)


def spread(values: Scores) -> tuple[float, float]:
    """The mean and the population standard deviation of a metric over seeds.

    >>> spread([1, 3])
    (2.0, 1.0)
    """
    v = _vector(values, "values", unit="seed")
    return mean(v), std(v)


def wilson(share: float, rows: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a share of rows: where the true share lies.

    >>> [round(bound, 3) for bound in wilson(1.0, 3)]
    [0.439, 1.0]
    """
    if not _is_number(share) or not 0 <= share <= 1:
        raise DataError(f"share must lie between 0 and 1; got {share!r:.60}")
    if not _is_number(rows) or not 1 <= rows < math.inf:
        raise DataError(f"rows must be a number of at least 1; got {rows!r:.60}")
    _check_share("confidence", confidence)
    z = float(ndtri((1 + confidence) / 2))
    low, high = wilson_bounds(np.array([share]), np.array([rows]), z)
    return float(low[0]), float(high[0])


def dkw_floor(
    scores: Scores, share: float = 0.8, confidence: float = 0.95, *, lower_is_better: bool = False
) -> tuple[float, float]:
    """Bound what new clients get, from the scores of clients drawn like them: (share, score).

    By the inequality of Dvoretzky, Kiefer and Wolfowitz with Massart's constant, whatever the
    distribution: with this confidence, at least this share of new clients scores no worse. Where
    the clients are too few for the share that was asked, the share is a smaller one.

    >>> dkw_floor([0.9] * 99 + [0.1])
    (0.8, 0.9)
    """
    values = np.sort(_vector(scores, "scores"))
    _check_share("share", share)
    _check_share("confidence", confidence)
    if not _is_true(lower_is_better):
        values = values[::-1]  # the best first
    margin = math.sqrt(math.log(1 / (1 - confidence)) / (2 * values.size))
    reached = math.ceil((share + margin) * values.size - 1e-9)
    if reached <= values.size:
        return share, float(values[reached - 1])
    return max(0.0, 1 - margin), float(values[-1])


def paired(a: Scores, b: Scores, confidence: float = 0.95) -> Paired:
    """Student's t interval of the mean of a - b: a metric of two methods on the same seeds.

    Scores come in steps, and so may their differences: the interval is then widened by half a step
    of their sum (a continuity correction), so that at most 5 % of differences of 0 are called
    significant at 95 % confidence.

    >>> [round(number, 3) for number in paired([0.5, 0.625, 0.75], [0.25, 0.5, 0.375])[:3]]
    [0.25, -0.081, 0.581]
    >>> paired([0.3, 0.4], [0.1, 0.2]).significant  # the same difference twice: no estimate
    False
    """
    _check_share("confidence", confidence)
    differences, error, noise = _differences(a, b)
    difference = mean(differences)
    if math.isnan(error):
        return Paired(difference, math.nan, math.nan, False)
    half = error * float(stdtrit(differences.size - 1, (1 + confidence) / 2))
    half += _step(differences, noise) / (2 * differences.size)
    return Paired(difference, difference - half, difference + half, abs(difference) > half)


def _differences(a: Scores, b: Scores) -> tuple[Array, float, float]:
    """a - b by seed, the standard error of their mean, and what may be rounding errors.

    The standard error is NaN for one seed, or if all differences are equal.
    """
    first, second = _pair(a, b, unit="seed")
    differences = first - second
    scale = max(np.abs(first).max(), np.abs(second).max())
    noise = float(max(ROUNDING, _rounding(a), _rounding(b)) * scale)
    if differences.size < 2 or np.ptp(differences) <= noise:
        return differences, math.nan, noise
    return differences, float(differences.std(ddof=1)) / math.sqrt(differences.size), noise


def _rounding(values: Scores) -> float:
    """Bound rounding errors, relative to values of this type."""
    if isinstance(values, Tensor):
        return 8 * torch.finfo(values.dtype).eps if values.is_floating_point() else 0.0
    given = np.asarray(values).dtype
    return 8 * float(np.finfo(given).eps) if given.kind == "f" else 0.0


def _step(values: Array, noise: float) -> float:
    """The step in which values come, such as 1/33; 0 if they come in none, or in a fine one.

    It is the greatest common divisor of their differences, by Euclid's algorithm.

    noise: differences below this are rounding errors
    """
    if values.size < 3:  # two values have one difference, which says nothing of a step
        return 0.0
    gaps = np.abs(values - values[0])
    largest = float(gaps.max())
    step = 0.0
    for gap in gaps.tolist():
        while gap > max(TOLERANCE * largest, noise):
            step, gap = gap, abs(step - round(step / gap) * gap)
    return step if step > max(FINE * largest, 100 * noise) else 0.0


def holm(others: Sequence[Scores], base: Scores, confidence: float = 0.95) -> list[Paired]:
    """The paired differences of several methods from one, corrected for how many they are.

    Holm's procedure: the clearest of m differences is tested at 1 - 0.05 / m, the next at
    1 - 0.05 / (m - 1), and so on; from the first that is not significant on, none is. The
    probability that any difference of 0 is called significant is at most 5 %. Intervals are those
    of the tests.

    >>> base = [1.0, 2.0, 3.0, 4.0]
    >>> results = holm([[2.0, 3.125, 4.0, 4.9375], [1.5, 2.0, 3.5, 3.875]], base)
    >>> [result.significant for result in results]
    [True, False]
    """
    expect("others", others, Sequence | np.ndarray | Tensor, "a list with the scores of methods")
    if isinstance(others, np.ndarray | Tensor) and others.ndim == 0:
        raise DataError(f"others must be a list with the scores of methods; got {others!r:.60}")
    results = [paired(other, base, confidence) for other in others]
    # For equal numbers of seeds, the clearest has the largest difference in units of its interval.
    clarity = [abs(result.difference) / (result.high - result.low) for result in results]
    order = np.argsort(-np.nan_to_num(clarity), kind="stable").tolist()
    significant = True
    for rank, k in enumerate(order):
        level = 1 - (1 - confidence) / (len(order) - rank)
        result = paired(others[k], base, level)
        significant = significant and result.significant
        results[k] = result._replace(significant=significant)
    return results


# Checks


def _is_true(lower_is_better: object) -> bool:
    expect("lower_is_better", lower_is_better, bool | np.bool_, "True or False")
    return bool(lower_is_better)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float | np.number)


def _check_share(name: str, value: object) -> None:
    if not _is_number(value) or not 0 < value < 1:
        raise DataError(f"{name} must lie between 0 and 1, both excluded; got {value!r:.60}")


def _vector(
    x: Scores, what: str, names: Names = None, unit: str = "client", size: int | None = None
) -> Array:
    try:
        plain = x.detach().cpu().double() if isinstance(x, Tensor) else x
        v = np.asarray(plain, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise DataError(f"{what} must be numbers, one per {unit}; got {x!r:.80}") from error
    if v.ndim != 1 or not v.size:
        raise DataError(f"{what} must be a vector with one value per {unit}; got shape {v.shape}")
    if size not in (None, v.size):
        raise DataError(f"{what} must be {size}, one per {unit}; got {v.size}")
    if names is not None:
        if isinstance(names, str) or not isinstance(names, Sequence | np.ndarray):
            raise DataError(f"names must be a list, one per {unit}; got {names!r:.60}")
        count = names.size if isinstance(names, np.ndarray) else len(names)
        if count != v.size:
            raise DataError(f"names must be {v.size}, one per {unit}; got {count}")
    _refuse(~np.isfinite(v), v, f"{what} must be finite", names, unit)
    return v


def _refuse(
    bad: NDArray[np.bool_], v: Array, requirement: str, names: Names, unit: str = "client"
) -> None:
    """Raise DataError for the values where `bad` is true."""
    if not bad.any():
        return
    positions = np.flatnonzero(bad).tolist()
    labels = {i: str(i) if names is None else repr(names[i]) for i in positions[:SHOWN]}
    shown = ", ".join(f"{v[i]} at {unit} {label}" for i, label in labels.items())
    more = len(positions) - SHOWN
    raise DataError(f"{requirement}; got {shown}" + (f" and {more} more" if more > 0 else ""))


def _pair(a: Scores, b: Scores, names: Names = None, unit: str = "client") -> tuple[Array, Array]:
    first = _vector(a, "the first values", names, unit)
    second = _vector(b, "the second values", names, unit, first.size)
    return first, second


# Arithmetic


def _load(
    x: Scores, weights: Scores | None, names: Names, nonnegative: str = ""
) -> tuple[Array, Array]:
    """Scores and weights of the clients whose weight is not 0.

    nonnegative: The metric that needs scores of 0 or more, if it does.
    """
    v = _vector(x, "scores", names)
    if nonnegative:
        _refuse(v < 0, v, f"{nonnegative} needs scores of 0 or more", names)
    if weights is None:
        return v, np.ones_like(v)
    w = _vector(weights, "weights", names, size=v.size)
    _refuse(w < 0, w, "weights must be 0 or more", names)
    if not w.any():
        raise DataError(f"weights must not all be 0; got {w.size} zeros")
    return v[w > 0], w[w > 0]


def _sorted(x: Array, w: Array) -> tuple[Array, Array]:
    """In increasing order; clients with equal scores share their weight."""
    values, place, count = np.unique(x, return_inverse=True, return_counts=True)
    shared = np.bincount(place, w) / count
    return np.repeat(values, count), np.repeat(shared, count)


def _mean(x: Array, w: Array) -> float:
    # Rounding can move a mean outside the scores. Clamped, equal scores deviate by exactly 0.
    return float(min(max((w * x).sum() / w.sum(), x.min()), x.max()))


def _first(x: Array, w: Array, share: float | None) -> float:
    """The mean of the first scores: one, or a share of them."""
    k = 1
    if share is not None:
        if not _is_number(share) or not 0 < share <= 1:
            raise DataError(f"share must be above 0 and at most 1; got {share!r:.60}")
        # 0.29 * 100 is 28.999999999999996, but 29 clients are meant.
        k = max(1, math.floor(share * x.size * (1 + 1e-12)))
    return _mean(x[:k], w[:k])


def _extreme(
    x: Scores, share: float | None, weights: Scores | None, names: Names, highest: bool
) -> float:
    """The mean of the highest or the lowest scores."""
    v, w = _sorted(*_load(x, weights, names))
    return _first(v[::-1], w[::-1], share) if highest else _first(v, w, share)


def _std(x: Array, w: Array) -> float:
    return math.sqrt((w * (x - _mean(x, w)) ** 2).sum() / w.sum())


def _gini(x: Array, w: Array) -> float:
    """The Gini index of sorted scores."""
    middle = _mean(x, w)
    if middle == 0:
        return 0.0
    total = w.sum()
    # The ranks sum to 0, so deviations give the same as scores and lose fewer digits.
    rank = (2 * np.cumsum(w) - w - total) / total
    return 100 * max(0.0, float((w * rank * (x - middle)).sum() / (total * middle)))


def _angle(x: Array, w: Array) -> float:
    # tan = deviation / mean; arccos would lose half of the digits near 0.
    return math.degrees(math.atan2(_std(x, w), _mean(x, w)))


def _kl(x: Array, w: Array) -> float:
    middle = _mean(x, w)
    if middle == 0:
        return 0.0
    ratio = x / middle
    return max(0.0, float((w * xlogy(ratio, ratio)).sum() / w.sum()))
