"""A table's columns, fitted on the training rows and turned into features."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from commonweal.base.errors import DataError
from commonweal.base.files import read_plain
from commonweal.data import plain_table
from commonweal.data.federation import Features
from commonweal.data.plain_table import GAP, Column
from commonweal.data.preprocessing import Preprocessing, Statistics, fit_numbers, fit_text
from commonweal.data.split import Split
from commonweal.datasets._cache import Arrays
from commonweal.datasets._tables import Facts

__all__ = ["Coded", "Options", "Table", "fit"]

CHUNK = 1 << 16  # rows that become features at once
SHOWN = 6  # columns that a note names
Coded = tuple[np.ndarray, np.ndarray]  # different strings, and each row's position among them


@dataclass(frozen=True)
class Options:
    """How columns become features."""

    scale: bool = True
    levels: int = 50  # of a column of strings
    statistics: Statistics = "pooled"
    separator: str = ","
    encoding: str = "utf-8"
    public: str = ""  # a file with fitted columns, in place of a fit


class Table:
    """The columns of a table: what they hold, and their numbers or codes, from the cache."""

    def __init__(self, arrays: Arrays) -> None:
        facts = Facts.parse(arrays["facts"])
        self.arrays = arrays
        self.facts = facts
        self.label = facts.label
        self.rows = facts.rows
        self.profiles = {profile.name: profile for profile in facts.profiles}
        self._position = {name: i for i, name in enumerate(self.profiles)}

    def column(self, name: str) -> Column:
        """What a column holds, before any fit."""
        return self.profiles[name].column

    def numbers(self, name: str) -> np.ndarray:
        return self.arrays[f"number{self._position[name]}"]

    def texts(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The different strings of a column, and each row's position among them; -1: missing."""
        i = self._position[name]
        return self.arrays[f"text{i}"], self.arrays[f"code{i}"]

    def gaps(self, name: str) -> np.ndarray:
        """The rows in which a column has no value, (N,)."""
        if self.is_text(name):
            missing: np.ndarray = self.texts(name)[1] < 0
        else:
            missing = np.isnan(self.numbers(name))
        return missing

    def is_text(self, name: str) -> bool:
        """Whether a column is stored as codes of strings."""
        return f"code{self._position[name]}" in self.arrays

    def clients(self) -> Coded | None:
        """The clients' names and each row's position among them; None: no column names them."""
        columns = [self.texts(name) for name in self.facts.client]
        return reduce(_both, columns) if columns else None

    def complete(self) -> np.ndarray:
        """The numbers of the rows that have a value in every required column, features apart."""
        incomplete = np.zeros(self.rows, dtype=bool)
        roles = self.facts.roles
        order = (roles.order,) if roles.order else ()
        for name in (*self.facts.no_features, *order):
            column = self.column(name)
            if column.becomes == "nothing" and name != roles.order:
                raise DataError(f"column {name!r} cannot be used, {column.why}: name another one")
            incomplete |= self.gaps(name)
        rows = np.flatnonzero(~incomplete)
        if len(rows) == 0:
            raise DataError(f"no row has a label in column {self.label!r}: check the file")
        return rows

    def fit(self, name: str, clients: Sequence[np.ndarray], options: Options) -> Column:
        """What a column becomes, by the training rows of each client (or of all, as one)."""
        column = self.column(name)
        if column.becomes == "nothing":
            return column
        if column.becomes != "text":
            values = self.numbers(name)
            return fit_numbers(column, [values[rows] for rows in clients], options.scale)
        texts, codes = self.texts(name)
        counts = np.zeros(len(texts) + 1, np.int64)
        for rows in clients:
            own = codes[rows]
            counts += np.bincount(np.where(own < 0, len(texts), own), minlength=len(counts))
        return fit_text(column, counts, texts.tolist(), options.levels)

    def features(self, columns: Sequence[Column], rows: np.ndarray) -> Tensor:
        """The features (n, d) of some rows, by fitted columns."""
        width = sum(len(plain_table.column_names(column)) for column in columns)
        x = np.empty((len(rows), width), np.float32)
        for begin in range(0, len(rows), CHUNK):
            chunk = rows[begin : begin + CHUNK]
            parts = [plain_table.column_features(c, self._values(c, chunk)) for c in columns]
            x[begin : begin + CHUNK] = np.concatenate(parts, 1)
        return torch.from_numpy(x)

    def _values(self, column: Column, rows: np.ndarray) -> np.ndarray:
        """A column's numbers in some rows, or of strings the positions of their levels."""
        values: np.ndarray
        if column.becomes == "text":
            texts, codes = self.texts(column.name)
            positions = plain_table.level_positions(column, texts.tolist())
            values = positions[codes[rows]]  # code -1 is the last position, that of a gap
        else:
            values = self.numbers(column.name)[rows]
        return values


def _both(first: Coded, second: Coded) -> Coded:
    """The pairs of two columns of strings that occur, as one."""
    (names, codes), (further, others) = first, second
    known = (codes >= 0) & (others >= 0)
    pairs, position = np.unique(codes[known] * len(further) + others[known], return_inverse=True)
    both = np.full(len(codes), -1, np.int64)
    both[known] = position
    joined = [f"{names[pair // len(further)]}/{further[pair % len(further)]}" for pair in pairs]
    return np.array(joined, dtype=str), both


def fit(
    table: Table,
    options: Options,
    rows: np.ndarray,
    class_names: Sequence[str],
    split: Split,
) -> Features:
    """Fit a table's columns on the training rows of a split and make features of all its rows.

    Args:
        table: The table.
        options: How columns become features.
        rows: The rows of the table that the split numbers from 0.
        class_names: The names of the label's classes.
        split: Each client's training and test rows.
    """
    split = split.within(rows)
    train = split.train.rows
    clients = split.train.by_client() if options.statistics == "federated" else [train]
    event = table.facts.event
    names = [name for name in table.profiles if name not in table.facts.no_features]
    if options.public:
        columns = _public_columns(table, names, Path(options.public))
    else:
        columns = tuple(table.fit(name, clients, options) for name in names)
    if all(column.becomes == "nothing" for column in columns):
        reasons = [f"{column.name!r}: {column.why}" for column in columns[:5]]
        raise DataError(f"no column is left to learn from ({'; '.join(reasons) or 'none'})")
    preprocessing = Preprocessing(
        columns=columns,
        label=table.label if event is None else f"log risk of {event}",  # what Cox's model gives
        client=",".join(table.facts.client) or None,
        class_names=tuple(class_names),
        separator=options.separator,
        encoding=options.encoding,
        statistics="public" if options.public else options.statistics,
        notes=_notes(columns, table, train),
    )
    return Features(
        train=table.features(preprocessing.used, train),
        test=table.features(preprocessing.used, split.test.rows),
        preprocessing=preprocessing,
        notes=preprocessing.notes,
    )


def _public_columns(table: Table, names: Sequence[str], path: Path) -> tuple[Column, ...]:
    """The columns of a public file. Raises DataError where they are not those of the table."""
    try:
        known = {column.name: column for column in Preprocessing.read(read_plain(path)).columns}
    except OSError as error:
        raise DataError(f"public = {str(path)!r} cannot be read ({error.strerror})") from None
    for name in names:
        column = known.get(name)
        fits = column is not None and (
            column.becomes == "nothing" or (column.becomes == "text") == table.is_text(name)
        )
        if not fits:
            found = "missing" if column is None else column.becomes
            raise DataError(
                f"public = {str(path)!r} does not fit the table: its column {name!r} is {found}; "
                "make it from a table with the same columns"
            )
    return tuple(known[name] for name in names)


def _notes(columns: Sequence[Column], table: Table, rows: np.ndarray) -> tuple[str, ...]:
    """What a user should know of how columns became features, a line for each kind of remark."""
    remarks: dict[str, list[str]] = {}

    def remark(kind: str, column: Column, detail: str = "") -> None:
        remarks.setdefault(kind, []).append(f"{column.name!r}{detail}")

    for column in columns:
        if column.becomes == "nothing":
            remark(f"left out, {column.why}", column)
            continue
        gaps = int(table.gaps(column.name)[rows].sum())
        if gaps and column.becomes == "text":
            remark(f"missing in training rows, category {GAP!r}", column, f" {gaps}")
        elif gaps:
            remark("missing in training rows, filled with the median", column, f" {gaps}")
        if column.becomes == "date":
            remark("dates, which become days, and the time of year and week", column)
            if table.profiles[column.name].ambiguous:
                order = f" (read as {column.order})"
                remark("dates whose day and month are ambiguous, write 2026-11-16", column, order)
        if column.becomes == "number" and column.decimal == ",":
            remark("decimal commas", column)
        if column.other:
            levels = len(column.levels) - 1 - column.missing
            different = f" {levels} of {len(table.texts(column.name)[0])}"
            remark("only the most frequent categories are used", column, different)
    return tuple(_line(kind, names) for kind, names in remarks.items())


def _line(kind: str, names: Sequence[str]) -> str:
    some = ", ".join(names[:SHOWN])
    if len(names) > SHOWN:
        some += f" and {len(names) - SHOWN} more"
    return f"{kind}: {some}"
