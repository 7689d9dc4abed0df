"""Tables of careless and hostile users: a right result or a clear message, never wrong numbers."""

import io
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import commonweal
from cases import cases
from commonweal.base.errors import DataError
from commonweal.data import plain_table
from commonweal.data.federation import Federation
from commonweal.data.plain_table import Column
from commonweal.data.preprocessing import Preprocessing

HEADER = "client,a,label\n"
LINES = "".join(f"{'AB'[i % 2]},{i % 7},{'xy'[i // 2 % 2]}\n" for i in range(40))


def load(path: Path, content: bytes | str, **options: str) -> Federation:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    loaded = commonweal.dataset("table", path=str(path), **options)
    assert isinstance(loaded, Federation)
    return loaded


def duplicated() -> bytes:
    columns = [pyarrow.array(["A", "B"]), pyarrow.array([1, 2]), pyarrow.array([3, 4])]
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(columns, names=["client", "a", "a"]), file)
    return file.getvalue()


@cases(
    ("name", "content", "message"),
    [
        ("t.csv", "", "is empty"),
        ("t.csv", b"\x1f\x8b" + bytes(99), r"is compressed: name it \.csv\.gz"),
        ("t.csv", b"PK\x03\x04" + bytes(99), "Excel workbook: save the table as CSV"),
        ("t.xls", b"\xd0\xcf\x11\xe0" + bytes(99), "Excel workbook: save the table as CSV"),
        ("t.csv", b"PAR1" + bytes(99), r"Parquet file: name it \.parquet"),
        ("t.csv", bytes(1000), "has NUL bytes"),
        ("t.csv", HEADER + LINES * 300 + "A,1,z\0\n", r"has NUL bytes, as in 'z\\x00'"),
        ("t.csv", (HEADER + LINES).replace(",", "^"), "has one column, 'client.a.label'"),
        ("t.csv", (HEADER + LINES).encode("utf-32"), "is UTF-32 text, not utf-8"),
        ("t.csv", "client,a,a\u200b\n" + LINES, "two columns are called 'a'"),
        ("t.csv", HEADER + LINES + "A,1\n", "2 values for 3 columns .* correct its quotes"),
        ("t.parquet", duplicated, "two columns are called 'a'"),
    ],
)
def test_what_is_no_table_is_named(
    name: str, content: bytes | str | Callable[[], bytes], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        load(tmp_path / name, content() if callable(content) else content)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["$1,000", "$20", "$3"], [1000, 20, 3]),  # not 1.0
        (["1,500", "999"], [1500, 999]),
        (["1,5", "2"], [1.5, 2]),
        (["1,250", "2,500"], [1.25, 2.5]),  # ambiguous, and reported
        (["5\ufeff", "7\u200b"], [5, 7]),
    ],
)
def test_numbers_are_read_as_meant(
    values: list[str], expected: list[float], tmp_path: Path
) -> None:
    lines = [f'"{values[i % len(values)]}",{"AB"[i // 8 % 2]},{i % 5 % 2}' for i in range(40)]
    text = "\n".join(["a,client,label", *lines])
    federation = load(tmp_path / "t.csv", text, scale=False)  # type: ignore[arg-type]
    assert sorted(set(federation.train.x[:, 0].tolist())) == sorted(expected)
    is_ambiguous = "commas that may set thousands apart" in " ".join(federation.notes)
    assert is_ambiguous == (expected == [1.25, 2.5])


def test_clients_of_joined_files_and_blank_lines(tmp_path: Path) -> None:
    federation = load(tmp_path / "t.csv", "\ufeff\n\n" + HEADER + LINES + "\ufeffA,1,x\n")
    assert federation.names == ("A", "B") and len(federation.train.y) + len(federation.test.y) == 41


def test_numbers_beyond_any_scale_are_left_out(tmp_path: Path) -> None:
    lines = [f"{'AB'[i % 2]},{i % 7},{'xy'[i % 3 % 2]},{(-1) ** i}e308\n" for i in range(40)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        federation = load(tmp_path / "t.csv", "client,a,label,b\n" + "".join(lines))
    assert "left out, its numbers are too large: 'b'" in federation.notes


@pytest.mark.parametrize(
    ("first", "is_row"),
    [("A,70,x", True), ("1,2,3", False), ("A,inf,x", False), ("A,nan,x", False)],
)
def test_a_missing_header_is_reported(first: str, is_row: bool, tmp_path: Path) -> None:
    client, _, label = first.split(",")
    federation = load(tmp_path / "t.csv", f"{first}\n{LINES}", client=client, label=label)
    assert any("if this is a row" in note for note in federation.notes) == is_row


@cases(
    ("column", "text", "message"),
    [
        (Column("c", "number"), "1,234", "'1,234' can be read in two ways"),
        (Column("c", "number", missing_as=("9",)), "9,000", "'9,000' can be read in two ways"),
        (Column("c", "date", order="year-month-day"), "01/02/2026", "can be read in two ways"),
        (Column("c", "date", order="year-month-day"), "2026-01-01T25:00", "is not a date"),
    ],
)
def test_a_value_is_not_read_in_one_of_two_ways(column: Column, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Preprocessing((column,)).rows({"c": [text]})


def test_values_that_are_not_finite_are_noted() -> None:
    preprocessing = Preprocessing((Column("c", "number", median=3.0),))
    table = {"c": ["9" * 400, "1e300", "2"]}
    assert np.isfinite(preprocessing.rows(table)).all()
    assert "has no finite value, taken as missing" in preprocessing.unknown(table)[0]


def test_time_zones_have_minutes() -> None:
    parse = partial(plain_table.parse, Column("c", "date", order="year-month-day"))
    assert parse("2026-01-01T05:30+05:30") == parse("2026-01-01") == parse("2025-12-31T22:00-0200")


@pytest.mark.parametrize(
    ("text", "message"), [("a,a\n1,2\n", "different names"), ("a\n", "no rows")]
)
def test_the_exported_reader_checks_too(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        plain_table.read_csv(str(tmp_path / "t.csv"))
