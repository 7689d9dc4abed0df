"""Sites of a table, and which of their rows are tested."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import commonweal
from commonweal.base.errors import CommonwealError
from commonweal.data.federation import Federation

ROWS = 60


def written(path: Path) -> str:
    """Row i has x = i, so that features say which row it is."""
    rng = np.random.default_rng(0)
    days = rng.permutation(ROWS)
    lines = ["country,hosp,x,day,when,part,fold,code,label"]
    for i in range(ROWS):
        country, hospital = "FI"[i % 2], i % 3
        label = "" if (country, hospital) == ("I", 1) else str(i // 6 % 2)
        part = "test" if i % 5 == 0 else "train"
        when = f"{1 + days[i] % 28:02d}.{1 + days[i] // 28:02d}.2024"
        lines.append(f"{country},{hospital},{i},{days[i]},{when},{part},{i % 4},{i % 3}.0,{label}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def load(path: Path, **options: Any) -> Federation:
    file = path / "t.csv"
    given = {"client": "country", "drop": ["part", "when", "day", "hosp", "fold", "code"]}
    return commonweal.dataset(
        "table", path=written(file), scale=False, **(given | {"keep": ["x"]} | options)
    )


def rows_of(federation: Federation, client: int, part: str = "test") -> list[int]:
    rows = federation.test if part == "test" else federation.train
    return sorted(int(value) for value in rows.client(client).x[:, 0].tolist())


def test_clients_of_two_columns_without_labels_are_left_out_and_named(tmp_path: Path) -> None:
    federation = load(tmp_path, client="country,hosp", drop=["part", "when", "day", "fold"])
    assert federation.names == ("F/0", "F/1", "F/2", "I/0", "I/2")
    assert any("I/1" in note and "are left out" in note for note in federation.notes)
    for k, name in enumerate(federation.names):
        both = rows_of(federation, k) + rows_of(federation, k, "train")
        assert {(f"{'FI'[i % 2]}/{i % 3}") for i in both} == {name}


def test_small_clients_are_left_out_on_request(tmp_path: Path) -> None:
    federation = load(tmp_path, least_rows=25)
    assert federation.names == ("F",)
    assert any("fewer than 25 labelled rows" in note and "'I'" in note for note in federation.notes)
    with pytest.raises(CommonwealError, match="lower least_rows"):
        load(tmp_path, least_rows=31)


@pytest.mark.parametrize("order", ["day", "when"])
def test_the_last_rows_of_each_client_are_tested(tmp_path: Path, order: str) -> None:
    federation = load(tmp_path, order=order, test=0.3)
    days = np.random.default_rng(0).permutation(ROWS)
    for k, name in enumerate(federation.names):
        train = [days[i] for i in rows_of(federation, k, "train")]
        test = [days[i] for i in rows_of(federation, k)]
        assert max(train) < min(test) and name in "FI"
        assert len(test) == round(0.3 * (len(train) + len(test)))


def test_the_last_rows_of_the_file_are_tested_where_no_column_is_named(tmp_path: Path) -> None:
    federation = load(tmp_path, test="last")
    assert rows_of(federation, 0) == [48, 50, 52, 54, 56, 58]


@pytest.mark.parametrize(
    ("split", "tested"),
    [
        ("part", lambda i: i % 5 == 0),
        ("fold", lambda i: i % 4 == 3),
        ("fold=1", lambda i: i % 4 == 1),
        ("part=train", lambda i: i % 5 > 0),
    ],
)
def test_a_column_sets_the_tested_rows(tmp_path: Path, split: str, tested: Any) -> None:
    federation = load(tmp_path, split=split, client="hosp", drop=["when", "day", "country", "code"])
    assert federation.train.x.shape[1] <= 3  # the column is not a feature
    for k in range(federation.clients):
        assert all(tested(i) for i in rows_of(federation, k))
        assert not any(tested(i) for i in rows_of(federation, k, "train"))


def test_a_pool_is_split_by_a_column_too(tmp_path: Path) -> None:
    iid = {"name": "iid", "clients": 3}
    unused = ["when", "day", "hosp", "fold", "code", "country"]
    federation = load(tmp_path, split="part", client=None, partition=iid, drop=unused)
    tested = [i for k in range(3) for i in rows_of(federation, k)]
    assert tested and all(i % 5 == 0 for i in tested)


def test_codes_are_categories(tmp_path: Path) -> None:
    federation = load(tmp_path, drop=["part", "when", "day", "hosp", "fold"], categories=["code"])
    assert federation.preprocessing is not None
    (code,) = [c for c in federation.preprocessing.columns if c.name == "code"]
    assert (code.becomes, code.levels) == ("text", ("0", "1", "2"))
    x = federation.preprocessing.rows({"x": ["1", "1"], "code": ["2", "2.0"]})
    assert x.tolist() == [[1, 0, 0, 1], [1, 0, 0, 1]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"order": "part"}, "holds strings, which have no order"),
        ({"order": "dya"}, "order = 'dya': there is no such column; did you mean 'day'"),
        ({"split": "part", "order": "day"}, "give split or the others"),
        ({"split": "label"}, "column 'label' is named twice"),
        ({"split": "hosp=7"}, "it needs rows called 'test' and others"),
        ({"split": "fold=9"}, "it needs rows called 'test' and others"),
        ({"client": "country,hsop"}, "client = 'hsop': there is no such column"),
        ({"order": "day", "test": 1.5}, "share between 0 and 1"),
    ],
)
def test_splits_that_cannot_be(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(CommonwealError, match=words):
        load(tmp_path, drop=[], **options)
