"""A cache of parsed files, memory-mapped, so that loading a second time takes next to no time.

An entry is named by what its sources hold and by the code that parsed them, wherever they are. Of
all entries those are kept that were used last, up to a limit (`COMMONWEAL_CACHE_SIZE`). Any of it
may be deleted, also while another process uses it.
"""

import hashlib
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from commonweal.base.errors import ConfigError, DataError
from commonweal.base.memory import check_memory
from commonweal.data.sources.files import cache_root
from commonweal.data.sources.opened import content_digest, note, unnoted

Arrays = dict[str, np.ndarray]
New = Callable[[str, tuple[int, ...], DTypeLike], np.ndarray]  # name, shape, type -> to be filled
Parse = Callable[[New], None]
READERS = ("data", "datasets")  # folders whose code reads data


LIMIT = "COMMONWEAL_CACHE_SIZE"  # the variable with the size, in GB; 0: nothing is kept
DEFAULT_SIZE = 4.0
GIGABYTE = 1e9
PART = ".part-"  # how the names begin of entries that are being written or deleted
ABANDONED = 86_400.0  # seconds after which nobody writes to a part any more


class CacheEntry(NamedTuple):
    """The arrays of one file or of several, parsed."""

    folder: Path
    size: int  # bytes
    used: float  # when, in seconds since 1970


def cache_folder() -> Path:
    """Return the folder of the entries."""
    return cache_root() / "parsed"


def cache_limit() -> float:
    """Return the number of bytes that the entries may take."""
    given = os.environ.get(LIMIT, "")
    try:
        size = float(given) if given.strip() else DEFAULT_SIZE
        if not 0 <= size < math.inf:
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"{LIMIT} = {given!r}: give a number of gigabytes, such as 4, or 0 to keep nothing"
        ) from None
    return size * GIGABYTE


def cached(name: str, sources: Sequence[Path], parse: Parse, options: str = "") -> Arrays:
    """The arrays that `parse` fills, parsed once. Writing to them changes no file."""
    note(*sources)
    if cache_limit() == 0:
        with unnoted():
            return _in_memory(parse)
    folder = cache_folder() / f"{name}-{_key(sources, options)}"
    if folder.is_dir():
        try:
            return _used(folder)
        except (OSError, ValueError):  # damaged, or deleted just now: parse again
            shutil.rmtree(folder, ignore_errors=True)
    with unnoted():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=PART) as work:
                parse(partial(_file, Path(work)))
                os.replace(work, folder)
            _prune(folder)
            return _used(folder)
        except OSError:  # the cache cannot be written, or another process was faster
            with suppress(OSError, ValueError):
                return _used(folder)
            return _in_memory(parse)


def cache_entries() -> list[CacheEntry]:
    """All entries, and what interrupted processes left, the one used last first."""
    listed = []
    with suppress(OSError):
        for folder in cache_folder().iterdir():
            with suppress(OSError):  # deleted meanwhile
                size = sum(file.stat().st_size for file in folder.iterdir())
                listed.append(CacheEntry(folder, size, folder.stat().st_mtime))
    return sorted(listed, key=lambda entry: -entry.used)


def clear_cache() -> int:
    """Delete all entries. Returns how many bytes they had."""
    there = cache_entries()
    for entry in there:
        _delete(entry.folder)
    return sum(entry.size for entry in there)


def _prune(newest: Path) -> None:
    """Delete what was not used for longest, until the entries are within the limit."""
    limit = cache_limit()
    total = 0
    for entry in cache_entries():
        if entry.folder.name.startswith(PART):
            if time.time() - entry.used > ABANDONED:
                shutil.rmtree(entry.folder, ignore_errors=True)
            continue
        total += entry.size
        if total > limit and entry.folder != newest:
            _delete(entry.folder)


def _delete(folder: Path) -> None:
    """Delete an entry: as a whole, so that nobody reads a part of it."""
    doomed = folder.with_name(f"{PART}{folder.name}-{os.getpid()}")
    with suppress(OSError):
        os.replace(folder, doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def _used(folder: Path) -> Arrays:
    """The arrays of an entry, which is thereby the one used last.

    Raises:
        OSError: It is not there, or was deleted meanwhile.
        ValueError: It is damaged.
    """
    arrays = _mapped(folder)
    if not arrays:
        raise FileNotFoundError(str(folder))
    with suppress(OSError):
        os.utime(folder)
    return arrays


def write_arrays(new: New, **columns: ArrayLike) -> None:
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
        _check_array(shape, dtype)
        arrays[name] = np.empty(shape, dtype)
        return arrays[name]

    parse(new)
    return arrays


def _check_array(shape: tuple[int, ...], dtype: DTypeLike) -> None:
    size = math.prod(shape) * np.dtype(dtype).itemsize
    shown = " x ".join(f"{side:,}" for side in shape)
    check_memory(f"an array of {shown} numbers", size, DataError)


def _file(folder: Path, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    _check_array(shape, dtype)
    path = folder / f"{name}.npy"
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(dtype), shape=shape)
    # Reserve the space now: a full disk is an error here, but a crash while writing mapped memory.
    if sys.platform == "linux":
        with open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def _key(sources: Sequence[Path], options: str) -> str:
    """A hash of what the files hold, of their names, and of what reads them."""
    digest = hashlib.sha256((options + _code()).encode())
    for source in sources:
        name = "" if source.is_dir() else source.name
        try:
            digest.update(f"{content_digest(source)} {name}\n".encode(errors="surrogateescape"))
        except OSError as error:
            raise DataError(f"{str(source)!r} cannot be read ({error.strerror})") from None
    return digest.hexdigest()[:24]


@cache
def _code() -> str:
    """A hash of what reads data, so that what an older version parsed is not used."""
    digest = hashlib.sha256()
    for folder in READERS:
        for file in sorted((Path(__file__).parents[2] / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()
