"""The columns of a table of any length: what they hold, and their numbers or codes in the cache.

The first pass over the file counts the rows and finds out what each column holds; the second fills
the arrays: numbers (days of dates), and codes of strings. What they become as features is fitted
on training rows later.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pydantic

from commonweal.base.errors import DataError, did_you_mean
from commonweal.data import plain_table
from commonweal.data.plain_table import Column
from commonweal.data.preprocessing import ID
from commonweal.data.split import repeated
from commonweal.datasets._cache import Arrays, New, cached, write
from commonweal.datasets._table_files import Batches

if TYPE_CHECKING:
    import pyarrow

Names = str | tuple[str, ...]
Coded = tuple[np.ndarray, np.ndarray]  # different strings, and each row's position among them
MANY = 100_000  # different strings, beyond which a column is left out
CLIENT = "client"  # the column of clients, unless another is named
ID_NAME = re.compile(
    r"(^|[^a-z])(id|ids|nr|no|num|nummer|number|numer|mrn|uuid|guid|key|index|row|record)[^a-z]*$|"
    r"^(n[°º]|num[eé]ro|nr|numer|no\.)\W|^unnamed|[a-z]I[Dd]$|(num|nummer)$|"
    r"^(patient|subject|participant|proband|case|fall|sample|encounter|customer|cust|account)$",
    re.I,
)
ID_SHARE = 0.2  # of the rows that differ, from which a column with such a name is an id
LONG = 200  # rows of a table whose numbers in order are no measurements
FREE_SHARE = 0.5  # of the rows that differ, from which a column of strings is free text
MOST_ODD = 3  # different strings in a column of numbers, which count as missing
LEAST_NUMBERS = 20  # different numbers of such a column
FIRST_DAY, LAST_DAY = 19000101, 21001231  # of dates that are written as one number


@dataclass(frozen=True)
class Roles:
    """What columns of a table are used for; all others are features.

    Attributes:
        label: The column of labels, or of survival times "time,event" or "time,event=value".
        client: The column of clients, or several with commas, which name a client together.
        drop: Columns to leave out.
        keep: Columns that look like ids, but are not.
        categories: Columns of whole numbers that are codes.
        order: The column by which the last rows of a client are its test rows.
        split: The column that says which rows are test rows.
        missing: Numbers that mean a missing value, as "column=number".
    """

    label: str
    client: str | None = None
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    order: str = ""
    split: str = ""
    missing: tuple[str, ...] = ()


def names_in(names: Names) -> tuple[str, ...]:
    """Names in a list, or in a string with commas."""
    if not isinstance(names, str):
        return tuple(names)
    parts = names.strip().removeprefix("[").removesuffix("]").split(",")
    return tuple(part.strip().strip("'\"") for part in parts if part.strip())


# What a column holds

NUMBERS = tuple(plain_table.notations(Column("", "number")))
TRUTHS = plain_table.notations(Column("", "boolean"))
DATES = plain_table.notations(Column("", "date"))
CANDIDATES = (*NUMBERS, *TRUTHS, *DATES)  # in order of preference; text is always possible


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


def _has_codes(values: "pyarrow.Array") -> bool:
    """Whether some digits are no number: 01234 is a code, and float64 cannot hold 16 of them."""
    import pyarrow
    import pyarrow.compute

    if not pyarrow.types.is_string(values.type):
        return False
    codes = pyarrow.compute.match_substring_regex(values, r"^\s*(0\d{3,}|\d{16,})\s*$")
    return bool(pyarrow.compute.any(codes).as_py())


def _encoded(values: "pyarrow.Array") -> tuple[list[str], np.ndarray]:
    """The different strings, stripped, and each row's position among them; -1 where missing."""
    import pyarrow

    coded = values.cast(pyarrow.string()).dictionary_encode()
    texts = list(map(plain_table.stripped, coded.dictionary.to_pylist()))
    damaged = next((text for text in texts if "\0" in text), None)
    if damaged is not None:
        raise DataError(f"the table has NUL bytes, as in {damaged[:60]!r}: the file is damaged")
    codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    gaps = np.flatnonzero(list(map(plain_table.is_missing, texts)))
    if len(gaps):
        codes = np.where(np.isin(codes, gaps), -1, codes)
    return texts, codes


@dataclass(frozen=True)
class Profile:
    """What a column of a table holds."""

    column: Column  # before any fit
    rows: int
    gaps: int  # rows without a value
    whole: bool  # all numbers are whole
    ambiguous: bool  # dates day first or month first; commas before decimals or thousands
    different: int  # values in the first batch
    first_rows: int  # rows of the first batch
    numbers_rows: bool = False  # 0, 1, 2, ... in any order, or in a long table from another number

    @property
    def name(self) -> str:
        return self.column.name

    @property
    def mostly_differs(self) -> bool:
        """Whether strings or codes differ in most rows."""
        return self.different > max(50, FREE_SHARE * self.first_rows)

    @property
    def is_id(self) -> bool:
        """Whether it names rows: by its name, its order, or strings that differ in most rows."""
        named = self.different > max(20, ID_SHARE * self.first_rows)
        named = named and bool(ID_NAME.search(self.name))
        if self.column.becomes == "number":
            return (named and self.whole) or self.numbers_rows
        return self.column.becomes == "text" and (named or self.mostly_differs)


class _Scan:
    """The first pass over a column."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.gaps = 0
        self.rows = 0
        self.whole = True
        self.possible = list(CANDIDATES)
        self.different = 0
        self.first_rows = 0
        self.low, self.high = np.inf, -np.inf
        self.is_day = True  # numbers such as 20260131
        self.has_comma = False  # strings with a comma, and without
        self.has_none = False

    def add(self, values: "pyarrow.Array") -> None:
        first = self.rows == 0
        self.rows += len(values)
        self.gaps += values.null_count
        if values.null_count == len(values) and not first:
            return
        if first and _has_codes(values):
            self.possible = [c for c in self.possible if c.becomes != "number"]
        numbers = _cast(values) if self._may_be_plain else None
        if numbers is not None:
            different = self._add_numbers(numbers, first)
            self.gaps += int(np.isnan(numbers).sum()) - values.null_count
        else:
            different = self._add_texts(values, first)
        if first:
            self.different = different
            self.first_rows = len(values)

    def _add_numbers(self, numbers: np.ndarray, first: bool) -> int:
        """Take plain numbers into account. Returns how many differ, in the first batch."""
        self.possible = [c for c in self.possible if c.becomes == "number"]
        known = numbers[~np.isnan(numbers)]
        self._measure(known)
        self.is_day = self.is_day and self.whole and _are_days(known)
        return len(np.unique(known)) if first else 0

    def _measure(self, numbers: np.ndarray) -> None:
        self.whole = self.whole and bool((numbers == np.round(numbers)).all())
        self.low = min(self.low, float(numbers.min(initial=np.inf)))
        self.high = max(self.high, float(numbers.max(initial=-np.inf)))

    @property
    def _may_be_plain(self) -> bool:
        return bool(self.possible) and self.possible[0].becomes == "number"

    def _add_texts(self, values: "pyarrow.Array", first: bool) -> int:
        if not self.possible and not first:
            return 0
        texts, codes = _encoded(values)
        known = list(dict.fromkeys(text for text in texts if not plain_table.is_missing(text)))
        self.gaps += int((codes < 0).sum()) - values.null_count
        self.is_day = False
        with_comma = sum("," in text for text in known)
        self.has_comma |= with_comma > 0
        self.has_none |= with_comma < len(known)
        if first:
            units = Counter(map(plain_table.unit_of, known[:LEAST_NUMBERS]))
            unit = max(units, key=lambda name: units[name], default="")
            self.possible += [replace(column, unit=unit) for column in NUMBERS if unit]
        possible = []
        for column in self.possible:
            odd = _odd(column, known)
            if odd is not None:
                possible.append(replace(column, missing_as=odd))
        self.possible = possible
        if self._may_be_plain and not possible[0].missing_as:
            self._measure(np.array(list(map(plain_table.parser(possible[0]), known))))
        return len(known)

    def profile(self) -> Profile:
        column = self._column()
        orders = {c.order for c in self.possible if c.becomes == "date" and not c.missing_as}
        each_differs = self.gaps == 0 and self.different == self.first_rows
        span = self.high - self.low + 1
        long_enough = self.rows >= (20 if self.low in (0, 1) else LONG)
        return Profile(
            column,
            self.rows,
            self.gaps,
            self.whole,
            {"day-month-year", "month-day-year"} <= orders or self._may_group(column),
            self.different,
            self.first_rows,
            self.whole and each_differs and span == self.rows and long_enough,
        )

    def _column(self) -> Column:
        if self.gaps == self.rows:
            return Column(self.name, "text")
        if self._may_be_plain and self.whole and self.is_day:
            return Column(self.name, "date", order="yearmonthday")
        for column in self.possible:
            if not column.missing_as or self.different > LEAST_NUMBERS + len(column.missing_as):
                if self.has_none and self._may_group(column):
                    column = replace(column, decimal=plain_table.GROUPED)  # 1,000 and 20
                return replace(column, name=self.name)
        return Column(self.name, "text")

    def _may_group(self, column: Column) -> bool:
        """Whether decimal commas may be those of thousands: all are followed by three digits."""
        grouped = replace(column, name="", decimal=plain_table.GROUPED)
        return column.decimal == "," and self.has_comma and grouped in self.possible


def _are_days(numbers: np.ndarray) -> bool:
    """Whether whole numbers are dates such as 20260131."""
    month, day = numbers // 100 % 100, numbers % 100
    valid = (numbers >= FIRST_DAY) & (numbers <= LAST_DAY)
    return bool((valid & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)).all())


def _odd(column: Column, texts: Collection[str]) -> tuple[str, ...] | None:
    """The strings that a column of numbers does not explain, if they are few; None: many."""
    most = MOST_ODD if column.becomes == "number" else 0
    odd = list(column.missing_as)
    for text in texts:
        if not plain_table.fits(column, [text]):
            odd.append(text)
        if len(odd) > most:
            return None
    return tuple(odd)


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
        scans = scans or dict(zip(batch, map(_Scan, batch), strict=True))
        if set(batch) != set(scans):
            raise DataError(f"files with different columns: {sorted(batch)} and {sorted(scans)}")
        rows += len(next(iter(batch.values())))
        for name, values in batch.items():
            scans[name].add(values)
    if rows == 0:
        raise DataError("the table has no rows: check the file")
    if len(scans) == 1:
        raise DataError(
            f"the table has one column, {next(iter(scans))[:60]!r}: it needs a label and features; "
            "if another sign than , ; | or tab sets its columns apart, say separator = ..."
        )
    return Survey(rows, {name: scan.profile() for name, scan in scans.items()})


# Columns with a role


@dataclass(frozen=True)
class Facts:
    """What the cache holds about a table besides its numbers and codes."""

    rows: int
    roles: Roles
    label: str
    event: str | None
    client: tuple[str, ...]  # the columns that name clients together
    happened: str = ""  # the value of `event` that means that there was one; empty: not given
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    numbers: tuple[str, ...] = ()  # the columns that are stored as numbers
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # as codes of these strings

    @classmethod
    def of(cls, table: Survey, roles: Roles) -> "Facts":
        """The columns of a table that have a role. Raises DataError where one is not there."""
        label, *further = columns_in(roles.label, table)
        if len(further) > 1:
            raise DataError(f"label = {roles.label!r}: name one column, or two, time and event")
        event, happened = further[0] if further else None, ""
        if event is not None and event not in table.profiles:
            event, _, happened = event.partition("=")
        client = roles.client
        if client is None and CLIENT in table.profiles:
            client = CLIENT
        facts = cls(
            rows=table.rows,
            roles=roles,
            label=label,
            event=event,
            happened=happened,
            client=() if client is None else columns_in(client, table),
        )
        order, split = roles.order, roles.split
        table.check("label", [label])
        if facts.event is not None and facts.event not in table.profiles:
            some = list(table.profiles)[:10]
            raise DataError(f"label names the events {facts.event!r}, which is no column: {some}")
        table.check("client", facts.client)
        table.check("drop", roles.drop)
        table.check("keep", roles.keep)
        table.check("categories", roles.categories)
        table.check("missing", [entry.rpartition("=")[0] for entry in roles.missing])
        table.check("order", [order] if order else [])
        table.check("split", [split] if split else [])
        twice = repeated([*facts.no_features, *roles.categories])
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


def columns_in(names: str, table: Survey) -> tuple[str, ...]:
    """The columns that a string names: one, whose name may have commas, or several."""
    return (names,) if names in table.profiles else names_in(names) or (names,)


# The second pass


def _fill(new: New, batches: Batches, table: Survey, roles: Roles) -> None:
    """Write the columns' numbers and codes, and `facts`, what they are."""
    facts = Facts.of(table, roles)
    table = _with_missing(table, roles.missing)
    ignored: dict[str, str] = {}  # column -> why
    coded: list[str] = []
    plain: list[str] = []
    for name, profile in table.profiles.items():
        if name not in facts.no_features and name in roles.drop:
            ignored[name] = "dropped"
        elif profile.is_id and name not in (*facts.no_features, *roles.keep, *roles.categories):
            ignored[name] = ID
        if name in ignored and name != roles.order:
            continue
        is_coded = profile.column.becomes == "text" or name in (*facts.client, *roles.categories)
        (coded if is_coded else plain).append(name)
    numbers = new("numbers", (len(plain), table.rows), np.float64)
    codes = new("codes", (len(coded), table.rows), np.int32)
    known: dict[str, dict[str, int]] = {name: {} for name in coded}
    start = 0
    for batch in batches():
        rows = slice(start, start + len(next(iter(batch.values()))))
        for name, values in zip(plain, numbers, strict=True):
            values[rows] = _numbers(table.profiles[name].column, batch[name])
        for name, values in zip(coded, codes, strict=True):
            if len(known[name]) <= MANY or name in facts.client:
                is_number = table.profiles[name].column.becomes == "number"
                values[rows] = _codes(known[name], batch[name], is_number)
        start = rows.stop
    texts = {}
    profiles = {}
    for name, values in zip(coded, codes, strict=True):
        if len(known[name]) > MANY and name not in facts.client:
            ignored[name] = f"it has more than {MANY:,} different strings"
        texts[name] = _sort(known[name], values)
    for name, profile in table.profiles.items():
        column = Column(name, "text") if name in texts else profile.column
        if name in ignored:
            column = Column(name, "nothing", ignored[name], is_id=ignored[name] == ID)
        profiles[name] = replace(profile, column=column)
    filled = replace(facts, profiles=profiles, numbers=tuple(plain), texts=texts)
    write(new, facts=_array(_FACTS.dump_json(filled)))


def _with_missing(table: Survey, missing: Sequence[str]) -> Survey:
    """The survey, with the numbers that mean a missing value: "column=number"."""
    profiles = dict(table.profiles)
    for entry in missing:
        name, _, value = entry.rpartition("=")
        profile = profiles[name]
        column = profile.column
        if column.becomes != "number" or not plain_table.is_number(value):
            raise DataError(
                f"missing = {entry!r}: write column=number; {name!r} holds {column.becomes}s"
            )
        column = replace(column, missing_as=(*column.missing_as, value))
        profiles[name] = replace(profile, column=column)
    return Survey(table.rows, profiles)


def _codes(known: dict[str, int], values: "pyarrow.Array", is_number: bool) -> np.ndarray:
    """The codes of a batch of strings, which are numbered as they come; -1: missing."""
    texts, codes = _encoded(values)
    number = []
    for text in texts:
        name = plain_table.plain_code(text) if is_number else text  # 7.0 is written as 7
        number.append(-1 if plain_table.is_missing(text) else known.setdefault(name, len(known)))
    coded: np.ndarray = np.array([*number, -1], np.int32)[codes]
    return coded


def _sort(known: Mapping[str, int], codes: np.ndarray) -> tuple[str, ...]:
    """The strings in alphabetical order, by which the codes are changed in place."""
    texts = tuple(sorted(known))
    rank = np.full(len(texts) + 1, -1, np.int32)
    rank[[known[text] for text in texts]] = np.arange(len(texts))
    codes[...] = rank[codes]
    return texts


def _numbers(column: Column, values: "pyarrow.Array") -> np.ndarray:
    """The numbers of a batch of a column that holds numbers, truths or dates; NaN: missing."""
    is_plain = column.becomes == "number" and column.decimal == "."
    cast = _cast(values) if is_plain else None
    if cast is not None:
        gaps = [float(text) for text in column.missing_as if plain_table.is_number(text)]
        return np.where(np.isin(cast, gaps), np.nan, cast) if gaps else cast
    texts, codes = _encoded(values)
    parse = plain_table.parser(column)
    numbers: np.ndarray = np.array([*map(parse, texts), np.nan])[codes]
    return numbers


# From the cache

_SURVEY = pydantic.TypeAdapter(Survey)
_FACTS = pydantic.TypeAdapter(Facts)


def _array(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8)


def read_survey(file: Path, batches: Batches, options: str) -> Survey:
    """What a file's columns hold, from the cache if it was read before."""
    if not file.is_file():
        next(batches())  # raises what is wrong with it

    def parse(new: New) -> None:
        write(new, survey=_array(_SURVEY.dump_json(survey(batches))))

    arrays = cached("survey", [file], parse, options)
    return _SURVEY.validate_json(arrays["survey"].tobytes())


def read_table(file: Path, batches: Batches, roles: Roles, options: str) -> "Table":
    """A table, from the cache if it was read before.

    Args:
        file: The file, or the folder of files.
        batches: Reads it.
        roles: What the columns are used for. The client is by default "client", if there is one.
        options: By which it is read.
    """
    seen = read_survey(file, batches, options)

    def parse(new: New) -> None:
        _fill(new, batches, seen, roles)

    return Table.read(cached("table", [file], parse, repr((roles, options))))


@dataclass(frozen=True, eq=False)
class Table:
    """The columns of a table: what they hold, and their numbers or codes."""

    facts: Facts
    stored_numbers: Mapping[str, np.ndarray]
    stored_texts: Mapping[str, Coded]

    @classmethod
    def read(cls, arrays: Arrays) -> "Table":
        facts = _FACTS.validate_json(arrays["facts"].tobytes())
        numbers = zip(facts.numbers, np.asarray(arrays["numbers"]), strict=True)
        texts = {}
        for name, codes in zip(facts.texts, np.asarray(arrays["codes"]), strict=True):
            texts[name] = np.array(facts.texts[name], dtype=str), codes
        return cls(facts, dict(numbers), texts)

    def revised(self, roles: Roles) -> "Table":
        """The table with further columns left out, with numbers as codes or as missing values."""
        texts = dict(self.stored_texts)
        numbers = dict(self.stored_numbers)
        profiles = dict(self.profiles)
        for name in roles.drop:
            column = Column(name, "nothing", "dropped")
            profiles[name] = replace(profiles[name], column=column)
        for entry in roles.missing:
            name, _, value = entry.rpartition("=")
            numbers[name] = np.where(numbers[name] == float(value), np.nan, numbers[name])
        for name in roles.categories:
            values = numbers[name]
            different, codes = np.unique(values, return_inverse=True)  # NaN is the last
            known = different[~np.isnan(different)]
            names = np.array([f"{value:.0f}" for value in known.tolist()], dtype=str)
            texts[name] = names, np.where(np.isnan(values), -1, codes)
            profiles[name] = replace(profiles[name], column=Column(name, "text"))
        return Table(replace(self.facts, profiles=profiles), numbers, texts)

    @property
    def profiles(self) -> Mapping[str, Profile]:
        return self.facts.profiles

    @property
    def label(self) -> str:
        return self.facts.label

    @property
    def rows(self) -> int:
        return self.facts.rows

    def column(self, name: str) -> Column:
        """What a column holds, before any fit."""
        return self.profiles[name].column

    def numbers(self, name: str) -> np.ndarray:
        return self.stored_numbers[name]

    def texts(self, name: str) -> Coded:
        """The different strings of a column, and each row's position among them; -1: missing."""
        return self.stored_texts[name]

    def is_text(self, name: str) -> bool:
        """Whether a column is stored as codes of strings."""
        return name in self.stored_texts

    def strings(self, name: str, rows: np.ndarray) -> np.ndarray:
        """The values of a column in some rows, (n,), as strings."""
        column = self.column(name)
        strings: np.ndarray
        if column.becomes == "text":
            texts, codes = self.texts(name)
            strings = texts[codes[rows]]
        elif column.becomes == "boolean":
            strings = np.array(column.words)[self.numbers(name)[rows].astype(np.int64)]
        else:
            strings = np.array([f"{value:g}" for value in self.numbers(name)[rows].tolist()])
        return strings

    def gaps(self, name: str) -> np.ndarray:
        """The rows in which a column has no value, (N,)."""
        missing: np.ndarray
        missing = self.texts(name)[1] < 0 if self.is_text(name) else np.isnan(self.numbers(name))
        return missing

    def clients(self) -> Coded | None:
        """The clients' names and each row's position among them; None: no column names them."""
        names = self.facts.client
        return reduce(_both, map(self.texts, names)) if names else None

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


def _both(first: Coded, second: Coded) -> Coded:
    """The pairs of two columns of strings that occur, as one."""
    (names, codes), (further, others) = first, second
    known = (codes >= 0) & (others >= 0)
    pairs, position = np.unique(codes[known] * len(further) + others[known], return_inverse=True)
    both = np.full(len(codes), -1, np.int64)
    both[known] = position
    joined = [f"{names[pair // len(further)]}/{further[pair % len(further)]}" for pair in pairs]
    return np.array(joined, dtype=str), both
