"""A cache of parsed files, memory-mapped, so that loading a second time takes next to no time.

An entry is named by the checksums of its sources and of the code that parsed them. A file's
checksum is computed again only when its size or its time has changed. Any of it may be deleted.
"""

import hashlib
import inspect
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from commonweal.base.errors import DataError
from commonweal.base.files import check_plain
from commonweal.base.memory import check_memory
from commonweal.datasets._files import cache_root

__all__ = ["Arrays", "New", "cached", "check_array", "checksum", "write"]

Arrays = dict[str, np.ndarray]
New = Callable[[str, tuple[int, ...], DTypeLike], np.ndarray]  # name, shape, type -> to be filled
Parse = Callable[[New], None]


def cached(name: str, sources: Sequence[Path], parse: Parse, options: str = "") -> Arrays:
    """The arrays that `parse` fills, parsed once. Writing to them changes no file."""
    folder = cache_root() / "parsed" / f"{name}-{_key(sources, parse, options)}"
    if folder.is_dir():
        try:
            return _mapped(folder)
        except (OSError, ValueError):  # damaged: parse again
            shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".part-"))
    except OSError:  # the cache cannot be written: do without it
        return _in_memory(parse)
    return _parsed_to(folder, work, parse)


def _parsed_to(folder: Path, work: Path, parse: Parse) -> Arrays:
    def new(name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        return _file(work / f"{name}.npy", shape, dtype)

    try:
        parse(new)
        os.replace(work, folder)
    except OSError:  # no space, or another process was faster
        return _mapped(folder) if folder.is_dir() else _in_memory(parse)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return _mapped(folder)


def write(new: New, **columns: ArrayLike) -> None:
    """Write whole arrays."""
    for name, values in columns.items():
        array = np.asarray(values)
        new(name, array.shape, array.dtype)[...] = array


def _mapped(folder: Path) -> Arrays:
    # Mode "c" is copy on write: torch takes such an array without a warning, and no write reaches
    # the file.
    return {path.stem: np.load(path, mmap_mode="c") for path in folder.glob("*.npy")}


def _in_memory(parse: Parse) -> Arrays:
    arrays: Arrays = {}

    def new(name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        check_array(shape, dtype)
        arrays[name] = np.empty(shape, dtype)
        return arrays[name]

    parse(new)
    return arrays


def check_array(shape: tuple[int, ...], dtype: DTypeLike) -> None:
    """Raise DataError for an array that does not fit into memory."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    shown = " x ".join(f"{side:,}" for side in shape)
    check_memory(f"an array of {shown} numbers", size, DataError)


def _file(path: Path, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    check_array(shape, dtype)
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(dtype), shape=shape)
    # Reserve the space now: a full disk is an error here, but a crash while writing mapped memory.
    if sys.platform == "linux":
        with open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def _key(sources: Sequence[Path], parse: Parse, options: str) -> str:
    digest = hashlib.sha256((options + _code()).encode())
    digest.update(Path(inspect.getfile(parse)).read_bytes())
    for source in sources:
        identity = _listing(source) if source.is_dir() else checksum(source)
        digest.update(identity.encode())
    return digest.hexdigest()[:24]


@cache
def _code() -> str:
    """A hash of the loaders, so that what an older version parsed is not used."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _listing(folder: Path) -> str:
    """The names, sizes and times of a tree of files: reading 100,000 images would take minutes."""
    lines = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            stat = path.stat()
            name = path.relative_to(folder).as_posix()
            lines.append(f"{name} {stat.st_size} {stat.st_mtime_ns}")
    return "\n".join(lines)


def checksum(path: Path) -> str:
    """A file's SHA-256, remembered as long as its size and time stay the same."""
    source = path.resolve()
    check_plain(source)
    stat = path.stat()
    now = f"{stat.st_size} {stat.st_mtime_ns}"
    name = hashlib.sha256(str(source).encode()).hexdigest()
    stamp = cache_root() / "stamps" / name[:24]
    known = _remembered(stamp, now)
    if known is not None:
        return known
    with open(source, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    _remember(stamp, f"{now} {digest}")
    return digest


def _remembered(stamp: Path, now: str) -> str | None:
    try:
        known, _, digest = stamp.read_text(encoding="ascii").rpartition(" ")
    except (OSError, ValueError):
        return None
    return digest if known == now and len(digest) == 64 else None


def _remember(stamp: Path, text: str) -> None:
    try:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        temporary = stamp.with_name(f"{stamp.name}.{os.getpid()}")
        temporary.write_text(text, encoding="ascii")
        os.replace(temporary, stamp)
    except OSError:
        pass  # it will be computed again
