"""Files that are damaged, of another kind, or not files at all: every command refuses them."""

import gzip
import io
import os
import shutil
import zipfile
from itertools import product
from pathlib import Path

import numpy as np
from PIL import Image

from command_helpers import Command, refusal
from commonweal.analysis.plan import Cell
from commonweal.config.experiment import Experiment

X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
Y = np.arange(8) % 2
TABLE = "client,label,p,q\n" + "".join(f"{'abc'[i % 3]},{i % 2},{i / 2},{-i}\n" for i in range(30))


# Arrays


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


def test_damaged_archives(command: Command, tmp_path: Path) -> None:
    for data in ARCHIVES.values():
        arrays(tmp_path / "data", x=X, y=Y).write_bytes(data)
        refusal(command(*RUN_FOLDER))


def test_wrong_arrays(command: Command, tmp_path: Path) -> None:
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


# Tables


def parquet(kind: str) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    numbers = pa.array([0.5] * 20)
    columns = [pa.array(["a", "b"] * 10), pa.array([0, 1] * 10), numbers, numbers]
    pq.write_table(pa.Table.from_arrays(columns, names=["client", "label", "p", "p"]), out)
    data = out.getvalue()
    return {"duplicates": data, "cut": data[:-9], "garbage": b"PAR1" + bytes(range(200))}[kind]


def test_damaged_tables(command: Command, tmp_path: Path) -> None:
    packed_table = gzip.compress(TABLE.encode())
    for name, data in (
        ("t.csv", b""),
        ("t.csv", b"client,label,p\n"),
        ("t.csv", TABLE.encode("utf-16")),
        ("t.csv", "client,label,p\né,0,1\nü,1,2\n".encode("latin1") * 6),
        ("t.csv.gz", wrong_bytes(packed_table, 20)),
        ("t.csv.gz", packed_table[:-12]),
        ("t.csv.gz", TABLE.encode()),
        ("t.parquet", parquet("cut")),
        ("t.parquet", parquet("garbage")),
        ("t.parquet", parquet("duplicates")),
        ("t.parquet", b""),
    ):
        (tmp_path / name).write_bytes(data)
        table = (f"path={name}", "label=label", "client=client")
        refusal(command("run", "table", *table, "--out", "run"))


def test_wrong_settings_of_tables(command: Command, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TABLE)
    table = ("path=t.csv", "label=label", "client=client")
    for change in ('separator=""', 'separator=";;"', "encoding=nope", "score=r2"):
        refusal(command("run", "table", *table, change, "--out", "run"))


# Images


def images(folder: Path) -> Path:
    for client in "ab":
        for label in "xy":
            (folder / client / label).mkdir(parents=True)
            Image.fromarray(np.zeros((4, 4), np.uint8)).save(folder / client / label / "0.png")
    return folder / "a" / "x"


def test_wrong_sizes_of_images(command: Command, tmp_path: Path) -> None:
    images(tmp_path / "data")
    for size in (0, -1, 10**9, 10**30):
        refusal(command("run", "folder", "path=data", f"size={size}", "--out", "run"))


def test_an_image_that_unpacks_to_too_much(command: Command, tmp_path: Path) -> None:
    Image.new("1", (20000, 20000)).save(images(tmp_path / "data") / "1.png")
    refusal(command("run", "folder", "path=data", "--out", "run"))


# Paths, pipes and devices


def test_paths_that_cannot_exist(command: Command, tmp_path: Path) -> None:
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


def test_pipes_devices_and_folders_in_place_of_files(command: Command, tmp_path: Path) -> None:
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


# Folders of runs


FILES = ["run.json", "rounds.jsonl", "experiment.toml", "checkpoint.safetensors", "clients.chunks"]
DAMAGES: list[bytes | str] = [
    b"",
    b"[]\n",
    b"{}\n",
    b"null\n",
    b"\xff\xfe",
    "pipe",
    "device",
    "folder",
    "gone",
]


def test_damaged_runs(command: Command, finished: Path, tmp_path: Path) -> None:
    for name, content in product(FILES, DAMAGES):
        folder = shutil.copytree(finished, tmp_path / "run")
        if content == "gone":
            (folder / name).unlink()
        elif isinstance(content, str):
            make(content, folder / name)
        else:
            (folder / name).write_bytes(content)
        refusal(command("verify", folder))
        if name in ("run.json", "experiment.toml") and content != b"":
            refusal(command("show", folder))
        shutil.rmtree(folder)


def test_a_cell_of_a_comparison_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_bytes(b"\xff\xfe")
    assert not Cell("fedavg", Experiment(dataset="vowel"), tmp_path).finished
