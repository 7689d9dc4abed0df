"""Names of the files that a dataset is read from, and digests of their contents.

A function that opens an original file notes it, and `opened_files` collects what was noted.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from commonweal.base.files import check_plain

PACKAGE = Path(__file__).parents[2]  # its files change with its version only
SIZE = 16  # bytes of a digest

Stamp = tuple[str, int, int, int, int, int]

_noted: ContextVar[dict[Path, None] | None] = ContextVar("noted", default=None)
_digests: dict[Stamp, str] = {}  # of files that have not been written to since


@contextmanager
def opened_files() -> Iterator[dict[Path, None]]:
    """Collect the files and folders that are opened meanwhile, in their order."""
    collected: dict[Path, None] = {}
    token = _noted.set(collected)
    try:
        yield collected
    finally:
        _noted.reset(token)


@contextmanager
def unnoted() -> Iterator[None]:
    """Note no file that is opened meanwhile: what is read belongs to one that is noted."""
    token = _noted.set(None)
    try:
        yield
    finally:
        _noted.reset(token)


def note(*paths: Path) -> None:
    """Say that data come from these files or folders."""
    collected = _noted.get()
    if collected is None:
        return
    for path in paths:
        if not path.is_relative_to(PACKAGE):
            collected[path] = None


def distinct(paths: Sequence[Path]) -> list[Path]:
    """The paths without those that are in a folder among them."""
    folders = {path for path in paths if path.is_dir()}
    return [path for path in paths if folders.isdisjoint(path.parents)]


def content_digest(path: Path) -> str:
    """A hash of what a file holds, or of the names and contents of all files in a folder.

    Raises:
        OSError: It cannot be read.
    """
    if not path.is_dir():
        return _file_digest(path)
    total = hashlib.blake2b(digest_size=SIZE)
    for file in sorted(path.rglob("*")):
        if file.is_file():
            name = file.relative_to(path).as_posix()
            total.update(f"{_file_digest(file)} {name}\n".encode(errors="surrogateescape"))
    return total.hexdigest()


def _file_digest(path: Path) -> str:
    check_plain(path)
    stamp = _stamp(path)
    known = _digests.get(stamp)
    if known is None:
        with open(path, "rb") as file:
            known = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=SIZE)).hexdigest()
        if _stamp(path) == stamp:  # nobody wrote to it meanwhile
            _digests[stamp] = known
    return known


def _stamp(path: Path) -> Stamp:
    """Return a value that every write to a file changes: one of the times cannot be set."""
    status = os.stat(path)
    times = status.st_mtime_ns, status.st_ctime_ns
    return os.path.realpath(path), status.st_dev, status.st_ino, status.st_size, *times
