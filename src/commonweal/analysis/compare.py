"""Comparisons: running a plan of several rules and seeds, and what each of them gives."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from commonweal import metrics
from commonweal.analysis.labels import baseline_of, seed_of
from commonweal.analysis.plan import Cell, seed_by_seed
from commonweal.analysis.rank_pool import RankPool
from commonweal.analysis.workers import worker_pool
from commonweal.base.errors import ConfigError, DataError, DivergedError, LockedError, RunError
from commonweal.config.experiment import Experiment
from commonweal.data.federation import Federation
from commonweal.jobs.job import Job, federation_of, job_from_experiment
from commonweal.jobs.rounds import Round, run
from commonweal.record.record import Record
from commonweal.training.evaluation import Evaluation
from commonweal.training.scores import find

Array: TypeAlias = NDArray[np.float64]

PAUSE = 1.0  # seconds between looks at a run of another process
FAILURES = (ConfigError, DataError, DivergedError)  # of one run: the others go on
# What a federation depends on, with its validation samples and clients that are held out.
OF_DATA = attrgetter(
    "dataset", "partition", "label_noise", "seed", "holdout_clients", "validation", "synthetic_from"
)
OWN = ", personal models"  # the end of a label


# Running


class Step(NamedTuple):
    """The progress of a comparison: a cell and its last round (None: it was finished before)."""

    cell: Cell
    names: tuple[str, ...]  # of the clients
    round: Round | None
    failure: str = ""  # why the run has no result: it diverged, or was refused
    waiting: str = ""  # another process writes to the folder: it is looked at again at the end


class Data:
    """The federation of the last run that was built: runs on the same data share it."""

    def __init__(self) -> None:
        self._key: object = None
        self._federation: Federation | None = None

    def job(self, experiment: Experiment) -> Job:
        """Build the job of an experiment."""
        key = OF_DATA(experiment)
        if self._federation is None or key != self._key:
            self._federation = None  # before the next one is in memory, too
            self._federation = federation_of(experiment)
            self._key = key
        return job_from_experiment(experiment, self._federation)


def run_cells(plan: Iterable[Cell], data: Data | None = None) -> Iterator[Step]:
    """Run the cells that are not finished yet, seed by seed and round by round.

    A run that diverges, or that its data or parts refuse, is a step with its failure: the others
    go on. A run that another process is at is waited for, when all others are done.

    data: has the data of the first cells, where they are built already
    """
    data = data or Data()
    yield from _when_free(seed_by_seed(plan), lambda cell: _run_rounds(cell, data))


def _when_free(plan: Iterable[Cell], steps_of: Callable[[Cell], Iterator[Step]]) -> Iterator[Step]:
    """The steps of all cells. Cells that another process is at are waited for at the end."""
    locked = []
    for cell in plan:
        try:
            yield from steps_of(cell)
        except LockedError as error:
            locked.append(cell)
            yield Step(cell, (), None, waiting=str(error))
    for cell in locked:
        while True:
            try:
                yield from steps_of(cell)
                break
            except LockedError:
                time.sleep(PAUSE)


def _run_rounds(cell: Cell, data: Data) -> Iterator[Step]:
    if cell.finished:
        yield Step(cell, (), None)
        return
    try:
        job = data.job(cell.experiment)
        for done in run(job, out=cell.folder, resume=True):
            yield Step(cell, job.population.names, done)
    except FAILURES as error:
        yield Step(cell, (), None, str(error))


def run_cells_in_processes(
    plan: Iterable[Cell], jobs: int, ranks: RankPool | None = None
) -> Iterator[Step]:
    """Run the cells that are not finished in so many processes, or in those of torchrun.

    A worker holds the folder of its run, so that several commands may share a folder of runs.
    """
    plan = list(plan)
    with worker_pool(jobs) if ranks is None else nullcontext(ranks) as pool:

        def start(cell: Cell) -> "Future[str]":
            return pool.submit(run_cell, cell.experiment.model_dump(), cell.folder)

        futures = {cell.folder: start(cell) for cell in plan if not cell.finished}

        def result(cell: Cell) -> Iterator[Step]:
            future = futures.pop(cell.folder, None)
            if future is None and not cell.finished:  # left by the process that was at it
                future = start(cell)
            yield Step(cell, (), None, "" if future is None else future.result())

        try:
            yield from _when_free(plan, result)  # in order, as a bar shows it
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def run_cell(values: dict[str, object], folder: Path) -> str:
    """Run one experiment. Returns why it has no result, if so."""
    try:
        for _ in run(job_from_experiment(Experiment(**values)), out=folder, resume=True):
            pass
    except FAILURES as error:
        return str(error)
    return ""


# Results


@dataclass(frozen=True, eq=False)
class Result:
    """What one rule (with one setting) gives over the seeds."""

    label: str
    clients: tuple[str, ...]  # those with a score in every seed
    scores: Array  # (seeds, K)
    metrics: list[dict[str, float]]  # per seed, of all clients that have a score in it
    personal: bool = False  # of the clients' personal models
    lower_is_better: bool = False

    @property
    def seeds(self) -> int:
        return len(self.metrics)


Failures: TypeAlias = Mapping[Path, str]  # by the run's folder, why it has no result
Failed: TypeAlias = Mapping[str, Mapping[int, str]]  # by label and seed, why there is no result


def keeps(failed: Mapping[int, str], seeds: int) -> bool:
    """Whether a method with failed seeds is still compared: over half of its seeds finished."""
    return 2 * len(failed) < seeds


def finished_runs(
    plan: Iterable[Cell], failures: Failures | None = None
) -> dict[str, list[Record]]:
    """The finished runs of a plan by label, where over half of a label's seeds finished."""
    plan = list(plan)
    failed = _failed(plan, failures or {})
    counts = Counter(cell.label for cell in plan)
    records: dict[str, list[Record]] = {}
    for cell in plan:
        own = failed.get(cell.label, {})
        if cell.experiment.seed not in own and keeps(own, counts[cell.label]):
            records.setdefault(cell.label, []).append(Record.read(cell.folder).whole())
    return records


def _failed(plan: Iterable[Cell], failures: Failures) -> Failed:
    table: dict[str, dict[int, str]] = {}
    for cell in plan:
        if cell.folder in failures:
            table.setdefault(cell.label, {})[cell.experiment.seed] = failures[cell.folder]
    return table


def failed_lines(plan: Iterable[Cell], failures: Failures) -> list[str]:
    """A line for every label with failed seeds, with the first of its failures."""
    plan = list(plan)
    return lines_of(_failed(plan, failures), Counter(cell.label for cell in plan))


def lines_of(failed: Failed, seeds: Mapping[str, int]) -> list[str]:
    """Describe the failures of some methods, each of which has a number of seeds."""
    lines = []
    for label, by_seed in failed.items():
        first, reason = next(iter(by_seed.items()))
        if not keeps(by_seed, seeds[label]):
            lines.append(f"{label}: no result; seed {first}: {reason}")
            continue
        numbers = ", ".join(map(str, by_seed))
        lines.append(
            f"{label}: no result with seed {numbers} of {seeds[label]} ({reason}); all methods are "
            "compared over the other seeds, which flatters this one"
        )
    return lines


def gather(records: Mapping[str, Sequence[Record]]) -> list[Result]:
    """The results of runs by label, whose runs differ in their seeds.

    A label with personal models gives two results, the second of the clients' personal models.
    """
    counts = {label: len(runs) for label, runs in records.items()}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        raise RunError(f"every label needs the same number of runs, one per seed; got {counts}")
    results = []
    for label, runs in records.items():
        shared, personal, sizes = [], [], []
        for record in sorted(runs, key=seed_of):
            table = record.clients()
            own = table.evaluation.personal
            sizes.append(dict(zip(table.names, table.evaluation.sizes.tolist(), strict=True)))
            if own is not None and baseline_of(record):
                shared.append(_scores(table.names, own))  # the network alone is not what they use
                continue
            shared.append(_scores(table.names, table.evaluation))
            if own is not None:
                personal.append(_scores(table.names, own))
        lower = find(runs[0].facts.score).lower_is_better
        results.append(result_of(label, shared, sizes, lower))
        if len(personal) == len(runs):
            results.append(result_of(label + OWN, personal, sizes, lower, personal=True))
    return results


Scores: TypeAlias = dict[str, float]  # by client, of those that have one


def _scores(names: Sequence[str], evaluation: Evaluation) -> Scores:
    scores = dict(zip(names, evaluation.score.tolist(), strict=True))
    return {name: score for name, score in scores.items() if not np.isnan(score)}


def result_of(
    label: str,
    seeds: Sequence[Scores],
    rows: Sequence[Mapping[str, float]],
    lower_is_better: bool,
    personal: bool = False,
) -> Result:
    """A result from every client's score, seed by seed, and its number of test samples."""
    common = set(seeds[0]).intersection(*seeds)
    clients = tuple(name for name in seeds[0] if name in common)
    table = []
    summaries = []
    for scores, sizes in zip(seeds, rows, strict=True):
        table.append([scores[name] for name in clients])
        own = [sizes[name] for name in scores]
        summaries.append(metrics.summary(list(scores.values()), own, list(scores), lower_is_better))
    return Result(label, clients, np.array(table), summaries, personal, lower_is_better)


def align(a: Result, b: Result) -> tuple[tuple[str, ...], Array, Array]:
    """The clients that two results have in common, and the scores (seeds, K) of both."""
    common = set(b.clients)
    names = tuple(name for name in a.clients if name in common)
    first = [a.clients.index(name) for name in names]
    second = [b.clients.index(name) for name in names]
    return names, a.scores[:, first], b.scores[:, second]
