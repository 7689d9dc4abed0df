"""Missing, damaged or wrong files are a sentence each; what was parsed once is not parsed again."""

import contextlib
import gzip
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import commonweal
from commonweal.base.errors import CommonwealError, ConfigError, DataError
from commonweal.data.describe import federation_facts, remarks, sampling_error, skewness
from commonweal.data.federation import Federation
from commonweal.data.sources import cache
from commonweal.data.sources.cache import cached
from commonweal.datasets.mnist import FILES, emnist, read_images

NAMES = FILES
TWO = {"name": "iid", "clients": 2}


def idx(values: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
    return head + values.astype(np.uint8).tobytes()


def mnist(folder: Path, rows: int = 40) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for part, n in (("train", rows), ("t10k", rows // 4)):
        images = idx(rng.integers(0, 256, (n, 28, 28)))
        labels = idx(np.arange(n) % 10)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))


def load(folder: Path, **options: Any) -> Federation:
    return commonweal.dataset("mnist", dir=str(folder), partition=TWO, **options)


# Where files are looked for


def test_the_data_directory_and_a_folder_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    mnist(root / "mnist")
    monkeypatch.setenv("COMMONWEAL_DATA", str(root))
    here = commonweal.dataset("mnist", partition=TWO)
    for folder in (root, root / "mnist"):
        assert torch.equal(load(folder).train.x, here.train.x)
    packed = root / "mnist" / NAMES[0]
    packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()  # an unpacked file will do
    assert torch.equal(load(root).train.x, here.train.x)


def test_the_error_of_a_missing_file_names_its_source_and_place(tmp_path: Path) -> None:
    mnist(tmp_path)
    (tmp_path / NAMES[3]).unlink()
    words = rf"{NAMES[3]} not found in '{tmp_path}': run 'commonweal data get mnist'"
    with pytest.raises(DataError, match=words):
        load(tmp_path)
    words = r"in '.*/data/emnist': put there the IDX files .*, or set COMMONWEAL_DATA to a folder"
    with pytest.raises(DataError, match=words):
        commonweal.dataset("emnist")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[: len(data) // 2], "cut short or damaged"),
        (lambda data: b"not gzip at all", "cut short or damaged"),
        (lambda data: gzip.compress(gzip.decompress(data)[:-9]), "is cut short: its 31367 bytes"),
        (
            lambda data: gzip.compress(b"\x89PNG data"),
            "is not an IDX file: it begins with 89 50 4e 47",
        ),
        (lambda data: gzip.compress(b"\0\0\x08\x03\0\0"), "is cut short"),
    ],
)
def test_a_damaged_file_is_an_error(
    tmp_path: Path, damage: Callable[[bytes], bytes], words: str
) -> None:
    mnist(tmp_path)
    path = tmp_path / NAMES[0]
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=words) as error:
        load(tmp_path)
    assert NAMES[0] in str(error.value)


def test_a_folder_where_a_file_should_be(tmp_path: Path) -> None:
    mnist(tmp_path)
    (tmp_path / NAMES[1]).unlink()
    (tmp_path / NAMES[1]).mkdir()
    with pytest.raises(DataError, match="is a folder where a file should be"):
        load(tmp_path)


def test_images_and_labels_must_agree(tmp_path: Path) -> None:
    mnist(tmp_path)
    (tmp_path / NAMES[1]).write_bytes(gzip.compress(idx(np.zeros(39))))
    with pytest.raises(DataError, match="images and labels differ in number"):
        load(tmp_path)


# Which rows of a pool are used


def images(federation: Federation) -> set[bytes]:
    both = torch.cat([federation.train.x, federation.test.x])
    return {x.numpy().tobytes() for x in both}


def test_one_part_of_the_publishers_split_can_be_used_alone(tmp_path: Path) -> None:
    mnist(tmp_path)
    whole = load(tmp_path)
    train = load(tmp_path, part="train")
    test = load(tmp_path, part="test", test=0.5)
    assert [len(images(f)) for f in (whole, train, test)] == [50, 40, 10]
    assert images(train) | images(test) == images(whole)
    assert train.outputs == test.outputs == 10
    official = load(tmp_path, test="official")
    assert images(test) == {x.numpy().tobytes() for x in official.test.x}


@pytest.mark.parametrize("part", ["train", "test"])
def test_the_official_split_needs_both_parts(tmp_path: Path, part: str) -> None:
    mnist(tmp_path)
    with pytest.raises(ConfigError, match=rf"part = '{part}' with test = 'official': .* a share"):
        load(tmp_path, part=part, test="official")


def test_some_classes_are_renumbered_in_the_order_given(tmp_path: Path) -> None:
    mnist(tmp_path)
    some = load(tmp_path, classes=[7, 2], part="train")
    assert some.counts.sum(0).tolist() == [4, 4] and some.outputs == 2
    whole = load(tmp_path, part="train")
    sevens = {x.numpy().tobytes() for x in whole.train.x[whole.train.y == 7]}
    ours = {x.numpy().tobytes() for x in some.train.x[some.train.y == 0]}
    assert len(sevens & ours) >= 2 and ours <= images(whole)
    with pytest.raises(DataError, match=r"classes = \[7, 11\]: .* there are no classes \[11\]"):
        load(tmp_path, classes=[7, 11])
    with pytest.raises(DataError, match="name each class once"):
        load(tmp_path, classes=[7, 7])


# The cache


def test_what_is_parsed_is_kept_until_its_source_changes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("1")
    parsed = []

    def parse(new: cache.New) -> None:
        parsed.append(source.read_text())
        new("x", (3,), np.int64)[:] = int(source.read_text())

    def get(options: str = "") -> list[int]:
        values: list[int] = cached("kept", [source], parse, options)["x"].tolist()
        return values

    assert get() == get() == [1, 1, 1] and len(parsed) == 1
    assert get("other") == [1, 1, 1] and len(parsed) == 2
    source.write_text("2")
    os.utime(source, ns=(1, 1))
    assert get() == [2, 2, 2] and len(parsed) == 3


def filled(folder: Path, name: str, text: str) -> np.ndarray:
    """An array of a megabyte of a source with this text."""
    source = folder / name
    source.write_text(text)

    def parse(new: cache.New) -> None:
        new("x", (125_000,), np.int64)[:] = int(text)

    return cached("kept", [source], parse)["x"]


def test_the_cache_is_keyed_by_content_wherever_the_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    (tmp_path / "other").mkdir()
    filled(tmp_path, "source", "1")
    before = cache.cache_entries()
    filled(tmp_path / "other", "source", "1")
    assert [entry.folder for entry in cache.cache_entries()] == [entry.folder for entry in before]
    status = (tmp_path / "source").stat()
    (tmp_path / "source").write_text("2")  # of the same size and time of change
    os.utime(tmp_path / "source", ns=(status.st_atime_ns, status.st_mtime_ns))

    def parse(new: cache.New) -> None:
        new("x", (1,), np.int64)[:] = 2

    assert cached("kept", [tmp_path / "source"], parse)["x"].tolist() == [2]


def test_the_cache_keeps_what_was_used_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(cache.LIMIT, "0.0025")  # two entries
    first = filled(tmp_path, "a", "1")
    filled(tmp_path, "b", "2")
    (a,) = (e.folder for e in cache.cache_entries() if np.load(e.folder / "x.npy")[0] == 1)
    for k, entry in enumerate(cache.cache_entries()):
        os.utime(entry.folder, (k, k))
    filled(tmp_path, "a", "1")  # used again
    filled(tmp_path, "c", "3")
    values = sorted(int(np.load(entry.folder / "x.npy")[0]) for entry in cache.cache_entries())
    assert values == [1, 3] and a.is_dir()
    assert cache.clear_cache() > 2_000_000 and cache.cache_entries() == []
    assert first.sum() == 125_000  # who uses an entry keeps it
    monkeypatch.setenv(cache.LIMIT, "0")
    assert filled(tmp_path, "d", "4").sum() == 500_000 and cache.cache_entries() == []
    for wrong in ("much", "-1", "nan"):
        monkeypatch.setenv(cache.LIMIT, wrong)
        with pytest.raises(ConfigError, match="number of gigabytes"):
            filled(tmp_path, "e", "5")


WRITER = """
import sys
from pathlib import Path
import numpy as np
from commonweal.data.sources.cache import cached
folder = Path(sys.argv[1])
for k in range(150):
    source = folder / str(k % 5)
    value = 10 + k % 5
    def parse(new):
        new("x", (20_000,), np.int64)[:] = value
    assert cached("kept", [source], parse)["x"].tolist() == [value] * 20_000
"""


def test_several_processes_share_a_cache_that_is_too_small(tmp_path: Path) -> None:
    for k in range(5):
        (tmp_path / str(k)).write_text(str(k))
    home = {"XDG_CACHE_HOME": str(tmp_path / "home"), cache.LIMIT: "0.0004"}  # two of five
    call = [sys.executable, "-W", "error", "-c", WRITER, str(tmp_path)]
    processes = [subprocess.Popen(call, env=os.environ | home) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    left = list((tmp_path / "home" / "commonweal" / "parsed").iterdir())
    assert len(left) <= 3 and not [path for path in left if path.name.startswith(cache.PART)]


def test_a_damaged_or_unwritable_cache_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.write_text("1")

    def parse(new: cache.New) -> None:
        new("x", (100,), np.int64)[:] = 5

    home = tmp_path / "home"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    cached("kept", [source], parse)
    (file,) = home.rglob("x.npy")
    file.write_bytes(file.read_bytes()[:200])
    assert cached("kept", [source], parse)["x"].sum() == 500
    assert not [p for p in home.rglob("*") if p.name.startswith(".part-")]
    monkeypatch.setenv("XDG_CACHE_HOME", str(source))  # a file: nothing can be written below it
    assert cached("kept", [source], parse)["x"].sum() == 500


def test_a_parse_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))

    def parse(new: cache.New) -> None:
        new("x", (10,), np.int64)
        raise DataError("half way")

    with pytest.raises(DataError, match="half way"):
        cached("kept", [], parse)
    assert list((tmp_path / "home" / "commonweal" / "parsed").iterdir()) == []


def test_mapped_arrays_make_tensors_without_a_warning_and_never_change_the_file(
    tmp_path: Path,
) -> None:
    mnist(tmp_path)
    load(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = read_images("mnist", "mnist", str(tmp_path))["x"]
        assert isinstance(x, np.memmap)
        torch.from_numpy(x)[:] = 7
    assert int(read_images("mnist", "mnist", str(tmp_path))["x"].max()) > 7


# What a federation holds, in words


def test_a_class_of_test_rows_only_is_remarked() -> None:
    x = np.zeros((4, 2), np.float32)
    y = np.array([0, 1, 0, 2])
    owner = ["a", "a", "b", "b"]
    federation = Federation.from_arrays(x, y, owner, np.array([False, False, False, True]))
    assert federation.unseen == [2]
    sentence = "1 classes occur in test rows only, so no model can learn them: 2"
    assert sentence in remarks(federation)
    with pytest.raises(DataError, match="no training rows for 'b'"):
        Federation.from_arrays(x, y, owner, np.array([False, False, True, True]))


def test_skewness_is_the_largest_chi_square_of_a_mixture() -> None:
    """By a search over mixtures: 1 + chi^2(lam || m / sum m), AFL's section 4."""
    sizes = np.array([5, 2, 3])
    owner = np.repeat(["a", "b", "c"], sizes)
    test = np.zeros(10, dtype=bool)
    federation = Federation.from_arrays(np.zeros((10, 1)), np.arange(10) % 2, owner, test)
    m = sizes / sizes.sum()
    mixtures = np.vstack([np.random.default_rng(0).dirichlet([0.2] * 3, 4000), np.eye(3)])
    largest = (1 + ((mixtures - m) ** 2 / m).sum(1)).max()
    assert skewness(federation) == pytest.approx(largest) == pytest.approx(5.0)
    worst = (mixtures @ np.sqrt(np.log(3 / 0.1) / (2 * sizes))).max()  # Theorem 10
    assert sampling_error(federation, delta=0.1) == pytest.approx(worst)


def test_emnist_is_read_upright_and_from_0(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = {
        "train": rng.integers(0, 256, (52, 28, 28)),
        "test": rng.integers(0, 256, (26, 28, 28)),
    }
    for part, images in pixels.items():
        stem = tmp_path / f"emnist-letters-{part}"
        labels = 1 + np.arange(len(images)) % 26
        Path(f"{stem}-images-idx3-ubyte.gz").write_bytes(
            gzip.compress(idx(images.transpose(0, 2, 1)))
        )
        Path(f"{stem}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    pool = emnist("letters", test="official", dir=str(tmp_path))
    assert np.array_equal(pool.x[:, 0], np.concatenate([pixels["train"], pixels["test"]]))
    assert pool.y[:52].tolist() == [*range(26), *range(26)] and pool.outputs == 26
    assert pool.official.sum() == 26
    some = emnist("letters", classes=(0, 3), part="train", dir=str(tmp_path))
    assert some.y.tolist() == [0, 1, 0, 1] and some.outputs == 2
    with pytest.raises(DataError, match="emnist-byclass-train-images-idx3-ubyte"):
        emnist("byclass", dir=str(tmp_path))


def test_facts_of_a_federation() -> None:
    owner = ["a"] * 6 + ["b"] * 2
    federation = Federation.from_arrays(np.zeros((8, 3)), [0, 0, 0, 1, 1, 1, 1, 1], owner, 0.5)
    known = federation_facts(federation)
    assert (known["clients"], known["training rows"], known["test rows"]) == (2, 4, 4)
    assert known["row"] == "3" and known["rows per client"] == "2 to 6, mean 4.00, std 2.00"
    assert str(known["skewness"]).startswith("4.00 (AFL")  # training rows: 3 and 1
    assert known["classes"] == "2, of 3 to 5 rows" and known["classes per client"] == "1 to 2"
    # The mix of all is 3/8 and 5/8: "a" differs by 1/8, and "b", all of class 1, by 3/8.
    assert str(known["label skew"]).startswith("0.250 on average, 0.375 at most")
    values = Federation.from_arrays(np.zeros((4, 1)), [0.5, 1.5, 2.5, 3.5], ["a"] * 4)
    assert "classes" not in federation_facts(values)


def test_clients_without_a_test_set_are_remarked() -> None:
    owner = [*"abcdefg", "h", "h"]
    federation = Federation.from_arrays(np.zeros((9, 1)), [0] * 9, owner)
    (sentence,) = remarks(federation)
    assert sentence.startswith("7 clients have too few rows for a test set")
    assert sentence.endswith("a, b, c, d, e ...")


def run(*arguments: str) -> str:
    from commonweal.cli import app

    result = CliRunner().invoke(app, ["data", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_data_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    changes = [
        "partition=dirichlet",
        "partition.clients=5",
        "partition.alpha=0.1",
        "label_noise=pair",
    ]
    text = run("show", "digits", *changes, "--out", "a/b.png")
    assert re.search(r"clients +5\b", text) and re.search(r"classes +10, of ", text)
    assert "label noise: 10.0" in text and "drawn to a/b.png" in text
    with Image.open("a/b.png") as picture:
        assert picture.size == (1200, 750)


def test_data_show_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert '"clients": 300' in run("show", "synthetic", "clients=300", "--json")
    assert Path("synthetic.png").exists()


def test_data_show_checks_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    mnist(tmp_path / "mine" / "mnist")
    folder = str(tmp_path / "mine")
    text = run("show", "mnist", "partition=iid", "partition.clients=2", "--data-dir", folder)
    assert f"{NAMES[0]} is not the published file: its checksum differs" in text
    with contextlib.suppress(CommonwealError):
        run("show", "mnist", "partition=idd")
        pytest.fail("an unknown partition was accepted")


def test_the_code_of_all_that_read_data_is_part_of_the_key() -> None:
    package = Path(cache.__file__).parents[2]
    importing = [
        file for file in package.rglob("*.py") if "sources.cache import" in file.read_text()
    ]
    rooms = {file.relative_to(package).parts[0] for file in importing}
    assert rooms and rooms <= set(cache.READERS)
    assert all((package / folder).is_dir() for folder in cache.READERS)
