"""A user's own rows: tables, arrays and folders, and sentences for what cannot be used."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import commonweal
from commonweal.base.errors import CommonwealError, ConfigError, DataError
from commonweal.config.experiment import Experiment
from commonweal.data.federation import Federation
from commonweal.data.tables import files
from commonweal.datasets import Pool
from commonweal.datasets.table import table

FIVE = {"name": "iid", "clients": 5}


def written(path: Path, text: str, encoding: str = "utf-8") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding=encoding)
    return str(path)


def patient(i: int) -> str:
    city = "ab"[i % 2]
    ill = "yes" if i % 4 else "no"
    return f"{20 + i},{city},w{i % 3},{ill}\n"


TABLE = "age,city,ward,ill\n" + "".join(patient(i) for i in range(30))


def load(path: str, **options: Any) -> Federation:
    return commonweal.dataset("table", path=path, **({"label": "ill", "client": "ward"} | options))


def ages(federation: Federation) -> list[float]:
    both = torch.cat([federation.train.x, federation.test.x])[:, 0]
    values: list[float] = both.sort().values.tolist()
    return values


# Tables


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    federation = load(written(tmp_path / "t.csv", TABLE), test=0.5)
    assert federation.names == ("w0", "w1", "w2") and federation.outputs == 2
    assert federation.train.x.shape == (15, 3)
    assert float(federation.train.x[:, 0].mean()) == pytest.approx(0, abs=1e-6)
    assert set(federation.train.x[:, 1:].flatten().tolist()) == {0.0, 1.0}
    assert federation.counts.sum(0).tolist() == [8, 22]  # no before yes


def test_columns_can_be_dropped_and_left_as_they_are(tmp_path: Path) -> None:
    raw = load(written(tmp_path / "t.csv", TABLE), scale=False, drop=["city"])
    assert ages(raw) == [float(age) for age in range(20, 50)]
    assert raw.train.x.shape[1] == 1


def test_labels_may_be_values(tmp_path: Path) -> None:
    values = load(written(tmp_path / "t.csv", TABLE), label="age", task="values")
    assert (values.labels, values.score) == ("values", "r2-pooled")


def test_some_of_the_clients_of_a_table(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", TABLE)
    some = load(path, clients=2, scale=False)
    everyone = load(path, scale=False)
    assert some.clients == 2 and some.outputs == 2
    for k, name in enumerate(some.names):
        same = everyone.train.client(everyone.names.index(name))
        assert torch.equal(some.train.client(k).x, same.x)
    with pytest.raises(ConfigError, match="clients = 4: it must be at most 3"):
        load(path, clients=4)


def test_the_column_of_clients_is_called_client_unless_another_is_named(tmp_path: Path) -> None:
    text = TABLE.replace("ward", "client")
    named = load(written(tmp_path / "a.csv", TABLE))
    default = load(written(tmp_path / "b.csv", text), client=None)
    assert default.names == named.names and torch.equal(default.train.x, named.train.x)


# Tables without clients


def test_a_table_without_clients_is_partitioned(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", TABLE)
    assert isinstance(table(path, label="ill", drop=("ward",)), Pool)
    divided = load(path, client=None, drop=["ward"], partition=FIVE)
    assert divided.clients == 5
    assert float(divided.train.x[:, 0].mean()) == pytest.approx(0, abs=1e-6)
    assert ages(load(path, client=None, partition=FIVE, scale=False)) == list(range(20, 50))


def test_a_table_with_clients_can_be_partitioned_again(tmp_path: Path) -> None:
    divided = load(written(tmp_path / "t.csv", TABLE), partition=FIVE, scale=False)
    assert divided.clients == 5 and ages(divided) == list(range(20, 50))
    assert divided.train.x.shape[1] == 3  # the ward is no feature
    assert divided.preprocessing is not None and divided.class_names == ("no", "yes")
    assert any("partitioned again" in note for note in divided.notes)


def test_a_table_without_clients_needs_a_partition(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", TABLE)
    with pytest.raises(ConfigError, match=r"no clients: name the column .* or give a partition"):
        load(path, client=None)
    with pytest.raises(ConfigError, match="clients = 2: the table has no column 'client'"):
        load(path, client=None, clients=2, partition=FIVE)


# Other formats


def test_parquet_holds_the_same(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")
    import pyarrow.csv

    path = written(tmp_path / "t.csv", TABLE)
    parquet.write_table(pyarrow.csv.read_csv(path), tmp_path / "t.parquet")
    a = load(path)
    b = load(str(tmp_path / "t.parquet"))
    assert torch.equal(a.train.x, b.train.x) and torch.equal(a.test.y, b.test.y)
    assert a.names == b.names


def test_npz_holds_arrays(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(9, 2, 3)).astype(np.float32)
    owner = np.repeat([7, 8, 9], 3)
    np.savez(tmp_path / "t.npz", x=x, y=np.arange(9) % 3, client=owner)
    federation = commonweal.dataset("table", path=str(tmp_path / "t.npz"))
    assert federation.names == ("7", "8", "9") and federation.train.x.shape[1:] == (2, 3)
    np.savez(tmp_path / "u.npz", x=x, y=np.arange(9) % 3, site=owner)
    same = commonweal.dataset("table", path=str(tmp_path / "u.npz"), client="site")
    assert same.names == federation.names and torch.equal(same.train.x, federation.train.x)
    divided = commonweal.dataset("table", path=str(tmp_path / "u.npz"), partition=FIVE)
    assert divided.clients == 5


def test_a_long_table_is_read_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "t.csv", TABLE)
    whole = load(path)
    monkeypatch.setattr(files, "BLOCK", 64)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "fresh"))
    parts = load(path)
    assert torch.equal(whole.train.x, parts.train.x) and torch.equal(whole.test.y, parts.test.y)


def test_blank_lines_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load(written(tmp_path / "t.csv", TABLE))
    monkeypatch.setattr(files, "BLOCK", 64)
    blank = load(written(tmp_path / "u.csv", TABLE.replace("w1", "w1", 1) + "\n" * 12))
    assert torch.equal(whole.train.x, blank.train.x)


# What cannot be used


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (TABLE, {"label": "il"}, "label = 'il': there is no such column; did you mean 'ill'"),
        (
            TABLE,
            {"client": "wart"},
            "client = 'wart': there is no such column; did you mean 'ward'",
        ),
        (TABLE + "1,2\n", {}, "2 values for 4 columns"),
        (TABLE.replace("age", "ward"), {}, "different column names"),
        ("age,ward,ill\n", {}, "no rows"),
        ("", {}, "different column names"),
        (TABLE, {"drop": ["age", "city"]}, "no column is left"),
        (TABLE, {"label": "age", "task": "values", "drop": ["tion"]}, "no such column"),
        (TABLE.replace("21,", "21.5,"), {"label": "age", "task": "classes"}, "a label is 21.5"),
    ],
)
def test_a_table_that_cannot_be_used_is_an_error(
    tmp_path: Path, text: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        load(written(tmp_path / "t.csv", text), **options)


def test_files_that_are_not_tables(tmp_path: Path) -> None:
    latin = TABLE.replace("a,w", "é,w")
    with pytest.raises(DataError, match="is not UTF-8 text"):
        load(written(tmp_path / "t.csv", latin, "latin-1"))
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(TABLE.encode() * 50)[:60])
    with pytest.raises(DataError, match="cut short or damaged"):
        load(str(tmp_path / "t.csv.gz"))
    with pytest.raises(DataError, match="there is no file"):
        load(str(tmp_path / "none.csv"))
    with pytest.raises(DataError, match="is a folder, not a table"):
        load(str(tmp_path))


@pytest.mark.parametrize("letter", ["\x0b", "\x0c", "\x85", "\u2028"])
def test_names_with_unusual_line_ends(tmp_path: Path, letter: str) -> None:
    path = written(tmp_path / "t.csv", TABLE.replace("city", f"ci{letter}ty"))
    assert load(path).train.x.shape[1] == 3


def test_wide_letters_and_nul_bytes(tmp_path: Path) -> None:
    plain = load(written(tmp_path / "t.csv", TABLE))
    for encoding in ("utf-16", "utf-16-be"):
        path = written(tmp_path / "wide.csv", TABLE, encoding)
        with pytest.raises(DataError, match=f"is UTF-16.*say encoding = '{encoding}'"):
            load(path)
        assert torch.equal(load(path, encoding=encoding).train.x, plain.train.x)
    with pytest.raises(DataError, match="has NUL bytes"):
        load(written(tmp_path / "nul.csv", TABLE.replace("w1", "w\0", 1)))


def test_arrays_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "t.npz").write_bytes(b"no zip")
    with pytest.raises(DataError, match="not an npz file"):
        commonweal.dataset("table", path=str(tmp_path / "t.npz"))
    np.savez(tmp_path / "v.npz", x=np.zeros((24, 0)), y=np.arange(24) % 2)
    with pytest.raises(DataError, match="nothing to learn from"):
        commonweal.dataset("table", path=str(tmp_path / "v.npz"), partition=FIVE)
    np.savez(tmp_path / "u.npz", x=np.zeros(3))
    with pytest.raises(DataError, match="it needs y too"):
        commonweal.dataset("table", path=str(tmp_path / "u.npz"))
    with pytest.raises(DataError, match="it needs y and client too"):
        commonweal.dataset("table", path=str(tmp_path / "u.npz"), client="client")


def test_survival_times_and_events_of_a_table(tmp_path: Path) -> None:
    """Two columns of labels: Cox's loss, scored by concordance, and neither is a feature."""
    rng = np.random.default_rng(0)
    lines = ["age,dose,time,event,client"]
    for k in range(120):
        age, dose = rng.normal(60, 10), rng.normal()
        time = rng.exponential(np.exp(-(age - 60) / 10 - dose))
        lines.append(f"{age:.3f},{dose:.3f},{time + 0.001:.4f},{int(k % 4 > 0)},{'abc'[k % 3]}")
    lines.append("50,1,2.5,,a")  # no event: left out
    path = tmp_path / "s.csv"
    path.write_text("\n".join(lines))
    f = commonweal.dataset("table", path=str(path), label="time,event")
    assert (f.labels, f.score, f.train.x.shape[1], f.outputs) == ("survival", "concordance", 2, 1)
    assert len(f.train.y) + len(f.test.y) == 120 and f.train.y.shape[1:] == (2,)
    assert set(f.train.y[:, 1].tolist()) == {0.0, 1.0}
    times = sorted(float(line.split(",")[2]) for line in lines[1:-1])
    got = sorted(torch.cat([f.train.y, f.test.y])[:, 0].tolist())
    assert got == pytest.approx(times, rel=1e-5)
    part = {"name": "table", "path": str(path), "label": "time,event"}
    client = {"name": "sgd", "lr": 0.3, "batch": 0}
    *_, last = commonweal.run(Experiment(dataset=part, rounds=15, client=client))
    assert last.metrics["mean"] > 0.7
    assert f.preprocessing is not None and f.preprocessing.label == "log risk of event"
    for label, words in (
        ("time,died", "label names the events 'died', which is no column"),
        ("time,event,age", "name one column, or two, time and event"),
        ("time,client", "column 'client' is named twice"),
    ):
        with pytest.raises(CommonwealError, match=words):
            commonweal.dataset("table", path=str(path), label=label)


def test_which_value_is_an_event(tmp_path: Path) -> None:
    """0 and 1, 1 and 2 as in R, words, or the value that the label names; else it is an error."""
    path = tmp_path / "s.csv"
    happened = [k % 3 == 0 for k in range(60)]

    def load(name: str, values: tuple[str, str], label: str) -> Federation:
        lines = [f"client,age,time,{name}"]
        for k, event in enumerate(happened):
            lines.append(f"{'ab'[k % 2]},{k % 7},{k + 1},{values[event]}")
        path.write_text("\n".join(lines))
        federation = commonweal.dataset("table", path=str(path), label=label)
        assert isinstance(federation, Federation)
        return federation

    for name, values, label in (
        ("status", ("0", "1"), "time,status"),
        ("status", ("1", "2"), "time,status"),
        ("status", ("alive", "dead"), "time,status"),
        ("status", ("0:LIVING", "1:DECEASED"), "time,status"),
        ("event", ("no", "yes"), "time,event"),
        ("status", ("A", "B"), "time,status=b"),
        ("censored", ("1", "0"), "time,censored=0"),
    ):
        federation = load(name, values, label)
        y = torch.cat([federation.train.y, federation.test.y])
        assert {int(t) - 1 for t, e in y.tolist() if e} == {k for k in range(60) if happened[k]}
        said = any(f"an event is {name} = {values[1]}" in note for note in federation.notes)
        assert said == (values[1] != "1")
    for name, values, label in (
        ("censored", ("1", "0"), "time,censored"),
        ("status", ("A", "B"), "time,status"),
        ("status", ("A", "B"), "time,status=C"),
    ):
        with pytest.raises(DataError, match="say which value means that there was an event"):
            load(name, values, label)


# Folders


def folders(root: Path) -> None:
    for k, name in enumerate(("ann", "bob")):
        lines = "".join(f"{k + i},{i % 2}\n" for i in range(10))
        written(root / "tables" / name / "a.csv", f"v,label\n{lines}")
        (root / "arrays" / name).mkdir(parents=True)
        x = np.full((5, 2), k, np.float32)
        np.savez(root / "arrays" / name / "a.npz", x=x, y=np.arange(5) % 2)
        for kind in ("cat", "dog"):
            place = root / "images" / name / kind
            place.mkdir(parents=True)
            for i in range(3):
                Image.new("RGB", (40, 30), (k, i, 0)).save(place / f"{i}.png")


def test_a_folder_per_client(tmp_path: Path) -> None:
    folders(tmp_path)
    tables = commonweal.dataset("folder", path=str(tmp_path / "tables"))
    arrays = commonweal.dataset("folder", path=str(tmp_path / "arrays"))
    images = commonweal.dataset("folder", path=str(tmp_path / "images"))
    assert tables.names == arrays.names == images.names == ("ann", "bob")
    assert tables.train.sizes.tolist() == [8, 8] and arrays.train.x[-1].tolist() == [1, 1]
    assert images.train.x.shape[1:] == (3, 32, 32) and images.notes == ("classes: cat, dog",)
    with pytest.raises(DataError, match="one folder per client"):
        commonweal.dataset("folder", path=str(tmp_path / "tables" / "ann"))


@pytest.mark.parametrize("kind", ["tables", "arrays", "images"])
def test_some_of_the_folders_and_a_partition_of_all(tmp_path: Path, kind: str) -> None:
    folders(tmp_path)
    path = str(tmp_path / kind)
    one = commonweal.dataset("folder", path=path, clients=1)
    assert one.clients == 1 and one.outputs == 2
    three = commonweal.dataset("folder", path=path, partition={"name": "iid", "clients": 3})
    assert three.clients == 3
    noisy = commonweal.dataset("folder", path=path, label_noise={"name": "pair", "rate": 1.0})
    clean = commonweal.dataset("folder", path=path)
    assert torch.equal(noisy.train.y, 1 - clean.train.y)


def test_many_values_in_two_columns_name_the_clients_that_are_there(tmp_path: Path) -> None:
    """The product of 50,000 and 50,000 values has more digits than a code."""
    n = 50_000
    rng = np.random.default_rng(0)
    first, second = rng.permutation(n).tolist(), rng.permutation(n).tolist()
    lines = ["country,hospital,x,ill\n"]
    for row in range(n):
        lines.append(f"a{first[row]},b{second[row]},{row % 7},{row % 2}\n")
    path = written(tmp_path / "t.csv", "".join(lines))
    federation = load(path, client="country,hospital", test=0.5)
    pairs = [f"a{a}/b{b}" for a, b in zip(first, second, strict=True)]
    assert federation.names == tuple(sorted(pairs))


def test_the_first_row_of_another_width_is_named_by_its_number(tmp_path: Path) -> None:
    note = TABLE.replace("city", '"city, or\ntown"', 1) + "\n"  # rows 1 to 32, and a blank line
    for text, row in (
        (TABLE + "1,2\n3\n", 32),
        ("sep=;\n" + TABLE.replace(",", ";") + "1;2\n", 33),
        (note + "1,2,3,4,5\n", 33),
        (note + '"1\n2",3\n', 33),
    ):
        with pytest.raises(DataError, match=rf"row {row}: \d values for 4 columns"):
            load(written(tmp_path / "t.csv", text))
