"""A table's columns, fitted on the training rows and turned into features."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from commonweal.base.errors import DataError
from commonweal.data import plain_table
from commonweal.data.federation import Features
from commonweal.data.plain_table import GAP, Column
from commonweal.data.preprocessing import Preprocessing, Statistics, fit_numbers, fit_text
from commonweal.data.split import Split
from commonweal.datasets._cache import Arrays
from commonweal.datasets._tables import Facts

__all__ = ["Options", "Table", "fit"]

CHUNK = 1 << 16  # rows that become features at once


@dataclass(frozen=True)
class Options:
    """How columns become features."""

    scale: bool = True
    levels: int = 50  # of a column of strings
    statistics: Statistics = "pooled"
    separator: str = ","
    encoding: str = "utf-8"


class Table:
    """The columns of a table: what they hold, and their numbers or codes, from the cache."""

    def __init__(self, arrays: Arrays, label: str) -> None:
        facts = Facts.parse(arrays["facts"])
        self.arrays = arrays
        self.label = label
        self.client = facts.client
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
        is_text = f"code{self._position[name]}" in self.arrays
        missing: np.ndarray = self.texts(name)[1] < 0 if is_text else np.isnan(self.numbers(name))
        return missing

    def complete(self, event: str | None = None) -> np.ndarray:
        """The numbers of the rows with a label (and event) and, where there are any, a client."""
        incomplete = np.zeros(self.rows, dtype=bool)
        for name in (self.label, self.client, event):
            if name is None:
                continue
            if name not in self.profiles:
                some = list(self.profiles)[:10]
                raise DataError(f"label names the events {name!r}, which is no column: {some}")
            if self.column(name).becomes == "nothing":
                why = self.column(name).why
                raise DataError(f"column {name!r} cannot be a label, {why}: name another column")
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


def fit(
    table: Table,
    options: Options,
    rows: np.ndarray,
    class_names: Sequence[str],
    event: str | None,
    split: Split,
) -> Features:
    """Fit a table's columns on the training rows of a split and make features of all its rows.

    Args:
        table: The table.
        options: How columns become features.
        rows: The rows of the table that the split numbers from 0.
        class_names: The names of the label's classes.
        event: The second column of labels, of survival times.
        split: Each client's training and test rows.
    """
    split = split.within(rows)
    train = split.train.rows
    clients = split.train.by_client() if options.statistics == "federated" else [train]
    not_features = (table.label, table.client, event)
    names = [name for name in table.profiles if name not in not_features]
    columns = tuple(table.fit(name, clients, options) for name in names)
    if all(column.becomes == "nothing" for column in columns):
        raise DataError("no column is left to learn from: drop fewer")
    notes = [_note(column, table, train) for column in columns]
    preprocessing = Preprocessing(
        columns=columns,
        label=table.label if event is None else f"log risk of {event}",  # what Cox's model gives
        client=table.client,
        class_names=tuple(class_names),
        separator=options.separator,
        encoding=options.encoding,
        statistics=options.statistics,
        notes=tuple(note for note in notes if note),
    )
    return Features(
        train=table.features(preprocessing.used, train),
        test=table.features(preprocessing.used, split.test.rows),
        preprocessing=preprocessing,
        notes=preprocessing.notes,
    )


def _note(column: Column, table: Table, rows: np.ndarray) -> str:
    """What a user should know of how a column became features; empty: nothing unusual."""
    name = column.name
    if column.becomes == "nothing":
        return f"column {name!r} is left out: {column.why}"
    remarks = []
    gaps = int(table.gaps(name)[rows].sum())
    if gaps and column.becomes == "text":
        remarks.append(f"{gaps} missing in training rows, level {GAP!r}")
    elif gaps:
        remarks.append(f"{gaps} missing in training rows, filled with the median {column.median:g}")
    if column.becomes == "date":
        remarks.append(f"dates ({column.order}) become days, and the time of year and week")
        if table.profiles[name].ambiguous:
            remarks.append("day and month cannot be told apart: if wrong, write 2026-11-16")
    if column.becomes == "number" and column.decimal == ",":
        remarks.append("decimal commas")
    if column.other:
        levels = len(column.levels) - 1 - column.missing
        different = len(table.texts(name)[0])
        remarks.append(f"{different} different strings, the {levels} most frequent are levels")
    return f"column {name!r}: {'; '.join(remarks)}" if remarks else ""
