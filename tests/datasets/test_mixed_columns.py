"""Columns as people type them: several notations, units and words in one column; rows twice."""

from collections import Counter
from datetime import date
from pathlib import Path

import numpy as np
import pytest

import commonweal
from commonweal.base.errors import DataError
from commonweal.data.federation import Federation
from commonweal.data.tables import plain_table
from commonweal.data.tables.plain_table import PlainColumn
from commonweal.datasets.guess.guess import guess
from commonweal.datasets.table import survey_table

ROWS = 240
RNG = np.random.default_rng(0)
NUMBERS = RNG.normal(75, 12, ROWS).round(2)
DAYS = [date(2023, 1 + i % 12, 1 + (i * 5) % 28) for i in range(ROWS)]


def write(path: Path, **columns: list[str]) -> Path:
    """A table of two sites with a label, and some columns."""
    values = {"site": ["Bonn", "Ulm"] * (ROWS // 2), "died": list("YNNYN" * (ROWS // 5))} | columns
    lines = [";".join(values), *map(";".join, zip(*values.values(), strict=True))]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def load(path: Path, **options: object) -> Federation:
    known = {"path": str(path), "label": "died", "client": "site"}
    return commonweal.dataset("table", **(known | options))


def fitted(federation: Federation, name: str = "x") -> PlainColumn:
    assert federation.preprocessing is not None
    return next(column for column in federation.preprocessing.columns if column.name == name)


def kind(path: Path, values: list[str]) -> tuple[PlainColumn, str]:
    """What a column becomes, and why it is left out where it is."""
    profile = survey_table(write(path, x=values), "auto", "utf-8").profiles["x"]
    return profile.column, profile.why_left_out


UNMISTAKABLE = ("%Y-%m-%d", "%d.%m.%Y", "%d %b %Y", "%b %d, %Y", "%Y%m%d", "%Y/%m/%d")


def test_dates_of_several_notations_are_read_one_by_one(tmp_path: Path) -> None:
    written = [day.strftime(UNMISTAKABLE[i % 6]) for i, day in enumerate(DAYS)]
    column, why = kind(tmp_path / "t.csv", written)
    assert (column.becomes, column.order, why) == ("date", "day first", "")
    read = [plain_table.parse_number(column, text) for text in written]
    assert read == [(day - date(1970, 1, 1)).days for day in DAYS]
    written = [day.strftime(("%Y-%m-%d", "%m/%d/%Y")[i % 2]) for i, day in enumerate(DAYS)]
    column, _ = kind(tmp_path / "u.csv", written)
    assert column.order == "month first"
    assert plain_table.parse_number(column, written[3]) == (DAYS[3] - date(1970, 1, 1)).days


GRAMS = [f"{x:.1f} kg" if i % 5 else f"{1000 * x:.0f} g" for i, x in enumerate(NUMBERS)]
COMMAS = [f"{x:.2f}".replace(".", ",."[i % 2]) for i, x in enumerate(NUMBERS)]
CONTRARY = [day.strftime(("%d/%m/%Y", "%m/%d/%Y")[i % 2]) for i, day in enumerate(DAYS)]
BELOW = [f"<{i % 40}" if i % 8 == 0 else f"{x:.2f}" for i, x in enumerate(NUMBERS)]
PROSE = [f"patient {i} was seen in ward {i % 7}, stable" for i in range(ROWS)]
REFUSED = [
    (GRAMS, "its numbers have different units (kg, g): write them in one"),
    (COMMAS, "its numbers are in several notations, such as "),
    (CONTRARY, "its dates contradict each other, such as "),
    (BELOW, "5 different strings, such as '<0', stand among its numbers"),
    (PROSE, "it looks like free text"),
    ([f"K{i:05d}" for i in range(ROWS)], "it looks like an id"),
]


@pytest.mark.parametrize(("values", "reason"), REFUSED)
def test_columns_are_left_out_for_their_true_reason(
    tmp_path: Path, values: list[str], reason: str
) -> None:
    column, why = kind(tmp_path / "t.csv", values)
    assert column.becomes == "text" and why.startswith(reason)
    path = write(tmp_path / "u.csv", x=values, z=[f"{x}" for x in NUMBERS])
    own = fitted(load(path))
    assert own.becomes == "nothing" and own.why == why
    assert own.is_id == why.startswith("it looks like")
    assert fitted(load(path, keep="x")).becomes == "text"  # a person knows better


def test_units_that_some_numbers_lack_are_read(tmp_path: Path) -> None:
    written = [f"{x} J." if i % 5 == 0 else f"{x}" for i, x in enumerate(NUMBERS)]
    path = write(tmp_path / "t.csv", x=written)
    column = fitted(load(path))
    assert (column.becomes, column.unit, column.missing_as) == ("number", "J.", ())
    assert [plain_table.parse_number(column, text) for text in written] == NUMBERS.tolist()
    guessed = guess(path, "died", "site", tmp_path / "t.toml")
    assert dict(guessed.lines)["x"] == "number with the unit J., which some lack"


def test_codes_such_as_12a_are_no_numbers_with_units(tmp_path: Path) -> None:
    column, why = kind(tmp_path / "t.csv", [f"{i % 24}{'AB'[i % 2]}" for i in range(ROWS)])
    assert (column.becomes, why) == ("text", "")
    column, _ = kind(tmp_path / "u.csv", [("01", "02", "06", "07")[i % 4] for i in range(ROWS)])
    assert column.becomes == "text"
    column, _ = kind(tmp_path / "v.csv", [str(i % 31) for i in range(ROWS)])
    assert column.becomes == "number"


def test_words_are_categories_unless_they_are_declared_missing(tmp_path: Path) -> None:
    pupil = [("None", "one", "both")[i % 3] for i in range(ROWS)]
    path = write(tmp_path / "t.csv", x=pupil)
    assert fitted(load(path)).levels == ("None", "both", "one")
    declared = load(path, missing="x=None")
    column = fitted(declared)
    assert (column.levels, column.missing) == (("both", "one", "missing"), True)
    assert declared.preprocessing is not None
    row = declared.preprocessing.rows({"x": ["None", "one"]})
    np.testing.assert_array_equal(row, [[0, 0, 1], [0, 1, 0]])
    assert declared.preprocessing.unknown({"x": ["None", "both"]}) == [
        "missing values: x 1; filled as in training (median, or category 'missing')"
    ]
    answers = [("None", "yes", "no")[i % 3] for i in range(ROWS)]
    path = write(tmp_path / "u.csv", x=[f"{x}" for x in NUMBERS], answer=answers)
    assert load(path, label="answer", drop="died").class_names == ("None", "no", "yes")
    without = load(path, label="answer", drop="died", missing="answer=None")
    assert without.class_names == ("no", "yes")
    assert len(without.train.y) + len(without.test.y) == 2 * ROWS // 3


def test_declared_words_make_a_column_one_of_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", x=BELOW)
    odd = sorted({text for text in BELOW if text.startswith("<")})
    column = fitted(load(path, missing=[f"x={text}" for text in odd]))
    known = [x for text, x in zip(BELOW, NUMBERS.tolist(), strict=True) if text not in odd]
    assert column.becomes == "number" and set(column.missing_as) == set(odd)
    assert min(known) <= (column.low or 0) and (column.high or 0) <= max(known)
    with pytest.raises(DataError, match="there is no such column"):
        load(path, missing="y=None")


def test_classes_are_called_as_they_are_written(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", x=[f"{x}" for x in NUMBERS])
    assert load(path).class_names == ("N", "Y")
    for words in (("No", "Yes"), ("NEIN", "JA"), ("FALSE", "TRUE"), ("nie", "Tak")):
        values = [words[i % 2] for i in range(ROWS)]
        path = write(tmp_path / f"{words[0]}.csv", x=[f"{x}" for x in NUMBERS], answer=values)
        federation = load(path, label="answer")
        assert federation.class_names == words
        names = np.array(words)[federation.train.y.numpy()]
        assert Counter(names)[words[0]] == int((federation.train.y == 0).sum())
        column = fitted(load(path), "answer")  # as a feature, in any capitals
        assert [plain_table.parse_number(column, w.swapcase()) for w in words] == [0, 1]


def test_repeated_rows_are_counted(tmp_path: Path) -> None:
    values = [f"{x}" for x in NUMBERS]
    values[20:30] = values[0:10]  # the sites and labels of rows 20 and 0 are the same
    path = write(tmp_path / "t.csv", x=values)
    rows = path.read_text(encoding="utf-8").splitlines()[1:]
    repeated = sum(count - 1 for count in Counter(rows).values())
    assert repeated >= 10
    assert any(note.startswith(f"{repeated} rows are the same") for note in load(path).notes)
    path = write(tmp_path / "u.csv", x=[f"{x}" for x in NUMBERS], id=list(map(str, range(ROWS))))
    assert not any("same as" in note for note in load(path).notes)
