"""Published tables by our runs: plan and run a table's experiments, and read their figures."""

import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from commonweal.base.errors import CommonwealError, DataError, RunError
from commonweal.base.files import write_file
from commonweal.base.plain import to_json
from commonweal.config.experiment import Experiment, change
from commonweal.jobs import rounds
from commonweal.jobs.job import job_from_experiment
from commonweal.jobs.reopening import reopen
from commonweal.metrics import against
from commonweal.protocols.synthetic import assess
from commonweal.record.record import Record
from commonweal.record.rounds import RoundRecord
from commonweal.study import curves, interpolation, tuning
from commonweal.study.plan import Cell
from commonweal.training.evaluation import Evaluation

from .table import TABLES, Floats, PublishedTable, Row, Setting

__all__ = ["Measured", "Planned", "choose", "figure_of", "measure"]
__all__ += ["measured_by_us", "plan", "save", "with_files"]

Chosen: TypeAlias = Mapping[str, Mapping[str, object]]  # row -> key -> value

NOT_SCALED = ("gini", "angle", "kl", "ece", "mce")  # metrics that are not shares
LINES = ("superfed-mm", "superfed-lm")  # whose authors report the best point of a line
VALIDATION = 0.25  # share of the training samples by which parameters are chosen
LATE = 0.75  # evaluations after this share of the rounds show how much a run swings


class Planned(NamedTuple):
    """A run of a table."""

    row: Row
    setting: Setting
    seed: int
    cell: Cell


# Running


def with_files(
    table: PublishedTable, settings: Sequence[Setting], warn: Callable[[str], object]
) -> list[Setting]:
    """The settings whose files are here.

    Args:
        table: A table.
        settings: Some of its settings.
        warn: Called with what the others need.

    Raises:
        DataError: Nothing of the table has its files.
    """
    problems: dict[str, str] = {}
    runnable = []
    for setting in settings:
        experiment = Experiment(**setting.experiment)
        key = f"{experiment.dataset} {experiment.model}"
        if key not in problems:
            problems[key] = _problem(experiment)
        if not problems[key]:
            runnable.append(setting)
    missing = "\n".join(f"- {problem}" for problem in problems.values() if problem)
    needs = f"{table.name} needs files that are not here (docs/data.md describes them):\n{missing}"
    if not runnable:
        raise DataError(needs)
    if missing:
        warn(needs)
    return runnable


def _problem(experiment: Experiment) -> str:
    """Why an experiment's dataset or model cannot be built; empty: they can."""
    try:
        job_from_experiment(experiment)
    except CommonwealError as error:
        return str(error)
    return ""


def choose(
    table: PublishedTable,
    setting: Setting,
    folder: Path,
    jobs: int = 1,
    done: Callable[[str], None] = lambda row: None,
) -> Chosen:
    """Search every row's grid for the values that are best for the worst 10 % of clients.

    Settings are evaluated on validation samples. Finished ones are not repeated.

    Args:
        table: A table whose rows have grids.
        setting: One of its settings.
        folder: Where the trials are saved.
        jobs: Worker processes.
        done: Called with each row that has been chosen.
    """
    chosen: dict[str, Mapping[str, object]] = {}
    for row in table.rows:
        if row.grid is None or setting.tune is None or row.name in setting.without:
            continue
        base = Experiment(**change(setting.experiment, setting.changes(row))).model_dump()
        rule = base["rule"]["name"]
        trials = tuning.tune(
            base,
            [rule],
            _folder(table, setting, folder) / "grids" / _slug(row.name),
            [setting.tune],
            VALIDATION,
            jobs=jobs,
            grid=row.grid,
        )
        if trials:
            chosen[row.name] = tuning.best_trials(trials, "worst")[rule].values
        done(row.name)
    return chosen


def plan(table: PublishedTable, setting: Setting, chosen: Chosen, folder: Path) -> list[Planned]:
    """The runs of a setting, one per row and seed."""
    planned = []
    for row in table.rows:
        if row.name in setting.without:
            continue
        values = [f"{key}={value}" for key, value in chosen.get(row.name, {}).items()]
        changes = [*setting.changes(row), *values]
        experiment = Experiment(**change(setting.experiment, changes))
        place = _folder(table, setting, folder) / _slug(row.runs_of or row.name)
        for seed in setting.seeds:
            cell = Cell(row.name, experiment.change(seed=seed), place / f"seed-{seed}")
            planned.append(Planned(row, setting, seed, cell))
    return planned


def seconds(planned: Sequence[Planned]) -> float:
    """How long runs take one after the other, by a few rounds of every row."""
    by_row: dict[tuple[str, str], float] = {}
    for run in planned:
        key = (run.row.name, run.setting.name)
        if key not in by_row:
            by_row[key] = _seconds(run.cell.experiment)
    return sum(by_row[run.row.name, run.setting.name] for run in planned)


def _seconds(experiment: Experiment) -> float:
    """By the time of a short run's rounds without the first, which sets up, and the last."""
    probe = experiment.change(rounds=min(4, experiment.rounds), evaluate_every=experiment.rounds)
    times = [time.perf_counter()]
    for _ in rounds.run(job_from_experiment(probe)):
        times.append(time.perf_counter())
    steps = np.diff(times)
    return experiment.rounds * float(np.mean(steps[1:-1] if len(steps) > 2 else steps))


def _folder(table: PublishedTable, setting: Setting, folder: Path) -> Path:
    if setting is table.ours:
        return folder / table.name / "ours"
    return folder / table.name / _slug(setting.name)


def _slug(name: str) -> str:
    return re.sub(r"[^\w.+-]+", "_", name)


# Figures


@dataclass(frozen=True)
class Measured:
    """What we got: a row's figures by seed, (seeds, columns). Rows may have the first seeds only.

    Args:
        seeds: Of the runs.
        chosen: What grids gave.
        figures: Per row and seed; nan where a column was not run.
        version: Of Commonweal.
        swings: Per row and column, the standard deviation over the last evaluations of a run.
        spreads: Per row and column, the standard deviation over clients.
    """

    seeds: tuple[int, ...]
    chosen: Chosen
    figures: Mapping[str, tuple[Floats, ...]]
    version: str
    swings: Mapping[str, Floats] = field(default_factory=dict)
    spreads: Mapping[str, Floats] = field(default_factory=dict)

    def of(self, row: str, column: int) -> Floats:
        """A cell by seed."""
        cells = [seed[column] for seed in self.figures.get(row, ())]
        return tuple(cell for cell in cells if not math.isnan(cell))

    def at(self, seeds: Sequence[int]) -> "Measured":
        """The figures of these seeds, where all of them ran: those that a paper averages over."""
        if not set(seeds) <= set(self.seeds):
            return self
        chosen = [self.seeds.index(seed) for seed in seeds]
        figures = {}
        for row, cells in self.figures.items():
            figures[row] = tuple(cells[k] for k in chosen if k < len(cells))
        return replace(self, seeds=tuple(seeds), figures=figures)


def measure(table: PublishedTable, planned: Sequence[Planned], chosen: Chosen) -> Measured:
    """The figures of finished runs. A row has the first seeds for which all its runs finished."""
    from commonweal import __version__

    seeds = planned[0].setting.seeds if planned else ()
    figures: dict[str, tuple[Floats, ...]] = {}
    swings: dict[str, Floats] = {}
    spreads: dict[str, Floats] = {}
    for row in table.rows:
        by_seed = []
        for seed in seeds:
            runs = [run for run in planned if run.row is row and run.seed == seed]
            if not runs or not all(run.cell.finished for run in runs):
                break
            by_seed.append(_assembled(table, runs, figure_of))
        if by_seed:
            figures[row.name] = tuple(by_seed)
            first = [run for run in planned if run.row is row and run.seed == seeds[0]]
            swings[row.name] = _assembled(table, first, _swing)
            if table.spread == "clients":
                spreads[row.name] = _assembled(table, first, _spread_over_clients)
    return Measured(seeds, chosen, figures, __version__, swings, spreads)


def _assembled(
    table: PublishedTable, runs: Sequence[Planned], read: Callable[[Record, str], float]
) -> Floats:
    """A row of the table from the runs of its settings; nan in columns that were not run."""
    cells = [math.nan] * len(table.columns)
    for run in runs:
        record = Record.read(run.cell.folder)
        for column, metric in enumerate(run.setting.columns, run.setting.first):
            own = run.row.columns[column] if run.row.columns else metric
            cells[column] = read(record, own)
    return tuple(cells)


def figure_of(record: Record, column: str) -> float:
    """A metric of the last round's model; client:NAME is the score of one client.

    own, own:loss, own:ece ...: the clients' mean by the models that they use; on a line, at each
    client's best point. validated: on a line, at the point that the other test half chooses.
    personal:worst_10: a metric of the clients' personal models.
    gains:thriving_change: against the row FedAvg of the same seed, see `metrics.against`.
    frechet: the distance of synthetic samples from test samples, see `protocols.synthetic`.
    mean@400: a metric after round 400; objective, improved: curves over all rounds.
    root:std: the square root of a figure, as AdaFed prints its spreads.
    perplexity, perplexity:NAME, perplexity:worst: of all test tokens, or of one client's.
    """
    if column.startswith("root:"):
        return math.sqrt(figure_of(record, column.removeprefix("root:")))
    if column.startswith("perplexity"):
        return math.exp(_loss(record, column.partition(":")[2]))
    if column == "own":
        return 100 * float(_own(record).mean())
    if column == "own:loss":
        return _own_loss(record)
    if column.startswith("own:"):
        return _own_score(record, column.removeprefix("own:"))
    if column == "validated":
        return 100 * float(_line(record).validated.mean())
    if column.startswith("personal:"):
        metric = column.removeprefix("personal:")
        return _scaled(metric, record.evaluated[-1].personal[metric])
    if column.startswith("gains:"):
        return 100 * _gain(record, column.removeprefix("gains:"))
    if column == "frechet":
        return _frechet(record)
    if column == "objective":
        return curves.cumulative_objective(record.rounds)
    if column == "improved":
        return 100 * curves.improved(record.rounds)
    if "@" in column:
        metric, _, number = column.partition("@")
        return _scaled(metric, _evaluated_in(record, int(number)).metrics[metric])
    if column.startswith("client:"):
        table = record.clients()
        position = table.names.index(column.removeprefix("client:"))
        return 100 * float(table.evaluation.score[position])
    return _scaled(column, record.evaluated[-1].metrics[column])


def _swing(record: Record, column: str) -> float:
    """The standard deviation of a metric over the late evaluations of a run; nan: too few."""
    is_root = column.startswith("root:")
    column = column.removeprefix("root:")
    of_personal = column.startswith("personal:")
    metric = column.removeprefix("personal:")
    start = LATE * record.rounds[-1].number
    values = []
    for line in record.evaluated:
        metrics = line.personal if of_personal else line.metrics
        if line.number > start and metric in metrics:
            value = _scaled(metric, metrics[metric])
            values.append(math.sqrt(value) if is_root else value)
    return float(np.std(values, ddof=1)) if len(values) >= 5 else math.nan


def _spread_over_clients(record: Record, column: str) -> float:
    if column == "own":
        return 100 * float(np.std(_own(record)))
    if column == "mean":
        return 100 * float(np.std(_scores(record.clients().evaluation)))
    return math.nan


def _scaled(metric: str, value: float) -> float:
    return value if metric in NOT_SCALED else 100 * value


def _evaluated_in(record: Record, number: int) -> RoundRecord:
    return next(each for each in record.evaluated if each.number == number)


def _own(record: Record) -> np.ndarray:
    """The scores of the models that clients use; on a line, at each client's best point."""
    if _on_a_line(record):
        return np.asarray(_line(record).adaptive()["m by oracle"])
    evaluation = record.clients().evaluation
    return _scores(evaluation.personal or evaluation)


def _scores(evaluation: Evaluation) -> np.ndarray:
    return np.asarray(evaluation.score[evaluation.scored])


def _gain(record: Record, name: str) -> float:
    """A change against the run of FedAvg with the same seed, next to the row of this run."""
    baseline = Record.read(record.folder.parent.parent / "FedAvg" / record.folder.name)
    before = np.asarray(baseline.clients().evaluation.score)
    after = np.asarray(record.clients().evaluation.score)
    if name == "mean":
        return float(after.mean() - before.mean())
    return float(against(before, after)._asdict()[name])


def _frechet(record: Record) -> float:
    """Between synthetic samples and all test samples, by a classifier of the real samples."""
    job, state = reopen(record.folder, trust=True)
    samples = record.samples()
    if samples is None or job.local is None:
        raise RunError(f"{str(record.folder)!r} has no synthetic samples")
    w = job.algorithm.model(state)
    quality = assess(job.task, job.local.federation, w, *samples, seed=job.settings.seed)
    return quality.frechet


def _loss(record: Record, client: str) -> float:
    """The mean loss over all test samples, of one client, or of the worst client."""
    table = record.clients()
    losses = np.asarray(table.evaluation.losses)
    if client == "worst":
        return float(losses.max())
    if client:
        return float(losses[table.names.index(client)])
    return float(np.average(losses, weights=np.asarray(table.evaluation.sizes)))


def _own_loss(record: Record) -> float:
    """The mean loss of these models."""
    if _on_a_line(record):
        return float(_line(record).oracle_losses().mean())
    evaluation = record.clients().evaluation
    own = evaluation.personal or evaluation
    return float(own.losses[own.scored].mean())


def _own_score(record: Record, score: str) -> float:
    """The mean of another score of these models."""
    job, state = reopen(record.folder, trust=True)
    if _on_a_line(record):
        return _scaled(score, float(interpolation.scores_at_best(job, state, score).mean()))
    found = interpolation.evaluate_score(job, state, score, own=True)
    return _scaled(score, float(found.score[found.scored].mean()))


def _on_a_line(record: Record) -> bool:
    return record.experiment["client"]["name"] in LINES


def _line(record: Record) -> interpolation.Curve:
    return interpolation.curve(*reopen(record.folder, trust=True))


# Records


def save(table: PublishedTable, measured: Measured, folder: Path) -> Path:
    """Write what was measured as `<folder>/<paper>/<name>.json`.

    Rows that the file has from the same seeds and version, and that were not run now, are kept: a
    long table can be run row by row.
    """
    file = folder / f"{table.name}.json"
    if file.exists():
        measured = _with_rows_of(_measured(file.read_text("utf-8")), measured)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_file(file, to_json(vars(measured)))
    return file


def _with_rows_of(before: Measured, now: Measured) -> Measured:
    if (before.seeds, before.version) != (now.seeds, now.version):
        return now
    return replace(
        now,
        chosen={**before.chosen, **now.chosen},
        figures={**before.figures, **now.figures},
        swings={**before.swings, **now.swings},
        spreads={**before.spreads, **now.spreads},
    )


def measured_by_us(name: str) -> Measured | None:
    """What stands in the ledger for a table, if it was run."""
    try:
        return _measured((TABLES / f"{name}.json").read_text("utf-8"))
    except FileNotFoundError:
        return None


def _measured(text: str) -> Measured:
    read = json.loads(text)
    return Measured(
        seeds=tuple(read["seeds"]),
        chosen=read["chosen"],
        figures={row: tuple(map(_floats, seeds)) for row, seeds in read["figures"].items()},
        version=read["version"],
        swings={row: _floats(cells) for row, cells in read.get("swings", {}).items()},
        spreads={row: _floats(cells) for row, cells in read.get("spreads", {}).items()},
    )


def _floats(cells: Sequence[float | None]) -> Floats:
    return tuple(math.nan if cell is None else cell for cell in cells)
