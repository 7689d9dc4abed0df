"""A table's columns, fitted on the training rows and turned into features."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from commonweal.base.errors import DataError
from commonweal.base.files import read_plain
from commonweal.data.federation import Features
from commonweal.data.sources.opened import note
from commonweal.data.split import Split, some
from commonweal.data.tables import plain_table
from commonweal.data.tables.columns import Table
from commonweal.data.tables.plain_table import GAP, GROUPED, PlainColumn
from commonweal.data.tables.preprocessing import (
    Preprocessing,
    Statistics,
    Summary,
    described,
    fit_numbers,
    fit_sums,
    fit_text,
    middle,
    often,
)

LEAST = 10  # training rows of a client without a column that is reported
CHUNK = 1 << 16  # rows that become features at once
SHOWN = 6  # columns that a note names


@dataclass(frozen=True)
class Options:
    """The rules by which columns become features."""

    scale: bool = True
    levels: int = 50  # of a column of strings
    statistics: Statistics = "pooled"
    separator: str = ","
    encoding: str = "utf-8"
    public: str = ""  # a file with fitted columns, in place of a fit
    union: bool = False  # clients may have different columns
    least_count: int = 1  # rows of a category at a client, below which it is not named


def fit_columns(
    table: Table,
    options: Options,
    rows: np.ndarray,
    class_names: Sequence[str],
    split: Split,
) -> Features:
    """Fit a table's columns on the training rows of a split, and make features of all its rows.

    rows: the rows of the table that the split numbers from 0
    """
    split = split.within(rows)
    train = split.train.rows
    apart = options.statistics == "federated" or options.least_count > 1
    clients = split.train.by_client() if apart else [train]
    event = table.facts.event
    names = [name for name in table.profiles if name not in table.facts.no_features]
    if options.public:
        columns = _public_columns(table, names, Path(options.public))
    else:
        columns = tuple(_fit_column(table, name, clients, options) for name in names)
    if all(column.becomes == "nothing" for column in columns):
        reasons = [f"{column.name!r}: {column.why}" for column in columns[:5]]
        raise DataError(f"no column is left to learn from ({'; '.join(reasons) or 'none'})")
    lacking: dict[str, list[str]] = {}
    if table.facts.client:
        lacking = {column.name: _lacking(table, column, split) for column in columns}
    if options.union:
        columns = tuple(replace(column, optional=bool(lacking[column.name])) for column in columns)
    preprocessing = Preprocessing(
        columns=columns,
        label=table.label if event is None else f"log risk of {event}",  # what Cox's model gives
        client=",".join(table.facts.client) or None,
        class_names=tuple(class_names),
        separator=options.separator,
        encoding=options.encoding,
        statistics="public" if options.public else options.statistics,
        notes=(*_notes(columns, table, train), *on_lacking(lacking)),
    )
    return Features(
        train=make_features(table, preprocessing.used, train),
        test=make_features(table, preprocessing.used, split.test.rows),
        preprocessing=preprocessing,
        notes=preprocessing.notes,
    )


def _lacking(table: Table, column: PlainColumn, split: Split) -> list[str]:
    """The clients that have training rows enough, and no value of a column that is used."""
    if column.becomes == "nothing":
        return []
    is_known = ~table.gaps(column.name)
    names = []
    for name, rows in zip(split.names, split.train.by_client(), strict=True):
        if len(rows) >= LEAST and not is_known[rows].any():
            names.append(name)
    return names


def on_lacking(lacking: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """A note on the clients that lack columns, which are missing values there."""
    by_clients: dict[tuple[str, ...], list[str]] = {}
    for name, clients in lacking.items():
        if clients:
            by_clients.setdefault(tuple(clients), []).append(name)
    parts = [f"{some(names)} at {some(clients)}" for clients, names in by_clients.items()]
    return (f"columns without any value at a client: {'; '.join(parts[:SHOWN])}",) if parts else ()


def _fit_column(
    table: Table, name: str, clients: Sequence[np.ndarray], options: Options
) -> PlainColumn:
    """Fit a column to the training rows of each client (or of all, as one)."""
    column = table.column(name)
    if column.becomes == "nothing":
        return column
    if column.becomes != "text":
        values = table.numbers(name)
        if options.least_count > 1:
            parts = (described(values[rows], options.least_count) for rows in clients)
            whole = sum(filter(None, parts), Summary(0, 0, 0.0, 0.0))
            return fit_sums(column, whole, middle(column, whole), options.scale)
        return fit_numbers(column, [values[rows] for rows in clients], options.scale)
    texts, codes = table.texts(name)
    counts = np.zeros(len(texts) + 1, np.int64)
    for rows in clients:
        own = codes[rows]
        counts += often(
            np.bincount(np.where(own < 0, len(texts), own), minlength=len(counts)),
            options.least_count,
        )
    return fit_text(column, counts, texts.tolist(), options.levels)


def make_features(table: Table, columns: Sequence[PlainColumn], rows: np.ndarray) -> Tensor:
    """The features (n, d) of some rows, by fitted columns."""
    width = sum(len(plain_table.column_names(column)) for column in columns)
    x = np.empty((len(rows), width), np.float32)
    for begin in range(0, len(rows), CHUNK):
        chunk = rows[begin : begin + CHUNK]
        parts = []
        for column in columns:
            if column.name not in table.profiles:  # other clients have it
                values = np.full(len(chunk), np.nan)
                if column.becomes == "text":
                    values = plain_table.level_positions(column, []).repeat(len(chunk))
            elif column.becomes == "text":
                texts, codes = table.texts(column.name)
                positions = plain_table.level_positions(column, texts.tolist())
                values = positions[codes[chunk]]  # code -1 is the last position, that of a gap
            else:
                values = table.numbers(column.name)[chunk]
            parts.append(plain_table.column_features(column, values))
        with np.errstate(over="ignore"):  # the federation names the client of an infinite one
            x[begin : begin + CHUNK] = np.concatenate(parts, 1)
    return torch.from_numpy(x)


def _public_columns(table: Table, names: Sequence[str], path: Path) -> tuple[PlainColumn, ...]:
    """The columns of a public file. Raises DataError where they are not those of the table."""
    try:
        note(path)
        known = {column.name: column for column in Preprocessing.read(read_plain(path)).columns}
    except OSError as error:
        raise DataError(f"public = {str(path)!r} cannot be read ({error.strerror})") from None
    for name in names:
        kind = known[name].becomes if name in known else "missing"
        if kind != "nothing" and (kind == "missing" or (kind == "text") != table.is_text(name)):
            raise DataError(
                f"public = {str(path)!r} does not fit the table: its column {name!r} is {kind}; "
                "make it from a table with the same columns"
            )
    return tuple(map(known.__getitem__, names))


def _notes(columns: Sequence[PlainColumn], table: Table, rows: np.ndarray) -> tuple[str, ...]:
    """Notes on how columns became features, a line for each kind of remark."""
    remarks: dict[str, list[str]] = {}

    def remark(kind: str, column: PlainColumn, detail: str = "") -> None:
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
            if table.profiles[column.name].ambiguous:
                remark("commas that may set thousands apart, write 1234 or 1.234", column)
        if column.missing_as:
            remark("these count as missing", column, f" {', '.join(column.missing_as)}")
        if column.decimal == GROUPED:
            remark("thousands set apart, as in 1,234.5", column)
        if column.other:
            levels = len(column.levels) - 1 - column.missing
            different = f" {levels} of {len(table.texts(column.name)[0])}"
            remark("only the most frequent categories are used", column, different)
    lines = []
    for kind, names in remarks.items():
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        lines.append(f"{kind}: {', '.join(names[:SHOWN])}{more}")
    return tuple(lines)
