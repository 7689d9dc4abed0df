"""Tables, arrays and images that are damaged, careless or hostile: a right result or an error."""

import gzip
import io
import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet

import commonweal
from cases import cases
from command_helpers import Command, make, refusal
from commonweal.base.errors import DataError
from commonweal.config.experiment import Experiment
from commonweal.data.federation import Federation
from commonweal.data.tables import plain_table
from commonweal.data.tables.plain_table import PlainColumn
from commonweal.data.tables.preprocessing import Preprocessing
from commonweal.datasets import build_federation
from commonweal.datasets.table import table
from commonweal.jobs.job import build_dataset
from fuzzing import accepted, changed, files, fuzz
from fuzzing import contents as corpus

# What is no table


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


# Values and lines of tables


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
        (PlainColumn("c", "number"), "1,234", "'1,234' can be read in two ways"),
        (PlainColumn("c", "number", missing_as=("9",)), "9,000", "'9,000' can be read in two ways"),
        (PlainColumn("c", "date", order="year-month-day"), "01/02/2026", "can be read in two ways"),
        (PlainColumn("c", "date", order="year-month-day"), "2026-01-01T25:00", "is not a date"),
    ],
)
def test_a_value_is_not_read_in_one_of_two_ways(
    column: PlainColumn, text: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        Preprocessing((column,)).rows({"c": [text]})


def test_values_that_are_not_finite_are_noted() -> None:
    preprocessing = Preprocessing((PlainColumn("c", "number", median=3.0),))
    table = {"c": ["9" * 400, "1e300", "2"]}
    assert np.isfinite(preprocessing.rows(table)).all()
    assert "has no finite value, taken as missing" in preprocessing.unknown(table)[0]


def test_time_zones_have_minutes() -> None:
    parse = partial(plain_table.parse_number, PlainColumn("c", "date", order="year-month-day"))
    assert parse("2026-01-01T05:30+05:30") == parse("2026-01-01") == parse("2025-12-31T22:00-0200")


@pytest.mark.parametrize(
    ("text", "message"), [("a,a\n1,2\n", "different names"), ("a\n", "no rows")]
)
def test_the_exported_reader_checks_too(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        plain_table.read_csv(str(tmp_path / "t.csv"))


# Files that commands refuse: tables


TABLE = "client,label,p,q\n" + "".join(f"{'abc'[i % 3]},{i % 2},{i / 2},{-i}\n" for i in range(30))


def wrong_bytes(data: bytes, at: int = 60) -> bytes:
    return data[:at] + b"\xff" * 30 + data[at + 30 :]


def parquet_file(kind: str) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    numbers = pa.array([0.5] * 20)
    columns = [pa.array(["a", "b"] * 10), pa.array([0, 1] * 10), numbers, numbers]
    pq.write_table(pa.Table.from_arrays(columns, names=["client", "label", "p", "p"]), out)
    data = out.getvalue()
    return {"duplicates": data, "cut": data[:-9], "garbage": b"PAR1" + bytes(range(200))}[kind]


def test_damaged_tables_are_refused(command: Command, tmp_path: Path) -> None:
    packed_table = gzip.compress(TABLE.encode())
    for name, data in (
        ("t.csv", b""),
        ("t.csv", b"client,label,p\n"),
        ("t.csv", TABLE.encode("utf-16")),
        ("t.csv", "client,label,p\né,0,1\nü,1,2\n".encode("latin1") * 6),
        ("t.csv.gz", wrong_bytes(packed_table, 20)),
        ("t.csv.gz", packed_table[:-12]),
        ("t.csv.gz", TABLE.encode()),
        ("t.parquet", parquet_file("cut")),
        ("t.parquet", parquet_file("garbage")),
        ("t.parquet", parquet_file("duplicates")),
        ("t.parquet", b""),
    ):
        (tmp_path / name).write_bytes(data)
        table = (f"path={name}", "label=label", "client=client")
        refusal(command("run", "table", *table, "--out", "run"))


def test_wrong_settings_of_tables_are_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TABLE)
    table = ("path=t.csv", "label=label", "client=client")
    for change in ('separator=""', 'separator=";;"', "encoding=nope", "score=r2"):
        refusal(command("run", "table", *table, change, "--out", "run"))


# Arrays


X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)


Y = np.arange(8) % 2


def arrays(folder: Path, **columns: object) -> Path:
    """A folder of two clients, the first with these arrays."""
    for name, own in (("a", columns), ("b", {"x": X, "y": Y})):
        (folder / name).mkdir(parents=True, exist_ok=True)
        np.savez_compressed(folder / name / f"{name}.npz", **own)  # type: ignore[arg-type]
    return folder / "a" / "a.npz"


def packed(**columns: np.ndarray) -> bytearray:
    out = io.BytesIO()
    np.savez_compressed(out, **columns)  # type: ignore[arg-type]
    return bytearray(out.getvalue())


def with_flag(data: bytearray, local: int, central: int, value: int) -> bytes:
    """An archive whose members have a byte of their headers changed."""
    for at in range(len(data) - 4):
        if data[at : at + 4] == b"PK\x03\x04":
            data[at + local] = value
        if data[at : at + 4] == b"PK\x01\x02":
            data[at + central] = value
    return bytes(data)


def no_arrays() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("x.npy", "hello")
        archive.writestr("y.npy", "hello")
    return out.getvalue()


def a_npy() -> bytes:
    out = io.BytesIO()
    np.save(out, X)
    return out.getvalue()


ARCHIVES = {
    "empty": b"",
    "no members": b"PK\x05\x06" + bytes(18),
    "npy": a_npy(),
    "no npy": no_arrays(),
    "deflate": wrong_bytes(bytes(packed(x=X, y=Y))),
    "encrypted": with_flag(packed(x=X, y=Y), 6, 8, 1),
    "unknown compression": with_flag(packed(x=X, y=Y), 8, 10, 77),
}


RUN_FOLDER = ("run", "folder", "path=data", "rounds=1", "--out", "run")


def test_damaged_archives_are_refused(command: Command, tmp_path: Path) -> None:
    for data in ARCHIVES.values():
        arrays(tmp_path / "data", x=X, y=Y).write_bytes(data)
        refusal(command(*RUN_FOLDER))


def test_wrong_arrays_are_refused(command: Command, tmp_path: Path) -> None:
    for columns in (
        {"x": np.float32(1), "y": Y},
        {"x": X[:, 0], "y": Y},
        {"x": X[:, :2], "y": Y},
        {"x": X.astype(complex), "y": Y},
        {"x": X.astype(str), "y": Y},
        {"x": X * np.nan, "y": Y},
        {"x": X, "y": Y * np.nan},
        {"x": X, "y": Y[:3]},
        {"x": X, "y": np.where(Y, 10**9, 0)},
        {"x": X.astype("M8[s]"), "y": Y},
        {"x": np.zeros(8, [("a", "f4")]), "y": Y},
        {"x": X},
    ):
        arrays(tmp_path / "data", **columns)
        refusal(command(*RUN_FOLDER))


# Images


def images(folder: Path) -> Path:
    for client in "ab":
        for label in "xy":
            (folder / client / label).mkdir(parents=True)
            Image.fromarray(np.zeros((4, 4), np.uint8)).save(folder / client / label / "0.png")
    return folder / "a" / "x"


def test_wrong_sizes_of_images_are_refused(command: Command, tmp_path: Path) -> None:
    images(tmp_path / "data")
    for size in (0, -1, 10**9, 10**30):
        refusal(command("run", "folder", "path=data", f"size={size}", "--out", "run"))


def test_an_image_that_unpacks_to_too_much_is_refused(command: Command, tmp_path: Path) -> None:
    Image.new("1", (20000, 20000)).save(images(tmp_path / "data") / "1.png")
    refusal(command("run", "folder", "path=data", "--out", "run"))


# Paths, pipes and devices


def test_paths_that_cannot_exist_are_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for path in ("x" * 300, "x/" * 3000, "file/below", "/proc/self/mem/x"):
        refusal(command("run", "vowel", "rounds=1", "--out", path))
        refusal(command("show", path))
        refusal(command("verify", path))
        refusal(command("init", path))
        refusal(command("run", "table", f"path={path}", "label=y"))
        refusal(command("run", "folder", f"path={path}"))
        refusal(command("run", "mnist", f"dir={path}"))


MNIST = [
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
]


def test_pipes_devices_and_folders_in_place_of_files_are_refused(
    command: Command, tmp_path: Path
) -> None:
    """Reading them may never end: the test would not."""
    for kind in ("pipe", "device", "folder"):
        home = tmp_path / kind
        home.mkdir()
        for name in ("t.csv", "t.csv.gz", "t.parquet"):
            path = make(kind, home / name)
            refusal(command("run", "table", f"path={path}", "label=label", "--out", "run"))
            refusal(command("init", path))
        refusal(command("run", make(kind, home / "e.toml")))
        refusal(command("predict", make(kind, home / "predict"), make(kind, home / "new.csv")))
        for name in MNIST:
            make(kind, home / "mnist" / name)
        refusal(command("run", "mnist", f"dir={home}", "--out", "run"))
        arrays(home / "data", x=X, y=Y)
        (home / "data" / "b" / "b.npz").unlink()
        make(kind, home / "data" / "a" / "a.npz")
        refusal(command("run", "folder", f"path={home / 'data'}", "--out", "run"))
        target = make(kind, home / "own.md")
        refusal(command("docs", "own", "--out", target))
        assert target.exists() and not target.is_file()  # it was not replaced
        out = make(kind, home / "out")
        if kind == "folder":
            (out / "mine").write_text("years of work")
        refusal(command("run", "vowel", "rounds=1", "--out", out))


# Random changes


def read_table(path: Path) -> None:
    build_federation(table(str(path)), None, None, 0)


@pytest.mark.parametrize("path", files("table"), ids=lambda path: path.name)
def test_known_tables_give_a_result_or_an_error(path: Path) -> None:
    accepted(lambda: read_table(path))


@fuzz
@given(changed(corpus("table")))
def test_known_tables_with_random_changes(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.csv"
    path.write_bytes(data)
    accepted(lambda: read_table(path))


def rows() -> tuple[list[str], list[int], np.ndarray]:
    x = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
    return [*"a" * 8, *"b" * 8, *"c" * 8], (x[:, 0] > 0).astype(int).tolist(), x


def table_file(kind: str) -> bytes:
    client, label, x = rows()
    lines = ["client,label,p,q,r"]
    for name, k, (p, q, r) in zip(client, label, x, strict=True):
        lines.append(f"{name},{k},{p},{q},{r}")
    text = ("\n".join(lines) + "\n").encode()
    if kind == "csv":
        return text
    if kind == "csv.gz":
        return gzip.compress(text, mtime=0)
    out = io.BytesIO()
    columns = {"client": client, "label": label, "p": x[:, 0], "q": x[:, 1], "r": x[:, 2]}
    parquet.write_table(pyarrow.table(columns), out)
    return out.getvalue()


def read_folder(path: Path) -> None:
    build_dataset(Experiment(dataset={"name": "folder", "path": str(path)}))


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet"])
@fuzz
@given(data=st.data())
def test_tables_with_random_changes(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    path = tmp_path / f"t.{kind}"
    path.write_bytes(data.draw(changed([table_file(kind)])))
    part = {"name": "table", "path": str(path), "client": "client", "label": "label"}
    accepted(lambda: build_dataset(Experiment(dataset=part)))


@fuzz
@given(data=st.data())
def test_arrays_with_random_changes(tmp_path: Path, data: st.DataObject) -> None:
    archive = arrays(tmp_path / "data", x=X, y=Y)
    archive.write_bytes(data.draw(changed([archive.read_bytes()])))
    accepted(lambda: read_folder(tmp_path / "data"))


@fuzz
@given(data=st.data())
def test_images_with_random_changes(tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "data"
    if not folder.exists():
        images(folder)
    out = io.BytesIO()
    Image.fromarray(np.full((4, 4), 40, np.uint8)).save(out, "PNG")
    (folder / "a" / "x" / "0.png").write_bytes(data.draw(changed([out.getvalue()])))
    accepted(lambda: read_folder(folder))
