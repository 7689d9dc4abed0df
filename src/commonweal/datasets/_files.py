"""The original files of a dataset: where they are looked for, and how they are opened.

The data directory has a folder per source with the original file names. It is `$COMMONWEAL_DATA`, or our folder in the
user's cache. A file may be compressed (.gz, .xz) or not; a tree of files may be a folder, a .zip or a .tar.
"""

import gzip
import io
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import platformdirs

from commonweal.datasets import _sources
from commonweal.errors import DataError

__all__ = ["cache_root", "data_root", "decoded", "find", "listing", "locate", "members", "read"]

PACKED = ("", ".gz", ".xz")
Broken = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError)


def cache_root() -> Path:
    """Where what is derived from original files is kept; it may be deleted at any time."""
    return Path(platformdirs.user_cache_path("commonweal"))


def data_root() -> Path:
    """The data directory."""
    return Path(os.environ["COMMONWEAL_DATA"]) if os.environ.get("COMMONWEAL_DATA") else cache_root()


def find(folder: str, name: str, dir: str | None) -> Path | None:
    """A file or folder of that name, in `dir` or its folder, or in the data directory's; None where it is not."""
    places = [data_root() / folder] if dir is None else [Path(dir), Path(dir) / folder]
    plain = name.removesuffix(".gz").removesuffix(".xz")
    for path in (place / (plain + suffix) for place in places for suffix in PACKED):
        if path.exists():
            return path
    return None


def locate(dataset: str, folder: str, names: Sequence[str], dir: str | None) -> list[Path]:
    """The paths of a dataset's files, or a sentence that says which file to put where."""
    found = {name: find(folder, name, dir) for name in names}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        where = Path(dir) if dir is not None else data_root() / folder
        other = "" if dir is not None else f", or set COMMONWEAL_DATA to a folder that has them in {folder!r}"
        what = f"dataset {dataset!r}: {', '.join(missing)} not found in {str(where)!r}"
        raise DataError(f"{what}: {_sources.advice(dataset)}{other}")
    paths = [path for path in map(found.get, names) if path is not None]
    for path in paths:
        if path.suffix and path.is_dir():  # only folders have no suffix
            raise DataError(_sentence(path, IsADirectoryError()))
    return paths


def _sentence(path: Path, error: BaseException) -> str:
    if isinstance(error, IsADirectoryError) or path.is_dir():
        return f"{str(path)!r} is a folder where a file should be: put the file itself there"
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"{str(path)!r} cannot be read, it is cut short or damaged ({why}): get it again"


def read(path: Path) -> bytes:
    """A file's bytes, unpacked."""
    unpack: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.decompress, ".xz": lzma.decompress}
    try:
        return unpack.get(path.suffix, bytes)(path.read_bytes())
    except Broken as error:
        raise DataError(_sentence(path, error)) from None


def decoded(path: Path, encoding: str = "utf-8") -> str:
    """A file's text, unpacked."""
    try:
        return read(path).decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(f"{str(path)!r} is not {encoding} text (byte {error.start}): save it as {encoding}") from None


def listing(path: Path, suffixes: tuple[str, ...] = ()) -> list[str]:
    """The names of what `members` would give, without reading it (a .tar is gone through)."""
    try:
        if path.is_dir():
            names = [p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()]
        elif path.suffix == ".zip":
            with zipfile.ZipFile(path) as pack:
                names = [name for name in pack.namelist() if not name.endswith("/")]
        else:
            with tarfile.open(path) as tar:
                names = [member.name.removeprefix("./") for member in tar if member.isfile()]
    except Broken as error:
        raise DataError(_sentence(path, error)) from None
    return [name for name in names if not suffixes or name.endswith(suffixes)]


def members(path: Path, suffixes: tuple[str, ...] = ()) -> Iterator[tuple[str, bytes]]:
    """The files in a folder, .zip or .tar whose names end so, in the order of their names (a .tar's: as they come)."""
    try:
        if path.is_dir():
            for file in sorted(p for p in path.rglob("*") if p.is_file()):
                if not suffixes or file.name.endswith(suffixes):
                    yield file.relative_to(path).as_posix(), read(file)
        elif path.suffix == ".zip":
            with zipfile.ZipFile(path) as pack:
                for name in sorted(pack.namelist()):
                    if not name.endswith("/") and (not suffixes or name.endswith(suffixes)):
                        yield name, pack.read(name)
        else:
            with tarfile.open(path) as tar:
                for member in tar:
                    if member.isfile() and (not suffixes or member.name.endswith(suffixes)):
                        file_of = tar.extractfile(member)
                        yield member.name.removeprefix("./"), (file_of or io.BytesIO()).read()
    except Broken as error:
        raise DataError(_sentence(path, error)) from None
