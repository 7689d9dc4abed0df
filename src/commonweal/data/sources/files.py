"""The original files of a dataset: where they are looked for, and how they are opened.

The data directory has a folder per source with the original file names. It is `$COMMONWEAL_DATA`,
or our folder in the user's cache. A file may be compressed (.gz, .xz) or not; a tree of files may
be a folder, a .zip or a .tar.
"""

import gzip
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import platformdirs

from commonweal.base.errors import DataError
from commonweal.base.files import check_plain
from commonweal.data.sources.opened import note
from commonweal.data.sources.origins import how_to_get

PACKED = (".gz", ".xz")
READ_ERRORS = (
    OSError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    tarfile.TarError,
    RuntimeError,  # zipfile: encrypted
    NotImplementedError,  # zipfile: compressed in an unknown way
)


def cache_root() -> Path:
    """The folder of what is derived from original files; it may be deleted at any time."""
    return Path(platformdirs.user_cache_path("commonweal"))


def data_root() -> Path:
    """The data directory."""
    named = os.environ.get("COMMONWEAL_DATA")
    return Path(named) if named else cache_root()


def find_file(folder: str, name: str, dir: str | None) -> Path | None:
    """A file or folder of that name in `dir` or its `folder`, or in the data directory's."""
    places = [data_root() / folder] if dir is None else [Path(dir), Path(dir) / folder]
    plain = name.removesuffix(".gz").removesuffix(".xz")
    for place in places:
        for suffix in ("", *PACKED):
            path = place / (plain + suffix)
            if path.exists():
                return path
    return None


def locate(
    dataset: str, folder: str, names: Sequence[str], dir: str | None, manual: str = ""
) -> list[Path]:
    """The paths of a dataset's files. The error says which file to put where.

    manual: what to put there, for a dataset that is not the package's
    """
    paths, missing = [], []
    for name in names:
        path = find_file(folder, name, dir)
        if path is None:
            missing.append(name)
        elif path.suffix and path.is_dir():  # only folders have no suffix
            raise DataError(_unreadable(path, IsADirectoryError()))
        else:
            paths.append(path)
    if missing:
        place, other = Path(dir or ""), ""
        if dir is None:
            place = data_root() / folder
            other = f", or set COMMONWEAL_DATA to a folder that has them in {folder!r}"
        remedy = f"put there {manual}" if manual else how_to_get(dataset)
        raise DataError(
            f"dataset {dataset!r}: {', '.join(missing)} not found in {str(place)!r}: "
            f"{remedy}{other}"
        )
    note(*paths)
    return paths


def locate_one(
    dataset: str, folder: str, names: Sequence[str], dir: str | None, manual: str = ""
) -> Path:
    """The path of the first of several files or folders that is there."""
    for name in names:
        path = find_file(folder, name, dir)
        if path is not None:
            note(path)
            return path
    return locate(dataset, folder, names[-1:], dir, manual)[0]


def _unreadable(path: Path, error: BaseException) -> str:
    if isinstance(error, IsADirectoryError) or path.is_dir():
        return f"{str(path)!r} is a folder where a file should be: put the file itself there"
    reason = error.strerror if isinstance(error, OSError) else None
    reason = reason or str(error) or type(error).__name__
    return f"{str(path)!r} cannot be read, it is cut short or damaged ({reason}): get it again"


def read_bytes(path: Path) -> bytes:
    """A file's bytes, unpacked."""
    try:
        check_plain(path)
        note(path)
        if path.suffix not in PACKED:
            return path.read_bytes()
        with gzip.open(path) if path.suffix == ".gz" else lzma.open(path) as file:
            return file.read()
    except READ_ERRORS as error:
        raise DataError(_unreadable(path, error)) from None


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """A file's text, unpacked."""
    try:
        return read_bytes(path).decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{str(path)!r} is not {encoding} text (byte {error.start}): save it as {encoding}"
        ) from None


def read_pairs(path: Path) -> dict[str, str]:
    """The pairs of words in a file, a line each."""
    return dict(line.split() for line in read_text(path).splitlines() if line)


def read_npz(path: Path, needed: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays of an npz file. Raises DataError unless these are among them."""
    try:
        note(path)
        with np.load(path) as opened:
            arrays = dict(opened)
    except (*READ_ERRORS, ValueError) as error:
        raise DataError(
            f"{str(path)!r} is not an npz file of plain arrays, or is cut short: {error}"
        ) from None
    missing = [name for name in needed if name not in arrays]
    if missing:
        raise DataError(
            f"{str(path)!r} holds {sorted(arrays)}: it needs {' and '.join(missing)} too"
        )
    return arrays


def list_members(path: Path, suffixes: tuple[str, ...] = ("",)) -> list[str]:
    """The names of the files in a folder, .zip or .tar. Their contents are not read."""
    return [name for name, _ in _members(path, suffixes, read=False)]


def read_members(path: Path, suffixes: tuple[str, ...] = ("",)) -> Iterator[tuple[str, bytes]]:
    """The files in a folder, .zip or .tar with their contents, by name (a .tar in its order)."""
    return _members(path, suffixes, read=True)


def _members(path: Path, suffixes: tuple[str, ...], read: bool) -> Iterator[tuple[str, bytes]]:
    try:
        for name, content in _entries(path):
            if name.endswith(suffixes):
                yield name, content() if read else b""
    except READ_ERRORS as error:
        raise DataError(_unreadable(path, error)) from None


def _entries(path: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The name of each file, and the function that reads it."""
    note(path)
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.is_file():
                yield file.relative_to(path).as_posix(), partial(read_bytes, file)
        return
    check_plain(path)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for name in sorted(archive.namelist()):
                if not name.endswith("/"):
                    yield name, partial(archive.read, name)
        return
    with tarfile.open(path) as tape:
        for member in filter(tarfile.TarInfo.isfile, tape):
            content = tape.extractfile(member)
            assert content is not None
            yield member.name.removeprefix("./"), content.read
