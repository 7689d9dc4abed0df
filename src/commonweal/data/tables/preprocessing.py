"""Preprocessing of a table's columns to features: part of the model, and saved with it.

The statistics come from training rows only. They are sums, so that clients can compute them
together without showing a row: `statistics="federated"` combines each client's own. Those of a
public file are used as they are, and say nothing about the clients.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Literal

import numpy as np

from commonweal.base.errors import DataError
from commonweal.data.tables import plain_table
from commonweal.data.tables.plain_table import GAP, OTHER, PlainColumn, read_columns

Statistics = Literal["pooled", "federated", "public"]
FORMAT = 1
SHOWN = 6  # columns that a note names
ID = "it looks like an id"  # why a column is left out


@dataclass(frozen=True)
class Preprocessing:
    """The preprocessing of a table's rows to features, and of outputs back to words."""

    columns: tuple[PlainColumn, ...]
    label: str = ""
    client: str | None = None
    class_names: tuple[str, ...] = ()  # empty: the label is a value
    separator: str = ","
    encoding: str = "utf-8"
    statistics: Statistics = "pooled"
    target: Mapping[str, float] = field(default_factory=dict)  # mean and deviation of a value
    threshold: float | None = None  # the least probability of the second of two classes; None: half
    notes: tuple[str, ...] = field(default=(), compare=False)  # on columns; not saved

    @property
    def used(self) -> list[PlainColumn]:
        """The columns that become features."""
        return [column for column in self.columns if column.becomes != "nothing"]

    @property
    def features(self) -> list[str]:
        """The names of the features, in order."""
        return list(chain.from_iterable(map(plain_table.column_names, self.columns)))

    def values(self) -> dict[str, object]:
        """The preprocessing as plain values, for JSON."""
        values = {"format": FORMAT, **asdict(self), "columns": list(map(_fields, self.columns))}
        del values["notes"]
        return values

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> "Preprocessing":
        """Invert `values`."""
        if values.get("format", FORMAT) > FORMAT:
            raise DataError(
                f"the preprocessing was written by a newer version (format {values['format']}): "
                "update commonweal"
            )
        fields = dict(values)
        for name in ("format", "digest"):
            fields.pop(name, None)
        fields["columns"] = tuple(read_columns(values))
        fields["class_names"] = tuple(values["class_names"])
        return cls(**fields)

    @classmethod
    def read(cls, text: str | bytes) -> "Preprocessing":
        """The preprocessing in a JSON text."""
        try:
            return cls.parse(json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"this is not a preprocessing: {error}") from None

    def rows(self, table: Mapping[str, Sequence[str]]) -> np.ndarray:
        """The features (n, d) of a table of strings, exactly as the training rows'."""
        try:
            return plain_table.prepare(self.columns, table)
        except ValueError as error:
            raise DataError(str(error)) from None

    def unknown(self, table: Mapping[str, Sequence[str]]) -> list[str]:
        """Notes on missing values, other notations, and strings that no training row had."""
        notes = []
        gaps = []
        for column in self.used:
            texts = table.get(column.name, ())
            words = (*plain_table.MISSING, *column.missing_as)
            missing = sum(plain_table.stripped(text) in words for text in texts)
            if missing:
                gaps.append(f"{column.name} {missing}")
            notes += _doubts(column, texts)
        if gaps:
            more = f" and {len(gaps) - SHOWN} more columns" if len(gaps) > SHOWN else ""
            notes.append(
                f"missing values: {', '.join(gaps[:SHOWN])}{more}; filled as in training (median, "
                f"or category {GAP!r})"
            )
        return notes


def is_fitted(preprocessing: Preprocessing | None) -> bool:
    """True if columns were fitted to the clients' training rows."""
    return preprocessing is not None and preprocessing.statistics != "public"


NUMERIC = ("optional", "mean", "deviation", "median", "indicator", "low", "high")
FIELDS = {
    "number": ("decimal", "unit", "missing_as", *NUMERIC),
    "boolean": ("words", *NUMERIC),
    "date": ("order", *NUMERIC),
    "text": ("optional", "missing_as", "levels", "other", "missing"),
    "nothing": ("why", "is_id"),
}


def _fields(column: PlainColumn) -> dict[str, object]:
    everything = asdict(column)
    return {name: everything[name] for name in ("name", "becomes", *FIELDS[column.becomes])}


def _doubts(column: PlainColumn, texts: Sequence[str]) -> list[str]:
    """Notes on the strings of a column that the training rows do not explain."""
    words = (*plain_table.MISSING, *column.missing_as)
    stated = set(map(plain_table.stripped, texts)).difference(words)
    if column.becomes == "text":
        known = set(column.levels)
        new = {text for text in stated if not {text, plain_table.plain_code(text)} & known}
        where = f"category {OTHER!r}" if column.other else "none of the categories"
        some = _first(new)
        return [f"{column.name}: {some} not in the training rows, taken as {where}"] if new else []
    notes = []
    notations = plain_table.notations_of(column, sorted(stated))
    if notations and column.becomes == "number":
        parse = partial(plain_table.parse_number, notations[0])
        endless = {text for text in stated if np.isnan(parse(text))}
        if endless:
            notes.append(f"{column.name}: {_first(endless)} has no finite value, taken as missing")
    if notations and column not in notations:
        kind = f"{column.becomes}s"
        notes.append(f"{column.name}: {kind} are in another notation than in training, and read")
    return notes


def _first(texts: Collection[str]) -> str:
    """The first strings, cut to a readable length."""
    return ", ".join(repr(text[:60]) for text in sorted(texts)[:3])


# Statistics of training rows


@dataclass(frozen=True)
class Summary:
    """A client's report on a column of numbers: sums over its known values, and no value."""

    count: int
    gaps: int
    total: float
    squares: float  # of the differences from the client's own mean

    @classmethod
    def of(cls, values: np.ndarray) -> "Summary":
        known = values[~np.isnan(values)]
        if len(known) == 0:
            return cls(0, len(values), 0.0, 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            centred = known - known.mean()
            squares = float(centred @ centred)
            return cls(len(known), len(values) - len(known), float(known.sum()), squares)

    def __add__(self, other: "Summary") -> "Summary":
        count = self.count + other.count
        squares = self.squares + other.squares
        if self.count and other.count:
            apart = self.total / self.count - other.total / other.count
            squares += apart * apart * self.count * other.count / count
        total = self.total + other.total
        return Summary(count, self.gaps + other.gaps, total, squares)

    @property
    def mean(self) -> float:
        return float(self.total / self.count) if self.count else 0.0

    @property
    def deviation(self) -> float:
        return float(np.sqrt(self.squares / self.count)) if self.count else 0.0


def often(counts: np.ndarray, least: int) -> np.ndarray:
    """Counts of categories; 0 where there are fewer than so many."""
    return np.where(counts < least, 0, counts)


def described(values: np.ndarray, least: int) -> Summary | None:
    """A client's report on a column of numbers that counts no fewer than so many of its rows.

    Fewer gaps are filled with the mean. None: too few values, or one of only two is too rare.
    """
    whole = Summary.of(values)
    kinds, counts = np.unique(values[~np.isnan(values)], return_counts=True)
    if whole.count < least or (len(kinds) <= 2 and counts.min() < least):
        return None
    if whole.gaps >= least or whole.gaps == 0:
        return whole
    rows = whole.count + whole.gaps
    return Summary(rows, 0, whole.mean * rows, whole.squares * rows / whole.count)


def middle(column: PlainColumn, whole: Summary) -> float:
    """The value for gaps where only sums are known, as the median would take further queries."""
    return float(2 * whole.total > whole.count) if column.becomes == "boolean" else whole.mean


def fit_numbers(column: PlainColumn, clients: Sequence[np.ndarray], scale: bool) -> PlainColumn:
    """The column with the statistics of its training rows, which are given client by client.

    It is left out where it is constant. scale: whether numbers get mean 0 and deviation 1
    """
    whole = sum(map(Summary.of, clients), Summary(0, 0, 0.0, 0.0))
    median = 0.0
    if whole.count:
        # Clients would find it by bisection: each step asks for the number of values below some
        # number, and for no value.
        middle = (whole.count - 1) // 2
        median = float(np.partition(np.concatenate(clients), middle)[middle])  # NaN comes last
    fitted = fit_sums(column, whole, median, scale)
    if len(clients) > 1 or fitted.becomes not in ("number", "date"):
        return fitted  # the range of several clients would show values of theirs
    return replace(fitted, low=float(np.nanmin(clients[0])), high=float(np.nanmax(clients[0])))


def fit_sums(column: PlainColumn, whole: Summary, median: float, scale: bool) -> PlainColumn:
    """The column with the statistics of its training rows, where only their sums are known."""
    if whole.count == 0:
        return PlainColumn(column.name, "nothing", why="no training row has a value")
    if not np.isfinite(whole.deviation):
        return PlainColumn(column.name, "nothing", why="its numbers are too large")
    constant = whole.deviation <= 1e-9 * max(abs(whole.mean), 1e-300)
    if constant and whole.gaps == 0:
        return PlainColumn(column.name, "nothing", why="it is constant")
    scaled = scale and column.becomes != "boolean"
    return replace(
        column,
        mean=whole.mean if scaled else 0.0,
        deviation=whole.deviation if scaled and not constant else 1.0,
        median=median,
        indicator=whole.gaps > 0,
    )


def fit_text(
    column: PlainColumn, counts: np.ndarray, texts: Sequence[str], most: int
) -> PlainColumn:
    """The column with the levels of its training rows.

    counts: how often each of the strings occurs, and last how many are missing
    most: how many levels to keep, the most frequent ones; the others become level "other"
    """
    *known, gaps = counts.tolist()
    times = dict(zip(texts, known, strict=True))
    present = [text for text in texts if times[text]]
    if len(present) + (gaps > 0) < 2:
        return PlainColumn(column.name, "nothing", why="it is constant")
    by_frequency = sorted(present, key=lambda text: (-times[text], text))
    levels = sorted(by_frequency[:most])
    rare = len(present) > most
    for name, needed in ((OTHER, rare), (GAP, gaps > 0)):
        if needed and name not in levels:
            levels.append(name)
    return replace(column, levels=tuple(levels), other=rare, missing=gaps > 0)
