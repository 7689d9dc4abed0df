"""Tables of any length, read in batches: only a batch and the resulting numbers are in memory.

The first pass counts the rows and finds out what each column holds; the second fills the arrays:
numbers (days of dates), and codes of strings. What they become is fitted on training rows later.
"""

import codecs
import csv
import gzip
import io
import json
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from commonweal.base.errors import DataError, EncodingError, did_you_mean
from commonweal.data import plain_table
from commonweal.data.plain_table import Column
from commonweal.data.preprocessing import ID
from commonweal.datasets._cache import New, write

if TYPE_CHECKING:
    import pyarrow

__all__ = [
    "CLIENT",
    "Batch",
    "Batches",
    "Facts",
    "Names",
    "Profile",
    "Roles",
    "Survey",
    "columns_in",
    "fill_table",
    "guess_wide",
    "names_in",
    "read_batches",
    "separator_in",
    "survey",
]

Names = str | tuple[str, ...]
Batch = dict[str, "pyarrow.Array"]  # column -> numbers or strings, null where missing
Batches = Callable[[], Iterator[Batch]]
BLOCK = 1 << 24  # bytes of a CSV that are read at once
FIRST_BYTES = 1 << 16  # from which a CSV's separator and header are taken
LONGEST_HEADER = 1 << 24
ROWS = 100_000  # of a Parquet file that are read at once
MANY = 100_000  # different strings, beyond which a column is left out
CLIENT = "client"  # the column of clients, unless another is named
ID_NAME = re.compile(
    r"(^|[^a-z])(id|ids|nr|no|num|nummer|number|mrn|uuid|guid|key|index|row|record)[^a-z]*$|"
    r"^unnamed|^$|[a-z]I[Dd]$|(num|nummer)$",
    re.I,
)
ID_SHARE = 0.2  # of the rows that differ, from which a column with such a name is an id
LONG = 200  # rows of a table whose numbers in order are no measurements
FREE_SHARE = 0.5  # of the rows that differ, from which a column of strings is free text


@dataclass(frozen=True)
class Roles:
    """What columns of a table are used for; all others are features.

    Attributes:
        label: The column of labels, or "time,event" of survival times.
        client: The column of clients, or several with commas, which name a client together.
        drop: Columns to leave out.
        keep: Columns that look like ids, but are not.
        categories: Columns of whole numbers that are codes.
        order: The column by which the last rows of a client are its test rows.
        split: The column that says which rows are test rows.
    """

    label: str
    client: str | None = None
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    order: str = ""
    split: str = ""


def names_in(names: Names) -> tuple[str, ...]:
    """Names in a list, or in a string with commas."""
    if not isinstance(names, str):
        return tuple(names)
    parts = names.strip().removeprefix("[").removesuffix("]").split(",")
    return tuple(part.strip().strip("'\"") for part in parts if part.strip())


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


def _open(path: Path) -> io.BufferedIOBase:
    return gzip.open(path) if path.suffix == ".gz" else open(path, "rb")


def _first_lines(path: Path, encoding: str) -> list[str]:
    """The first lines of a file, at least the whole header."""
    start = b""
    with _open(path) as raw:
        while block := raw.read(FIRST_BYTES):
            start += block
            if b"\n" in block or b"\r" in block or len(start) > LONGEST_HEADER:
                break
    _check_bytes(path, start, encoding)
    text = start.decode(_with_mark(encoding), errors="replace")
    lines = list(io.StringIO(text, newline=""))  # ends at \n and \r only, as pyarrow's do
    complete = lines[:-1] if len(start) >= FIRST_BYTES else lines
    return (complete or lines)[:20]


def _check_bytes(path: Path, start: bytes, encoding: str) -> None:
    """Raise EncodingError for UTF-16 that is read as something else, and for NUL bytes."""
    if codecs.lookup(encoding).name.startswith(("utf-16", "utf-32")):
        return
    wide = guess_wide(start)
    if wide:
        raise EncodingError(
            f"{str(path)!r} is {wide.upper()} text, not {encoding}: save it as UTF-8, or say "
            f"encoding = {wide!r}"
        )
    if b"\0" in start:
        raise DataError(
            f"{str(path)!r} has NUL bytes (the first is byte {start.index(0)}): it is not a CSV "
            "file, or it is damaged"
        )


def guess_wide(start: bytes) -> str:
    """The encoding of a text with two bytes per letter; empty: it has none."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    pairs = len(start) // 2
    even, odd = start[: 2 * pairs : 2].count(0), start[1 : 2 * pairs : 2].count(0)
    if 4 * max(even, odd) < 3 * pairs or pairs < 2:
        return ""
    return "utf-16-be" if even > odd else "utf-16-le"


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
        header = next(csv.reader(lines, delimiter=separator), [])
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
    except csv.Error as error:
        raise DataError(
            f"{str(path)!r} has a header that is not a line of names: {error}"
        ) from None
    except (pyarrow.ArrowException, OSError, EOFError, UnicodeError) as error:
        problem, byte = _csv_problem(path, separator, encoding, str(error))
        if byte is not None:
            raise EncodingError(problem) from None
        raise DataError(problem) from None


def _csv_problem(path: Path, separator: str, encoding: str, error: str) -> tuple[str, int | None]:
    """Why a CSV cannot be read, and the first byte that is not of its encoding."""
    file = repr(str(path))
    width = re.search(r"(Row #(\d+): )?Expected (\d+) columns, got (\d+): ?(.*)", error, re.S)
    if width:
        where = f"row {width[2]}" if width[2] else "a row"
        problem = (
            f"{file}, {where}: {width[4]} values for {width[3]} columns (separator "
            f"{separator!r}): {width[5][:60]!r}"
        )
        return problem, None
    byte = _wrong_byte(path, encoding)
    if byte is not None:
        problem = (
            f"{file} is not UTF-8 text (byte {byte:#x}): save it as UTF-8, or say "
            "encoding = 'latin-1', which Excel writes in Western Europe"
        )
        return problem, byte
    if "Empty CSV" in error:
        return f"{file} has no rows: check the file", None
    return f"{file} cannot be read as a table, it is cut short or damaged: {error}", None


def _wrong_byte(path: Path, encoding: str) -> int | None:
    """The first byte of a file that is not of its encoding."""
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        with _open(path) as raw:
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
    """A column of Parquet as float64 numbers, or as strings with null where missing."""
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
            f"column {name!r} holds {kind}, neither numbers nor strings: drop it"
        ) from None
    gap = pyarrow.compute.is_in(texts, pyarrow.array(plain_table.MISSING))
    return pyarrow.compute.if_else(gap, None, texts)


# What a column holds


def _cast(values: "pyarrow.Array") -> "np.ndarray | None":
    """Numbers, NaN where missing; None where some string is not a plain number."""
    import pyarrow

    try:
        numbers = values.cast(pyarrow.float64())
    except pyarrow.ArrowInvalid:
        return None
    floats: np.ndarray = numbers.to_numpy(zero_copy_only=False)
    finite = np.isfinite(floats)
    return floats if finite.all() else np.where(finite, floats, np.nan)


def _encoded(values: "pyarrow.Array") -> tuple[list[str], np.ndarray]:
    """The different strings, stripped, and each row's position among them; -1 where missing."""
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
    parse = plain_table.parser(column)
    try:
        for text in texts:
            parse(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Profile:
    """What a column of a table holds."""

    column: Column  # before any fit
    rows: int
    gaps: int  # rows without a value
    whole: bool  # all numbers are whole
    ambiguous: bool  # dates may be read day first or month first
    different: int  # values in the first batch
    first_rows: int  # rows of the first batch
    counts_up: bool = False  # 0, 1, 2, ... or, in a long table, from another number on

    @property
    def name(self) -> str:
        return self.column.name

    @property
    def is_id(self) -> bool:
        """Whether it names rows: by its name, its order, or strings that differ in most rows."""
        share = self.different / max(self.first_rows, 1)
        named = bool(ID_NAME.search(self.name)) and share > ID_SHARE and self.different > 20
        if self.column.becomes == "number":
            return (named and self.whole) or self.counts_up
        is_free = share > FREE_SHARE and self.different > 50
        return self.column.becomes == "text" and (named or is_free)


class _Scan:
    """The first pass over a column."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.gaps = 0
        self.rows = 0
        self.whole = True
        self.possible = _candidates()
        self.different = 0
        self.first_rows = 0
        self.counts_up = True
        self.first_number = 0.0

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
            self.counts_up = self.counts_up and self._continues(numbers)
            different = len(np.unique(known)) if first else 0
        else:
            self.counts_up = False
            different = self._add_texts(values, first)
        if first:
            self.different = different
            self.first_rows = len(values)

    def _continues(self, numbers: np.ndarray) -> bool:
        """Whether a batch numbers the rows on."""
        if self.rows == len(numbers):
            self.first_number = float(numbers[0])
        start = self.first_number + self.rows - len(numbers)
        return bool((numbers == start + np.arange(len(numbers))).all())

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

    def profile(self) -> Profile:
        column = Column(self.name, "text")
        if self.possible and self.gaps < self.rows:
            column = replace(self.possible[0], name=self.name)
        orders = {c.order for c in self.possible if c.becomes == "date"}
        return Profile(
            column,
            self.rows,
            self.gaps,
            self.whole,
            {"day-month-year", "month-day-year"} <= orders,
            self.different,
            self.first_rows,
            self.counts_up and self.rows >= (20 if self.first_number in (0, 1) else LONG),
        )


@dataclass(frozen=True)
class Survey:
    """The rows of a table, and what its columns hold."""

    rows: int
    profiles: Mapping[str, Profile]

    def check(self, purpose: str, names: Sequence[str]) -> None:
        """Raise DataError unless the table has these columns. purpose: what they are for"""
        for name in names:
            if name not in self.profiles:
                hint = did_you_mean(name, self.profiles)
                raise DataError(f"{purpose} = {name!r}: there is no such column; {hint}")


def survey(batches: Batches) -> Survey:
    """Look at all rows once."""
    rows = 0
    scans: dict[str, _Scan] = {}
    for batch in batches():
        scans = scans or {name: _Scan(name) for name in batch}
        if set(batch) != set(scans):
            raise DataError(f"files with different columns: {sorted(batch)} and {sorted(scans)}")
        rows += len(next(iter(batch.values())))
        for name, values in batch.items():
            scans[name].add(values)
    if rows == 0:
        raise DataError("the table has no rows: check the file")
    return Survey(rows, {name: scan.profile() for name, scan in scans.items()})


# The second pass


class _Codes:
    """The different strings of a column, numbered as they come, and each row's number."""

    def __init__(self, rows: int, most: int | None, whole: bool) -> None:
        self.most = most
        self.whole = whole  # numbers, of which 7.0 is written as 7
        self.numbers: dict[str, int] = {}
        self.codes = np.full(rows, -1, np.int32)

    @property
    def too_many(self) -> bool:
        return self.most is not None and len(self.numbers) > self.most

    def fill(self, rows: slice, values: "pyarrow.Array") -> None:
        if self.too_many:
            return
        texts, codes = _encoded(values)
        if self.whole:
            texts = [plain_table.plain_code(text) for text in texts]
        number = [self.numbers.setdefault(text, len(self.numbers)) for text in texts]
        table = np.array([*number, -1], np.int32)  # -1 is the last: missing stays missing
        self.codes[rows] = table[codes]

    def sorted(self) -> tuple[np.ndarray, np.ndarray]:
        """The strings in alphabetical order, whatever the order of the rows, and the codes."""
        texts, number = np.unique(np.array(list(self.numbers), dtype=str), return_inverse=True)
        table = np.append(number, -1).astype(np.int32)
        used = np.unique(self.codes)
        present = texts[np.isin(np.arange(len(texts)), table[used])]  # not those that are missing
        return present, np.append(np.searchsorted(present, texts), -1)[table[self.codes]]


class _Fill:
    """The second pass: the values of the columns in use."""

    def __init__(self, new: New, table: Survey, used: Sequence[str], facts: "Facts") -> None:
        self.columns = {name: table.profiles[name].column for name in used}
        self.numbers: dict[str, np.ndarray] = {}
        self.codes: dict[str, _Codes] = {}
        for i, name in enumerate(table.profiles):
            if name not in self.columns:
                continue
            column = self.columns[name]
            if column.becomes == "text" or name in (*facts.client, *facts.roles.categories):
                most = None if name in facts.client else MANY
                self.codes[name] = _Codes(table.rows, most, column.becomes == "number")
            else:
                self.numbers[name] = new(f"number{i}", (table.rows,), np.float64)

    def read(self, batches: Batches) -> None:
        start = 0
        for batch in batches():
            rows = slice(start, start + len(next(iter(batch.values()))))
            for name, codes in self.codes.items():
                codes.fill(rows, batch[name])
            for name, numbers in self.numbers.items():
                numbers[rows] = _numbers(self.columns[name], batch[name])
            start = rows.stop

    def column(self, profile: Profile, ignored: Mapping[str, str]) -> Column:
        """What a column holds, now that all its strings are known."""
        name = profile.name
        if name in ignored:
            return Column(name, "nothing", ignored[name], is_id=ignored[name] == ID)
        if name in self.codes and self.codes[name].too_many:
            return Column(name, "nothing", f"it has more than {MANY} different strings")
        return Column(name, "text") if name in self.codes else profile.column


def _numbers(column: Column, values: "pyarrow.Array") -> np.ndarray:
    """The numbers of a batch of a column that holds numbers, truths or dates; NaN: missing."""
    plain = column.becomes == "number" and column.decimal == "."
    cast = _cast(values) if plain else None
    if cast is not None:
        return cast
    texts, codes = _encoded(values)
    parse = plain_table.parser(column)
    table = np.array([*map(parse, texts), np.nan])
    numbers: np.ndarray = table[codes]
    return numbers


@dataclass(frozen=True)
class Facts:
    """What the cache holds about a table besides its numbers and codes."""

    rows: int
    roles: Roles
    label: str
    event: str | None
    client: tuple[str, ...]  # the columns that name clients together
    profiles: tuple[Profile, ...] = ()

    @classmethod
    def of(cls, table: Survey, roles: Roles) -> "Facts":
        """The columns of a table that have a role. Raises DataError where one is not there."""
        label, *event = columns_in(roles.label, table)
        if len(event) > 1:
            raise DataError(f"label = {roles.label!r}: name one column, or two, time and event")
        client = roles.client
        if client is None and CLIENT in table.profiles:
            client = CLIENT
        facts = cls(
            rows=table.rows,
            roles=roles,
            label=label,
            event=event[0] if event else None,
            client=() if client is None else columns_in(client, table),
        )
        table.check("label", (label,))
        if facts.event is not None and facts.event not in table.profiles:
            some = list(table.profiles)[:10]
            raise DataError(f"label names the events {facts.event!r}, which is no column: {some}")
        table.check("client", facts.client)
        table.check("drop", roles.drop)
        table.check("keep", roles.keep)
        table.check("categories", roles.categories)
        for key, name in (("order", roles.order), ("split", roles.split)):
            table.check(key, (name,) if name else ())
        used = [*facts.no_features, *roles.categories]
        twice = sorted(name for name, times in Counter(used).items() if times > 1)
        if twice:
            raise DataError(
                f"column {twice[0]!r} is named twice among label, client, split and categories: "
                "each column has one use"
            )
        return facts

    @property
    def no_features(self) -> tuple[str, ...]:
        """The columns that are used, but not as features."""
        event = () if self.event is None else (self.event,)
        split = (self.roles.split,) if self.roles.split else ()
        return (self.label, *event, *self.client, *split)

    def array(self) -> np.ndarray:
        """As the bytes of a JSON text."""
        return np.frombuffer(json.dumps(asdict(self)).encode(), np.uint8)

    @classmethod
    def parse(cls, array: np.ndarray) -> "Facts":
        """Invert `array`."""
        values: dict[str, Any] = json.loads(array.tobytes())
        profiles = []
        for profile in values["profiles"]:
            profiles.append(Profile(**profile | {"column": Column(**profile["column"])}))
        values |= {"roles": Roles(**values["roles"]), "client": tuple(values["client"])}
        return cls(**values | {"profiles": tuple(profiles)})


def columns_in(names: str, table: Survey) -> tuple[str, ...]:
    """The columns that a string names: one, whose name may have commas, or several."""
    return (names,) if names in table.profiles else names_in(names) or (names,)


def fill_table(new: New, batches: Batches, roles: Roles) -> None:
    """Write the columns' numbers and codes, and `facts`, what they are.

    Args:
        new: Makes an array in the cache.
        batches: Reads the table.
        roles: What the columns are used for. The client is by default "client", if there is one.
    """
    table = survey(batches)
    facts = Facts.of(table, roles)
    ignored = dict.fromkeys(roles.drop, "dropped")
    for name, profile in table.profiles.items():
        if profile.is_id and name not in (*roles.keep, *roles.categories, *roles.drop):
            ignored[name] = ID
    ignored = {name: why for name, why in ignored.items() if name not in facts.no_features}
    used = [name for name in table.profiles if name not in ignored or name == roles.order]
    contents = _Fill(new, table, used, facts)
    contents.read(batches)
    profiles = []
    arrays: dict[str, np.ndarray] = {}
    for i, (name, profile) in enumerate(table.profiles.items()):
        column = contents.column(profile, ignored)
        profiles.append(replace(profile, column=column))
        if name in contents.codes and not contents.codes[name].too_many:
            arrays[f"text{i}"], arrays[f"code{i}"] = contents.codes[name].sorted()
    write(new, facts=replace(facts, profiles=tuple(profiles)).array(), **arrays)
