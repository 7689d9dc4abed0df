"""Published tables beside our runs: what a paper printed, what we got, and whether they agree.

A table is a file `tables/<paper>/<name>.toml`: every published cell, what is wrong with them,
and, where it can be run here, the experiment and what each row changes in it. Beside it stands what
we measured, `<name>.json`, which `docs/results/ledger.md` shows.
"""

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from commonweal.analysis import curves, interpolation, tuning
from commonweal.analysis.compare import Cell
from commonweal.base.errors import ConfigError, did_you_mean
from commonweal.base.files import write_file
from commonweal.base.plain import to_json
from commonweal.config.experiment import Experiment, change
from commonweal.jobs.reopening import reopen
from commonweal.record.record import Record
from commonweal.record.rounds import RoundRecord

__all__ = ["Claim", "Measured", "Ours", "PublishedTable", "Row", "cells_of", "choose", "figure"]
__all__ += ["find", "measure", "measured_by_us", "names", "plan", "save", "spread", "verdict"]

TABLES = Path(__file__).parent / "tables"

Floats: TypeAlias = tuple[float, ...]
Chosen: TypeAlias = Mapping[str, Mapping[str, object]]  # row -> key -> value

NOT_SCALED = ("gini", "angle", "kl")  # metrics that are not shares
LINES = ("superfed-mm", "superfed-lm")  # whose authors report the best point of a line
NEAR = 1.0  # points by which a reproduced cell may be off
ROUNDING = 0.005  # of published figures
VALIDATION = 0.25  # share of the training rows by which parameters are chosen


@dataclass(frozen=True)
class Row:
    """A line of a table: a method and its cells."""

    name: str
    published: Floats = ()  # empty: our own row; nan: cannot be read
    spreads: Floats = ()
    code: Floats = ()  # what the authors' code gives when it is run again
    set: tuple[str, ...] | None = None  # changes of the experiment; None: not run here
    grid: Mapping[str, tuple[object, ...]] | None = None  # key -> the values that the paper tried
    columns: tuple[str, ...] = ()  # its metrics, where they are others than the table's


@dataclass(frozen=True)
class Claim:
    """What a paper's text or one of its figures says, and what we got."""

    says: str
    ours: str


@dataclass(frozen=True)
class Ours:
    """How a table is run here."""

    seeds: tuple[int, ...]
    columns: tuple[str, ...]  # the metric of each column, see `_figure`
    experiment: dict[str, object]
    tune: int | None = None  # the seed on whose validation rows grids are searched


@dataclass(frozen=True)
class PublishedTable:
    """A table of a paper."""

    name: str
    paper: str
    table: str
    data: str
    unit: str
    columns: tuple[str, ...]
    status: str  # "as published", "shortened", "cannot", ...
    rows: tuple[Row, ...]
    why: str = ""
    errors: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    repeats: str = ""  # the table whose published cells are shown again, and counted only there
    runs: int = 0  # over which the paper averages; 0: it does not say
    spread: str = ""  # what the numbers in brackets are over: "seeds" or "clients"
    ours: Ours | None = None

    @property
    def cells(self) -> int:
        """How many cells are published, and not in another table."""
        if self.repeats:
            return 0
        return sum(not math.isnan(value) for row in self.rows for value in row.published)


# Reading


def names() -> list[str]:
    """All tables, as paper/name."""
    return sorted(f"{file.parent.name}/{file.stem}" for file in TABLES.glob("*/*.toml"))


def find(name: str) -> PublishedTable:
    """A table by name."""
    if name not in names():
        raise ConfigError(f"there is no published table {name!r}: {did_you_mean(name, names())}")
    read = tomllib.loads(_file(name, "toml"))
    rows = tuple(Row(**_with_tuples(row)) for row in read.pop("rows"))
    claims = tuple(Claim(**claim) for claim in read.pop("claims", ()))
    ours = read.pop("ours", None)
    return PublishedTable(
        name=name,
        rows=_published_in(read["repeats"], rows) if "repeats" in read else rows,
        claims=claims,
        ours=None if ours is None else Ours(**_with_tuples(ours)),
        **_with_tuples(read),
    )


def _published_in(other: str, rows: Sequence[Row]) -> tuple[Row, ...]:
    """Rows with the cells that another table has in the rows of the same names."""
    known = {row.name: row for row in find(other).rows}
    found = []
    for row in rows:
        source = known.get(row.name, row)
        found.append(replace(row, published=source.published, spreads=source.spreads))
    return tuple(found)


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}


def _file(name: str, suffix: str) -> str:
    return (TABLES / f"{name}.{suffix}").read_text("utf-8")


# Running


def choose(
    table: PublishedTable,
    folder: Path,
    jobs: int = 1,
    done: Callable[[str], None] = lambda row: None,
) -> Chosen:
    """Search every row's grid for the values that are best for the worst 10 % of clients.

    Settings are evaluated on validation samples. Finished ones are not repeated.

    Args:
        table: A table whose rows have grids.
        folder: Where the trials are saved.
        jobs: Worker processes.
        done: Called with each row that has been chosen.
    """
    if table.ours is None or table.ours.tune is None:
        return {}
    chosen: dict[str, Mapping[str, object]] = {}
    for row in table.rows:
        if row.grid is None:
            continue
        base = Experiment(**change(table.ours.experiment, row.set or ())).model_dump()
        rule = base["rule"]["name"]
        trials = tuning.tune(
            base,
            [rule],
            folder / table.name / "grids" / _slug(row.name),
            [table.ours.tune],
            VALIDATION,
            jobs=jobs,
            grid=row.grid,
        )
        if trials:
            chosen[row.name] = tuning.choose(trials, "worst")[rule].best.values
        done(row.name)
    return chosen


def _values(ours: Ours, row: Row, setting: Mapping[str, object]) -> dict[str, object]:
    changes = [*(row.set or ()), *(f"{key}={value}" for key, value in setting.items())]
    return Experiment(**change(ours.experiment, changes)).model_dump()


def plan(table: PublishedTable, chosen: Chosen, folder: Path) -> list[Cell]:
    """The runs of a table, a cell per row and seed."""
    if table.ours is None:
        raise ConfigError(f"{table.name} cannot be run here: {table.why}")
    found = []
    for row in table.rows:
        if row.set is None:
            continue
        values = _values(table.ours, row, chosen.get(row.name, {}))
        for seed in table.ours.seeds:
            experiment = Experiment(**values).change(seed=seed)
            found.append(
                Cell(row.name, experiment, folder / table.name / _slug(row.name) / f"seed-{seed}")
            )
    return found


def _slug(name: str) -> str:
    return re.sub(r"[^\w.+-]+", "_", name)


# Figures


@dataclass(frozen=True)
class Measured:
    """What we got: a row's figures by seed, (seeds, columns)."""

    seeds: tuple[int, ...]
    chosen: Chosen
    figures: Mapping[str, tuple[Floats, ...]]
    version: str

    def of(self, row: str, column: int) -> Floats:
        """A cell by seed."""
        return tuple(seed[column] for seed in self.figures.get(row, ()))


def measure(table: PublishedTable, cells: Sequence[Cell], chosen: Chosen) -> Measured:
    """The figures of finished runs. Rows whose runs are not all finished are left out."""
    from commonweal import __version__

    assert table.ours is not None
    columns = {row.name: row.columns or table.ours.columns for row in table.rows}
    figures: dict[str, list[Floats]] = {}
    for cell in cells:
        if cell.finished:
            figures.setdefault(cell.label, []).append(_figures(cell.folder, columns[cell.label]))
    seeds = table.ours.seeds
    whole = {row: tuple(found) for row, found in figures.items() if len(found) == len(seeds)}
    return Measured(seeds, chosen, whole, __version__)


def _figures(folder: Path, columns: Sequence[str]) -> Floats:
    record = Record.read(folder)
    return tuple(_figure(record, column) for column in columns)


def _figure(record: Record, column: str) -> float:
    """A metric of the last round's model; client:NAME is the score of one client.

    own, own:loss, own:ece ...: the clients' mean by the models that they use.
    mean@400: a metric after round 400; objective, improved: curves over all rounds.
    root:std: the square root of a figure, as AdaFed prints its spreads.
    """
    if column.startswith("root:"):
        return math.sqrt(_figure(record, column.removeprefix("root:")))
    if column == "own":
        return 100 * _own(record)
    if column == "own:loss":
        return _own_loss(record)
    if column.startswith("own:"):
        job, state = reopen(record.folder)
        found = interpolation.evaluate_score(job, state, column.removeprefix("own:"), own=True)
        return float(found.score[found.scored].mean())
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


def _scaled(metric: str, value: float) -> float:
    return value if metric in NOT_SCALED else 100 * value


def _evaluated_in(record: Record, number: int) -> RoundRecord:
    return next(each for each in record.evaluated if each.number == number)


def _own(record: Record) -> float:
    """The mean score of the models that clients use; on a line, at each client's best point."""
    last = record.evaluated[-1]
    if _on_a_line(record):
        return float(_line(record).adaptive()["m by oracle"].mean())
    return last.personal.get("mean", last.metrics["mean"])


def _own_loss(record: Record) -> float:
    """The mean loss of these models."""
    if _on_a_line(record):
        return float(_line(record).oracle_losses().mean())
    evaluation = record.clients().evaluation
    own = evaluation.personal or evaluation
    return float(own.losses[own.scored].mean())


def _on_a_line(record: Record) -> bool:
    return record.experiment["client"]["name"] in LINES


def _line(record: Record) -> interpolation.Curve:
    return interpolation.curve(*reopen(record.folder))


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
    chosen = {**before.chosen, **now.chosen}
    return replace(now, chosen=chosen, figures={**before.figures, **now.figures})


def measured_by_us(name: str) -> Measured | None:
    """What stands in the ledger for a table, if it was run."""
    try:
        return _measured(_file(name, "json"))
    except FileNotFoundError:
        return None


def _measured(text: str) -> Measured:
    read = json.loads(text)
    figures = {row: tuple(map(tuple, seeds)) for row, seeds in read["figures"].items()}
    return Measured(tuple(read["seeds"]), read["chosen"], figures, read["version"])


# Agreement


def verdict(table: PublishedTable, row: Row, column: int, ours: Floats) -> str:
    """Whether a published cell lies within two standard errors of ours, and within one point.

    Spreads over seeds are often so large that many points are within noise: that is said. Where
    only one of the two spreads is known, the other one is taken to be the same; where none is,
    the difference is given without a verdict. Of other data or another model nothing is said.
    """
    if table.status.startswith("other"):
        return ""
    if not row.published or not ours or math.isnan(row.published[column]):
        return ""
    difference = float(np.mean(ours)) - row.published[column]
    error = _standard_error(table, row, column, ours)
    if error is None:
        return f"{difference:+.2f}"
    if abs(difference) > 2 * error + ROUNDING:
        return f"differs ({difference:+.2f})"
    return "reproduced" if abs(difference) <= NEAR else f"within noise ({difference:+.2f})"


def _standard_error(table: PublishedTable, row: Row, column: int, ours: Floats) -> float | None:
    """Of the difference of two means over seeds."""
    theirs = row.spreads[column] if row.spreads and table.spread == "seeds" else math.nan
    own = float(np.std(ours, ddof=1)) if len(ours) > 1 else math.nan
    known = [spread for spread in (theirs, own) if not math.isnan(spread)]
    if not known:
        return None
    theirs = known[0] if math.isnan(theirs) else theirs
    own = known[0] if math.isnan(own) else own
    return math.sqrt(theirs**2 / max(1, table.runs) + own**2 / len(ours))


def cells_of(
    table: PublishedTable, measured: Measured | None
) -> Iterator[tuple[Row, int, Floats, str]]:
    """Every cell of a table: its row, its column, ours by seed, and the verdict."""
    for row in table.rows:
        for column in range(len(table.columns)):
            ours = () if measured is None else measured.of(row.name, column)
            yield row, column, ours, verdict(table, row, column, ours)


def figure(values: Floats, spreads: Floats, column: int) -> str:
    """A published cell as text: 84.42 (2.45)."""
    if not values or math.isnan(values[column]):
        return ""
    text = f"{values[column]:.2f}"
    known = bool(spreads) and not math.isnan(spreads[column])
    return f"{text} ({spreads[column]:.2f})" if known else text


def spread(ours: Floats) -> str:
    """Our cell as text: the mean and, of several seeds, the population standard deviation."""
    if not ours:
        return ""
    mean = f"{np.mean(ours):.2f}"
    return f"{mean} ({np.std(ours):.2f})" if len(ours) > 1 else mean
