"""Judgement of methods that were tested on the same samples: one definition of significant.

The samples are the replicates, not the seeds: seeds train again on nearly the same samples, so
that their results say little about new ones. Every sample gives a difference between two methods,
averaged over the seeds in which it was tested. Two questions have two intervals:

    Do these clients gain?               the variance of samples within clients
    Would new clients like these gain?   the variance of gains over clients

They are about the models that were trained, of which seeds that are folds give several: where the
means of seeds vary by more than their samples tell, variances are larger (`samples.inflation`).

Everything is corrected for what was looked at: the headline for the number of methods, unless its
method was picked beforehand, and the names of clients for clients and methods (Holm).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple, TypeAlias, TypeVar, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

from commonweal.base.arguments import check_bounds, expect
from commonweal.base.errors import DataError

Array: TypeAlias = NDArray[np.float64]
Says: TypeAlias = Literal["helps", "does not help", "cannot be decided"]
Samples: TypeAlias = Mapping[str, ArrayLike]  # by client, one value per sample

POWER = 0.8  # the share of cases in which a detectable gain is found
DRAWS = (500, 2000)  # of clients' scores: at least and at most
MOST_DRAWS = 1 << 24  # of all clients together
ROUNDING = 1e-6  # differences below this part of a gain worth having are rounding errors


class ClientGain(NamedTuple):
    """The gain of one client, and the interval of its test, which is corrected."""

    gain: float
    low: float
    high: float
    significant: bool  # after correction for clients and methods: 0 is outside the interval


class MethodGain(NamedTuple):
    """The mean gain of a method's clients."""

    gain: float
    low: float
    high: float
    says: Says


Gain = TypeVar("Gain", ClientGain, MethodGain)


@dataclass(frozen=True)
class Judgement:
    """The judgement of methods compared with local training, in the score's own unit."""

    says: Says
    method: str  # that the headline is about
    gain: float  # mean over these clients
    low: float
    high: float
    corrected: int  # the number of methods that the interval is corrected for; 1: picked before
    detectable: float  # the mean gain that these samples would show in 80 % of cases
    new_low: float  # of the mean gain of new clients like these
    new_high: float
    better: dict[str, tuple[str, ...]]  # by method, the clients that gain, the largest gain first
    worse: dict[str, tuple[str, ...]]  # and those that lose, the largest loss first
    methods: dict[str, MethodGain]
    clients: dict[str, dict[str, ClientGain]]  # by method and client


def judge(
    differences: Mapping[str, Samples],
    level: float = 0.05,
    picked: str | None = None,
    worth: float = 0.01,
    inflation: Mapping[str, Mapping[str, float]] | None = None,
    bound: float = math.inf,
) -> Judgement:
    """Judge methods by their differences from local training.

    Args:
        differences: By method and client, one value per test sample: the score of the method minus
            that of local training, above 0 where the method is better, averaged over repetitions.
            NaN: not defined for a sample, which is left out.
        level: How often something may be said that is not so.
        picked: The method that was chosen without these differences. None: the best one is named,
            and its interval corrected for the number of methods.
        worth: A gain worth having. A method does not help where a gain so large is excluded.
        inflation: By method and client, by what variances of means are multiplied, where samples
            depend on each other (`samples.inflation`); 1 where nothing is given.
        bound: The largest gain that there can be, at which intervals end: 1 for an accuracy.

    >>> judge({"fedavg": {"a": [1.0, 0.0] * 20, "b": [0.0, 1.0] * 20}}).says
    'helps'
    >>> judge({"fedavg": {"a": [1.0, -1.0]}}).says
    'cannot be decided'
    """
    check_bounds("level", level, above=0, below=1)
    check_bounds("worth", worth, above=0)
    if bound != math.inf:
        check_bounds("bound", bound, above=0)
    expect("differences", differences, Mapping, "the differences by method and client")
    if not differences:
        raise DataError("there are no methods to judge: give the differences of at least one")
    if picked is not None and picked not in differences:
        raise DataError(f"picked = {picked!r}, but the methods are {', '.join(differences)}")
    tables = {}
    for method, samples in differences.items():
        own = {} if inflation is None else inflation.get(method, {})
        tables[method] = _Table.of(method, samples, ROUNDING * worth).inflated(own)
    corrected = {method: 1 if method == picked else len(tables) for method in tables}
    methods = {}
    for method, table in tables.items():
        methods[method] = _within(bound, table.mean(level / corrected[method], worth))
    method = picked or max(sorted(methods), key=lambda name: _rank(methods[name]))
    says = methods[method].says
    if picked is None and says == "does not help":
        says = _weakest(methods)
    clients = {}
    for name, gains in _named(tables, level).items():
        clients[name] = {client: _within(bound, gain) for client, gain in gains.items()}
    best = methods[method]
    new_low, new_high = np.clip(tables[method].new(level / corrected[method]), -bound, bound)
    return Judgement(
        says=says,
        method=method,
        gain=best.gain,
        low=best.low,
        high=best.high,
        corrected=corrected[method],
        detectable=tables[method].detectable(level / corrected[method]),
        new_low=float(new_low),
        new_high=float(new_high),
        better={name: _significant(gains, 1) for name, gains in clients.items()},
        worse={name: _significant(gains, -1) for name, gains in clients.items()},
        methods=methods,
        clients=clients,
    )


def _within(bound: float, gain: Gain) -> Gain:
    """The gain with its interval cut to what is possible."""
    return gain._replace(low=max(gain.low, -bound), high=min(gain.high, bound))


def _rank(method: MethodGain) -> tuple[bool, float, float]:
    """Methods that help first, then by gain."""
    return method.says == "helps", *np.nan_to_num([method.gain, method.low], nan=-np.inf).tolist()


def _weakest(methods: Mapping[str, MethodGain]) -> Says:
    """No method helps: decided only where that holds for each of them."""
    decided = all(method.says == "does not help" for method in methods.values())
    return "does not help" if decided else "cannot be decided"


def _significant(gains: Mapping[str, ClientGain], sign: int) -> tuple[str, ...]:
    names = [
        name for name, client in gains.items() if client.significant and sign * client.gain > 0
    ]
    return tuple(sorted(names, key=lambda name: -sign * gains[name].gain))


@dataclass(frozen=True, eq=False)
class _Table:
    """The samples' differences of one method by client: those with at least one sample.

    A variance is that of the samples and of two more, +u and -u, where u^2 is the mean square of
    the samples that differ: with few of them a t test would find too much.
    """

    names: tuple[str, ...]
    sizes: Array  # (K,)
    gains: Array  # (K,)
    variances: Array  # (K,) of the gains, with the added samples
    plain: Array  # (K,) of the gains, without
    differing: Array  # (K,) samples that are not 0

    @classmethod
    def of(cls, method: str, samples: Samples, rounding: float) -> "_Table":
        names, parts = [], []
        for name in sorted(samples):
            part = _vector(f"{method!r}, {name!r}", samples[name])
            if part.size:
                names.append(name)
                parts.append(part)
        if not parts:
            return cls((), *np.zeros((5, 0)))
        sizes = np.array([part.size for part in parts]).astype(float)
        d = np.concatenate(parts)
        d[np.abs(d) < rounding] = 0.0
        start = (sizes.cumsum() - sizes).astype(np.int64)
        total, squares = np.add.reduceat(d, start), np.add.reduceat(d * d, start)
        differing = np.add.reduceat((d != 0).astype(float), start)
        n = sizes + 2
        padded = squares * (1 + 2 / np.maximum(differing, 1))
        variances = (padded / n - (total / n) ** 2) / (n - 1) * (n / sizes) ** 2
        centred = d - np.repeat(np.where(sizes > 1, total / sizes, 0.0), sizes.astype(np.int64))
        plain = np.add.reduceat(centred**2, start) / sizes / np.maximum(sizes - 1, 1)
        return cls(tuple(names), sizes, total / sizes, variances, plain, differing)

    def inflated(self, factors: Mapping[str, float]) -> "_Table":
        factor = np.array([factors.get(name, 1.0) for name in self.names])
        return replace(self, variances=factor * self.variances, plain=factor * self.plain)

    def mean(self, level: float, worth: float) -> MethodGain:
        """The mean gain over these clients, with the verdict at a level."""
        if not self.names or not self.variances.any():
            gain = float(self.gains.mean()) if self.names else np.nan
            return MethodGain(gain, np.nan, np.nan, "cannot be decided")
        gain, error, freedom = self._mean()
        half = error * float(stdtrit(freedom, 1 - level / 2))
        low, high = gain - half, gain + half
        says: Says = "cannot be decided"
        if low > 0:
            says = "helps"
        elif high < worth:
            says = "does not help"
        return MethodGain(gain, low, high, says)

    def _mean(self) -> tuple[float, float, float]:
        """The mean over clients, its standard error and degrees of freedom (Satterthwaite).

        Two samples are added to all clients together, as to a single one.
        """
        count = len(self.names)
        single = self.variances.sum()
        if count == 1 or not self.plain.any():
            freedom = single**2 / (self.variances**2 / self.sizes).sum()
            return float(self.gains.mean()), float(np.sqrt(single)) / count, float(freedom)
        total, squares = self.plain.sum(), self.plain**2
        freedom = total**2 / (squares / np.maximum(self.sizes - 1, 1)).sum()
        differing = total**2 / (squares / np.maximum(self.differing, 1)).sum()
        variance = min(single, total * (1 + 2 / differing))
        return float(self.gains.mean()), float(np.sqrt(variance)) / count, float(freedom)

    def detectable(self, level: float) -> float:
        """The mean gain that would be significant in 80 % of cases; NaN: not known."""
        if not self.names or not self.variances.any():
            return np.nan
        _, error, freedom = self._mean()
        return error * float(stdtrit(freedom, 1 - level / 2) + stdtrit(freedom, POWER))

    def new(self, level: float) -> tuple[float, float]:
        """The interval of the mean gain of new clients like these; NaN for one client."""
        count = len(self.names)
        if count < 2:
            return np.nan, np.nan
        error = self.gains.std(ddof=1) / np.sqrt(count)
        half = float(stdtrit(count - 1, 1 - level / 2)) * error
        gain = self.gains.mean()
        return float(gain - half), float(gain + half)


def _named(tables: Mapping[str, _Table], level: float) -> dict[str, dict[str, ClientGain]]:
    """Every client's gain under every method, corrected by Holm's procedure for all of them.

    It stops at one level for all intervals, so that the significant ones are those without 0.
    """
    gains, variances, sizes = [
        np.concatenate([getattr(table, key) for table in tables.values()])
        for key in ("gains", "variances", "sizes")
    ]
    errors = np.sqrt(variances)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = np.where(errors > 0, 2 * stdtr(sizes, -np.abs(gains) / errors), 1.0)
    stopped = _holm(p, level)
    half = errors * stdtrit(sizes, 1 - stopped / 2)
    clients: dict[str, dict[str, ClientGain]] = {}
    start = 0
    for method, table in tables.items():
        clients[method] = {}
        for k, name in enumerate(table.names, start):
            low, high = gains[k] - half[k], gains[k] + half[k]
            significant = bool(p[k] <= stopped)
            clients[method][name] = ClientGain(
                float(gains[k]), float(low), float(high), significant
            )
        start += len(table.names)
    return clients


def _vector(what: str, values: ArrayLike, keep_undefined: bool = False) -> Array:
    """Finite numbers, without those that are not defined (NaN), unless they are kept."""
    try:
        vector = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"the values of {what} must be numbers, one per sample: {error}") from None
    if vector.ndim != 1:
        raise DataError(f"the values of {what} have shape {vector.shape}: give one per sample")
    if not keep_undefined:
        vector = vector[~np.isnan(vector)]
    if np.isinf(vector).any():
        raise DataError(f"a value of {what} is infinite: give finite numbers, or NaN")
    return vector


# Any metric of clients' scores


class Contrast(NamedTuple):
    """The difference of a method's metric from another's, and whether that is significant."""

    difference: float
    low: float
    high: float
    significant: bool


Metric: TypeAlias = Literal["mean", "worst", "worst_10", "std"]


def contrasts(
    scores: Mapping[str, Samples],
    base: Samples,
    metric: Metric = "mean",
    level: float = 0.05,
    lower_is_better: bool = False,
) -> dict[str, Contrast]:
    """Compare a metric over clients of several methods with that of one, on the same samples.

    Corrected for the number of methods (Holm). Clients are those that all methods have.

    The mean is tested as in `judge`. For other metrics the clients' scores are drawn again around
    those that were found, as uncertain as their samples make them, with the same samples for both
    methods. Who is the worst client is uncertain, too, so that small differences are not found.

    Args:
        scores: By method and client, the score of each test sample, averaged over repetitions.
        base: The scores of the method that the others are compared with, of the same samples.
        metric: "mean", "worst" (client), "worst_10" (per cent of clients) or "std", over clients.
        level: How often any difference may be called significant where there is none.
        lower_is_better: The scores are errors: the highest are the worst.

    >>> base = {"a": [0.0, 1.0] * 40, "b": [0.0, 0.0, 0.0, 1.0] * 20}
    >>> own = {"a": [0.0, 1.0] * 40, "b": [1.0, 0.0, 1.0, 1.0] * 20}
    >>> contrasts({"aaggff-s": own}, base, "worst")["aaggff-s"].significant
    True
    """
    check_bounds("level", level, above=0, below=1)
    if metric not in get_args(Metric):
        known = ", ".join(get_args(Metric))
        raise DataError(f"metric = {metric!r}: give one of {known}")
    common = sorted(set(base).intersection(*scores.values()))
    tests = {}
    for method, samples in scores.items():
        pairs = [_pair(f"{method!r}, {name!r}", samples[name], base[name]) for name in common]
        pairs = [pair for pair in pairs if pair.size]
        tests[method] = _tested(method, pairs, metric, lower_is_better)
    stopped = _holm(np.array([test.p for test in tests.values()]), level)
    return {method: test.contrast(stopped) for method, test in tests.items()}


def _holm(p: Array, level: float) -> float:
    """The level at which Holm's procedure stops: what is below is significant."""
    tests = p.size
    exceeds = np.sort(p) > level / (tests - np.arange(tests))
    rejected = int(exceeds.argmax()) if exceeds.any() else tests
    return level / max(1, tests - rejected)


def _pair(what: str, own: ArrayLike, base: ArrayLike) -> Array:
    """The scores of the samples that both methods have, (2, n)."""
    pair = [_vector(what, values, keep_undefined=True) for values in (base, own)]
    if pair[0].shape != pair[1].shape:
        raise DataError(
            f"{what} has {len(pair[1])} samples, but the other method {len(pair[0])}: give the "
            "scores of the same samples, in the same order"
        )
    both = np.stack(pair)
    return both[:, ~np.isnan(both).any(0)]


class _Test(NamedTuple):
    """A difference, and how far from it others may lie that could be found as well."""

    difference: float
    p: float
    half: Callable[[float], float]  # of the interval, by its level

    def contrast(self, level: float) -> Contrast:
        half = self.half(level)
        low, high = self.difference - half, self.difference + half
        significant = bool(self.p <= level and (low > 0 or high < 0))
        return Contrast(self.difference, low, high, significant)


def _tested(method: str, pairs: Sequence[Array], metric: Metric, lower: bool) -> _Test:
    changes = {str(k): pair[1] - pair[0] for k, pair in enumerate(pairs)}
    table = _Table.of(method, changes, 0.0)
    if not pairs or not table.variances.any():
        return _Test(0.0 if pairs else np.nan, 1.0, lambda level: np.nan)
    if metric == "mean":
        gain, error, freedom = table._mean()
        p = float(2 * stdtr(freedom, -abs(gain) / error)) if error > 0 else 1.0
        return _Test(gain, p, lambda level: error * float(stdtrit(freedom, 1 - level / 2)))
    return _drawn(pairs, partial(_metric, metric=metric, lower=lower))


def _drawn(pairs: Sequence[Array], metric: Callable[[Array], Array]) -> _Test:
    """A test by draws of all clients' scores (draws, K)."""
    n = np.array([pair.shape[1] for pair in pairs])
    means = np.array([pair.mean(1) for pair in pairs])  # (K, 2)
    moments = np.array([np.cov(pair, ddof=0) for pair in pairs])  # (K, 2, 2)
    # Of the sum and the difference, which hardly depend on each other.
    total = _error(moments[:, 0, 0] + 2 * moments[:, 0, 1] + moments[:, 1, 1], n)
    change = _error(moments[:, 0, 0] - 2 * moments[:, 0, 1] + moments[:, 1, 1], n)
    between = (moments[:, 1, 1] - moments[:, 0, 0]) / np.maximum(n - 1, 1)
    slope = np.divide(between, total**2, out=np.zeros(len(n)), where=total > 0)
    rest = np.sqrt(np.maximum(change**2 - (slope * total) ** 2, 0))
    rng = np.random.default_rng(0)
    found = float(metric(means[:, 1]) - metric(means[:, 0]))
    distances = []
    draws = int(np.clip(MOST_DRAWS // len(n), *DRAWS))
    freedom = np.maximum(n - 1, 3)
    for count in np.diff(np.linspace(0, draws, 11).astype(int)):  # in parts, for little memory
        sums = total * rng.standard_t(freedom, (count, len(n)))
        changes = slope * sums + rest * rng.standard_t(freedom, (count, len(n)))
        first = metric(means[:, 0] + (sums - changes) / 2)
        second = metric(means[:, 1] + (sums + changes) / 2)
        distances.append(np.abs(second - first - found))
    distance = np.concatenate(distances)
    p = (1 + float((distance >= abs(found)).sum())) / (1 + draws)
    return _Test(found, p, lambda level: float(np.quantile(distance, 1 - level)))


def _error(variance: Array, n: NDArray[np.int64]) -> Array:
    error: Array = np.sqrt(variance / np.maximum(n - 1, 1))
    return error


def _metric(scores: Array, metric: Metric, lower: bool) -> Array:
    """A metric over clients (..., K)."""
    if metric == "std":
        spread: Array = scores.std(-1)
        return spread
    count = max(1, scores.shape[-1] // 10) if metric == "worst_10" else 1
    ordered = np.sort(-scores if lower else scores, axis=-1)
    worst: Array = ordered[..., :count].mean(-1)
    return -worst if lower else worst
