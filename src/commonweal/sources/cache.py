"""A cache of parsed files, memory-mapped, so that loading a second time takes next to no time.

An entry is named by its sources' paths, sizes and times, and by the code that parsed them. Any of
it may be deleted.
"""

import hashlib
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from commonweal.base.errors import DataError
from commonweal.base.memory import check_memory
from commonweal.sources.files import cache_root

Arrays = dict[str, np.ndarray]
New = Callable[[str, tuple[int, ...], DTypeLike], np.ndarray]  # name, shape, type -> to be filled
Parse = Callable[[New], None]
READERS = ("data", "datasets", "sources", "tables")  # folders whose code reads data


def cached(name: str, sources: Sequence[Path], parse: Parse, options: str = "") -> Arrays:
    """The arrays that `parse` fills, parsed once. Writing to them changes no file."""
    folder = cache_root() / "parsed" / f"{name}-{_key(sources, options)}"
    if folder.is_dir():
        try:
            return _mapped(folder)
        except (OSError, ValueError):  # damaged: parse again
            shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".part-") as work:
            parse(partial(_file, Path(work)))
            os.replace(work, folder)
    except OSError:  # the cache cannot be written, or another process was faster
        if not folder.is_dir():
            return _in_memory(parse)
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
    """A hash of the paths, sizes and times of all files: reading them would take minutes."""
    digest = hashlib.sha256((options + _code()).encode())
    for source in sources:
        for path in sorted(source.rglob("*") if source.is_dir() else (source,)):
            if path.is_file():
                stat = path.stat()
                digest.update(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:24]


@cache
def _code() -> str:
    """A hash of what reads data, so that what an older version parsed is not used."""
    digest = hashlib.sha256()
    for folder in READERS:
        for file in sorted((Path(__file__).parents[1] / folder).glob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()
