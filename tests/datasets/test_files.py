"""Files that are missing, cut short or wrong are a sentence each; what was parsed once is not parsed again."""

import contextlib
import gzip
import hashlib
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import commonweal
from commonweal.cli import app
from commonweal.datasets import _cache, _download, _idx
from commonweal.datasets._cache import cached, checksum
from commonweal.datasets._sources import ELSEWHERE, SOURCES, File
from commonweal.errors import CommonwealError, ConfigError, DataError
from commonweal.federation import Federation

NAMES = _idx.FILES


def idx(values: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
    return head + values.astype(np.uint8).tobytes()


def mnist(folder: Path, rows: int = 40) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for part, n in (("train", rows), ("t10k", rows // 4)):
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(rng.integers(0, 256, (n, 28, 28)))))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.arange(n) % 10)))


def load(folder: Path, **options: Any) -> Federation:
    return commonweal.dataset("mnist", dir=str(folder), partition={"name": "iid", "clients": 2}, **options)


def test_the_data_directory_and_a_folder_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mnist(tmp_path / "root" / "mnist")
    monkeypatch.setenv("COMMONWEAL_DATA", str(tmp_path / "root"))
    here = commonweal.dataset("mnist", partition={"name": "iid", "clients": 2})
    for folder in (tmp_path / "root", tmp_path / "root" / "mnist"):
        assert torch.equal(load(folder).train.x, here.train.x)
    (tmp_path / "root" / "mnist" / NAMES[0].removesuffix(".gz")).write_bytes(
        gzip.decompress((tmp_path / "root" / "mnist" / NAMES[0]).read_bytes())
    )
    (tmp_path / "root" / "mnist" / NAMES[0]).unlink()  # unpacked is as good
    assert torch.equal(load(tmp_path / "root").train.x, here.train.x)


def test_a_missing_file_says_what_to_get_and_where_to_put_it(tmp_path: Path) -> None:
    mnist(tmp_path)
    (tmp_path / NAMES[3]).unlink()
    with pytest.raises(DataError, match=rf"{NAMES[3]} not found in '{tmp_path}': run 'commonweal data get mnist'"):
        load(tmp_path)
    with pytest.raises(
        DataError, match=r"in '.*/data/berka': put there the eight .asc .*, or set COMMONWEAL_DATA to a folder"
    ):
        commonweal.dataset("berka")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda data: data[: len(data) // 2], "cut short or damaged"),
        (lambda data: b"not gzip at all", "cut short or damaged"),
        (lambda data: gzip.compress(gzip.decompress(data)[:-9]), "is cut short: its 31367 bytes"),
        (lambda data: gzip.compress(b"\x89PNG data"), "is not an IDX file: it begins with 89 50 4e 47"),
        (lambda data: gzip.compress(b"\0\0\x08\x03\0\0"), "is cut short"),
    ],
)
def test_a_spoilt_file_is_a_sentence(tmp_path: Path, spoil: Callable[[bytes], bytes], words: str) -> None:
    mnist(tmp_path)
    path = tmp_path / NAMES[0]
    path.write_bytes(spoil(path.read_bytes()))
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
    with pytest.raises(DataError, match="images and labels of different number"):
        load(tmp_path)


def test_what_is_parsed_is_kept_until_its_source_changes(tmp_path: Path) -> None:
    source, parsed = tmp_path / "source", []
    source.write_text("1")

    def parse(new: _cache.New) -> None:
        parsed.append(source.read_text())
        new("x", (3,), np.int64)[:] = int(source.read_text())

    def get(options: str = "") -> list[int]:
        return cached("kept", [source], parse, options)["x"].tolist()  # type: ignore[no-any-return]

    assert get() == get() == [1, 1, 1] and len(parsed) == 1
    os.utime(source, ns=(1, 1))  # another time, the same bytes
    assert get() == [1, 1, 1] and len(parsed) == 1
    assert get("other") == [1, 1, 1] and len(parsed) == 2
    source.write_text("2")
    assert get() == [2, 2, 2] and len(parsed) == 3


def test_a_checksum_is_taken_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"abc")
    assert checksum(source) == hashlib.sha256(b"abc").hexdigest()
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("read again"))
    assert checksum(source) == hashlib.sha256(b"abc").hexdigest()


def test_a_damaged_or_unwritable_cache_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.write_text("1")

    def parse(new: _cache.New) -> None:
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

    def parse(new: _cache.New) -> None:
        new("x", (10,), np.int64)
        raise DataError("half way")

    with pytest.raises(DataError, match="half way"):
        cached("kept", [], parse)
    assert list((tmp_path / "home" / "commonweal" / "parsed").iterdir()) == []


def test_mapped_arrays_make_tensors_without_a_warning_and_never_change_the_file(tmp_path: Path) -> None:
    mnist(tmp_path)
    load(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool = _idx.pooled("mnist", "mnist", str(tmp_path))
        assert isinstance(pool.x, np.memmap)
        torch.from_numpy(pool.x)[:] = 7
    assert int(_idx.pooled("mnist", "mnist", str(tmp_path)).x.max()) > 7


def test_a_class_of_test_rows_only_is_remarked(tmp_path: Path) -> None:
    x, y = np.zeros((4, 2), np.float32), np.array([0, 1, 0, 2])
    federation = Federation.from_arrays(x, y, ["a", "a", "b", "b"], np.array([False, False, False, True]))
    assert federation.unseen == [2]
    from commonweal.describe import remarks

    assert "1 classes occur in test rows only, so no model can learn them: 2" in remarks(federation)
    with pytest.raises(DataError, match="no training rows for 'b'"):
        Federation.from_arrays(x, y, ["a", "a", "b", "b"], np.array([False, False, True, True]))


def test_every_dataset_has_files_or_advice() -> None:
    own = {"vowel", "digits", "synthetic", "table", "folder"}
    assert set(commonweal.catalog.entries("datasets")) == own | set(SOURCES) | set(ELSEWHERE)
    assert all(
        f.hash.split(":")[0] in ("sha256", "md5") and f.url.endswith(f.name) for s in SOURCES.values() for f in s
    )


def written(path: Path, text: str, encoding: str = "utf-8") -> str:
    path.write_text(text, encoding=encoding)
    return str(path)


TABLE = "age,city,ward,ill\n" + "".join(
    f"{20 + i},{'ab'[i % 2]},w{i % 3},{'yes' if i % 4 else 'no'}\n" for i in range(30)
)


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", TABLE)
    federation = commonweal.dataset("table", path=path, label="ill", client="ward", test=0.5)
    assert federation.names == ("w0", "w1", "w2") and federation.train.x.shape == (15, 3) and federation.outputs == 2
    assert float(federation.train.x[:, 0].mean()) == pytest.approx(0, abs=1e-6)
    assert set(federation.train.x[:, 1:].flatten().tolist()) == {0.0, 1.0}
    assert federation.counts.sum(0).tolist() == [8, 22]  # no before yes
    raw = commonweal.dataset("table", path=path, label="ill", client="ward", scale=False, drop=["city"])
    assert sorted(torch.cat([raw.train.x, raw.test.x])[:, 0].tolist()) == list(map(float, range(20, 50)))
    value = commonweal.dataset("table", path=path, label="age", client="ward", task="values", score="neg-mae")
    assert (value.loss, value.score) == ("squared", "neg-mae")
    dealt = commonweal.dataset("table", path=path, label="ill", partition={"name": "iid", "clients": 5}, drop=["ward"])
    assert dealt.clients == 5


def test_parquet_and_npz_hold_the_same(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")
    import pyarrow.csv

    path = written(tmp_path / "t.csv", TABLE)
    parquet.write_table(pyarrow.csv.read_csv(path), tmp_path / "t.parquet")
    a, b = (
        commonweal.dataset("table", path=str(tmp_path / f"t.{kind}"), label="ill", client="ward")
        for kind in ("csv", "parquet")
    )
    assert torch.equal(a.train.x, b.train.x) and torch.equal(a.test.y, b.test.y) and a.names == b.names
    x = np.random.default_rng(0).normal(size=(9, 2, 3)).astype(np.float32)
    np.savez(tmp_path / "t.npz", x=x, y=np.arange(9) % 3, client=np.repeat([7, 8, 9], 3))
    c = commonweal.dataset("table", path=str(tmp_path / "t.npz"))
    assert c.names == ("7", "8", "9") and c.train.x.shape[1:] == (2, 3)


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (TABLE, {"label": "il"}, "label = 'il': there is no such column; did you mean 'ill'"),
        (TABLE, {"client": "wart"}, "client = 'wart': there is no such column; did you mean 'ward'"),
        (TABLE + "1,2\n", {}, "2 values for 4 columns"),
        (TABLE + ",a,w0,yes\n", {}, "column 'age' has missing values"),
        (TABLE.replace("age", "ward"), {}, "different column names"),
        ("age,ward,ill\n", {}, "no rows"),
        ("", {}, "different column names"),
        (TABLE, {"drop": ["age", "city"]}, "no column is left"),
        (TABLE, {"label": "age", "task": "values", "drop": ["tion"]}, "no such column"),
    ],
)
def test_a_table_that_cannot_be_used_is_a_sentence(
    tmp_path: Path, text: str, options: dict[str, Any], words: str
) -> None:
    path = written(tmp_path / "t.csv", text)
    with pytest.raises(DataError, match=words):
        commonweal.dataset("table", path=path, **({"label": "ill", "client": "ward"} | options))


def test_tables_that_are_not_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="is not UTF-8 text"):
        commonweal.dataset(
            "table", path=written(tmp_path / "t.csv", TABLE.replace("a,w", "é,w"), "latin-1"), label="ill"
        )
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(TABLE.encode() * 50)[:60])
    with pytest.raises(DataError, match="cut short or damaged"):
        commonweal.dataset("table", path=str(tmp_path / "t.csv.gz"), label="ill")
    with pytest.raises(DataError, match="there is no file"):
        commonweal.dataset("table", path=str(tmp_path / "none.csv"))
    with pytest.raises(DataError, match="is a folder, not a table"):
        commonweal.dataset("table", path=str(tmp_path))
    (tmp_path / "t.npz").write_bytes(b"no zip")
    with pytest.raises(DataError, match="not an npz file"):
        commonweal.dataset("table", path=str(tmp_path / "t.npz"))
    np.savez(tmp_path / "u.npz", x=np.zeros(3))
    with pytest.raises(DataError, match="it needs y and client too"):
        commonweal.dataset("table", path=str(tmp_path / "u.npz"))
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'commonweal\[parquet\]'"):
        commonweal.dataset("table", path=str(tmp_path / "t.parquet"))


def test_a_long_table_is_read_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from commonweal.datasets import _tables

    path = written(tmp_path / "t.csv", TABLE)
    whole = commonweal.dataset("table", path=path, label="ill", client="ward")
    monkeypatch.setattr(_tables, "AT_ONCE", 7)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "fresh"))
    parts = commonweal.dataset("table", path=path, label="ill", client="ward")
    assert torch.equal(whole.train.x, parts.train.x) and torch.equal(whole.test.y, parts.test.y)


def test_a_folder_per_client(tmp_path: Path) -> None:
    for k, name in enumerate(("ann", "bob")):
        (tmp_path / "tables" / name).mkdir(parents=True)
        written(tmp_path / "tables" / name / "a.csv", "v,label\n" + "".join(f"{k + i},{i % 2}\n" for i in range(10)))
        (tmp_path / "arrays" / name).mkdir(parents=True)
        np.savez(tmp_path / "arrays" / name / "a.npz", x=np.full((5, 2), k, np.float32), y=np.arange(5) % 2)
        for kind in ("cat", "dog"):
            (tmp_path / "pictures" / name / kind).mkdir(parents=True)
            for i in range(3):
                Image.new("RGB", (40, 30), (k, i, 0)).save(tmp_path / "pictures" / name / kind / f"{i}.png")
    tables, arrays, pictures = (
        commonweal.dataset("folder", path=str(tmp_path / kind)) for kind in ("tables", "arrays", "pictures")
    )
    assert tables.names == arrays.names == pictures.names == ("ann", "bob")
    assert tables.train.sizes.tolist() == [8, 8] and arrays.train.x[-1].tolist() == [1, 1]
    assert pictures.train.x.shape[1:] == (3, 32, 32) and pictures.notes == ("classes: cat, dog",)
    with pytest.raises(DataError, match="one folder per client"):
        commonweal.dataset("folder", path=str(tmp_path / "tables" / "ann"))


class Handler(BaseHTTPRequestHandler):
    body, breaks, asked = b"x" * 5000, 0, 0

    def do_GET(self) -> None:
        Handler.asked += 1
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        if Handler.asked <= self.breaks:
            self.wfile.write(self.body[:1000])
            self.close_connection = True
            self.connection.close()
            return
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served() -> Iterator[str]:
    Handler.breaks = Handler.asked = 0
    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign,assignment]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


def file(url: str, body: bytes = Handler.body) -> File:
    return File("some", "some.bin", url + "some.bin", f"sha256:{hashlib.sha256(body).hexdigest()}")


def test_a_download_is_checked_and_not_repeated(served: str, tmp_path: Path) -> None:
    path = _download.fetch(file(served), root=tmp_path)
    assert path == tmp_path / "some" / "some.bin" and path.read_bytes() == Handler.body
    _download.fetch(file(served), root=tmp_path)
    assert Handler.asked == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_download_that_breaks_begins_anew_and_leaves_no_half(served: str, tmp_path: Path) -> None:
    Handler.breaks = 2
    assert _download.fetch(file(served), root=tmp_path).read_bytes() == Handler.body and Handler.asked == 3
    Handler.breaks, Handler.asked = 99, 0
    with pytest.raises(DataError, match=r"some.bin could not be had from .*: try again later, or put it into"):
        _download.fetch(file(served), root=tmp_path / "second")
    assert list((tmp_path / "second" / "some").iterdir()) == []


def test_a_wrong_checksum_is_a_sentence_and_leaves_no_file(served: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="its checksum is not the published one"):
        _download.fetch(file(served, b"other"), root=tmp_path)
    assert list((tmp_path / "some").iterdir()) == [] and Handler.asked == 1


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["data", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_data_get(served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES, "mnist", (file(served),))
    said = run("get", "mnist", "--data-dir", str(tmp_path))
    assert "1 files, checksums right" in said.replace("\n", " ") and (tmp_path / "some" / "some.bin").exists()
    with pytest.raises(DataError, match=r"cannot be downloaded for you: put identity_CelebA.txt"):
        run("get", "celeba")
    with pytest.raises(DataError, match="did you mean 'mnist'"):
        run("get", "mnits")


def test_data_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    said = run("show", "digits", "partition.clients=5", "partition.alpha=0.1", "noise=pair", "--out", "a/b.png")
    assert "clients           5" in said and "classes           10, of " in said
    assert "label noise: 10.0" in said and "drawn to a/b.png" in said
    with Image.open("a/b.png") as picture:
        assert picture.size == (1200, 750)
    assert '"clients": 300' in run("show", "synthetic", "clients=300", "--json") and Path("synthetic.png").exists()
    mnist(tmp_path / "mine" / "mnist")
    said = run("show", "mnist", "partition=iid", "partition.clients=2", "--data-dir", str(tmp_path / "mine"))
    assert f"{NAMES[0]} is not the published file: its checksum differs" in said
    with contextlib.suppress(CommonwealError):
        run("show", "mnist", "partition=idd")
        pytest.fail("an unknown partition went through")
