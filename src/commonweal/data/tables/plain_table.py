"""From a table's strings to a model's numbers, in plain Python and numpy.

This file imports nothing of the library that trained the model: exports carry a copy of it.
"""

import csv
import gzip
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from itertools import islice
from typing import Literal

import numpy as np

OTHER = "other"  # the level of strings that are not among the levels
GAP = "missing"  # the level of missing strings
MISSING = (
    *("", "?", "-", "--", ".", "NA", "N/A", "n/a", "na", "n.a.", "N.A.", "k.A.", "#N/A", "<NA>"),
    *("NaN", "nan", "NaT", "NULL", "null", "#NULL!", "#DIV/0!", "#VALUE!"),
)  # words such as None are categories, unless `missing_as` has them
TRUTH = (  # false and true, in lower case
    ("false", "true"),
    ("no", "yes"),
    ("n", "y"),
    ("f", "t"),
    ("nein", "ja"),
    ("falsch", "wahr"),
    ("non", "oui"),
    ("nie", "tak"),
    ("no", "si"),
    ("no", "sí"),
    ("no", "sì"),
    ("não", "sim"),
    ("nee", "ja"),
    ("nej", "ja"),
    ("ne", "ano"),
)
DATES = {  # the order of year, month and day -> how such a date begins
    "year-month-day": re.compile(r"(?P<year>\d{4})[-/.](?P<month>\d\d?)[-/.](?P<day>\d\d?)"),
    "day-month-year": re.compile(
        r"(?P<day>\d\d?)(\. |[-/. ])(?P<month>\d\d?|[^\W\d_]{3,9})\.?[-/. ](?P<year>\d{4}|\d\d)"
    ),
    "month-day-year": re.compile(
        r"(?P<month>\d\d?|[^\W\d_]{3,9})\.?[-/. ](?P<day>\d\d?)(, |[-/. ])(?P<year>\d{4}|\d\d)"
    ),
    "yearmonthday": re.compile(r"(?P<year>(19|20)\d\d)(?P<month>\d\d)(?P<day>\d\d)(\.0)?"),
}
MONTHS = (  # how their names begin: in English, German, French, Spanish, Italian and Polish
    *("jan ene gen sty", "feb fév fev lut", "mar mär mrz", "apr avr abr kwi", "may mai mag maj"),
    *("jun juin giu cze", "jul juil lug lip", "aug aoû aou ago sie", "sep set wrz"),
    *("oct okt ott paź paz", "nov lis", "dec dez déc dic gru"),
)
MIXED = {  # dates in several notations: that of a numbered day and month, and those of no doubt
    "day first": ("day-month-year", "month-day-year"),
    "month first": ("month-day-year", "day-month-year"),
}
CENTURY = 69  # two digits of a year from here on are of the 20th century, as in POSIX
TIME = re.compile(
    r"([T ](?P<hour>[01]?\d|2[0-4]):(?P<minute>[0-5]\d)(:(?P<second>[0-6]\d(\.\d+)?))?"
    r"\s*(?P<half>[AaPp][Mm])?)?\s*(Z|UTC|(?P<zone>[-+](0\d|1[0-4]))(:?(?P<shift>[0-5]\d))?)?"
)
INVISIBLE = "\ufeff\u200b\u2060"  # byte order marks of joined files, and spaces of no width
GROUPED = ".,"  # decimal points, and thousands that are set apart
NOTATIONS = {  # by `Column.decimal`: how numbers are written, and what sets their thousands apart
    ".": (re.compile("[^_]*"), "_"),  # Python reads 1_000
    ",": (
        re.compile(r"[-+]?(\d+|[1-9]\d{0,2}([. \u00a0\u202f]\d{3})+)(,\d+)?([eE][-+]?\d+)?"),
        r"[. \u00a0\u202f]",
    ),
    GROUPED: (
        re.compile(r"[-+]?(\d+|[1-9]\d{0,2}([,' \u00a0\u202f]\d{3})+)(\.\d+)?"),
        r"[,' \u00a0\u202f]",
    ),
}
LARGEST = 1e30  # a feature: a model of float32 gives no numbers far beyond it
FAR = 0.5  # of the training rows' range, by which a value may lie outside
UNIT = re.compile(  # of a number in the same cell: 70.5 kg, 95 %, $1,234
    r"(?P<currency>[$€£¥]|[A-Z]{3}(?= ))?[-+ ]*\d[\d.,' \u00a0\u202f]*"
    r"(?P<unit>[^\W\d_][^\d,;]*|[°µ%€$£¥]\S*)?"
)
WHOLE = re.compile(r"([-+]?\d+)[.,]0+")
SEPARATOR_LINE = re.compile(r"sep=.\s*")
SEPARATORS = (",", ";", "\t", "|")
YEAR = 365.2425  # days
EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True)
class PlainColumn:
    """The preparation of a column. `becomes` decides which of the other fields have a use."""

    name: str
    becomes: Literal["number", "boolean", "date", "text", "nothing"]
    why: str = ""  # of "nothing": why it is left out
    is_id: bool = False  # of "nothing": whether it names the rows
    decimal: str = "."  # of a number: a key of NOTATIONS
    unit: str = ""  # of a number: what stands before or after it in every row
    missing_as: tuple[str, ...] = ()  # strings and numbers that mean a missing value
    words: tuple[str, str] = ("false", "true")  # of a boolean
    order: str = ""  # of a date: a key of DATES or of MIXED
    mean: float = 0.0  # of the training rows' known values
    deviation: float = 1.0
    median: float = 0.0  # replaces a missing value
    indicator: bool = False  # whether a further feature marks missing values
    low: float | None = None  # the range of the training rows' values, where it is known
    high: float | None = None
    levels: tuple[str, ...] = ()  # of a text
    other: bool = False  # whether there is a level for strings that are not among the levels
    missing: bool = False  # whether there is a level for missing strings
    optional: bool = False  # some clients have no such column, and neither may new tables

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", tuple(self.words))  # JSON has lists
        object.__setattr__(self, "levels", tuple(self.levels))
        object.__setattr__(self, "missing_as", tuple(self.missing_as))


# Strings to numbers


def stripped(text: str) -> str:
    """A string without spaces and invisible characters at its ends."""
    return text.strip().strip(INVISIBLE).strip()


def is_missing(text: str) -> bool:
    return stripped(text) in MISSING


def _number(text: str, decimal: str = ".") -> float:
    pattern, between = NOTATIONS[decimal]
    if not pattern.fullmatch(text):
        raise ValueError(text)
    if decimal != ".":
        text = re.sub(between, "", text).replace(",", ".")
    value = float(text)
    return value if math.isfinite(value) else math.nan


def plain_code(text: str) -> str:
    """A whole number as its digits; any other string as it is.

    >>> plain_code("7.0"), plain_code("007"), plain_code("7.5"), plain_code("ward 7")
    ('7', '007', '7.5', 'ward 7')
    """
    whole = WHOLE.fullmatch(text)
    return whole[1] if whole else text


def _days(text: str, order: str) -> float:
    """Days since 1 January 1970."""
    if order in MIXED:
        return _days(text, _order_of(text, *MIXED[order]))
    date = DATES[order].match(text)
    time = TIME.fullmatch(text, date.end()) if date else None
    if date is None or time is None:
        raise ValueError(text)
    year = int(date["year"])
    if len(date["year"]) == 2:
        if date["month"].isdigit() and text[len(date["day"])] == "-":
            raise ValueError(text)  # 21-04-05 may begin with the year
        year += 1900 if year >= CENTURY else 2000
    day = datetime(year, _month(date["month"]), int(date["day"]))
    return (day - EPOCH).days + _seconds(time) / 86400


def _order_of(text: str, usual: str, other: str) -> str:
    """The order of a single date among dates in several notations."""
    for order in ("year-month-day", "yearmonthday"):
        if DATES[order].match(text):
            return order
    named = DATES[other].match(text)  # 16 Nov 2024 and Nov 16, 2024 cannot be mistaken
    return other if named and not named["month"].isdigit() else usual


def _seconds(time: re.Match[str]) -> float:
    """Seconds since midnight, in universal time where a time zone is given."""
    hours, minutes = int(time["hour"] or 0), int(time["minute"] or 0)
    if time["half"]:
        hours = hours % 12 + 12 * (time["half"].lower() == "pm")
    hours -= int(time["zone"] or 0)
    minutes -= int(f"{(time['zone'] or '+')[0]}{time['shift'] or 0}")
    return 3600 * hours + 60 * minutes + float(time["second"] or 0)


def _month(text: str) -> int:
    if text.isdigit():
        return int(text)
    for number, names in enumerate(MONTHS, 1):
        if text.lower().startswith(tuple(names.split())):
            return number
    raise ValueError(text)


def parse_number(column: PlainColumn, text: str) -> float:
    """A string of a column as a number, NaN where it is missing.

    Raises:
        ValueError: It is none.
    """
    text = stripped(text)
    if text in MISSING or text in column.missing_as:
        return math.nan
    if column.becomes == "boolean":
        return float([word.lower() for word in column.words].index(text.lower()))
    if column.becomes == "date":
        return _days(text, column.order)
    if column.becomes != "number":
        raise ValueError(f"column {column.name!r} is {column.becomes}, which has no numbers")
    if column.unit:
        text = text.removesuffix(column.unit).removeprefix(column.unit).strip()
    value = _number(text, column.decimal)
    return math.nan if value in _missing_numbers(column.missing_as) else value


@cache
def _missing_numbers(missing_as: tuple[str, ...]) -> list[float]:
    return [_number(text) for text in missing_as if is_number(text)]


def is_number(text: str) -> bool:
    """Return whether a string is a number in plain notation."""
    return strings_fit(PlainColumn("", "number"), [text])


def unit_of(text: str) -> str:
    """Return what stands before or after a number; empty: nothing, or it is not a number.

    >>> unit_of("70.5 kg"), unit_of("95%"), unit_of("$1,234"), unit_of("ward 7"), unit_of("7")
    ('kg', '%', '$', '', '')
    """
    parts = UNIT.fullmatch(text.strip())
    if parts is None or (parts["currency"] and parts["unit"]):
        return ""
    return (parts["currency"] or parts["unit"] or "").strip()


def _values(column: PlainColumn, texts: Sequence[str]) -> np.ndarray:
    """A column's numbers (n,), or the positions of its levels."""
    different = list(dict.fromkeys(texts))
    is_text = column.becomes == "text"
    values = level_positions(column, different)[:-1] if is_text else _parsed(column, different)
    by_text = dict(zip(different, values, strict=True))
    return np.array(list(map(by_text.__getitem__, texts)))


def _parsed(column: PlainColumn, texts: Sequence[str]) -> list[float]:
    """The numbers of strings, in the training rows' notation or, if all fit it, in another."""
    readings = []
    for notation in notations_of(column, texts):
        readings.append([parse_number(notation, text) for text in texts])
    if not readings:
        wrong = next(text for text in texts if not strings_fit(column, [text]))
        raise ValueError(
            f"column {column.name!r}: {wrong!r} is not a {column.becomes}, but the training rows "
            "hold only those: correct it, or leave it empty"
        )
    for values in readings[1:]:
        for text, one, other in zip(texts, readings[0], values, strict=True):
            if one != other and not (math.isnan(one) and math.isnan(other)):
                raise ValueError(
                    f"column {column.name!r}: {text!r} can be read in two ways: write it as in the "
                    "training rows"
                )
    return readings[0]


def notations_of(column: PlainColumn, texts: Sequence[str]) -> list[PlainColumn]:
    """The column in the training rows' notation, or else in all others that the strings fit."""
    if strings_fit(column, texts):
        return [column]
    return [notation for notation in notations(column) if strings_fit(notation, texts)]


def strings_fit(column: PlainColumn, texts: Iterable[str]) -> bool:
    """Return whether all strings can be read as what the column holds."""
    try:
        for text in texts:
            parse_number(column, text)
    except ValueError:
        return False
    return True


def notations(column: PlainColumn) -> Iterator[PlainColumn]:
    """The column in all notations: of decimals with and without its unit, dates, yes and no."""
    if column.becomes == "number":
        for unit in dict.fromkeys((column.unit, "")):
            for decimal in NOTATIONS:
                yield replace(column, decimal=decimal, unit=unit)
    elif column.becomes == "date":
        for order in (*DATES, *MIXED):
            yield replace(column, order=order)
    elif column.becomes == "boolean":
        for words in (*TRUTH, ("0", "1")):
            yield replace(column, words=words)


def level_positions(column: PlainColumn, texts: Sequence[str]) -> np.ndarray:
    """The position of each string among a column's levels, and last that of a missing value.

    Training and prediction both use this mapping. A position of -1 means that there is no level.

    >>> city = PlainColumn("city", "text", levels=("Bonn", "Ulm", "other"), other=True)
    >>> level_positions(city, ["Ulm", "Rome"]).tolist()
    [1, 2, 2]
    """
    position = dict(zip(column.levels, range(len(column.levels)), strict=True))
    unknown = position.get(OTHER, -1) if column.other else -1
    missing = position.get(GAP, unknown) if column.missing else unknown
    positions = []
    for text in map(stripped, texts):
        level = text if text in position else plain_code(text)
        is_gap = is_missing(text) or text in column.missing_as
        positions.append(missing if is_gap else position.get(level, unknown))
    return np.array([*positions, missing], dtype=np.int64)


# Numbers to features


def column_names(column: PlainColumn) -> list[str]:
    """The names of a column's features."""
    name = column.name
    if column.becomes == "nothing":
        return []
    if column.becomes == "text":
        return [f"{name} = {level}" for level in column.levels]
    names = [name]
    if column.becomes == "date":
        names += [f"{name}: year sin", f"{name}: year cos"]
        names += [f"{name}: week sin", f"{name}: week cos"]
    if column.indicator:
        names.append(f"{name} is missing")
    return names


def column_features(column: PlainColumn, values: np.ndarray) -> np.ndarray:
    """A column's features (n, width), from its numbers or the positions of its levels."""
    if column.becomes == "nothing":
        return np.empty((len(values), 0))
    if column.becomes == "text":
        one_hot: np.ndarray = values[:, None] == np.arange(len(column.levels))
        return one_hot.astype(np.float64)
    gaps = np.isnan(values)
    filled = np.where(gaps, column.median, values)
    features = [(filled - column.mean) / column.deviation]
    if column.becomes == "date":
        for period, start in ((YEAR, 0.0), (7.0, 3.0)):  # 1 January 1970 was a Thursday
            angle = 2 * np.pi * (filled + start) / period
            features += [np.where(gaps, 0, np.sin(angle)), np.where(gaps, 0, np.cos(angle))]
    if column.indicator:
        features.append(gaps.astype(np.float64))
    return np.stack(features, 1)


def read_columns(preprocessing: Mapping[str, object]) -> list[PlainColumn]:
    """The columns of a preprocessing as JSON holds it."""
    columns = preprocessing["columns"]
    assert isinstance(columns, Sequence)
    return [PlainColumn(**fields) for fields in columns]


def prepare(columns: Sequence[PlainColumn], table: Mapping[str, Sequence[str]]) -> np.ndarray:
    """The features (n, d) of a table's rows. Columns that the model does not use are ignored."""
    used = [column for column in columns if column.becomes != "nothing"]
    needed = [column.name for column in used if not column.optional]
    missing = [name for name in needed if name not in table]
    if missing:
        raise ValueError(
            f"the table has no column {', '.join(map(repr, missing))}: the model needs it; its "
            f"columns are {', '.join(map(repr, table))}"
        )
    nothing = [""] * len(next(iter(table.values()), ()))
    parts = []
    for column in used:
        parts.append(column_features(column, _values(column, table.get(column.name, nothing))))
    features: np.ndarray = np.concatenate(parts, 1).clip(-LARGEST, LARGEST)
    return features.astype(np.float32)


# What predictions are listed with


def outside(columns: Sequence[PlainColumn], table: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """For each row, the columns whose value lies far outside the training rows' range."""
    rows: list[list[str]] = [[] for _ in next(iter(table.values()), [])]
    for column in columns:
        if column.low is None or column.high is None or column.name not in table:
            continue
        values = _values(column, table[column.name])
        margin = FAR * (column.high - column.low)
        far = (values < column.low - margin) | (values > column.high + margin)
        for row in np.flatnonzero(far).tolist():
            rows[row].append(column.name)
    return rows


def naming(preprocessing: Mapping[str, object], table: Mapping[str, Sequence[str]]) -> list[str]:
    """The columns of a table that say which row it is: clients and ids."""
    names = client_columns(preprocessing, table)
    for column in read_columns(preprocessing):
        if column.is_id and column.name in table:
            names.append(column.name)
    return names


def client_columns(preprocessing: Mapping[str, object], table: Mapping[str, object]) -> list[str]:
    """The columns that name a row's client together; empty where one is not there."""
    client = str(preprocessing.get("client") or "")
    names = [client] if client in table else list(map(str.strip, client.split(",")))
    return names if client and set(names) <= set(table) else []


def owners(
    preprocessing: Mapping[str, object], table: Mapping[str, Sequence[str]]
) -> list[str] | None:
    """The name of each row's client; None: the table does not say."""
    names = client_columns(preprocessing, table)
    if not names:
        return None
    rows = []
    for texts in zip(*map(table.__getitem__, names), strict=True):
        rows.append("/".join(map(plain_code, map(stripped, texts))))
    return rows


# CSV files


def names_separator(first: Sequence[str]) -> bool:
    """Return whether the first line says which separator follows, as Excel's `sep=;`."""
    return bool(first) and SEPARATOR_LINE.fullmatch(first[0]) is not None


def separator_of(lines: Sequence[str]) -> str:
    """The separator that splits the lines into the most columns, the same number in each."""
    if names_separator(lines[:1]):
        return lines[0][len("sep=")]
    best, columns = ",", 1
    for separator in SEPARATORS:
        counts = [len(row) for row in csv.reader(lines, delimiter=separator) if row]
        if counts and min(counts) == max(counts) > columns:
            best, columns = separator, counts[0]
    if columns == 1:  # lines of different lengths: trust the first
        best = max(SEPARATORS, key=lambda each: len(next(csv.reader(lines, delimiter=each), [])))
    return best


def header_names(line: Sequence[str]) -> list[str]:
    """The names of a CSV's columns. Those without one are numbered."""
    return [stripped(name) or f"unnamed {number}" for number, name in enumerate(line, 1)]


def read_csv(path: str, encoding: str = "utf-8") -> dict[str, list[str]]:
    """The columns of a CSV file (may be .gz) with a header, as strings.

    A file that is UTF-8 is read as such, whatever the training rows' encoding was.
    """
    with open(path, "rb") as file:
        data = file.read()
    if path.endswith(".gz"):
        data = gzip.decompress(data)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode(encoding)  # whose error is a ValueError, too
    first = list(islice(io.StringIO(text, newline=""), 20))
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator_of(first))
    if names_separator(first[:1]):
        next(lines)
    header = header_names(next(filter(None, lines), []))
    if len(set(header)) < len(header):
        raise ValueError(f"columns need different names, but these are {', '.join(header)}")
    rows = [row for row in lines if row]
    if not rows:
        raise ValueError("the table has no rows")
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise ValueError(f"row {number} has {len(row)} values for {len(header)} columns")
    return {name: [row[i] for row in rows] for i, name in enumerate(header)}
