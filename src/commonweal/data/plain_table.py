"""A table's texts to a model's numbers, in plain Python and numpy.

A preprocessing is a dict as JSON holds it: what each column becomes, with the numbers for it. This
file imports nothing of the library that trained the model: exports carry a copy of it.
"""

import csv
import gzip
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

import numpy as np

__all__ = [
    "DATES",
    "MISSING",
    "TRUTH",
    "column_features",
    "column_names",
    "is_missing",
    "parser",
    "prepare",
    "read_csv",
    "separator_of",
    "width",
]

Column = Mapping[str, object]  # of a preprocessing: "name", "becomes", and the numbers for it
Parse = Callable[[str], float]  # a text to a number; NaN: missing; ValueError: it is none

MISSING = ("", "?", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None", "-")
TRUTH = (  # false and true, in lower case
    ("false", "true"),
    ("no", "yes"),
    ("n", "y"),
    ("f", "t"),
    ("nein", "ja"),
    ("falsch", "wahr"),
    ("non", "oui"),
)
DATES = {  # the order of year, month and day -> how such a date begins
    "year-month-day": re.compile(r"(?P<year>\d{4})[-/.](?P<month>\d\d?)[-/.](?P<day>\d\d?)"),
    "day-month-year": re.compile(r"(?P<day>\d\d?)[-/.](?P<month>\d\d?)[-/.](?P<year>\d{4})"),
    "month-day-year": re.compile(r"(?P<month>\d\d?)[-/.](?P<day>\d\d?)[-/.](?P<year>\d{4})"),
}
TIME = re.compile(r"([T ](?P<hour>\d\d?):(?P<minute>\d\d)(:(?P<second>\d\d(\.\d+)?))?)?\s*Z?")
COMMA_NUMBER = re.compile(r"[-+]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?([eE][-+]?\d+)?")
SEPARATORS = (",", ";", "\t", "|")
YEAR = 365.2425  # days
EPOCH = datetime(1970, 1, 1)


# Texts to numbers


def is_missing(text: str) -> bool:
    return text.strip() in MISSING


def _number(text: str) -> float:
    if "_" in text:  # Python reads 1_000
        raise ValueError(text)
    value = float(text)
    return value if math.isfinite(value) else math.nan


def _comma_number(text: str) -> float:
    """Of 1.234,5: the comma is decimal, points group the digits."""
    if not COMMA_NUMBER.fullmatch(text):
        raise ValueError(text)
    return _number(text.replace(".", "").replace(",", "."))


def _truth(words: Sequence[str]) -> Parse:
    def parse(text: str) -> float:
        return float(list(words).index(text.lower()))

    return parse


def _days(order: str) -> Parse:
    """Days since 1 January 1970."""
    pattern = DATES[order]

    def parse(text: str) -> float:
        date = pattern.match(text)
        time = TIME.fullmatch(text, date.end()) if date else None
        if date is None or time is None:
            raise ValueError(text)
        parts = {name: int(part) for name, part in date.groupdict().items()}
        seconds = 3600 * int(time["hour"] or 0) + 60 * int(time["minute"] or 0)
        day = datetime(parts["year"], parts["month"], parts["day"])
        return (day - EPOCH).days + (seconds + float(time["second"] or 0)) / 86400

    return parse


def parser(column: Column) -> Parse:
    """What turns a text of this column into a number. Missing texts become NaN."""
    becomes = column["becomes"]
    parse: Parse
    if becomes == "number":
        parse = _comma_number if column.get("decimal") == "," else _number
    elif becomes == "boolean":
        words = column["words"]
        assert isinstance(words, Sequence)
        parse = _truth(words)
    elif becomes == "date":
        parse = _days(str(column["order"]))
    else:
        raise ValueError(f"column {column['name']!r} is {becomes}, which has no numbers")
    return lambda text: math.nan if is_missing(text) else parse(text.strip())


def _values(column: Column, texts: Sequence[str]) -> np.ndarray:
    """A column's numbers (n,); of a text column the positions of its levels, -1: of none."""
    if column["becomes"] == "text":
        return _positions(column, texts)
    parse = parser(column)
    known: dict[str, float] = {}
    for text in dict.fromkeys(texts):
        try:
            known[text] = parse(text)
        except ValueError:
            what = column["becomes"]
            raise ValueError(
                f"column {column['name']!r}: {text!r} is no {what}, as it was in the training "
                "rows: correct it, or leave it empty"
            ) from None
    return np.array([known[text] for text in texts], dtype=np.float64)


def _positions(column: Column, texts: Sequence[str]) -> np.ndarray:
    levels = column["levels"]
    assert isinstance(levels, Sequence)
    position = {level: i for i, level in enumerate(levels)}
    unknown = position.get("other", -1) if column["other"] else -1
    missing = position.get("missing", unknown) if column["missing"] else unknown
    found = [missing if is_missing(text) else position.get(text.strip(), unknown) for text in texts]
    return np.array(found, dtype=np.int64)


# Numbers to features


def width(column: Column) -> int:
    """How many features a column becomes."""
    return len(column_names(column))


def column_names(column: Column) -> list[str]:
    """The names of a column's features."""
    name = str(column["name"])
    becomes = column["becomes"]
    if becomes == "nothing":
        return []
    if becomes == "text":
        levels = column["levels"]
        assert isinstance(levels, Sequence)
        return [f"{name} = {level}" for level in levels]
    names = [name]
    if becomes == "date":
        names += [f"{name}: {what}" for what in ("year sin", "year cos", "week sin", "week cos")]
    return [*names, f"{name} is missing"] if column["indicator"] else names


def column_features(column: Column, values: np.ndarray) -> np.ndarray:
    """A column's features (n, width), from its numbers or the positions of its levels."""
    if column["becomes"] == "nothing":
        return np.empty((len(values), 0))
    if column["becomes"] == "text":
        levels = np.arange(width(column))
        one_hot: np.ndarray = values[:, None] == levels
        return one_hot.astype(np.float64)
    gaps = np.isnan(values)
    filled = np.where(gaps, _float(column, "median"), values)
    features = [(filled - _float(column, "mean")) / _float(column, "deviation")]
    if column["becomes"] == "date":
        for period, start in ((YEAR, 0.0), (7.0, 3.0)):  # 1 January 1970 was a Thursday
            angle = 2 * np.pi * (filled + start) / period
            features += [np.where(gaps, 0, np.sin(angle)), np.where(gaps, 0, np.cos(angle))]
    if column["indicator"]:
        features.append(gaps.astype(np.float64))
    return np.stack(features, 1)


def _float(column: Column, name: str) -> float:
    value = column[name]
    assert isinstance(value, int | float)
    return float(value)


def prepare(preprocessing: Mapping[str, object], table: Mapping[str, Sequence[str]]) -> np.ndarray:
    """The features (n, d) of a table's rows. Columns that the model does not use are ignored."""
    columns = preprocessing["columns"]
    assert isinstance(columns, Sequence)
    used = [column for column in columns if column["becomes"] != "nothing"]
    missing = [str(column["name"]) for column in used if column["name"] not in table]
    if missing:
        raise ValueError(
            f"the table has no column {', '.join(map(repr, missing))}: the model needs it; its "
            f"columns are {', '.join(map(repr, table))}"
        )
    parts = [column_features(c, _values(c, table[str(c["name"])])) for c in used]
    return np.concatenate(parts, 1).astype(np.float32)


# CSV files


def separator_of(lines: Sequence[str]) -> str:
    """The separator that splits the lines into the most columns, the same number in each."""
    best, columns = ",", 1
    for separator in SEPARATORS:
        counts = [len(row) for row in csv.reader(lines, delimiter=separator) if row]
        if counts and min(counts) == max(counts) > columns:
            best, columns = separator, counts[0]
    if columns == 1:  # lines of different lengths: trust the first
        names = {s: len(next(csv.reader(lines, delimiter=s), [])) for s in SEPARATORS}
        best = max(SEPARATORS, key=lambda s: names[s])
    return best


def read_csv(path: str, encoding: str = "utf-8-sig") -> dict[str, list[str]]:
    """The columns of a CSV file (may be .gz) with a header, as texts."""
    with open(path, "rb") as file:
        data = file.read()
    if path.endswith(".gz"):
        data = gzip.decompress(data)
    text = data.decode(encoding)
    separator = separator_of(text.splitlines()[:20])
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    header = [name.strip() for name in next(lines, [])]
    rows = [row for row in lines if row]
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise ValueError(f"row {number} has {len(row)} values for {len(header)} columns")
    return {name: [row[i] for row in rows] for i, name in enumerate(header)}
