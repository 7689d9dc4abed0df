"""Results of a run's models, computed when it ends: intervals, threshold, samples' scores."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State, Tensors
from commonweal.data.federation import Federation
from commonweal.data.rows import CLASSIFICATION, Rows
from commonweal.data.tables.plain_table import column_names
from commonweal.engines import LocalEngine
from commonweal.jobs.job import Job
from commonweal.record.final import Bounds, Final, Threshold
from commonweal.record.test_scores import TestScores
from commonweal.task.intervals import interval
from commonweal.task.sample_scores import sample_scores
from commonweal.task.scores import find_score
from commonweal.task.task import Task
from commonweal.task.uses import partner_weights
from commonweal.task.vectorize import single, vmap_clients
from commonweal.training.dense import dense_stack
from commonweal.training.evaluation import evaluate_rows, evaluate_rows_by_models

AT_THRESHOLD = ("accuracy", "balanced-accuracy", "f1")  # scores that depend on it


def check_threshold(job: Job) -> None:
    """Raise ConfigError where no threshold can be chosen."""
    score = job.settings.threshold
    if score is None:
        return
    if job.local is None or job.task.loss not in CLASSIFICATION:
        raise ConfigError(f"threshold = {score!r} needs classes, and all samples in one place")
    if job.local.federation.classes != 2:
        raise ConfigError(
            f"threshold = {score!r} is for two classes: use class_weight = 'balanced' for more"
        )


def final(job: Job, state: State) -> Final:
    """Compute it, where all clients' samples are in this process."""
    importance = _importance(job, state)
    if job.local is None or job.task.own_score is not None:
        return Final(importance=importance)
    federation = job.local.federation
    w = job.algorithm.model(state)
    _, stats = evaluate_rows(job.task, w, federation.test)
    return Final(
        bounds=_bounds(job.task, stats, federation.test.offsets),
        personal=_personal(job, job.local, state) if job.algorithm.personalizes else {},
        never_predicted=_never_predicted(job, federation, w),
        threshold=_threshold(job, federation, w),
        importance=importance,
        weights=_weights(job, job.local, state) if job.algorithm.personalizes else {},
    )


def _weights(job: Job, local: LocalEngine, state: State) -> dict[str, tuple[float | None, ...]]:
    """The weights of the kinds of models that each client mixes; nothing if all are networks."""
    message = job.algorithm.message(state)
    columns: dict[str, np.ndarray] = {}
    for ids, uses in local.models(job.algorithm, lambda own: job.algorithm.uses(message, own)):
        if not uses.others:
            return {}
        models = uses.models.shape[1]
        weights = {"network": uses.weights[:, 0]} if job.task.is_network else {}
        partners = partner_weights(job.task, uses)
        if partners is not None:
            weights["partners" if job.task.is_network else "together"] = partners
        weights |= dict(zip(uses.others, uses.weights[:, models:].unbind(1), strict=True))
        for kind, values in weights.items():
            column = columns.setdefault(kind, np.full(local.population.clients, np.nan))
            column[ids.numpy()] = values.numpy()
    return {kind: _numbers(column) for kind, column in columns.items()}


def _importance(job: Job, state: State) -> dict[str, float]:
    """The share of each column in what splits gain, the largest first."""
    gains = job.algorithm.importance(state)
    if gains is None or not gains.sum() > 0:
        return {}
    names = [f"feature {k}" for k in range(math.prod(job.population.shape))]
    if job.preprocessing is not None:
        columns = job.preprocessing.columns
        names = [column.name for column in columns for _ in column_names(column)]
    shares: dict[str, float] = {}
    for name, share in zip([*names, "(the client)"], (gains / gains.sum()).tolist(), strict=False):
        shares[name] = shares.get(name, 0.0) + share
    ranked = sorted(shares, key=lambda name: -shares[name])
    return {name: shares[name] for name in ranked if shares[name] > 0}


def _bounds(task: Task, stats: Tensors, offsets: Tensor) -> dict[str, Bounds]:
    intervals = {}
    for name, rows in stats.items():
        score = task.find_score(name)
        values = score.reduce(rows, offsets)
        bounds = interval(name, rows, offsets, values, task.target_variance)
        if bounds is not None:
            intervals[name] = Bounds(
                low=_numbers(bounds.low),
                high=_numbers(bounds.high),
                support=_numbers(bounds.support),
                unit=bounds.unit,
            )
    return intervals


def _numbers(values: np.ndarray) -> tuple[float | None, ...]:
    return tuple(value if np.isfinite(value) else None for value in values.tolist())


def _personal(job: Job, local: LocalEngine, state: State) -> dict[str, Bounds]:
    """The intervals of what clients use; undefined for those that took no part."""
    columns: dict[str, dict[str, np.ndarray]] = {}
    units: dict[str, str] = {}
    for ids, stats in _personal_stats(job, local, state):
        offsets = local.federation.test.offsets_of(ids)
        for name, bounds in _bounds(job.task, stats, offsets).items():
            units[name] = bounds.unit
            table = columns.setdefault(name, {})
            for key in ("low", "high", "support"):
                values = table.setdefault(key, np.full(local.population.clients, None))
                values[ids.numpy()] = vars(bounds)[key]
    return {
        name: Bounds(unit=units[name], **{key: tuple(v.tolist()) for key, v in table.items()})
        for name, table in columns.items()
    }


def _personal_stats(job: Job, local: LocalEngine, state: State) -> Iterator[tuple[Tensor, Tensors]]:
    """Yield clients that took part, and the statistics of their test samples by what they use."""
    task, test = job.task, local.federation.test
    message = job.algorithm.message(state)
    vectorize = single if dense_stack(task) is None else vmap_clients
    for ids, uses in local.models(job.algorithm, lambda own: job.algorithm.uses(message, own)):
        yield ids, evaluate_rows_by_models(task, uses, test, ids, vectorize)[1]


# The scores of test samples


def test_scores(job: Job, state: State) -> TestScores | None:
    """Compute the main score of every test sample, where all are in this process."""
    if job.local is None:
        return None
    test = job.local.federation.test
    _, stats = evaluate_rows(job.task, job.algorithm.model(state), test)
    values = _sample_scores(job.task, stats, test.offsets)
    if values is None:
        return None
    personal = None
    if job.algorithm.personalizes:
        personal = values.clone()  # who took no part uses the global model
        for ids, stats in _personal_stats(job, job.local, state):
            index, offsets = test.index_of(ids)
            own = _sample_scores(job.task, stats, offsets)
            assert own is not None
            personal[index] = own
    return TestScores(job.population.names, test.offsets, values, personal, test.numbers)


def _sample_scores(task: Task, stats: Tensors, offsets: Tensor) -> Tensor | None:
    """The main score of samples (N,) with these statistics; None: it has no value for one."""
    rows = stats[task.score]
    score = task.find_score(task.score)
    if score.samples is not None:
        samples: Tensor | None = score.samples(rows, offsets)
    else:
        values = score.reduce(rows, offsets)
        samples = sample_scores(task.score, rows, offsets, values, task.target_variance)
    return None if samples is None else samples.float()


def _never_predicted(job: Job, federation: Federation, w: Tensor) -> tuple[str, ...]:
    """The classes with test samples of which the global model predicts none."""
    if job.task.loss not in CLASSIFICATION:
        return ()
    stats = _stats(job.task, "f1", w, federation.test)
    predicted, true = (np.unique(stats[:, k].numpy()) for k in (0, 1))
    names = job.class_names
    missing = np.setdiff1d(true, predicted).astype(int).tolist()
    return tuple(names[k] if names else str(k) for k in missing)


def _stats(task: Task, score: str, w: Tensor, rows: Rows) -> Tensor:
    return evaluate_rows(task.replace(score=score, also=()), w, rows)[1][score]


# The threshold


def _threshold(job: Job, federation: Federation, w: Tensor) -> Threshold | None:
    """The threshold at which a score of all validation samples together is best."""
    name = job.settings.threshold
    validation, test = federation.validation, federation.test
    if name is None or validation is None:
        return None
    margin, y = _stats(job.task, "auroc", w, validation).unbind(1)
    cut = best_cut(name, margin, y)
    own, labels = _stats(job.task, "auroc", w, test).unbind(1)
    return Threshold(
        value=float(torch.tensor(cut).sigmoid()),
        score=name,
        samples=len(y),
        before=_at(own, labels, 0.0, test.offsets),
        after=_at(own, labels, cut, test.offsets),
    )


def best_cut(name: str, margin: Tensor, y: Tensor) -> float:
    """The margin from which on the second class is predicted best, between two samples'."""
    values = torch.from_numpy(np.unique(margin.numpy()))
    between = (values[1:] + values[:-1]) / 2
    if len(between) > 500:
        between = between[torch.linspace(0, len(between) - 1, 500).long()]
    cuts = torch.cat([torch.zeros(1, dtype=margin.dtype), between])
    everyone = torch.tensor([0, len(y)])
    scores = [_score(name, margin, y, float(cut), everyone) for cut in cuts]
    return float(cuts[int(torch.cat(scores).nan_to_num(nan=-1.0).argmax())])


def _score(name: str, margin: Tensor, y: Tensor, cut: float, offsets: Tensor) -> Tensor:
    score = find_score(name)
    return score.reduce(score.row_stats((margin - cut)[:, None], y.long()), offsets)


def _at(margin: Tensor, y: Tensor, cut: float, offsets: Tensor) -> dict[str, float]:
    """The means over clients of the scores that depend on a threshold."""
    means = {}
    for name in AT_THRESHOLD:
        values = _score(name, margin, y, cut, offsets)
        known = values[~values.isnan()]
        means[name] = float(known.mean()) if len(known) else 0.0
    return means
