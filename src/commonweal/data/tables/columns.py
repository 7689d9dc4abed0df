"""The columns of a table of any length: what they hold, and their numbers or codes in the cache.

The first pass over the file counts the rows and finds out what each column holds; the second fills
the arrays: numbers (days of dates), and codes of strings. What they become as features is fitted
on training rows later.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pydantic

from commonweal.base.errors import DataError, did_you_mean
from commonweal.data.sources.cache import New, cached, write_arrays
from commonweal.data.split import check_without, repeated
from commonweal.data.tables import plain_table
from commonweal.data.tables.files import Batch, Batches
from commonweal.data.tables.plain_table import PlainColumn
from commonweal.data.tables.preprocessing import ID

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
FREE_WORDS = 3  # words of a string, on average, from which strings that differ are free text
FREE_TEXT = "it looks like free text"  # why a column is left out
MOST_ODD = 3  # different strings in a column of numbers or dates, which count as missing
LEAST_NUMBERS = 20  # different numbers or dates of such a column
MOSTLY = 0.8  # of the strings are numbers or dates: the column is no list of categories
LOOKED_AT = 1000  # strings in which units and notations are looked for
LEAST_UNITS = 0.05  # of these strings have a unit, so that the others are read without it
COMPARED = 1_000_000  # rows of a table that are compared with each other
UNITS = re.compile(  # of numbers, which may follow them without a space
    "[kmµunp]?[gGlLms]|[kcdm]m|[mdn]?mol|lbs?|oz|in|ft|h|min|d|days?|years?|[°µ%€$£¥].*"
)
FIRST_DAY, LAST_DAY = 19000101, 21001231  # of dates that are written as one number


@dataclass(frozen=True)
class Roles:
    """The roles of columns of a table; all others are features."""

    label: str  # the column of labels, or of survival times "time,event" or "time,event=value"
    client: str | None = None  # or several with commas, which name a client together
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()  # columns that look like ids, but are not
    categories: tuple[str, ...] = ()  # columns of whole numbers that are codes
    order: str = ""  # the column by which the last rows of a client are its test rows
    split: str = ""  # the column that says which rows are test rows
    missing: tuple[str, ...] = ()  # what means a missing value, as "column=999"
    without: tuple[str, ...] = ()  # clients whose rows are not read


def names_in(names: Names) -> tuple[str, ...]:
    """Names in a list, or in a string with commas."""
    if not isinstance(names, str):
        return tuple(names)
    parts = names.strip().removeprefix("[").removesuffix("]").split(",")
    return tuple(part.strip().strip("'\"") for part in parts if part.strip())


# What a column holds

NUMBERS = tuple(plain_table.notations(PlainColumn("", "number")))
TRUTHS = plain_table.notations(PlainColumn("", "boolean"))
DATES = tuple(plain_table.notations(PlainColumn("", "date")))
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
    """Return whether digits are no number: 01234 is a code, and float64 cannot hold 16 of them.

    01 is one where all strings have two digits.
    """
    import pyarrow
    from pyarrow import compute

    if not pyarrow.types.is_string(values.type):
        return False
    codes = compute.match_substring_regex(values, r"^\s*(0\d{3,}|\d{16,})\s*$")
    if compute.any(codes).as_py():
        return True
    lengths = compute.min_max(compute.utf8_length(values)).as_py()
    same = lengths["min"] == lengths["max"] and (lengths["min"] or 0) > 1
    digits = compute.match_substring_regex(values, r"^\d+$")
    first = compute.starts_with(values, "0")
    return bool(same and compute.all(digits).as_py() and compute.any(first).as_py())


def _encode(
    values: "pyarrow.Array",
    known: dict[str, int],
    is_number: bool = False,
    missing: Collection[str] = (),
) -> np.ndarray:
    """The codes of strings, which are numbered in `known` as they come; -1: missing."""
    import pyarrow

    coded = values.cast(pyarrow.string()).dictionary_encode()
    codes = []
    for text in map(plain_table.stripped, coded.dictionary.to_pylist()):
        if "\0" in text:
            raise DataError(f"the table has NUL bytes, as in {text[:60]!r}: the file is damaged")
        name = plain_table.plain_code(text) if is_number else text  # 7.0 is written as 7
        is_gap = plain_table.is_missing(text) or text in missing
        codes.append(-1 if is_gap else known.setdefault(name, len(known)))
    indices = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    encoded: np.ndarray = np.array([*codes, -1], np.int32)[indices]
    return encoded


@dataclass(frozen=True)
class Profile:
    """The contents of a column of a table."""

    column: PlainColumn  # before any fit
    rows: int
    gaps: int  # rows without a value
    whole: bool  # all numbers are whole
    ambiguous: bool  # dates day first or month first; commas before decimals or thousands
    different: int  # values in the first batch
    first_rows: int  # rows of the first batch
    numbers_rows: bool = False  # 0, 1, 2, ... in any order, or in a long table from another number
    mixture: str = ""  # why strings that look like numbers or dates are read as neither
    is_useless: bool = False  # such strings are no categories either
    is_prose: bool = False  # strings of several words
    some_bare: bool = False  # some numbers lack the unit of the others

    @property
    def name(self) -> str:
        return self.column.name

    @property
    def mostly_differs(self) -> bool:
        """True if strings or codes differ in most rows."""
        return self.different > max(50, FREE_SHARE * self.first_rows)

    @property
    def is_id(self) -> bool:
        """True if it names rows: by its name, its order, or strings that mostly differ."""
        named = self.different > max(20, ID_SHARE * self.first_rows)
        named = named and bool(ID_NAME.search(self.name))
        if self.column.becomes == "number":
            return (named and self.whole) or self.numbers_rows
        return self.column.becomes == "text" and (named or self.mostly_differs)

    @property
    def why_left_out(self) -> str:
        """The reason why it is no feature; empty: it is one."""
        if self.is_useless or (self.mixture and self.is_id):
            return self.mixture
        if not self.is_id:
            return ""
        return FREE_TEXT if self.is_prose else ID


def profile_strings(name: str, texts: Sequence[str]) -> Profile:
    """Profile a column of strings that is no file's."""
    import pyarrow

    scan = _Scan(name)
    scan.add(pyarrow.array(texts, pyarrow.string()))
    return scan.profile()


class _Scan:
    """The first pass over a column.

    Args:
        name: Its name.
        missing: What means a missing value in it.
    """

    def __init__(self, name: str, missing: tuple[str, ...] = ()) -> None:
        self.name = name
        self.missing = missing
        self.gaps = 0
        self.rows = 0
        self.whole = True
        self.possible = [replace(column, missing_as=missing) for column in CANDIDATES]
        self.different = 0
        self.first_rows = 0
        self.low, self.high = np.inf, -np.inf
        self.is_day = True  # numbers such as 20260131
        self.has_comma = False  # strings with a comma, and without
        self.has_none = False
        self.spelled: dict[str, str] = {}  # words in lower case -> as they are written first
        self.mixture = ""
        self.is_useless = False
        self.is_prose = False
        self.some_bare = False

    def add(self, values: "pyarrow.Array") -> None:
        first = self.first_rows == 0
        self.rows += len(values)
        if values.null_count == len(values) or (not first and not self.possible):
            self.gaps += values.null_count
            return
        if first and _has_codes(values):
            self.possible = [c for c in self.possible if c.becomes != "number"]
        numbers = _cast(values) if self._may_be_plain else None
        if numbers is None:
            texts: dict[str, int] = {}
            self.gaps += int((_encode(values, texts, missing=self.missing) < 0).sum())
            self._add_texts(list(texts), first)
        else:
            known = numbers[~np.isnan(numbers) & ~np.isin(numbers, _as_numbers(self.missing))]
            self.gaps += len(values) - len(known)
            self.possible = [c for c in self.possible if c.becomes == "number"]
            self._measure(known)
            self.is_day = self.is_day and self.whole and _are_days(known)
        if first:
            self.different = len(texts) if numbers is None else len(np.unique(known))
            self.first_rows = len(values)

    def _measure(self, numbers: np.ndarray) -> None:
        self.whole = self.whole and bool((numbers == np.round(numbers)).all())
        self.low = min(self.low, float(numbers.min(initial=np.inf)))
        self.high = max(self.high, float(numbers.max(initial=-np.inf)))

    @property
    def _may_be_plain(self) -> bool:
        return bool(self.possible) and self.possible[0].becomes == "number"

    def _add_texts(self, texts: Sequence[str], first: bool) -> None:
        self.is_day = False
        with_comma = sum("," in text for text in texts)
        self.has_comma |= with_comma > 0
        self.has_none |= with_comma < len(texts)
        if first:
            units = Counter(filter(None, map(plain_table.unit_of, texts[:LOOKED_AT])))
            unit = max(units, key=lambda name: units[name], default="")
            if units[unit] > max(1, LEAST_UNITS * min(LOOKED_AT, len(texts))):
                with_unit = [replace(column, unit=unit) for column in NUMBERS]
                self.possible += [replace(column, missing_as=self.missing) for column in with_unit]
            self.is_prose = sum(map(str.count, texts, repeat(" "))) >= (FREE_WORDS - 1) * len(texts)
        possible = []
        for column in self.possible:
            odd = _odd(column, texts, self.missing)
            if odd is not None:
                possible.append(replace(column, missing_as=odd))
        if self.possible and not possible:
            self.mixture, self.is_useless = _mixture(texts)
        self.possible = possible
        if self._may_be_plain:
            self.some_bare |= not all(map(plain_table.unit_of, texts))
            numbers = np.array([plain_table.parse_number(possible[0], text) for text in texts])
            self._measure(numbers[~np.isnan(numbers)])
        if any(column.becomes == "boolean" for column in possible):
            for text in texts:
                self.spelled.setdefault(text.lower(), text)

    def profile(self) -> Profile:
        column = self._column()
        other = {"day-month-year": "month-day-year", "day first": "month first"}.get(column.order)
        twofold = replace(column, name="", order=other) in self.possible if other else False
        each_differs = self.gaps == 0 and self.different == self.first_rows
        span = self.high - self.low + 1
        long_enough = self.rows >= (20 if self.low in (0, 1) else LONG)
        return Profile(
            column,
            self.rows,
            self.gaps,
            self.whole,
            twofold or self._may_group(column),
            self.different,
            self.first_rows,
            self.whole and each_differs and span == self.rows and long_enough,
            self.mixture if column.becomes == "text" else "",
            self.is_useless and column.becomes == "text",
            self.is_prose,
            bool(column.unit) and self.some_bare,
        )

    def _column(self) -> PlainColumn:
        text = PlainColumn(self.name, "text", missing_as=self.missing)
        if self.gaps == self.rows:
            return text
        if self._may_be_plain and self.whole and self.is_day:
            return PlainColumn(self.name, "date", order="yearmonthday", missing_as=self.missing)
        declared = len(self.missing)
        for column in sorted(self.possible, key=lambda column: len(column.missing_as)):
            odd = len(column.missing_as) - declared
            if odd and self.different <= LEAST_NUMBERS + odd:
                continue
            if self.has_none and self._may_group(column):
                column = replace(column, decimal=plain_table.GROUPED)  # 1,000 and 20
            if column.becomes == "boolean":
                no, yes = column.words
                words = self.spelled.get(no, no), self.spelled.get(yes, yes)
                column = replace(column, words=words)
            return replace(column, name=self.name)
        return text

    def _may_group(self, column: PlainColumn) -> bool:
        """Return whether decimal commas may be those of thousands: three digits follow each."""
        grouped = replace(column, name="", decimal=plain_table.GROUPED)
        return column.decimal == "," and self.has_comma and grouped in self.possible


def _are_days(numbers: np.ndarray) -> bool:
    """Return whether whole numbers are dates such as 20260131."""
    month, day = numbers // 100 % 100, numbers % 100
    valid = (numbers >= FIRST_DAY) & (numbers <= LAST_DAY)
    return bool((valid & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)).all())


def _as_numbers(texts: Collection[str]) -> list[float]:
    return [float(text) for text in texts if plain_table.is_number(text)]


def _odd(
    column: PlainColumn, texts: Collection[str], missing: Sequence[str]
) -> tuple[str, ...] | None:
    """The strings that a column does not explain, if they are few; None: many.

    missing: those that are missing values anyway
    """
    most = len(missing) + (0 if column.becomes == "boolean" else MOST_ODD)
    odd = list(column.missing_as)
    for text in texts:
        if not plain_table.strings_fit(column, [text]):
            odd.append(text)
        if len(odd) > most:
            return None
    return tuple(odd)


def _unit(text: str) -> str:
    """The unit of a number, unless it may be part of a code such as 12A."""
    unit = plain_table.unit_of(text)
    return unit if f" {unit}" in text or UNITS.fullmatch(unit) else ""


def _mixture(texts: Sequence[str]) -> tuple[str, bool]:
    """Why strings that look like numbers or dates are read as neither; empty: they do not.

    Returns:
        The reason, and whether the strings make no categories, either.
    """
    texts = texts[:LOOKED_AT]
    enough = max(LEAST_NUMBERS, MOSTLY * len(texts))
    units = Counter(filter(None, map(_unit, texts)))
    plain = [text for text in texts if any(plain_table.strings_fit(n, [text]) for n in NUMBERS)]
    if len(plain) + units.total() >= enough:
        if len(units) > 1:
            shown = ", ".join(unit for unit, _ in units.most_common(3))
            return f"its numbers have different units ({shown}): write them in one", True
        notations = [[t for t in plain if plain_table.strings_fit(n, [t])] for n in NUMBERS]
        best = max(notations, key=len)
        others = [text for text in plain if text not in best]
        if others:
            shown = f"{best[0]!r} and {others[0]!r}" if best else repr(others[0])
            return f"its numbers are in several notations, such as {shown}: write them alike", True
        odd = [text for text in texts if text not in plain and not _unit(text)]
        if odd:
            shown = f"{len(odd)} different strings, such as {odd[0][:20]!r}"
            return f"{shown}, stand among its numbers: correct them, or declare missing", False
    orders = {}
    for column in DATES:
        orders[column.order] = [t for t in texts if plain_table.strings_fit(column, [t])]
    if len(set().union(*orders.values())) >= enough:
        shown = " and ".join(repr(read[0]) for read in orders.values() if read)
        return f"its dates contradict each other, such as {shown}: write 2026-11-16", True
    return "", False


@dataclass(frozen=True)
class Survey:
    """The rows of a table, and what its columns hold."""

    rows: int
    profiles: Mapping[str, Profile]
    repeated: int = 0  # rows that are the same as an earlier one, of tables that are not too long

    def check(self, purpose: str, names: Sequence[str]) -> None:
        """Raise DataError unless the table has these columns. purpose: what they are for"""
        for name in names:
            if name not in self.profiles:
                hint = did_you_mean(name, self.profiles)
                raise DataError(f"{purpose} = {name!r}: there is no such column; {hint}")


def survey(batches: Batches, missing: Sequence[str] = ()) -> Survey:
    """Look at all rows once. missing: what means a missing value, as "column=999" """
    rows = 0
    declared: dict[str, tuple[str, ...]] = {}
    for entry in missing:
        name, _, value = entry.rpartition("=")
        declared[name] = (*declared.get(name, ()), value)
    scans: dict[str, _Scan] = {}
    hashes: list[np.ndarray] = []
    for batch in batches():
        scans = scans or {name: _Scan(name, declared.get(name, ())) for name in batch}
        if set(batch) != set(scans):
            some = sorted(set(batch) ^ set(scans))[:5]
            raise DataError(
                f"files with different columns: not all have {some}; columns = 'union' takes all "
                "columns, as missing values where a file lacks them"
            )
        rows += len(next(iter(batch.values())))
        for name, values in batch.items():
            scans[name].add(values)
        if rows <= COMPARED:
            hashes.append(_row_hashes([batch[name] for name in scans]))
    if rows == 0:
        raise DataError("the table has no rows: check the file")
    if len(scans) == 1:
        raise DataError(
            f"the table has one column, {next(iter(scans))[:60]!r}: it needs a label and features; "
            "if another sign than , ; | or tab sets its columns apart, say separator = ..."
        )
    repeated = rows - len(np.unique(np.concatenate(hashes))) if rows <= COMPARED else 0
    return Survey(rows, {name: scan.profile() for name, scan in scans.items()}, repeated)


def _row_hashes(columns: Sequence["pyarrow.Array"]) -> np.ndarray:
    """A hash of each row (n,), of all its values as they are written."""
    total = np.zeros(len(columns[0]), np.uint64)
    for values in columns:
        coded = values.dictionary_encode()
        own = np.array([*map(hash, coded.dictionary.to_pylist()), 0]).astype(np.uint64)
        codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        total = total * np.uint64(0x9E3779B97F4A7C15) + own[codes]
        total ^= total >> np.uint64(29)
    return total


# Columns with a role


@dataclass(frozen=True)
class Facts:
    """The columns of a table that have a role."""

    roles: Roles
    label: str
    event: str | None  # of survival times
    happened: str  # the value of `event` that means that there was one; empty: not given
    client: tuple[str, ...]  # the columns that name clients together

    @classmethod
    def of(cls, table: Survey, roles: Roles) -> "Facts":
        """Find the columns. Raises DataError where one is not there."""
        label, *further = columns_in(roles.label, table)
        if len(further) > 1:
            raise DataError(f"label = {roles.label!r}: name one column, or two, time and event")
        event, happened = further[0] if further else None, ""
        if event is not None and event not in table.profiles:
            event, _, happened = event.partition("=")
        given = roles.client
        if given is None and CLIENT in table.profiles:
            given = CLIENT
        client = () if given is None else columns_in(given, table)
        table.check("label", [label])
        if event is not None and event not in table.profiles:
            some = list(table.profiles)[:10]
            raise DataError(f"label names the events {event!r}, which is no column: {some}")
        table.check("client", client)
        table.check("drop", roles.drop)
        table.check("keep", roles.keep)
        table.check("categories", roles.categories)
        table.check("missing", [entry.rpartition("=")[0] for entry in roles.missing])
        table.check("order", [roles.order] if roles.order else [])
        table.check("split", [roles.split] if roles.split else [])
        facts = cls(roles, label, event, happened, client)
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
        names = (self.label, self.event, *self.client, self.roles.split)
        return tuple(filter(None, names))

    def left_out(self, table: Survey) -> dict[str, str]:
        """The columns that are no features, and why."""
        used = (*self.no_features, *self.roles.keep, *self.roles.categories)
        reasons = {name: profile.why_left_out for name, profile in table.profiles.items()}
        why = {name: reason for name, reason in reasons.items() if reason and name not in used}
        dropped = [name for name in self.roles.drop if name not in self.no_features]
        return why | dict.fromkeys(dropped, "dropped")


def columns_in(names: str, table: Survey) -> tuple[str, ...]:
    """The columns that a string names: one, whose name may have commas, or several."""
    return (names,) if names in table.profiles else names_in(names) or (names,)


# The second pass


def _fill(
    new: New,
    batches: Batches,
    rows: int,
    plain: Sequence[PlainColumn],
    coded: Sequence[PlainColumn],
    clients: Sequence[str],
) -> None:
    """Write the columns' numbers and codes, and `texts`, the strings that have these codes."""
    numbers = new("numbers", (len(plain), rows), np.float64)
    codes = new("codes", (len(coded), rows), np.int32)
    known: list[dict[str, int]] = [{} for _ in coded]
    start = 0
    for batch in batches():
        part = slice(start, start + len(next(iter(batch.values()))))
        for column, values in zip(plain, numbers, strict=True):
            values[part] = _numbers(column, batch[column.name])
        for column, values, texts in zip(coded, codes, known, strict=True):
            if len(texts) <= MANY or column.name in clients:
                is_number = column.becomes == "number"
                values[part] = _encode(batch[column.name], texts, is_number, column.missing_as)
        start = part.stop
    for values, texts in zip(codes, known, strict=True):
        rank = np.full(len(texts) + 1, -1, np.int32)  # alphabetical; code -1 stays what it is
        rank[list(map(texts.__getitem__, sorted(texts)))] = np.arange(len(texts))
        values[...] = rank[values]
    write_arrays(new, texts=_array(json.dumps(list(map(sorted, known))).encode()))


def _numbers(column: PlainColumn, values: "pyarrow.Array") -> np.ndarray:
    """The numbers of a batch of a column that holds numbers, truths or dates; NaN: missing."""
    is_plain = column.becomes == "number" and column.decimal == "."
    cast = _cast(values) if is_plain else None
    if cast is not None:
        gaps = _as_numbers(column.missing_as)
        return np.where(np.isin(cast, gaps), np.nan, cast) if gaps else cast
    texts: dict[str, int] = {}
    codes = _encode(values, texts)
    parse = partial(plain_table.parse_number, column)
    numbers: np.ndarray = np.array([*map(parse, texts), np.nan])[codes]
    return numbers


# From the cache

_SURVEY = pydantic.TypeAdapter(Survey)


def _array(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8)


def read_survey(file: Path, batches: Batches, options: str, missing: Sequence[str] = ()) -> Survey:
    """Profile a file's columns, from the cache if it was read before.

    options: by which `batches` read it; missing: what means a missing value, as "column=999"
    """
    if not file.is_file():
        next(batches())  # raises what is wrong with it

    def parse(new: New) -> None:
        write_arrays(new, survey=_array(_SURVEY.dump_json(survey(batches, missing))))

    arrays = cached("survey", [file], parse, repr((options, missing)) if missing else options)
    return _SURVEY.validate_json(arrays["survey"].tobytes())


def read_table(file: Path, batches: Batches, roles: Roles, options: str) -> "Table":
    """A table, from the cache if it was read before.

    options: by which `batches` read the file, or the folder of files
    """
    if roles.without:
        whole = read_table(file, batches, replace(roles, without=()), options)
        batches = partial(remaining, batches, whole.others(roles.without))
        options = f"{options} without {roles.without}"
    seen = read_survey(file, batches, options, roles.missing)
    facts = Facts.of(seen, roles)
    left_out = facts.left_out(seen)
    plain: list[PlainColumn] = []
    coded: list[PlainColumn] = []
    columns = {name: profile.column for name, profile in seen.profiles.items()}
    for name, column in columns.items():
        if name not in left_out or name == roles.order:
            is_coded = column.becomes == "text" or name in (*facts.client, *roles.categories)
            (coded if is_coded else plain).append(column)

    def parse(new: New) -> None:
        _fill(new, batches, seen.rows, plain, coded, facts.client)

    arrays = cached("table", [file], parse, repr((roles, options)))
    texts: dict[str, Coded] = {}
    strings = json.loads(arrays["texts"].tobytes())
    for column, own, codes in zip(coded, strings, np.asarray(arrays["codes"]), strict=True):
        texts[column.name] = np.array(own, dtype=str), codes
        columns[column.name] = PlainColumn(column.name, "text", missing_as=column.missing_as)
        if len(own) > MANY and column.name not in facts.client:
            left_out[column.name] = f"it has more than {MANY:,} different strings"
    for name, why in left_out.items():
        columns[name] = PlainColumn(name, "nothing", why, is_id=why in (ID, FREE_TEXT))
    profiles = {name: replace(p, column=columns[name]) for name, p in seen.profiles.items()}
    numbers = {}
    for column, values in zip(plain, np.asarray(arrays["numbers"]), strict=True):
        numbers[column.name] = values
    return Table(facts, seen.rows, profiles, numbers, texts, seen.repeated)


def remaining(batches: Batches, mask: np.ndarray) -> Iterator[Batch]:
    """Yield the rows of a file for which a mask (n,) is true, some at a time."""
    import pyarrow

    start = 0
    for batch in batches():
        end = start + len(next(iter(batch.values())))
        chosen = pyarrow.array(mask[start:end])
        if mask[start:end].any():
            yield {name: values.filter(chosen) for name, values in batch.items()}
        start = end


@dataclass(frozen=True, eq=False)
class Table:
    """The columns of a table: what they hold, and their numbers or codes."""

    facts: Facts
    rows: int
    profiles: Mapping[str, Profile]
    stored_numbers: Mapping[str, np.ndarray]
    stored_texts: Mapping[str, Coded]
    repeated: int = 0  # rows that are the same as an earlier one

    @property
    def label(self) -> str:
        return self.facts.label

    def column(self, name: str) -> PlainColumn:
        """Return the kind of a column, before any fit."""
        return self.profiles[name].column

    def numbers(self, name: str) -> np.ndarray:
        return self.stored_numbers[name]

    def texts(self, name: str) -> Coded:
        """The different strings of a column, and each row's position among them; -1: missing."""
        return self.stored_texts[name]

    def is_text(self, name: str) -> bool:
        """Return whether a column is stored as codes of strings."""
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

    def others(self, without: Sequence[str]) -> np.ndarray:
        """A mask (n,) of the rows of other clients than these. Raises ConfigError for no client."""
        names, codes = self.clients() or (np.array([], dtype=str), np.array([]))
        check_without(without, names.tolist())
        mask: np.ndarray = ~np.isin(codes, np.flatnonzero(np.isin(names, without)))
        return mask

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
    first_of_pair = codes[known].astype(np.int64)  # their product has more digits
    pair = first_of_pair * len(further) + others[known]
    pairs, position = np.unique(pair, return_inverse=True)
    both = np.full(len(codes), -1, np.int64)
    both[known] = position
    joined = [f"{names[pair // len(further)]}/{further[pair % len(further)]}" for pair in pairs]
    return np.array(joined, dtype=str), both
