"""Tables of any length, read in batches: only a batch and the resulting numbers are in memory.

The first pass counts the rows and finds what each column holds; the second fills the arrays:
numbers (days of dates), and codes of texts. What they become is fitted on training rows later.
"""

import codecs
import csv
import gzip
import io
import json
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from commonweal.base.errors import DataError, did_you_mean
from commonweal.data import plain_table
from commonweal.data.preprocessing import Column
from commonweal.datasets._cache import New, write

if TYPE_CHECKING:
    import pyarrow

__all__ = [
    "CLIENT",
    "Batch",
    "Batches",
    "Survey",
    "fill_table",
    "read_batches",
    "separator_in",
    "survey",
]

Batch = dict[str, "pyarrow.Array"]  # column -> numbers or texts, null where missing
Batches = Callable[[], Iterator[Batch]]
BLOCK = 1 << 24  # bytes of a CSV that are read at once
ROWS = 100_000  # of a Parquet file that are read at once
MANY = 100_000  # different texts, beyond which a column is left out
CLIENT = "client"  # the column of clients, unless another is named
ID = re.compile(r"(^|[^a-z])(id|ids|nr|no|mrn|uuid|guid|key|index)$|^unnamed|^$|[a-z]I[Dd]$", re.I)
ID_SHARE = 0.2  # of the rows that differ, from which a column with such a name is an id
FREE_SHARE = 0.5  # of the rows that differ, from which a text is free


# Reading


def read_batches(path: Path, separator: str = "auto", encoding: str = "utf-8") -> Iterator[Batch]:
    """A CSV (may be .gz) or Parquet file, some rows at a time."""
    _check_file(path)
    if path.suffix == ".parquet":
        yield from _read_parquet(path)
    else:
        yield from _read_csv(path, separator, encoding)


def _check_file(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except OSError:
        raise DataError(
            f"there is no file {str(path)!r} (that is, {str(path.absolute())!r}): check the path"
        ) from None
    if stat.S_ISDIR(mode):
        raise DataError(
            f"{str(path)!r} is a folder, not a table: dataset 'folder' reads a folder per client"
        )
    if not stat.S_ISREG(mode):
        raise DataError(
            f"{str(path)!r} is a pipe or device, which cannot be read twice: save it as a file"
        )


def separator_in(path: Path, encoding: str = "utf-8") -> str:
    """The separator of a CSV, from its first lines."""
    return (
        "," if path.suffix == ".parquet" else plain_table.separator_of(_first_lines(path, encoding))
    )


def _first_lines(path: Path, encoding: str) -> list[str]:
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as raw:
        start = raw.read(1 << 16)
    lines = start.decode(_with_mark(encoding), errors="replace").splitlines()
    complete = lines[:-1] if len(start) == 1 << 16 else lines
    return (complete or lines)[:20]


def _with_mark(encoding: str) -> str:
    """UTF-8 with or without the byte order mark that Excel writes."""
    return "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding


def _read_csv(path: Path, separator: str, encoding: str) -> Iterator[Batch]:
    import pyarrow
    from pyarrow import csv as arrow_csv

    try:
        codecs.lookup(encoding)
        lines = _first_lines(path, encoding)
        if separator == "auto":
            separator = plain_table.separator_of(lines)
        header = next(csv.reader(io.StringIO("\n".join(lines)), delimiter=separator), [])
        names = _header(path, header)
        with arrow_csv.open_csv(
            path,
            arrow_csv.ReadOptions(block_size=BLOCK, encoding=encoding),
            arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
            arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(header, pyarrow.string()),
                null_values=list(plain_table.MISSING),
                strings_can_be_null=True,
            ),
        ) as reader:
            for batch in reader:
                if batch.num_rows:
                    yield dict(zip(names, batch.columns, strict=True))
    except LookupError:
        raise DataError(f"encoding = {encoding!r} is unknown: write utf-8 or latin-1") from None
    except (pyarrow.ArrowException, OSError, EOFError) as error:
        raise DataError(_csv_problem(path, separator, encoding, str(error))) from None


def _csv_problem(path: Path, separator: str, encoding: str, error: str) -> str:
    """Why a CSV cannot be read, in a sentence."""
    file = repr(str(path))
    width = re.search(r"(Row #(\d+): )?Expected (\d+) columns, got (\d+): ?(.*)", error, re.S)
    if width:
        where = f"row {width[2]}" if width[2] else "a row"
        return (
            f"{file}, {where}: {width[4]} values for {width[3]} columns (separator "
            f"{separator!r}): {width[5][:60]!r}"
        )
    byte = _wrong_byte(path, encoding)
    if byte is not None:
        return (
            f"{file} is not UTF-8 text (byte {byte:#x}): save it as UTF-8, or say "
            "encoding = 'latin-1', which Excel writes in Western Europe"
        )
    if "Empty CSV" in error:
        return f"{file} has no rows: check the file"
    return f"{file} cannot be read as a table, it is cut short or damaged: {error}"


def _wrong_byte(path: Path, encoding: str) -> int | None:
    """The first byte of a file that is not of its encoding."""
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as raw:
            while block := raw.read(1 << 20):
                decoder.decode(block)
    except UnicodeDecodeError as error:
        return int(error.object[error.start])
    except (OSError, EOFError):
        return None
    return None


def _header(path: Path, line: Sequence[str]) -> list[str]:
    names = [name.strip() for name in line]
    if not names or len(set(names)) < len(names):
        raise DataError(f"{str(path)!r} needs a first line of different column names, not {names}")
    return names


def _read_parquet(path: Path) -> Iterator[Batch]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(ROWS):
                if batch.num_rows:
                    names = batch.schema.names
                    yield {name: _plain_array(name, batch.column(name)) for name in names}
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{str(path)!r} is not a Parquet file, or is damaged: {error}") from None


def _plain_array(name: str, values: "pyarrow.Array") -> "pyarrow.Array":
    """A column of Parquet as float64 numbers, or as texts with null where missing."""
    import pyarrow
    import pyarrow.compute

    kind = values.type
    types = pyarrow.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        numbers = values.cast(pyarrow.float64())
        finite = pyarrow.compute.is_finite(numbers)
        return pyarrow.compute.if_else(finite, numbers, None)
    try:
        texts = values.cast(pyarrow.string())
    except pyarrow.ArrowException:
        raise DataError(
            f"column {name!r} holds {kind}, neither numbers nor texts: drop it"
        ) from None
    gap = pyarrow.compute.is_in(texts, pyarrow.array(plain_table.MISSING))
    return pyarrow.compute.if_else(gap, None, texts)


# What a column holds


def _cast(values: "pyarrow.Array") -> "np.ndarray | None":
    """Numbers, NaN where missing; None where some text is no plain number."""
    import pyarrow

    try:
        numbers = values.cast(pyarrow.float64())
    except pyarrow.ArrowInvalid:
        return None
    floats: np.ndarray = numbers.to_numpy(zero_copy_only=False)
    finite = np.isfinite(floats)
    return floats if finite.all() else np.where(finite, floats, np.nan)


def _encoded(values: "pyarrow.Array") -> tuple[list[str], np.ndarray]:
    """The different texts, stripped, and each row's position among them; -1 where missing."""
    import pyarrow

    coded = values.cast(pyarrow.string()).dictionary_encode()
    texts = [text.strip() for text in coded.dictionary.to_pylist()]
    codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    gaps = [i for i, text in enumerate(texts) if plain_table.is_missing(text)]
    if gaps:
        codes = np.where(np.isin(codes, gaps), -1, codes)
    return texts, codes


def _candidates() -> list[Column]:
    """What a column may hold, in order of preference; text is always possible."""
    numbers = [Column("", "number"), Column("", "number", decimal=",")]
    truths = [Column("", "boolean", words=words) for words in plain_table.TRUTH]
    dates = [Column("", "date", order=order) for order in plain_table.DATES]
    return [*numbers, *truths, *dates]


def _fits(column: Column, texts: Sequence[str]) -> bool:
    parse = plain_table.parser(asdict(column))
    try:
        for text in texts:
            parse(text)
    except ValueError:
        return False
    return True


class Found:
    """What the first pass finds of a column."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.gaps = 0
        self.rows = 0
        self.whole = True  # all numbers are whole
        self.possible = _candidates()
        self.differ = 0  # different values in the first batch
        self.first_rows = 0
        self.example = ""

    def add(self, values: "pyarrow.Array") -> None:
        first = self.rows == 0
        self.rows += len(values)
        self.gaps += values.null_count
        if values.null_count == len(values) and not first:
            return
        numbers = _cast(values) if self._may_be_plain else None
        if numbers is not None:
            self.possible = [c for c in self.possible if c.becomes == "number"]
            known = numbers[~np.isnan(numbers)]
            self.gaps += len(numbers) - len(known) - values.null_count
            self.whole = self.whole and bool((known == np.round(known)).all())
            different = len(np.unique(known)) if first else 0
        else:
            different = self._add_texts(values, first)
        if first:
            self.differ = different
            self.first_rows = len(values)
            self.example = _example(values)

    @property
    def _may_be_plain(self) -> bool:
        return bool(self.possible) and self.possible[0].becomes == "number"

    def _add_texts(self, values: "pyarrow.Array", first: bool) -> int:
        if not self.possible and not first:
            return 0
        texts, codes = _encoded(values)
        known = {text for text in texts if not plain_table.is_missing(text)}
        self.gaps += int((codes < 0).sum()) - values.null_count
        self.possible = [c for c in self.possible if _fits(c, sorted(known))]
        return len(known)

    @property
    def column(self) -> Column:
        """What the column holds, before any fit."""
        if not self.possible or self.gaps == self.rows:
            return Column(self.name, "text")
        best = self.possible[0]
        return Column(
            self.name, best.becomes, decimal=best.decimal, words=best.words, order=best.order
        )

    @property
    def ambiguous(self) -> bool:
        """Whether a date may be read day first or month first."""
        orders = {c.order for c in self.possible if c.becomes == "date"}
        return {"day-month-year", "month-day-year"} <= orders

    @property
    def is_id(self) -> bool:
        """Whether it names rows: by its name, or as a text that is different in most rows."""
        share = self.differ / max(self.first_rows, 1)
        column = self.column
        named = bool(ID.search(self.name)) and share > ID_SHARE and self.differ > 20
        if column.becomes == "number":
            return named and self.whole
        return column.becomes == "text" and (named or (share > FREE_SHARE and self.differ > 50))


def _example(values: "pyarrow.Array") -> str:
    known = values.drop_null()
    return str(known[0].as_py()) if len(known) else ""


@dataclass(frozen=True)
class Survey:
    """The rows and columns that the first pass finds."""

    rows: int
    found: Mapping[str, Found]

    @property
    def names(self) -> list[str]:
        return list(self.found)

    def check(self, wanted: Mapping[str, str]) -> None:
        """Raise DataError unless the table has these columns; keys say what they are."""
        for what, name in wanted.items():
            if name not in self.found:
                hint = did_you_mean(name, self.names)
                raise DataError(f"{what} = {name!r}: there is no such column; {hint}")


def survey(batches: Batches) -> Survey:
    """Look at all rows once."""
    rows = 0
    found: dict[str, Found] = {}
    for batch in batches():
        found = found or {name: Found(name) for name in batch}
        if set(batch) != set(found):
            raise DataError(f"files with different columns: {sorted(batch)} and {sorted(found)}")
        rows += len(next(iter(batch.values())))
        for name, values in batch.items():
            found[name].add(values)
    if rows == 0:
        raise DataError("the table has no rows: check the file")
    return Survey(rows, found)


# The second pass


class Levels:
    """The different texts of a column, numbered as they come, and each row's number."""

    def __init__(self, name: str, rows: int, most: int | None) -> None:
        self.name = name
        self.most = most
        self.known: dict[str, int] = {}
        self.codes = np.full(rows, -1, np.int32)

    @property
    def too_many(self) -> bool:
        return self.most is not None and len(self.known) > self.most

    def fill(self, rows: slice, values: "pyarrow.Array") -> None:
        if self.too_many:
            return
        texts, codes = _encoded(values)
        number = [self.known.setdefault(text, len(self.known)) for text in texts]
        table = np.array([*number, -1], np.int32)  # -1 is the last: missing stays missing
        self.codes[rows] = table[codes]

    def sorted(self) -> tuple[np.ndarray, np.ndarray]:
        """The levels in alphabetical order, whatever the order of the rows, and the codes."""
        names, number = np.unique(np.array(list(self.known), dtype=str), return_inverse=True)
        table = np.append(number, -1).astype(np.int32)
        used = np.unique(self.codes)
        kept = names[np.isin(np.arange(len(names)), table[used])]  # not those of missing texts
        return kept, np.append(np.searchsorted(kept, names), -1)[table[self.codes]]


class Contents:
    """The values that the second pass reads from the columns in use."""

    def __init__(
        self, new: New, table: Survey, used: Sequence[str], texts: Sequence[str | None]
    ) -> None:
        columns = {name: table.found[name].column for name in used}
        self.numbers = {
            name: new(f"number{table.names.index(name)}", (table.rows,), np.float64)
            for name, column in columns.items()
            if column.becomes != "text" and name not in texts
        }
        self.columns = columns
        self.levels = {
            name: Levels(name, table.rows, None if name in texts else MANY)
            for name in columns
            if name not in self.numbers
        }

    def read(self, batches: Batches) -> None:
        start = 0
        for batch in batches():
            rows = slice(start, start + len(next(iter(batch.values()))))
            for name, levels in self.levels.items():
                levels.fill(rows, batch[name])
            for name, numbers in self.numbers.items():
                numbers[rows] = _numbers(self.columns[name], batch[name])
            start = rows.stop


def _numbers(column: Column, values: "pyarrow.Array") -> np.ndarray:
    """The numbers of a batch of a column that holds numbers, truths or dates; NaN: missing."""
    plain = column.becomes == "number" and column.decimal == "."
    cast = _cast(values) if plain else None
    if cast is not None:
        return cast
    texts, codes = _encoded(values)
    parse = plain_table.parser(asdict(column))
    table = np.array([*map(parse, texts), np.nan])
    numbers: np.ndarray = table[codes]
    return numbers


def fill_table(
    new: New,
    batches: Batches,
    label: str,
    client: str | None,
    drop: Sequence[str],
    keep: Sequence[str],
) -> None:
    """Write the columns' numbers and codes, and `facts`, a JSON text on what they are.

    The column of clients is `client`, or "client" if there is one.
    """
    table = survey(batches)
    if client is None and CLIENT in table.names:
        client = CLIENT
    wanted = {"label": label} | {f"drop {name!r}": name for name in drop}
    wanted |= {f"keep {name!r}": name for name in keep}
    table.check(wanted if client is None else wanted | {"client": client})
    ignored = dict.fromkeys(drop, "dropped")
    for name, found in table.found.items():
        if found.is_id and name not in (label, client, *keep, *drop):
            ignored[name] = "it looks like an id or free text"
    used = [name for name in table.names if name not in ignored or name in (label, client)]
    contents = Contents(new, table, used, [client])
    contents.read(batches)
    facts = []
    arrays: dict[str, np.ndarray] = {}
    for i, name in enumerate(table.names):
        found = table.found[name]
        fact = asdict(found.column) | {"gaps": found.gaps, "ambiguous": found.ambiguous}
        fact["whole"] = found.whole
        if name not in used:
            fact |= {"becomes": "nothing", "why": ignored[name]}
        elif name in contents.levels and contents.levels[name].too_many:
            why = f"it has more than {MANY} different texts"
            fact |= {"becomes": "nothing", "why": why}
        elif name in contents.levels:
            fact["becomes"] = "text"
            texts, codes = contents.levels[name].sorted()
            arrays[f"text{i}"] = texts
            arrays[f"code{i}"] = codes
        facts.append(fact)
    known = {"rows": table.rows, "client": client, "columns": facts}
    write(new, facts=np.frombuffer(json.dumps(known).encode(), np.uint8), **arrays)
