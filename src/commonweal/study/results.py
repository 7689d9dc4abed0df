"""Results of a method for its clients: scores by seed, and over all seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from commonweal import metrics
from commonweal.record.record import Record
from commonweal.study.labels import baseline_of, seed_of
from commonweal.task.scores import find_score
from commonweal.training.evaluation import Evaluation

Array: TypeAlias = NDArray[np.float64]

GLOBAL = ", global model"  # follows the label of a method whose clients use other models


@dataclass(frozen=True, eq=False)
class Result:
    """The results of one method over the seeds.

    With folds every seed tests other samples, and a client with few samples is not tested in every
    seed: its score is the mean over all of its test samples.
    """

    label: str
    clients: tuple[str, ...]  # those with a score in at least one seed
    scores: Array  # (seeds, K); NaN: not scored in this seed
    sizes: Array  # (seeds, K) test samples
    metrics: list[dict[str, float]]  # per seed, of the clients that have a score in it
    lower_is_better: bool = False

    @property
    def seeds(self) -> int:
        return len(self.metrics)

    @cached_property
    def means(self) -> Array:
        """Every client's score over all seeds (K,), weighted by its test samples."""
        scored = ~np.isnan(self.scores)
        weights = np.where(scored, self.sizes, 0.0)
        weights = np.where(weights.sum(0) > 0, weights, scored)  # sizes that are not known
        total: Array = (np.where(scored, self.scores, 0.0) * weights).sum(0)
        means: Array = total / weights.sum(0)
        return means

    @cached_property
    def by_client(self) -> dict[str, float]:
        """Every client's score over all seeds."""
        return dict(zip(self.clients, self.means.tolist(), strict=True))

    @cached_property
    def summary(self) -> dict[str, float]:
        """The metrics over clients, of their scores over all seeds."""
        return metrics.summary(
            self.means, self.sizes.sum(0), self.clients, lower_is_better=self.lower_is_better
        )

    def metric(self, key: str) -> float:
        """A metric over clients; one of whole runs is a mean over seeds."""
        if key == "variance":
            return self.summary["std"] ** 2
        if key in self.summary:
            return self.summary[key]
        return float(np.mean([by_metric[key] for by_metric in self.metrics]))

    def spread(self, key: str) -> float:
        """The standard deviation of a metric over seeds, which says nothing about new samples."""
        name = "std" if key == "variance" else key
        values = np.array([by_metric[name] for by_metric in self.metrics])
        return float((values**2 if key == "variance" else values).std())


Scores: TypeAlias = Mapping[str, float]  # by client


def gather(records: Mapping[str, Sequence[Record]]) -> tuple[list[Result], list[Result]]:
    """The results of runs by label, whose runs differ in their seeds.

    Returns:
        The results of what clients use, and those of the global models where that is another.
    """
    used, shared = [], []
    for label, runs in records.items():
        own, common, sizes = [], [], []
        for record in sorted(runs, key=seed_of):
            table = record.clients()
            personal = table.evaluation.personal
            common.append(_scores(table.names, table.evaluation))
            own.append(common[-1] if personal is None else _scores(table.names, personal))
            sizes.append(dict(zip(table.names, table.evaluation.sizes.tolist(), strict=True)))
        lower = find_score(runs[0].facts.score).lower_is_better
        used.append(result_of(label, own, sizes, lower))
        # The network of local training is not what clients use without what they trained.
        personal_models = all(mine is not other for mine, other in zip(own, common, strict=True))
        if personal_models and baseline_of(runs[0]) is None:
            shared.append(result_of(label + GLOBAL, common, sizes, lower))
    return used, shared


def _scores(names: Sequence[str], evaluation: Evaluation) -> dict[str, float]:
    """The scores of clients that have one."""
    scores = dict(zip(names, evaluation.score.tolist(), strict=True))
    return {name: score for name, score in scores.items() if not np.isnan(score)}


def result_of(
    label: str, seeds: Sequence[Scores], sizes: Sequence[Scores], lower_is_better: bool
) -> Result:
    """A result from every client's score and number of test samples, seed by seed."""
    clients = tuple(dict.fromkeys(name for scores in seeds for name in scores))
    table, rows, summaries = [], [], []
    for scores, own in zip(seeds, sizes, strict=True):
        table.append([scores.get(name, np.nan) for name in clients])
        rows.append([own.get(name, 0.0) for name in clients])
        weights = [own[name] for name in scores]
        values = list(scores.values())
        summaries.append(
            metrics.summary(values, weights, list(scores), lower_is_better=lower_is_better)
        )
    shape = len(seeds), len(clients)
    return Result(
        label,
        clients,
        np.array(table, dtype=np.float64).reshape(shape),
        np.array(rows, dtype=np.float64).reshape(shape),
        summaries,
        lower_is_better,
    )
