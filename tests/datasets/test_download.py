"""Downloads are checked and complete; every dataset says where its files come from."""

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pooch
import pytest
from typer.testing import CliRunner

from commonweal.base.errors import DataError
from commonweal.config import catalog
from commonweal.data.sources import download, origins

FILE = "some/some.bin"
OWN = {"vowel", "digits", "students", "synthetic", "table", "folder"}  # without original files


class Handler(BaseHTTPRequestHandler):
    body = b"x" * 5000
    breaks = 0
    asked = 0

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


class QuietServer(HTTPServer):
    def handle_error(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """pooch waits between tries."""
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)


@pytest.fixture
def served() -> Iterator[str]:
    """A server that breaks off `Handler.breaks` times."""
    Handler.breaks = 0
    Handler.asked = 0
    server = QuietServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


def registry(url: str, root: Path, body: bytes = Handler.body) -> pooch.Pooch:
    """One file of the server, with the checksum of a body."""
    checksum = f"sha256:{hashlib.sha256(body).hexdigest()}"
    return pooch.create(root, url, registry={FILE: checksum}, retry_if_failed=2)


def test_a_download_is_checked_and_not_repeated(served: str, tmp_path: Path) -> None:
    path = download.fetch(FILE, registry=registry(served, tmp_path))
    assert path == tmp_path / "some" / "some.bin" and path.read_bytes() == Handler.body
    download.fetch(FILE, registry=registry(served, tmp_path))
    assert Handler.asked == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_download_that_breaks_starts_again_and_leaves_no_half(
    served: str, tmp_path: Path
) -> None:
    Handler.breaks = 2
    path = download.fetch(FILE, registry=registry(served, tmp_path))
    assert path.read_bytes() == Handler.body and Handler.asked == 3
    Handler.breaks = 99
    Handler.asked = 0
    words = r"some.bin could not be downloaded from .*: try again later, or put it into"
    with pytest.raises(DataError, match=words):
        download.fetch(FILE, registry=registry(served, tmp_path / "second"))
    assert list((tmp_path / "second" / "some").iterdir()) == []


def test_a_wrong_checksum_is_an_error_and_leaves_no_file(served: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="its checksum is not the published one"):
        download.fetch(FILE, registry=registry(served, tmp_path, b"other"))
    assert list((tmp_path / "some").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_an_error(served: str, tmp_path: Path) -> None:
    (tmp_path / "some").write_text("a file in the folder's place")
    with pytest.raises(DataError, match="cannot write to"):
        download.fetch(FILE, registry=registry(served, tmp_path))


# Where files come from


def datasets() -> set[str]:
    return set(catalog.entries("datasets"))


def test_every_dataset_has_files_or_advice() -> None:
    downloaded = {name for name in datasets() if origins.downloads(name)}
    by_hand = set(origins.MANUAL)
    assert datasets() == OWN | downloaded | by_hand
    assert not by_hand & downloaded and not OWN & by_hand


def test_sources_are_whole() -> None:
    known = origins.registry(Path())
    of_datasets = [file for name in datasets() for file in origins.downloads(name)]
    assert set(of_datasets) == set(known.registry_files)
    for file in known.registry_files:
        kind, _, digest = known.registry[file].partition(":")
        assert len(digest) == {"sha256": 64, "md5": 32}[kind]
        assert int(digest, 16) > 0
        folder, _, name = file.partition("/")
        assert folder and "/" not in name
        assert known.get_url(file).startswith("http")
        assert known.get_url(file).endswith(f"/{name}")


def test_writers_need_mnist_too() -> None:
    files = origins.downloads("mnist-writers")
    assert files[:4] == origins.downloads("mnist")
    assert [file.partition("/")[0] for file in files] == ["mnist"] * 4 + ["qmnist_writers"] * 2


def test_a_dataset_without_download_is_an_error() -> None:
    with pytest.raises(DataError, match="cannot be downloaded for you: put the IDX files"):
        download.sources("emnist")
    with pytest.raises(DataError, match="did you mean 'mnist'"):
        download.sources("mnits")
    with pytest.raises(DataError, match="'vowel' needs no download"):
        download.sources("vowel")


def test_data_get(served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from commonweal.cli import app

    monkeypatch.setattr(download, "sources", lambda name: [FILE])
    monkeypatch.setattr(origins, "registry", lambda root: registry(served, root))
    result = CliRunner().invoke(app, ["data", "get", "mnist", "--data-dir", str(tmp_path)])
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())  # lines are wrapped
    assert "1 files in" in words and "their checksums are right" in words
    assert (tmp_path / "some" / "some.bin").exists()
