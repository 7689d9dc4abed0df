"""Tables as people have them: gaps, dates, decimal commas, ids; and what they become."""

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import commonweal
from commonweal.base.errors import DataError
from commonweal.data.federation import Federation
from commonweal.data.tables import files, plain_table
from commonweal.data.tables.plain_table import PlainColumn
from commonweal.data.tables.preprocessing import Preprocessing, Summary, fit_numbers

WARDS = ("north", "south", "west")


def rows_of(count: int = 90) -> list[dict[str, str]]:
    """A hospital's rows, clean."""
    rng = np.random.default_rng(3)
    rows = []
    for i in range(count):
        age = 20 + 60 * rng.random()
        rows.append(
            {
                "patient_id": f"P{1000 + i}",
                "ward": WARDS[i % 3],
                "age": f"{age:.1f}",
                "smoker": "yes" if rng.random() < 0.4 else "no",
                "admitted": f"2024-{1 + i % 12:02d}-{1 + i % 28:02d}",
                "city": ("Bonn", "Köln", "Ulm", "Rom")[int(4 * rng.random())],
                "country": "DE",
                "outcome": "ill" if age > 50 else "well",
            }
        )
    return rows


def write_csv(path: Path, rows: list[dict[str, str]], separator: str = ",", **options: Any) -> str:
    lines = [separator.join(rows[0])]
    lines += [separator.join(row.values()) for row in rows]
    path.write_text("\n".join(lines) + "\n", **({"encoding": "utf-8"} | options))
    return str(path)


def load(path: str, **options: Any) -> Federation:
    known = {"label": "outcome", "client": "ward"}
    return commonweal.dataset("table", path=path, **(known | options))


def columns(federation: Federation) -> dict[str, PlainColumn]:
    assert federation.preprocessing is not None
    return {column.name: column for column in federation.preprocessing.columns}


def known_rows(federation: Federation) -> torch.Tensor:
    return torch.cat([federation.train.x, federation.test.x])


def test_what_each_column_becomes(tmp_path: Path) -> None:
    federation = load(write_csv(tmp_path / "t.csv", rows_of()))
    found = columns(federation)
    becomes = {name: column.becomes for name, column in found.items()}
    assert becomes == {
        "patient_id": "nothing",
        "age": "number",
        "smoker": "boolean",
        "admitted": "date",
        "city": "text",
        "country": "nothing",
    }
    assert found["city"].levels == ("Bonn", "Köln", "Rom", "Ulm")
    assert federation.class_names == ("ill", "well")
    assert federation.train.x.shape[1] == 1 + 1 + 5 + 4
    assert "left out, it looks like an id: 'patient_id'" in federation.notes
    assert "left out, it is constant: 'country'" in federation.notes
    kept = load(write_csv(tmp_path / "t.csv", rows_of()), keep="patient_id")
    assert columns(kept)["patient_id"].becomes == "text"


def test_statistics_are_of_training_rows_only(tmp_path: Path) -> None:
    federation = load(write_csv(tmp_path / "t.csv", rows_of()), test=0.5)
    ages = federation.train.x[:, 0].double()
    assert float(ages.mean()) == pytest.approx(0, abs=1e-6)
    assert float(ages.std(correction=0)) == pytest.approx(1, abs=1e-6)
    assert abs(float(federation.test.x[:, 0].mean())) > 1e-4


def test_gaps_are_filled_with_the_training_median_and_marked(tmp_path: Path) -> None:
    rows = rows_of()
    for i in range(0, 90, 7):
        rows[i]["age"] = ("", "?", "NA", " ")[i % 4]
        rows[i + 1]["city"] = "NA"
    federation = load(
        write_csv(tmp_path / "t.csv", rows), scale=False, drop="admitted,smoker", seed=1
    )
    names = federation.preprocessing.features if federation.preprocessing else []
    assert names[:2] == ["age", "age is missing"] and names[-1] == "city = missing"
    x = federation.train.x.double()
    gaps = x[:, 1] == 1
    middle = float(np.quantile(x[~gaps, 0].numpy(), 0.5, method="lower"))
    assert 0 < int(gaps.sum()) < 13
    assert x[gaps, 0].tolist() == pytest.approx([middle] * int(gaps.sum()))
    assert x[:, 2:].sum(1).tolist() == [1.0] * len(x)
    assert sum("missing in training rows" in note for note in federation.notes) == 2


def test_rows_without_a_label_or_client_are_left_out_and_reported(tmp_path: Path) -> None:
    rows = rows_of()
    rows[4]["outcome"] = ""
    rows[5]["ward"] = "NA"
    federation = load(write_csv(tmp_path / "t.csv", rows))
    assert len(known_rows(federation)) == 88 and federation.names == WARDS
    assert "2 rows without a label or client are left out" in federation.notes


def german(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    def date(text: str) -> str:
        year, month, day = text.split("-")
        return f"{day}.{month}.{year}"

    changed = []
    for row in rows:
        age = row["age"].replace(".", ",")
        changed.append(row | {"age": age, "admitted": date(row["admitted"])})
    return changed


def test_a_german_table_is_the_same_table(tmp_path: Path) -> None:
    plain = load(write_csv(tmp_path / "a.csv", rows_of()))
    path = write_csv(tmp_path / "b.csv", german(rows_of()), ";", encoding="utf-8-sig")
    other = load(path)
    assert torch.equal(plain.train.x, other.train.x) and torch.equal(plain.test.x, other.test.x)
    assert "decimal commas: 'age'" in other.notes
    tabs = load(write_csv(tmp_path / "c.csv", rows_of(), "\t"))
    assert torch.equal(plain.train.x, tabs.train.x)


@pytest.mark.parametrize(
    ("text", "number"),
    [("78,0", 78.0), ("1.234,5", 1234.5), ("-0,25", -0.25), ("12", 12.0), ("2.000.000", 2e6)],
)
def test_decimal_commas(text: str, number: float) -> None:
    assert plain_table.parse_number(PlainColumn("a", "number", decimal=","), text) == number


@pytest.mark.parametrize("text", ["12.5", "1.23,4", "a", "1,2,3", "1_0"])
def test_what_is_no_decimal_comma(text: str) -> None:
    with pytest.raises(ValueError):
        plain_table.parse_number(PlainColumn("a", "number", decimal=","), text)


def test_notations_of_dates() -> None:
    """Each text is the instant that Python's own parser reads."""
    cases = {
        "day-month-year": [
            ("31.01.24", "2024-01-31"), ("31/01/1969", "1969-01-31"), ("5-Apr-21", "2021-04-05"),
            ("5. Mai 2021", "2021-05-05"), ("05 december 1999", "1999-12-05"),
            ("1.2.69", "1969-02-01"), ("1.2.68", "2068-02-01"),
        ],
        "month-day-year": [
            ("1/31/2024 3:04 PM", "2024-01-31T15:04"), ("Apr 5, 2021", "2021-04-05"),
            ("12/5/2021 12:30:15 am", "2021-12-05T00:30:15"),
        ],
        "year-month-day": [
            ("2024-01-31T23:30:00+01:00", "2024-01-31T22:30"),
            ("2024/1/31 7:05", "2024-01-31T07:05"),
            ("2024-01-31T01:00:00.5Z", "2024-01-31T01:00:00.5"),
        ],
        "yearmonthday": [("20240131", "2024-01-31"), ("19991231.0", "1999-12-31")],
    }  # fmt: skip
    for order, pairs in cases.items():
        parse = partial(plain_table.parse_number, PlainColumn("d", "date", order=order))
        for text, iso in pairs:
            days = (np.datetime64(iso, "ms") - np.datetime64("1970-01-01", "ms")) / np.timedelta64(
                1, "D"
            )
            assert parse(text) == pytest.approx(float(days), abs=1e-9), text
        for text in ("21-04-05", "31.13.2024", "5 Foo 2021", "2024-1", "12", "1.2.3"):
            assert not plain_table.strings_fit(PlainColumn("d", "date", order=order), [text]), text


def test_dates_are_days_and_times_of_year_and_week() -> None:
    column = PlainColumn("d", "date", order="year-month-day")
    texts = ["1970-01-01", "2024-02-29T12:00", "2024-01-01", ""]
    days = [plain_table.parse_number(column, text) for text in texts[:2]]
    assert days == [0, int(np.datetime64("2024-02-29").astype(int)) + 0.5]
    x = Preprocessing((column,)).rows({"d": texts})
    assert x[:, 0].tolist() == pytest.approx([0, 19782.5, 19723, 0])
    assert x[2, 3:].tolist() == pytest.approx([0, 1], abs=1e-3)  # a Monday begins the week
    assert x[3, 1:].tolist() == [0, 0, 0, 0]


def test_texts_beyond_the_most_frequent_are_one_level(tmp_path: Path) -> None:
    rows = rows_of()
    for i, row in enumerate(rows):
        row["city"] = f"town {min(i, 89 - i) // 3:02d}"
    federation = load(write_csv(tmp_path / "t.csv", rows), levels=4)
    column = columns(federation)["city"]
    assert len(column.levels) == 5 and column.levels[-1] == "other" and column.other
    assert any("most frequent categories" in n and "4 of 15" in n for n in federation.notes)


def test_whole_numbers_beyond_twenty_are_values_with_a_word(tmp_path: Path) -> None:
    rows = [row | {"outcome": str(i % 70)} for i, row in enumerate(rows_of())]
    federation = load(write_csv(tmp_path / "t.csv", rows))
    assert federation.labels == "values" and not federation.class_names
    assert any("70 different whole numbers" in note for note in federation.notes)
    classes = load(write_csv(tmp_path / "t.csv", rows), task="classes")
    assert classes.outputs == 70 and classes.class_names[69] == "69"


def test_imbalance_is_reported(tmp_path: Path) -> None:
    rows = [row | {"outcome": "no" if i % 10 else "yes"} for i, row in enumerate(rows_of())]
    federation = load(write_csv(tmp_path / "t.csv", rows))
    assert any("90.0 % of the rows are 'no'" in note for note in federation.notes)


def test_latin1_is_reported_with_the_remedy_and_read_when_named(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "t.csv", rows_of(), encoding="latin-1")
    with pytest.raises(DataError, match=r"not UTF-8 text \(byte 0xf6\).*encoding = 'latin-1'"):
        load(path)
    same = load(write_csv(tmp_path / "u.csv", rows_of()))
    assert torch.equal(load(path, encoding="latin-1").train.x, same.train.x)


def test_names_to_drop_may_be_a_text(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "t.csv", rows_of())
    wanted = load(path, drop=["admitted", "city"]).train.x
    for text in ("admitted,city", "[admitted, city]", '["admitted","city"]'):
        assert torch.equal(load(path, drop=text).train.x, wanted)


def test_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    for path in (str(tmp_path / "pipe.csv"), "/dev/null"):
        with pytest.raises(DataError, match="a pipe or device"):
            load(path)


def test_parquet_keeps_dates_and_truths(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    rows = rows_of()
    table = pyarrow.table(
        {
            "ward": [row["ward"] for row in rows],
            "age": [float(row["age"]) for row in rows],
            "smoker": [row["smoker"] == "yes" for row in rows],
            "admitted": pyarrow.array(
                [np.datetime64(row["admitted"]).astype(object) for row in rows]
            ),
            "city": pyarrow.array([row["city"] for row in rows]).dictionary_encode(),
            "outcome": [row["outcome"] for row in rows],
        }
    )
    parquet.write_table(table, tmp_path / "t.parquet")
    same = load(write_csv(tmp_path / "t.csv", rows))
    assert torch.equal(load(str(tmp_path / "t.parquet")).train.x, same.train.x)


def test_a_column_that_turns_to_text_late_is_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BLOCK", 200)
    rows = [row | {"city": str(i % 3)} for i, row in enumerate(rows_of())]
    rows[80]["city"] = "Rom"
    column = columns(load(write_csv(tmp_path / "t.csv", rows), test=0.0))["city"]
    assert column.levels == ("0", "1", "2", "Rom")


# New rows


def test_new_rows_are_prepared_as_the_training_rows_were(tmp_path: Path) -> None:
    rows = rows_of()
    for i in range(0, 90, 5):
        rows[i]["age"] = "?"
        rows[i]["city"] = ""
    path = write_csv(tmp_path / "t.csv", rows)
    federation = load(path)
    preprocessing = federation.preprocessing
    assert preprocessing is not None
    again = preprocessing.rows(plain_table.read_csv(path))
    ordered = np.array(sorted(again.tolist()))
    known = np.array(sorted(known_rows(federation).tolist()))
    assert np.array_equal(ordered, known)


def test_a_preprocessing_survives_json(tmp_path: Path) -> None:
    preprocessing = load(write_csv(tmp_path / "t.csv", rows_of())).preprocessing
    assert preprocessing is not None
    assert Preprocessing.read(json.dumps(preprocessing.values())) == preprocessing
    with pytest.raises(DataError, match="not a preprocessing"):
        Preprocessing.read("{}")


def test_new_rows_that_do_not_fit(tmp_path: Path) -> None:
    preprocessing = load(write_csv(tmp_path / "t.csv", rows_of())).preprocessing
    assert preprocessing is not None
    new = plain_table.read_csv(write_csv(tmp_path / "n.csv", rows_of(4)))
    new["city"] = ["Bonn", "Paris", "Ulm", ""]
    x = preprocessing.rows(new | {"more": ["1"] * 4})
    assert x[1, -4:].tolist() == [0, 0, 0, 0] and x[0, -4:].tolist() == [1, 0, 0, 0]
    assert preprocessing.unknown(new) == [
        "city: 'Paris' not in the training rows, taken as none of the categories",
        "missing values: city 1; filled as in training (median, or category 'missing')",
    ]
    with pytest.raises(DataError, match="column 'age': 'old' is not a number"):
        preprocessing.rows(new | {"age": ["old"] * 4})
    del new["age"]
    with pytest.raises(DataError, match="no column 'age': the model needs it"):
        preprocessing.rows(new)


# Statistics of clients


def test_federated_statistics_are_the_pooled_ones(tmp_path: Path) -> None:
    rows = rows_of()
    for i in range(0, 90, 4):
        rows[i]["age"] = ""
    path = write_csv(tmp_path / "t.csv", rows)
    pooled = load(path)
    federated = load(path, statistics="federated")
    assert torch.allclose(pooled.train.x, federated.train.x, atol=1e-6)
    a, b = columns(pooled)["age"], columns(federated)["age"]
    assert a.median == b.median and a.mean == pytest.approx(b.mean, rel=1e-12)
    assert a.deviation == pytest.approx(b.deviation, rel=1e-12)
    assert columns(pooled)["city"] == columns(federated)["city"]


numbers = st.floats(-1e6, 1e6).filter(lambda value: abs(value) > 1e-6) | st.just(float("nan"))


@given(st.lists(st.lists(numbers, max_size=6), min_size=2, max_size=5))
def test_sums_of_clients_combine_to_those_of_all(parts: list[list[float]]) -> None:
    clients = [np.array(part, dtype=np.float64) for part in parts]
    whole = np.concatenate(clients)
    known = whole[~np.isnan(whole)]
    total = sum((Summary.of(values) for values in clients), Summary(0, 0, 0.0, 0.0))
    assert (total.count, total.gaps) == (len(known), len(whole) - len(known))
    if len(known) == 0:
        return
    assert total.mean == pytest.approx(known.mean(), rel=1e-9, abs=1e-9)
    assert total.deviation == pytest.approx(known.std(), rel=1e-6, abs=1e-6)
    fitted = fit_numbers(PlainColumn("a", "number"), clients, scale=True)
    if fitted.becomes == "number":
        assert fitted.median == np.quantile(known, 0.5, method="inverted_cdf")
