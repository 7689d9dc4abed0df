"""Tables of any length, read in batches: only a batch and the resulting numbers are in memory.

The first pass counts the rows and finds which columns are text; the second fills the arrays. Text
becomes one column per level.
"""

import csv
import gzip
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from commonweal.datasets._cache import New, write
from commonweal.errors import ConfigError, DataError, did_you_mean

__all__ = ["CLIENT", "Batch", "Batches", "fill_table", "read_batches", "to_labels"]

Values = np.ndarray | Sequence[str]
Batch = dict[str, Values]  # column -> values, texts or numbers
Batches = Callable[[], Iterator[Batch]]
BATCH = 100_000  # rows
LEVELS = 1000  # different texts in a column, beyond which it is a name and not a category
CLIENT = "client"  # the column of clients, unless another is named
MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null", "None")


# Reading


def read_batches(path: Path, separator: str = ",") -> Iterator[Batch]:
    """A CSV (may be .gz) or Parquet file, some rows at a time."""
    if path.is_dir():
        raise DataError(
            f"{str(path)!r} is a folder, not a table: dataset 'folder' reads a folder per client"
        )
    if not path.exists():
        raise DataError(f"there is no file {str(path)!r}: check the path")
    if path.suffix == ".parquet":
        yield from _read_parquet(path)
    else:
        yield from _read_csv(path, separator)


def _read_csv(path: Path, separator: str) -> Iterator[Batch]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as raw:
            text = io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")
            lines = csv.reader(text, delimiter=separator)
            header = _header(path, next(lines, []))
            while batch := list(islice(lines, BATCH)):
                rows = [row for row in batch if row]
                _check_widths(rows, len(header), f"{str(path)!r}, by line {lines.line_num}")
                if rows:
                    yield dict(zip(header, zip(*rows, strict=True), strict=True))
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise DataError(
            f"{str(path)!r} is not UTF-8 text (byte {byte:#x}): save it as UTF-8"
        ) from None
    except (OSError, EOFError, csv.Error) as error:
        raise DataError(
            f"{str(path)!r} cannot be read as a table, it is cut short or damaged: {error}"
        ) from None


def _header(path: Path, line: Sequence[str]) -> list[str]:
    names = [name.strip() for name in line]
    if not names or len(set(names)) < len(names):
        raise DataError(f"{str(path)!r} needs a first line of different column names, not {names}")
    return names


def _check_widths(rows: list[list[str]], width: int, place: str) -> None:
    for row in rows:
        if len(row) != width:
            raise DataError(f"{place}: {len(row)} values for {width} columns: {str(row)[:60]}")


def _read_parquet(path: Path) -> Iterator[Batch]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigError("Parquet needs pyarrow: pip install 'commonweal[parquet]'") from None
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(BATCH):
                names = batch.schema.names
                yield {name: batch.column(name).to_numpy(zero_copy_only=False) for name in names}
    except pyarrow.ArrowException as error:
        raise DataError(f"{str(path)!r} is not a Parquet file, or is damaged: {error}") from None


# Values


def _numbers(values: Values) -> np.ndarray | None:
    """The values as numbers, NaN where missing; None where they are text."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return values.astype(np.float64)
    try:
        return np.array(values, dtype=np.float64)
    except (ValueError, TypeError):
        texts = [_missing_as_nan(text) for text in _texts(values)]
    try:
        return np.array(texts, dtype=np.float64)
    except ValueError:
        return None


def _missing_as_nan(text: str) -> str:
    return "nan" if text.strip() in MISSING else text.strip()


def _texts(values: Values) -> Sequence[str]:
    if isinstance(values, np.ndarray):  # of Parquet, where None is a missing value
        return ["" if value is None else str(value) for value in values.tolist()]
    return values


def _complete_numbers(values: Values, name: str) -> np.ndarray:
    numbers = _numbers(values)
    assert numbers is not None  # the first pass saw only numbers
    missing = int((~np.isfinite(numbers)).sum())
    if missing:
        raise DataError(
            f"column {name!r} has missing values ({missing} in one batch): "
            "fill or remove them, or drop it"
        )
    return numbers


class Levels:
    """The different texts of a column, numbered as they come, and each row's number."""

    def __init__(self, name: str, rows: int, most: int | None) -> None:
        self.name = name
        self.most = most
        self.known: dict[str, int] = {}
        self.codes = np.empty(rows, np.int32)

    def fill(self, rows: slice, texts: Sequence[str]) -> None:
        self.codes[rows] = [self.known.setdefault(text, len(self.known)) for text in texts]
        if self.most is not None and len(self.known) > self.most:
            raise DataError(
                f"column {self.name!r} has more than {self.most} different texts: "
                "name it in drop, or encode it yourself"
            )

    def sorted(self) -> tuple[np.ndarray, np.ndarray]:
        """The levels in alphabetical order, whatever the order of the rows, and the codes."""
        names, number = np.unique([text.strip() for text in self.known], return_inverse=True)
        return names, number[self.codes]


# The two passes


class Table:
    """The rows and columns that the first pass finds."""

    def __init__(self, batches: Batches, as_text: str) -> None:
        self.rows = 0
        self.names: list[str] = []
        self.texts = {as_text}
        for batch in batches():
            self._add(batch)
        if self.rows == 0:
            raise DataError("the table has no rows: check the file")

    def _add(self, batch: Batch) -> None:
        self.names = self.names or list(batch)
        if set(batch) != set(self.names):
            raise DataError(
                f"files with different columns: {sorted(batch)} and {sorted(self.names)}"
            )
        self.rows += len(batch[self.names[0]])
        for name, values in batch.items():
            if name not in self.texts and _numbers(values) is None:
                self.texts.add(name)

    def check(self, wanted: Mapping[str, str]) -> None:
        """Raise DataError unless the table has these columns; keys say what they are."""
        for what, name in wanted.items():
            if name not in self.names:
                hint = did_you_mean(name, self.names)
                raise DataError(f"{what} = {name!r}: there is no such column; {hint}")


class Contents:
    """The values that the second pass reads from the columns in use."""

    def __init__(self, table: Table, used: Sequence[str], label: str, client: str | None) -> None:
        self.label = label
        self.numeric = [name for name in used if name not in table.texts]
        self.texts = [name for name in used if name in table.texts]
        self.numbers = np.empty((table.rows, len(self.numeric)), np.float32)
        self.target = np.empty(table.rows, np.float64)
        self.levels = {name: Levels(name, table.rows, LEVELS) for name in self.texts}
        for name in {label, client} & table.texts:
            self.levels[str(name)] = Levels(str(name), table.rows, None)

    def read(self, batches: Batches) -> None:
        start = 0
        for batch in batches():
            rows = slice(start, start + len(batch[self.label]))
            self._fill(rows, batch)
            start = rows.stop
        if self.label in self.levels:
            self.target[:] = self.levels[self.label].sorted()[1]

    def _fill(self, rows: slice, batch: Batch) -> None:
        for name, levels in self.levels.items():
            levels.fill(rows, _texts(batch[name]))
        for i, name in enumerate(self.numeric):
            self.numbers[rows, i] = _complete_numbers(batch[name], name)
        if self.label not in self.levels:
            self.target[rows] = _complete_numbers(batch[self.label], self.label)

    def write_features(self, new: New) -> None:
        """Write x: the numbers, then a column of 0 and 1 per level of each text."""
        coded = [self.levels[name].sorted() for name in self.texts]
        rows, start = self.numbers.shape
        width = start + sum(len(names) for names, _ in coded)
        if width == 0:
            raise DataError("no column is left to learn from: drop fewer")
        x = new("x", (rows, width), np.float32)
        x[:, :start] = self.numbers
        x[:, start:] = 0
        for names, codes in coded:
            x[np.arange(rows), start + codes] = 1
            start += len(names)


def fill_table(
    new: New, batches: Batches, label: str, client: str | None, drop: Sequence[str]
) -> None:
    """Write x, target, and the clients: owner and names, both empty where no column has them.

    `numeric` is how many columns of x are numbers; they come first. The column of clients is
    `client`, or "client" if there is one.
    """
    table = Table(batches, as_text=client or CLIENT)
    if client is None and CLIENT in table.names:
        client = CLIENT
    wanted = {"label": label} | {f"drop {name!r}": name for name in drop}
    table.check(wanted if client is None else wanted | {"client": client})
    unused = {label, client, *drop}
    used = [name for name in table.names if name not in unused]
    contents = Contents(table, used, label, client)
    contents.read(batches)
    contents.write_features(new)
    names, owner = ([], []) if client is None else contents.levels[client].sorted()
    write(
        new,
        target=contents.target,
        names=np.asarray(names, dtype=str),
        owner=np.asarray(owner, dtype=np.int64),
        numeric=[len(contents.numeric)],
    )


def to_labels(values: np.ndarray, task: str) -> np.ndarray:
    """Labels as classes 0, 1, ... (in the order of their values), or as values."""
    fractions = values[values != np.round(values)]
    if task == "classes" and len(fractions):
        raise DataError(
            f"task = 'classes', but a label is {float(fractions[0])}, neither text nor a whole "
            "number: use task = 'values'"
        )
    levels = np.unique(values)
    few = len(fractions) == 0 and len(levels) <= LEVELS
    if task == "classes" or (task == "auto" and few):
        return np.searchsorted(levels, values)
    return values.astype(np.float32)
