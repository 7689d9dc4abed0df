"""The review's list of mistakes (M6), one by one: each is a sentence and exit code 2."""

import gzip
import io
import os
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commonweal import cli
from commonweal.analysis.compare import Cell
from commonweal.base import memory
from commonweal.config.experiment import Experiment
from commonweal.jobs.rounds import run
from run_helpers import federation, task

X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
Y = np.arange(8) % 2
TABLE = "client,label,p,q\n" + "".join(f"{'abc'[i % 3]},{i % 2},{i / 2},{-i}\n" for i in range(30))
LONG = "1" * 5000
DEEP = "[" * 5000

Said = Callable[..., str]


@pytest.fixture
def says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Said:
    """Give arguments to the command, and get the sentence that it says with exit code 2."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["commonweal", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capfd.readouterr().err
        assert ended.value.code == 2, said
        assert "Traceback" not in said and len(said.strip().splitlines()) >= 1
        return said

    return command


# Numbers


@pytest.mark.parametrize(
    "arguments",
    [
        ["vowel", f"seed={LONG}"],
        ["vowel", f"client.lr={DEEP}"],
        ["vowel", "client.lr=1e39"],
        ["vowel", f"client.batch={10**30}"],
        ["vowel", f"client.batch={2**63}"],
        ["vowel", "model=mlp", f"model.hidden=[{2**62}]"],
        ["vowel", "model=mlp", f"model.hidden=[{10**30}]"],
        ["heart", "model=lstm"],
        ["vowel", "score=r2"],
        ["synthetic", "rows=1000000000"],
        ["synthetic", "clients=1000000000"],
        ["synthetic", "features=1000000000000"],
        ["synthetic", "quantity=1e3"],
        ["synthetic", f"rows={10**31}"],
    ],
    ids=lambda arguments: " ".join(arguments)[:40],
)
def test_numbers(says: Said, arguments: list[str]) -> None:
    says("run", *arguments, "rounds=1", "--out", "run")


@pytest.mark.parametrize("text", [f"rounds = {LONG}", f"rounds = {DEEP}", "\udcff", "rounds = nan"])
def test_numbers_of_a_file(says: Said, tmp_path: Path, text: str) -> None:
    path = tmp_path / "e.toml"
    path.write_bytes(f'dataset = "vowel"\n{text}\n'.encode(errors="surrogateescape"))
    says("run", path, "--out", "run")


@pytest.mark.parametrize("rules", ["", ",,,"])
def test_rules_of_a_comparison(says: Said, rules: str) -> None:
    says("compare", "vowel", "rounds=1", "--rules", rules)


# What does not fit into memory is refused with the number, before it is asked for


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["synthetic", "clients=1000000"], "1,000,000 clients with 50 rows"),
        (["synthetic", "rows=100000"], "100 clients with 100,000 rows"),
        (["synthetic", "clients=1000", "features=1000", "rows=100"], "of 1,000 features each"),
        (["vowel", "model=mlp", "model.hidden=[2000,2000]"], "a cohort of 15 clients with 4,0"),
        (["table", "path=t.csv", "label=label"], "an array of "),
    ],
    ids=["clients", "rows", "features", "cohort", "table"],
)
def test_what_does_not_fit_is_refused_with_the_number(
    says: Said,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    sentence: str,
) -> None:
    size = 100e6 if arguments[0] != "table" else 100.0
    monkeypatch.setattr(memory, "available", lambda: size)
    (tmp_path / "t.csv").write_text(TABLE)
    said = says("run", *arguments, "rounds=1", "--out", "run")
    assert sentence in said and " GB of memory; this machine has 0." in said


def test_an_archive_that_unpacks_to_too_much_is_refused(
    says: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available", lambda: 1e6)
    arrays(tmp_path / "data", x=np.zeros((1000, 1000), np.float32), y=np.zeros(1000))
    said = says("run", "folder", "path=data", "rounds=1", "--out", "run")
    assert "data/a/a.npz', unpacked, needs 0.0 GB" in said


# Arrays, tables and images


def arrays(folder: Path, **columns: object) -> Path:
    """A folder of two clients, the first with these arrays."""
    for name, given in (("a", columns), ("b", {"x": X, "y": Y})):
        (folder / name).mkdir(parents=True, exist_ok=True)
        np.savez_compressed(folder / name / f"{name}.npz", **given)  # type: ignore[arg-type]
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


def wrong_bytes(data: bytes, at: int = 60) -> bytes:
    return data[:at] + b"\xff" * 30 + data[at + 30 :]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x05\x06" + bytes(18),
        a_npy(),
        no_arrays(),
        wrong_bytes(bytes(packed(x=X, y=Y))),
        with_flag(packed(x=X, y=Y), 6, 8, 1),
        with_flag(packed(x=X, y=Y), 8, 10, 77),
    ],
    ids=["empty", "no members", "npy", "no npy", "deflate", "encrypted", "unknown compression"],
)
def test_archives(says: Said, tmp_path: Path, data: bytes) -> None:
    arrays(tmp_path / "data", x=X, y=Y).write_bytes(data)
    says("run", "folder", "path=data", "rounds=1", "--out", "run")


@pytest.mark.parametrize(
    "columns",
    [
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
    ],
    ids=range(12),
)
def test_wrong_arrays(says: Said, tmp_path: Path, columns: dict[str, object]) -> None:
    arrays(tmp_path / "data", **columns)
    says("run", "folder", "path=data", "rounds=1", "--out", "run")


def parquet(kind: str) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    numbers = pa.array([0.5] * 20)
    columns = [pa.array(["a", "b"] * 10), pa.array([0, 1] * 10), numbers, numbers]
    pq.write_table(pa.Table.from_arrays(columns, names=["client", "label", "p", "p"]), out)
    data = out.getvalue()
    return {"duplicates": data, "cut": data[:-9], "garbage": b"PAR1" + bytes(range(200))}[kind]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("t.csv", b""),
        ("t.csv", b"client,label,p\n"),
        ("t.csv", TABLE.encode("utf-16")),
        ("t.csv", "client,label,p\né,0,1\nü,1,2\n".encode("latin1") * 6),
        ("t.csv.gz", wrong_bytes(gzip.compress(TABLE.encode()), 20)),
        ("t.csv.gz", gzip.compress(TABLE.encode())[:-12]),
        ("t.csv.gz", TABLE.encode()),
        ("t.parquet", parquet("cut")),
        ("t.parquet", parquet("garbage")),
        ("t.parquet", parquet("duplicates")),
        ("t.parquet", b""),
    ],
    ids=range(11),
)
def test_tables(says: Said, tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    says("run", "table", f"path={name}", "label=label", "client=client", "--out", "run")


@pytest.mark.parametrize("change", ['separator=""', 'separator=";;"', "encoding=nope", "score=r2"])
def test_settings_of_tables(says: Said, tmp_path: Path, change: str) -> None:
    (tmp_path / "t.csv").write_text(TABLE)
    says("run", "table", "path=t.csv", "label=label", "client=client", change, "--out", "run")


def images(folder: Path) -> Path:
    for client in "ab":
        for label in "xy":
            (folder / client / label).mkdir(parents=True)
            Image.fromarray(np.zeros((4, 4), np.uint8)).save(folder / client / label / "0.png")
    return folder / "a" / "x"


@pytest.mark.parametrize("size", [0, -1, 10**9, 10**30])
def test_sizes_of_images(says: Said, tmp_path: Path, size: int) -> None:
    images(tmp_path / "data")
    says("run", "folder", "path=data", f"size={size}", "--out", "run")


def test_a_picture_that_unpacks_to_too_much(says: Said, tmp_path: Path) -> None:
    Image.new("1", (20000, 20000)).save(images(tmp_path / "data") / "1.png")
    says("run", "folder", "path=data", "--out", "run")


# Paths, pipes and devices


@pytest.mark.parametrize("path", ["x" * 300, "x/" * 3000, "file/below", "/proc/self/mem/x"])
@pytest.mark.parametrize("what", ["out", "show", "verify", "table", "folder", "mnist", "init"])
def test_paths(says: Said, tmp_path: Path, path: str, what: str) -> None:
    (tmp_path / "file").write_text("mine")
    commands: dict[str, list[str]] = {
        "out": ["run", "vowel", "rounds=1", "--out", path],
        "show": ["show", path],
        "verify": ["verify", path],
        "table": ["run", "table", f"path={path}", "label=y"],
        "folder": ["run", "folder", f"path={path}"],
        "mnist": ["run", "mnist", f"dir={path}"],
        "init": ["init", path],
    }
    says(*commands[what])


MNIST = [
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
]


def make(kind: str, path: Path) -> Path:
    """A pipe, an endless device or a folder where a file should be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    return path


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize(
    "name", ["t.csv", "t.csv.gz", "t.parquet", "e.toml", "out", "npz", "mnist", "predict"]
)
def test_pipes_devices_and_folders(says: Said, tmp_path: Path, name: str, kind: str) -> None:
    """Reading them may never end: the test would not."""
    if name == "mnist":
        for each in MNIST:
            make(kind, tmp_path / "mnist" / each)
        says("run", "mnist", "dir=.", "--out", "run")
    elif name == "npz":
        arrays(tmp_path / "data", x=X, y=Y)
        (tmp_path / "data" / "b" / "b.npz").unlink()
        make(kind, tmp_path / "data" / "a" / "a.npz")
        says("run", "folder", "path=data", "--out", "run")
    elif name == "e.toml":
        says("run", make(kind, tmp_path / name))
    elif name == "out":
        if kind == "folder":
            (make(kind, tmp_path / name) / "mine").write_text("years of work")
        else:
            make(kind, tmp_path / name)
        says("run", "vowel", "rounds=1", "--out", name)
    elif name == "predict":
        says("predict", make(kind, tmp_path / name), make(kind, tmp_path / "new.csv"))
    else:
        make(kind, tmp_path / name)
        says("run", "table", f"path={name}", "label=label", "--out", "run")
        says("init", name)


# Folders of runs


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    list(run(task(), federation(), rounds=2, out=folder))
    return folder


FILES = ["run.json", "rounds.jsonl", "experiment.toml", "checkpoint.safetensors", "clients.chunks"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "content", [b"", b"[]\n", b"{}\n", b"null\n", b"\xff\xfe", "pipe", "device", "folder", "gone"]
)
def test_damaged_folders(
    says: Said, finished: Path, tmp_path: Path, name: str, content: bytes | str
) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    if content == "gone":
        (folder / name).unlink()
    elif isinstance(content, str):
        make(content, folder / name)
    else:
        (folder / name).write_bytes(content)
    says("verify", folder)
    if name in ("run.json", "experiment.toml") and content != b"":
        says("show", folder)


def test_a_cell_of_a_comparison_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_bytes(b"\xff\xfe")
    assert not Cell("fedavg", Experiment(dataset="vowel"), tmp_path).finished
