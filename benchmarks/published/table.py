"""A published table as a value: its cells, and the experiments behind them.

A table is a file `tables/<paper>/<name>.toml`: every published cell, what is wrong with them, and
the settings, each with its source. Datasets and models that only these tables use are files in
`datasets/` and `models/`, named as `datasets/berka.py:berka`. Where our own runs differ (fewer
rounds, other data), `ours` is their setting. What we measured is in `<name>.json`, and on
`docs/results/ledger.md`.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from commonweal.base.errors import ConfigError, did_you_mean
from commonweal.config.experiment import parse_experiment

__all__ = ["TABLES", "Claim", "Floats", "Gain", "PublishedTable", "Row", "Setting", "find"]
__all__ += ["names"]

TABLES = Path(__file__).parent / "tables"

Floats: TypeAlias = tuple[float, ...]


@dataclass(frozen=True)
class Row:
    """A line of a table: a method and its cells."""

    name: str
    published: Floats = ()  # empty: our own row; nan: cannot be read
    spreads: Floats = ()
    code: Floats = ()  # what the authors' code gives when it is run again
    set: tuple[str, ...] = ()  # changes of the experiment
    grid: Mapping[str, tuple[object, ...]] | None = None  # key -> the values that the paper tried
    columns: tuple[str, ...] = ()  # its metrics, where they are others than the setting's
    runs_of: str = ""  # the row whose runs are read by other metrics


class Gain(NamedTuple):
    """A difference between two rows of a table, seed by seed."""

    row: str
    base: str
    column: str


@dataclass(frozen=True)
class Claim:
    """What a paper's text or one of its figures says, and what we got."""

    says: str
    ours: str = ""
    gains: tuple[Gain, ...] = ()  # the differences that decide it, computed from our figures


@dataclass(frozen=True)
class Setting:
    """An experiment that gives some columns of a table."""

    seeds: tuple[int, ...]
    columns: tuple[str, ...]  # the metric of each column, see `reproduction.figure_of`
    experiment: dict[str, object]
    name: str = ""  # where a table has several settings
    first: int = 0  # the column of the table at which the setting's begin
    source: str = ""  # the section, table or repository that has the values
    silent: str = ""  # what the source does not say, and what is chosen here
    tune: int | None = None  # the seed on whose validation samples grids are searched
    rows: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # further changes of rows
    without: tuple[str, ...] = ()  # rows that the paper does not have in this setting

    def changes(self, row: Row) -> list[str]:
        """What a row changes in the experiment."""
        return [*row.set, *self.rows.get(row.name, ())]


@dataclass(frozen=True)
class PublishedTable:
    """A table of a paper."""

    name: str
    paper: str
    table: str
    data: str
    unit: str
    columns: tuple[str, ...]
    status: str  # "as published", "shortened", "other data", "not run: time" ...
    rows: tuple[Row, ...]
    settings: tuple[Setting, ...]
    why: str = ""
    errors: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    repeats: str = ""  # the table whose published cells are shown again, and counted only there
    runs: int = 0  # over which the paper averages; 0: it does not say
    spread: str = ""  # what the numbers in brackets are over: "seeds" or "clients"
    clients: int = 0  # over which a spread over clients is taken
    test_share: float = 0.0  # of the samples, where every seed splits one table again
    ours: Setting | None = None  # the setting of our runs, where it is not the published one

    @property
    def cells(self) -> int:
        """How many cells are published, and not in another table."""
        if self.repeats:
            return 0
        return sum(not math.isnan(value) for row in self.rows for value in row.published)

    @property
    def ran(self) -> tuple[Setting, ...]:
        """The settings of our runs."""
        return self.settings if self.ours is None else (self.ours,)


def names() -> list[str]:
    """All tables, as paper/name."""
    return sorted(f"{file.parent.name}/{file.stem}" for file in TABLES.glob("*/*.toml"))


def find(name: str) -> PublishedTable:
    """A table by name."""
    if name not in names():
        raise ConfigError(f"there is no published table {name!r}: {did_you_mean(name, names())}")
    read = tomllib.loads((TABLES / f"{name}.toml").read_text("utf-8"))
    rows = tuple(Row(**_with_tuples(row)) for row in read.pop("rows"))
    claims = tuple(_claim(claim) for claim in read.pop("claims", ()))
    settings = tuple(_setting(setting) for setting in read.pop("settings"))
    ours = read.pop("ours", None)
    return PublishedTable(
        name=name,
        rows=_published_in(read["repeats"], rows) if "repeats" in read else rows,
        claims=claims,
        settings=settings,
        ours=None if ours is None else _setting(ours),
        **_with_tuples(read),
    )


def _claim(values: Mapping[str, Any]) -> Claim:
    gains = tuple(Gain(*gain) for gain in values.get("gains", ()))
    return Claim(**{**values, "gains": gains})


def _setting(values: Mapping[str, Any]) -> Setting:
    """A setting; of `datasets/berka.py:berka` in its experiment, the path of the file here."""
    experiment = parse_experiment(values["experiment"])
    for key in ("dataset", "model"):
        part = experiment.get(key)
        if isinstance(part, Mapping) and ".py:" in part["name"]:
            experiment[key] = {**part, "name": f"{TABLES.parent / part['name']}"}
    return Setting(**_with_tuples({**values, "experiment": experiment}))


def _published_in(other: str, rows: Sequence[Row]) -> tuple[Row, ...]:
    """Rows with the cells that another table has in the rows of the same names."""
    known = {row.name: row for row in find(other).rows}
    repeated = []
    for row in rows:
        source = known.get(row.name, row)
        repeated.append(replace(row, published=source.published, spreads=source.spreads))
    return tuple(repeated)


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
