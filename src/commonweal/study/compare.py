"""`commonweal.compare`, and the one runner of plans: the same experiment under several methods."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeAlias, Unpack

from commonweal.base.arguments import check_bounds, expect, expect_int
from commonweal.base.errors import ConfigError, DataError, DivergedError, LockedError
from commonweal.config import catalog
from commonweal.config.experiment import Experiment, values
from commonweal.data.federation import Federation
from commonweal.jobs.job import Job, OwnParts, job_from_experiment
from commonweal.jobs.rounds import Round, run
from commonweal.record.record import Record
from commonweal.rules.rule import Rule
from commonweal.study.comparison import Comparison
from commonweal.study.own import OwnData, own_cells
from commonweal.study.plan import (
    Cell,
    P,
    Planned,
    baseline_cells,
    cells,
    refuse_torchrun,
    seed_by_seed,
)
from commonweal.study.unchanged import check_unchanged, remove_other
from commonweal.study.workers import worker_pool
from commonweal.task.task import Task

Rules: TypeAlias = Sequence[str | Rule] | Mapping[str, str | Rule]
Failures: TypeAlias = Mapping[Path, str]  # by the run's folder, why it has no result

RULES = ("fedavg", "uniform", "aaggff-s")
MOST_SEEDS = 10_000
PAUSE = 1.0  # seconds between looks at a run of another process
FAILURES = (ConfigError, DataError, DivergedError)  # of one run: the others go on


# Running


class Step(NamedTuple):
    """The progress of a comparison: a cell and its last round (None: it was finished before)."""

    cell: Planned
    names: tuple[str, ...]  # of the clients
    round: Round | None
    failure: str = ""  # why the run has no result: it diverged, or was refused
    waiting: str = ""  # another process writes to the folder: it is looked at again at the end


class Data:
    """The federation of the last run that was built: runs on the same data share it."""

    def __init__(self) -> None:
        self._key: object = None
        self._federation: Federation | None = None

    def job(self, cell: Planned) -> Job:
        """Build the job of a run."""
        if self._federation is None or cell.data != self._key:
            self._federation = None  # before the next one is in memory, too
            self._federation = cell.federation()
            self._key = cell.data
        return cell.job(self._federation)


def run_cells(
    plan: Iterable[Planned], data: Data | None = None, force: bool = False
) -> Iterator[Step]:
    """Run the cells that are not finished yet, seed by seed and round by round.

    A run that diverges, or that its data or parts refuse, is a step with its failure: the others
    go on. A run that another process is at is waited for, when all others are done.

    Args:
        plan: The runs.
        data: Has the data of the first cells, where they are built already.
        force: Start runs again that are of other data or settings, instead of raising RunError.
    """
    data = data or Data()
    plan = seed_by_seed(plan)
    check_unchanged(plan, force)
    yield from _when_free(plan, lambda cell: _run_rounds(cell, data, force))


def _when_free(plan: Iterable[P], steps_of: Callable[[P], Iterator[Step]]) -> Iterator[Step]:
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


def _run_rounds(cell: Planned, data: Data, force: bool = False) -> Iterator[Step]:
    if cell.finished:
        yield Step(cell, (), None)
        return
    try:
        job = data.job(cell)
        if force:
            remove_other(cell.folder, job)
        for done in run(job, out=cell.folder, resume=True):
            yield Step(cell, job.population.names, done)
    except FAILURES as error:
        yield Step(cell, (), None, str(error))


def run_cells_in_processes(plan: Iterable[Cell], jobs: int, force: bool = False) -> Iterator[Step]:
    """Run the cells that are not finished in so many processes.

    A worker holds the folder of its run, so that several commands may share a folder of runs.
    """
    plan = list(plan)
    check_unchanged(plan, force)
    with worker_pool(jobs) as pool:

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


def finished_runs(
    plan: Iterable[Planned], failures: Failures | None = None
) -> dict[str, list[Record]]:
    """The runs of a plan that have a result, by label."""
    records: dict[str, list[Record]] = {}
    for cell in plan:
        if cell.folder not in (failures or {}):
            records.setdefault(cell.label, []).append(Record.read(cell.folder).whole())
    return records


def failed_lines(plan: Iterable[Planned], failures: Failures) -> list[str]:
    """A line for every label with failed seeds, with the first of its failures."""
    seeds: dict[str, list[int]] = {}
    reasons: dict[str, str] = {}
    plan = list(plan)
    for cell in plan:
        if cell.folder in failures:
            seeds.setdefault(cell.label, []).append(cell.seed)
            reasons.setdefault(cell.label, failures[cell.folder])
    lines = []
    for label, failed in seeds.items():
        planned = [cell.seed for cell in plan if cell.label == label]
        if len(failed) == len(planned):
            lines.append(f"{label}: no result; seed {failed[0]}: {reasons[label]}")
            continue
        numbers = ", ".join(map(str, failed))
        lines.append(
            f"{label}: no result with seed {numbers} of {len(planned)} ({reasons[label]}); its "
            "other seeds may flatter it"
        )
    return lines


def compared(
    plan: Sequence[Planned], failures: Failures, varied: str = "", worth: float | None = None
) -> Comparison:
    """The comparison of the runs of a plan."""
    lines = failed_lines(plan, failures)
    return Comparison.of(finished_runs(plan, failures), lines, varied, worth=worth)


# In Python


def compare(
    what: Experiment | str | Path | Task | Callable[[int], Task],
    federation: Federation | Callable[[int], Federation] | None = None,
    *,
    rules: Rules = RULES,
    seeds: int | Sequence[int] = 3,
    baselines: bool = True,
    out: str | Path | None = None,
    fixed: bool = False,
    force: bool = False,
    worth: float | None = None,
    **parts: Unpack[OwnParts],
) -> Comparison:
    """Run an experiment (or its file), or a Task and a Federation, under several rules and seeds.

    Every seed draws other initial weights and other batches, and tests other samples, as on the
    command line: with test = 0.2 five seeds test every sample once.

    Args:
        what: An experiment or its file; or a Task, or a function of the seed that returns one.
        federation: With a task, the data, or a function of the seed that returns them.
        rules: Rules, by name or as objects; a dict gives them names: {"Ours": Soft(t=2)}.
        seeds: How many, or which.
        baselines: Also train local models, and one model on pooled data.
        out: The folder of the runs; without it they are not saved.
        fixed: Keep the task's initial weights and the federation's split for every seed.
        force: Start runs in `out` again that are of other data or settings.
        worth: A gain worth having, in points, or in % of an error (1, or 2): joining does not help
            where so much is excluded.
        parts: With a task, the other parts and settings of `run`.
    """
    expect("rules", rules, list | tuple | Mapping, "a list of rules, or a dict by name")
    if not rules:
        raise ConfigError(f"rules = {rules!r}: there is no rule to run")
    refuse_torchrun(parts.get("engine"))
    numbers = _seeds(seeds)
    expect("baselines", baselines, bool, "True or False")
    expect("fixed", fixed, bool, "True or False")
    expect("force", force, bool, "True or False")
    if out is not None:
        expect("out", out, str | Path, "the path of a folder")
    expect("worth", worth, int | float | None, "a number")
    check_bounds("worth", worth, above=0)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary if out is None else out)
        if isinstance(what, Task) or callable(what):
            if not isinstance(federation, Federation) and not callable(federation):
                raise ConfigError(
                    f"federation = {federation!r:.80}: compare(task) needs a Federation, or a "
                    "function of the seed"
                )
            data = OwnData(what, federation, fixed)
            plan: list[Planned] = [
                *own_cells(data, _parts(rules), numbers, baselines, folder, parts)
            ]
            return compared(plan, _failures(plan, force), data.varied, worth)
        expect("what", what, Experiment | str | Path, "an Experiment, its file, or a Task")
        if federation is not None or parts or fixed:
            raise ConfigError(
                f"what = {what!r:.60}: compare(experiment) takes no other parts; change the "
                "experiment"
            )
        base = what.model_dump() if isinstance(what, Experiment) else values(what)
        plan = [*cells(base, _texts(rules), numbers, [], folder)]
        if baselines:
            plan += baseline_cells(base, numbers, folder)
        return compared(plan, _failures(plan, force), worth=worth)


def _failures(plan: Sequence[Planned], force: bool) -> Failures:
    """Run what is not finished. Returns why some runs have no result."""
    steps = run_cells(plan, force=force)
    return {step.cell.folder: step.failure for step in steps if step.failure}


def _parts(rules: Rules) -> dict[str, dict[str, object]]:
    """The parts of a run of each rule, by its label."""
    if isinstance(rules, Mapping):
        return {name: {"rule": rule, "name": name} for name, rule in rules.items()}
    parts: dict[str, dict[str, object]] = {label_of(rule): {"rule": rule} for rule in rules}
    if len(parts) < len(rules):
        raise ConfigError(f"the same rule twice among {', '.join(_texts(rules))}")
    return parts


def _texts(rules: Rules) -> list[str]:
    """Rules as an experiment names them, with the names that a dict gives them."""
    if isinstance(rules, Mapping):
        return [f"{name}={label_of(rule)}" for name, rule in rules.items()]
    return [label_of(rule) for rule in rules]


def _seeds(seeds: int | Sequence[int]) -> list[int]:
    """Seeds by their number, or as they are."""
    if isinstance(seeds, int):
        expect_int("seeds", seeds, least=1, most=MOST_SEEDS)
        return list(range(seeds))
    expect("seeds", seeds, list | tuple | range, "a number of seeds, or a list of them")
    for seed in seeds:
        expect_int("seeds", seed, most=2**63)
    if not seeds:
        raise ConfigError(f"seeds = {seeds!r}: there are no seeds to run")
    return list(seeds)


def label_of(rule: str | Rule) -> str:
    """A rule as text, with the parameters that are not the default's.

    >>> label_of(catalog.build("rules", "afl(lr=0.5)")), label_of("afl(lr = 0.5)")
    ('afl(lr=0.5)', 'afl(lr=0.5)')
    """
    if isinstance(rule, str):
        return rule.replace(" ", "")
    expect("rules", rule, Rule, "rules by name, or as objects")
    parameters = catalog.named_part(rule)
    name = str(parameters.pop("name"))
    defaults = catalog.find_entry("rules", name).defaults
    changed = [f"{key}={v}" for key, v in parameters.items() if defaults.get(key) != v]
    return f"{name}({','.join(changed)})".replace(" ", "") if changed else name
