"""A table's columns, fitted on the training rows of a federation and turned into its features."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace

import numpy as np
import torch

from commonweal.base.errors import DataError
from commonweal.base.values import Value
from commonweal.data import plain_table
from commonweal.data.federation import Federation, Rows
from commonweal.data.preprocessing import (
    GAP,
    OTHER,
    Column,
    Preprocessing,
    Statistics,
    fit_numbers,
    fit_text,
)
from commonweal.datasets._cache import Arrays

__all__ = ["Columns", "Options", "fit", "with_features"]

CHUNK = 1 << 16  # rows that are prepared at once
SHOWN = 8  # names in a sentence


@dataclass(frozen=True)
class Options:
    """How columns are prepared."""

    scale: bool = True
    levels: int = 50  # of a text
    statistics: Statistics = "pooled"
    separator: str = ","
    encoding: str = "utf-8"


class Columns:
    """The columns of a table: what they hold, and their numbers or codes."""

    def __init__(self, arrays: Arrays, described: Sequence[Mapping[str, Value]]) -> None:
        self.arrays = arrays
        self.described = {str(each["name"]): each for each in described}
        self.names = list(self.described)

    def position(self, name: str) -> int:
        return self.names.index(name)

    def column(self, name: str) -> Column:
        """What a column holds, before any fit."""
        known = {each.name for each in fields(Column)}
        return Column(**{k: v for k, v in self.described[name].items() if k in known})

    def is_ambiguous(self, name: str) -> bool:
        """Whether it holds dates that may be read day first or month first."""
        return bool(self.described[name]["ambiguous"])

    def numbers(self, name: str) -> np.ndarray:
        return self.arrays[f"number{self.position(name)}"]

    def texts(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The different texts of a column, and each row's position among them; -1: missing."""
        i = self.position(name)
        return self.arrays[f"text{i}"], self.arrays[f"code{i}"]

    def gaps(self, name: str) -> np.ndarray:
        """The rows in which a column has no value, (N,)."""
        is_text = f"code{self.position(name)}" in self.arrays
        missing: np.ndarray = self.texts(name)[1] < 0 if is_text else np.isnan(self.numbers(name))
        return missing

    def fitted(self, name: str, clients: Sequence[np.ndarray], options: Options) -> Column:
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

    def values(self, column: Column, rows: np.ndarray) -> np.ndarray:
        """A column's numbers in some rows, or of a text the positions of its levels."""
        if column.becomes != "text":
            numbers: np.ndarray = self.numbers(column.name)[rows]
            return numbers
        texts, codes = self.texts(column.name)
        position = {level: i for i, level in enumerate(column.levels)}
        rest = position.get(OTHER, -1) if column.other else -1
        gap = position.get(GAP, rest) if column.missing else rest
        table = np.array([*(position.get(text, rest) for text in texts.tolist()), gap])
        found: np.ndarray = table[codes[rows]]
        return found


def fit(
    columns: Columns,
    label: str,
    client: str | None,
    options: Options,
    federation: Federation,
    event: str | None = None,
) -> Federation:
    """The federation with its features, where its rows are numbers of rows of the table.

    event: a second column of labels
    """
    rows = federation.train.x[:, 0].numpy()
    clients = [rows]
    if options.statistics == "federated":
        clients = np.split(rows, federation.train.offsets[1:-1].numpy())
    features = [name for name in columns.names if name not in (label, client, event)]
    fitted = tuple(columns.fitted(name, clients, options) for name in features)
    used = [column for column in fitted if column.becomes != "nothing"]
    if not used:
        raise DataError("no column is left to learn from: drop fewer")
    preprocessing = Preprocessing(
        columns=fitted,
        label=label if event is None else f"log risk of {event}",  # what Cox's model gives
        client=client,
        class_names=federation.class_names,
        separator=options.separator,
        encoding=options.encoding,
        statistics=options.statistics,
    )
    notes = [_about(column, columns, federation) for column in fitted]
    return replace(
        federation,
        train=with_features(federation.train, columns, used),
        test=with_features(federation.test, columns, used),
        notes=(*federation.notes, *[note for note in notes if note]),
        preprocessing=preprocessing,
    )


def with_features(part: Rows, columns: Columns, used: Sequence[Column]) -> Rows:
    """Rows with their features, where they are numbers of rows of the table."""
    numbers = part.x[:, 0].numpy()
    described = [asdict(column) for column in used]
    x = np.empty((len(numbers), sum(map(plain_table.width, described))), np.float32)
    for begin in range(0, len(numbers), CHUNK):
        rows = numbers[begin : begin + CHUNK]
        pairs = zip(used, described, strict=True)
        parts = [plain_table.column_features(d, columns.values(c, rows)) for c, d in pairs]
        x[begin : begin + CHUNK] = np.concatenate(parts, 1)
    return Rows(torch.from_numpy(x), part.y, part.offsets)


def _about(column: Column, columns: Columns, federation: Federation) -> str:
    """What a user should know of how a column was prepared; empty: nothing unusual."""
    name = column.name
    if column.becomes == "nothing":
        return f"column {name!r} is left out: {column.why}"
    said = []
    rows = federation.train.x[:, 0].numpy()
    gaps = int(columns.gaps(name)[rows].sum())
    if gaps and column.becomes == "text":
        said.append(f"{gaps} missing in training rows, level {GAP!r}")
    elif gaps:
        said.append(f"{gaps} missing in training rows, filled with the median {column.median:g}")
    if column.becomes == "date":
        said.append(f"dates ({column.order}) become days, and the time of year and week")
        if columns.is_ambiguous(name):
            said.append("day and month cannot be told apart: if wrong, write 2026-11-16")
    if column.becomes == "number" and column.decimal == ",":
        said.append("decimal commas")
    if column.other:
        kept = len(column.levels) - 1 - column.missing
        said.append(f"{len(columns.texts(name)[0])} texts, the {kept} most frequent are levels")
    return f"column {name!r}: {'; '.join(said)}" if said else ""
