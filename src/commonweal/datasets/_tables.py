"""Tables of any length: read in batches, twice, with no more in memory than a batch and the numbers that result.

The first pass finds how many rows there are and which columns are text; the second fills the arrays. Text becomes one
column a level.
"""

import csv
import gzip
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from commonweal.datasets._cache import New
from commonweal.errors import ConfigError, DataError, did_you_mean

__all__ = ["Batch", "batches", "fill"]

Values = np.ndarray | Sequence[str]
Batch = dict[str, Values]  # column -> values, texts or numbers
AT_ONCE = 100_000  # rows
LEVELS = 1000  # different texts in a column, beyond which it is rather a name than a category
MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null", "None")


def batches(path: Path, separator: str = ",") -> Iterator[Batch]:
    """A CSV (may be .gz) or Parquet file, some rows at a time."""
    if path.is_dir():
        raise DataError(f"{str(path)!r} is a folder, not a table: dataset 'folder' reads a folder per client")
    if not path.exists():
        raise DataError(f"there is no file {str(path)!r}")
    yield from _parquet(path) if path.suffix == ".parquet" else _csv(path, separator)


def _csv(path: Path, separator: str) -> Iterator[Batch]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as raw:
            rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8-sig", newline=""), delimiter=separator)
            header = [name.strip() for name in next(rows, [])]
            if len(set(header)) < len(header) or not header:
                raise DataError(f"{str(path)!r} needs a first line of different column names, not {header}")
            while part := list(islice(rows, AT_ONCE)):
                part = [row for row in part if row]
                wrong = next((row for row in part if len(row) != len(header)), None)
                if wrong is not None:
                    what = f"{len(wrong)} values for {len(header)} columns: {separator.join(wrong)[:60]!r}"
                    raise DataError(f"{str(path)!r}, by line {rows.line_num}: {what}")
                yield dict(zip(header, zip(*part, strict=True), strict=False))
    except UnicodeDecodeError as error:
        raise DataError(
            f"{str(path)!r} is not UTF-8 text (byte {error.object[error.start]:#x}): save it as UTF-8"
        ) from None
    except (OSError, EOFError, csv.Error) as error:
        raise DataError(f"{str(path)!r} cannot be read as a table, it is cut short or damaged: {error}") from None


def _parquet(path: Path) -> Iterator[Batch]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigError("Parquet needs pyarrow: pip install 'commonweal[parquet]'") from None
    try:
        with parquet.ParquetFile(path) as file:
            for part in file.iter_batches(AT_ONCE):
                yield {n: part.column(n).to_numpy(zero_copy_only=False) for n in part.schema.names}
    except pyarrow.ArrowException as error:
        raise DataError(f"{str(path)!r} is not a Parquet file, or it is damaged: {error}") from None


def _numbers(values: Values) -> np.ndarray | None:
    """The values as numbers, NaN where missing; None where they are text."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return values.astype(np.float64)
    try:
        return np.array(values, dtype=np.float64)
    except (ValueError, TypeError):
        texts = [text.strip() for text in _texts(values)]
    try:
        return np.array(["nan" if text in MISSING else text for text in texts], dtype=np.float64)
    except ValueError:
        return None


def _texts(values: Values) -> Sequence[str]:
    if isinstance(values, np.ndarray):  # of Parquet, None where it has a gap
        return ["" if value is None else str(value) for value in values.tolist()]
    return values


class Columns:
    """What the first pass finds."""

    def __init__(self, every: Callable[[], Iterator[Batch]], as_text: Sequence[str]) -> None:
        self.rows, self.names = 0, list[str]()
        texts = set(as_text)
        for batch in every():
            if self.names and set(batch) != set(self.names):
                raise DataError(f"files with different columns: {sorted(batch)} and {sorted(self.names)}")
            self.names = self.names or list(batch)
            self.rows += len(next(iter(batch.values())))
            texts |= {name for name, values in batch.items() if name not in texts and _numbers(values) is None}
        self.texts = [name for name in self.names if name in texts]
        if self.rows == 0:
            raise DataError("the table has no rows")

    def check(self, wanted: Mapping[str, str]) -> None:
        for what, name in wanted.items():
            if name not in self.names:
                raise DataError(f"{what} = {name!r}: there is no such column; {did_you_mean(name, self.names)}")


def fill(every: Callable[[], Iterator[Batch]], label: str, client: str, drop: Sequence[str], new: New) -> None:
    """Fill x (numbers, then one column a level of each text), y, owner, names, and which columns are numbers."""
    columns = Columns(every, [client] if client else [])
    columns.check({"label": label} | ({"client": client} if client else {}) | {f"drop {d!r}": d for d in drop})
    unused = {label, client, *drop}
    numeric = [n for n in columns.names if n not in columns.texts and n not in unused]
    texts = [n for n in columns.texts if n not in unused]
    target = new("target", (columns.rows,), np.float64)
    numbers = np.empty((columns.rows, len(numeric)), np.float32)
    codes = {name: np.empty(columns.rows, np.int32) for name in {*texts, client, label} if name in columns.texts}
    known: dict[str, dict[str, int]] = {name: {} for name in codes}
    at = 0
    for batch in every():
        part = slice(at, at := at + len(batch[label]))
        for name in codes:
            codes[name][part] = _coded(known[name], _texts(batch[name]), name, LEVELS if name in texts else None)
        for i, name in enumerate(numeric):
            numbers[part, i] = _whole(_numbers(batch[name]), name)
        if label not in codes:
            target[part] = _whole(_numbers(batch[label]), label)
    _write(new, numbers, {name: _sorted(known[name], codes[name]) for name in codes}, texts, target, label, client)


def _coded(known: dict[str, int], values: Sequence[str], name: str, most: int | None) -> np.ndarray:
    code = np.array([known.setdefault(value, len(known)) for value in values], dtype=np.int32)
    if most is not None and len(known) > most:
        raise DataError(f"column {name!r} has more than {most} different texts: name it in drop, or encode it yourself")
    return code


def _whole(values: np.ndarray | None, name: str) -> np.ndarray:
    assert values is not None  # the first pass saw only numbers
    missing = int((~np.isfinite(values)).sum())
    if missing:
        raise DataError(f"column {name!r} has missing values ({missing} in one batch): fill or remove them, or drop it")
    return values


def _sorted(known: dict[str, int], codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The levels in the order of their names, whatever the order of the rows."""
    levels, number = np.unique([level.strip() for level in known], return_inverse=True)
    return levels, number[codes]


def _write(
    new: New,
    numbers: np.ndarray,
    coded: dict[str, tuple[np.ndarray, np.ndarray]],
    texts: Sequence[str],
    target: np.ndarray,
    label: str,
    client: str,
) -> None:
    rows, count = numbers.shape
    x = new("x", (rows, count + sum(len(coded[name][0]) for name in texts)), np.float32)
    if x.shape[1] == 0:
        raise DataError("no column is left to learn from: drop fewer")
    x[:, :count], x[:, count:] = numbers, 0
    at = count
    for name in texts:
        levels, codes = coded[name]
        x[np.arange(rows), at + codes] = 1
        at += len(levels)
    if label in coded:
        target[:] = coded[label][1]
    names, owner = coded[client] if client else (np.array([""]), np.zeros(rows))
    for name, values in {"names": names, "owner": owner.astype(np.int64), "numeric": np.array([count])}.items():
        new(name, values.shape, values.dtype)[...] = values


def target_of(values: np.ndarray, task: str) -> Any:
    """Labels as classes 0, 1, ... (in the order of their values), or as values."""
    whole = bool((values == np.round(values)).all())
    levels = np.unique(values) if whole else values
    if task == "classes" and not whole:
        some = float(values[values != np.round(values)][0])
        raise DataError(f"task = 'classes', but a label is {some}, no text or whole number: use 'values'")
    if task == "classes" or (task == "auto" and whole and len(levels) <= LEVELS):
        return np.searchsorted(levels, values)
    return values.astype(np.float32)
