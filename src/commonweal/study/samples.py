"""The scores of single test samples in several runs, paired by client and row.

A sample is known by its row number, in all seeds. Where the data of a run has no row numbers, it is
known by its position among its client's test samples and, unless all runs have the same data, by
the seed.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import chdtri

from commonweal.base.errors import RunError
from commonweal.record.record import Record
from commonweal.record.test_scores import TestScores
from commonweal.study.labels import seed_of

Samples: TypeAlias = dict[str, dict[int, float]]  # by client and row number
Array: TypeAlias = NDArray[np.float64]
Numbers: TypeAlias = NDArray[np.int64]

LEVEL = 0.05  # at which runs must vary by more than their samples tell


class _Run(NamedTuple):
    """The scores of a run's test samples, and by what rows they are known."""

    scores: TestScores
    rows: Numbers  # (N,)


class _Index(NamedTuple):
    """The different samples of some runs: client k has the keys from k * span on."""

    keys: Numbers  # (U,) sorted
    inverse: Numbers  # (N,) the position there of each sample of the runs, one after the other


def scores(runs: Sequence[Record], of_global: bool = False) -> Samples:
    """The score of each test sample, averaged over runs: of what clients use.

    Args:
        runs: Of one method, that differ in their seeds.
        of_global: Take the global model, also where clients use others.
    """
    known = _known(runs, _rows_are_shared(runs))
    names, span = _space(known)
    index = _index(known, names, span)
    means = _means(known, index, of_global)
    table: Samples = {}
    for name, part in _by_client(index.keys, names, span).items():
        rows = (index.keys[part] % span).tolist()
        values = zip(rows, means[part].tolist(), strict=True)
        table[name] = {row: value for row, value in values if not np.isnan(value)}
    return {name: own for name, own in table.items() if own}


def aligned(
    runs_by_method: Mapping[str, Sequence[Record]], of_global: Collection[str] = ()
) -> dict[str, dict[str, Array]]:
    """By method and client, the scores of the samples that all methods have, in the same order.

    Methods without scores of samples are left out.

    Args:
        runs_by_method: The runs, which differ in their seeds.
        of_global: The methods of which the global model is taken, not what clients use.
    """
    shared = _rows_are_shared([run for runs in runs_by_method.values() for run in runs])
    known = {method: _known(runs, shared) for method, runs in runs_by_method.items()}
    known = {method: runs for method, runs in known.items() if runs}
    names, span = _space([run for runs in known.values() for run in runs])
    first: Sequence[_Run] | None = None
    keys: Numbers | None = None
    tables: dict[str, tuple[Numbers, Array]] = {}
    for method, runs in known.items():
        if first is None or not _are_alike(first, runs):
            first, index = runs, _index(runs, names, span)
        means = _means(runs, index, method in of_global)
        defined = ~np.isnan(means)
        tables[method] = index.keys[defined], means[defined]
        own = tables[method][0]
        keys = own if keys is None else np.intersect1d(keys, own, assume_unique=True)
    table = {}
    for method, (own, means) in tables.items():
        assert keys is not None
        chosen = means[np.searchsorted(own, keys)]
        parts = _by_client(keys, names, span)
        table[method] = {name: chosen[part] for name, part in parts.items()}
    return table


def differences(
    local_runs: Sequence[Record],
    runs_by_method: Mapping[str, Sequence[Record]],
    of_global: Collection[str] = (),
) -> dict[str, dict[str, Array]]:
    """By method and client, one value per sample: the method's score minus local training's.

    Above 0 the method is better, also for errors. Samples are paired by client and row number, and
    averaged over runs. Without any where the runs have no scores of samples.

    Args:
        local_runs: Of local training.
        runs_by_method: The other runs, which differ in their seeds.
        of_global: The methods of which the global model is compared, not what clients use.
    """
    everything = [*local_runs, *(run for runs in runs_by_method.values() for run in runs)]
    if len({run.facts.score for run in everything}) > 1:
        raise RunError("these runs have different scores: compare runs of one score")
    shared = _rows_are_shared(everything)
    local = _known(local_runs, shared)
    others = {method: _known(runs, shared) for method, runs in runs_by_method.items()}
    names, span = _space([*local, *(run for runs in others.values() for run in runs)])
    index = _index(local, names, span)
    before = _means(local, index)
    sign = -1.0 if everything and everything[0].lower_is_better else 1.0
    table = {}
    for method, runs in others.items():
        own = index if _are_alike(local, runs) else _index(runs, names, span)
        after = _means(runs, own, method in of_global)
        if own is index:
            keys, changes = index.keys, sign * (after - before)
        else:
            keys, first, second = np.intersect1d(index.keys, own.keys, True, True)
            changes = sign * (after[second] - before[first])
        defined = ~np.isnan(changes)
        parts = _by_client(keys[defined], names, span)
        changes = changes[defined]
        table[method] = {name: changes[part] for name, part in parts.items()}
    return table


def inflation(
    local_runs: Sequence[Record],
    runs_by_method: Mapping[str, Sequence[Record]],
    of_global: Collection[str] = (),
) -> dict[str, dict[str, float]]:
    """By method and client, how much larger a mean's variance is than of independent samples.

    The samples of a seed are tested by one model, and share its luck: two models of a regression
    differ in the same direction on many samples. Then the means of seeds vary more than their
    samples tell. Where they do so significantly, in all clients together, the factor is the mean
    over clients, or a client's own where that is larger. Other methods have no factors.
    """
    everything = [*local_runs, *(run for runs in runs_by_method.values() for run in runs)]
    shared = _rows_are_shared(everything)
    local = _known(local_runs, shared)
    names, span = _space(local)
    index = _index(local, names, span)
    table: dict[str, dict[str, float]] = {}
    for method, runs in runs_by_method.items():
        others = _known(runs, shared)
        table[method] = {}
        if _are_alike(local, others):
            factors = _factors(local, others, index, span, method in of_global)
            table[method] = {names[client]: factor for client, factor in factors.items()}
    return table


def _factors(
    local: Sequence[_Run], others: Sequence[_Run], index: _Index, span: int, of_global: bool
) -> dict[int, float]:
    """The factors of clients by number, where the runs' models have luck; else none."""
    parts = []
    for before, after in zip(local, others, strict=True):
        own = after.scores.values if of_global else after.scores.used
        parts.append((own - before.scores.used).double().numpy())
    changes = np.concatenate([np.zeros(0), *parts])
    run = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    defined = ~np.isnan(changes)
    sample, run, changes = index.inverse[defined], run[defined], changes[defined]
    owner = index.keys[sample] // span
    factors: dict[int, float] = {}
    excess, degrees = 0.0, 0
    order = np.argsort(owner, kind="stable")
    bounds = np.flatnonzero(np.diff(owner[order])) + 1
    for part in np.split(order, bounds) if len(order) else ():
        luck = _luck(sample[part], run[part], changes[part])
        if luck is not None:
            factors[int(owner[part[0]])] = luck.factor
            excess += luck.degrees * luck.ratio
            degrees += luck.degrees
    if not degrees or excess <= float(chdtri(degrees, LEVEL)):
        return {}
    common = float(np.mean(list(factors.values())))
    clients = np.unique(index.keys // span).tolist()
    return {client: max(common, factors.get(client, 1.0)) for client in clients}


class _Luck(NamedTuple):
    """The variation of a client's means between runs."""

    ratio: float  # their variance, relative to that which their samples tell
    degrees: int
    factor: float  # by which the variance of the mean over runs is larger


def _luck(sample: Numbers, run: Numbers, changes: Array) -> _Luck | None:
    """The luck of models in one client; None: it has too few samples, or equal ones."""
    _, run, sizes = np.unique(run, return_inverse=True, return_counts=True)
    _, sample, counts = np.unique(sample, return_inverse=True, return_counts=True)
    runs, size = len(sizes), float(sizes.mean())
    if runs < 2 or size < 2 or len(counts) < 2:
        return None
    means = np.bincount(run, changes) / sizes
    mean_of_sample = np.bincount(sample, changes) / counts
    again = len(changes) - len(counts)  # tests of samples after their first one
    noise = float(np.square(changes - mean_of_sample[sample]).sum()) / max(again, 1)
    between = float(mean_of_sample.var(ddof=1))
    of_samples = max(between - noise * float((1 / counts).mean()), 0.0)
    overlap = float((counts * (counts - 1)).sum()) / (runs * (runs - 1) * size)  # of two runs
    expected = (noise + of_samples * (1 - min(overlap, 1.0))) * float((1 / sizes).mean())
    if expected <= 0 or between <= 0:
        return None
    found = float(means.var(ddof=1))
    factor = 1 + max(found - expected, 0.0) / (runs * between / len(counts))
    return _Luck(found / expected, runs - 1, factor)


def _rows_are_shared(runs: Sequence[Record]) -> bool:
    """Return whether a position means the same sample in all runs, as they have the same data."""
    return len({run.facts.data or run.folder for run in runs}) < 2


def _known(runs: Sequence[Record], shared: bool) -> list[_Run]:
    """The runs that have scores of samples, by seed."""
    known = []
    for run in sorted(runs, key=seed_of):
        scores = run.test_scores()
        if scores is not None:
            known.append(_Run(scores, _rows(scores, 0 if shared else seed_of(run))))
    return known


def _rows(scores: TestScores, seed: int) -> Numbers:
    if scores.rows is not None:
        return np.asarray(scores.rows.numpy())
    first = torch.repeat_interleave(scores.offsets[:-1], scores.offsets.diff())
    positions = torch.arange(len(scores.values)) - first
    return np.asarray((positions + seed * len(scores.values)).numpy())


def _space(runs: Sequence[_Run]) -> tuple[list[str], int]:
    """The names of all clients, and a number that no row reaches."""
    names = sorted({name for run in runs for name in run.scores.names})
    return names, 1 + max((int(run.rows.max()) for run in runs if run.rows.size), default=0)


def _index(runs: Sequence[_Run], names: Sequence[str], span: int) -> _Index:
    number = {name: k for k, name in enumerate(names)}
    keys = [np.zeros(0, dtype=np.int64)]
    for run in runs:
        clients = np.array([number[name] for name in run.scores.names], dtype=np.int64)
        owner = np.repeat(clients, run.scores.offsets.diff().numpy())
        keys.append(owner * span + run.rows)
    return _Index(*np.unique(np.concatenate(keys), return_inverse=True))


def _are_alike(first: Sequence[_Run], second: Sequence[_Run]) -> bool:
    """Return whether runs have the same samples in the same order."""
    if len(first) != len(second):
        return False
    for one, other in zip(first, second, strict=True):
        same = one.scores.names == other.scores.names
        if not same or not torch.equal(one.scores.offsets, other.scores.offsets):
            return False
        if not np.array_equal(one.rows, other.rows):
            return False
    return True


def _means(runs: Sequence[_Run], index: _Index, of_global: bool = False) -> Array:
    """The mean score of each sample over the runs in which it is defined (U,); NaN: in none."""
    parts = [run.scores.values if of_global else run.scores.used for run in runs]
    values = np.concatenate([np.zeros(0), *(part.double().numpy() for part in parts)])
    defined = ~np.isnan(values)
    count = np.bincount(index.inverse, defined, len(index.keys))
    total = np.bincount(index.inverse, np.where(defined, values, 0.0), len(index.keys))
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _by_client(keys: Numbers, names: Sequence[str], span: int) -> dict[str, slice]:
    """Return the positions of the samples of each client that has some."""
    begins = np.searchsorted(keys, span * np.arange(len(names) + 1)).tolist()
    slices = {}
    for k, name in enumerate(names):
        if begins[k + 1] > begins[k]:
            slices[name] = slice(begins[k], begins[k + 1])
    return slices
