"""Parsed files, kept on disk and mapped into memory, so that a second load costs next to nothing.

What is kept is named by the checksum of its sources and of the code that parsed them; the checksum of a file is taken
again only when its size or its time has changed. Any of it may be deleted at any time.
"""

import hashlib
import inspect
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from commonweal.datasets._files import cache_root

__all__ = ["cached", "checksum"]

New = Callable[[str, tuple[int, ...], Any], np.ndarray]  # name, shape, type -> an array to be filled


def cached(
    name: str, sources: Sequence[Path], parse: Callable[[New], None], options: str = ""
) -> dict[str, np.ndarray]:
    """The arrays that `parse` fills, from the cache where it has them. They may be written to; no file will change."""
    folder = cache_root() / "parsed" / f"{name}-{_key(sources, parse, options)}"
    if folder.is_dir():
        try:
            return _mapped(folder)
        except (OSError, ValueError):  # damaged: parse again
            shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".part-"))
    except OSError:  # a cache that cannot be written is no reason to fail
        return _in_memory(parse)
    try:
        parse(lambda array, shape, kind: _file(work / f"{array}.npy", shape, kind))
        os.replace(work, folder)
    except OSError:  # no space, or another process was quicker
        return _mapped(folder) if folder.is_dir() else _in_memory(parse)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return _mapped(folder)


def _mapped(folder: Path) -> dict[str, np.ndarray]:
    # Mode "c" is copy on write: torch takes such an array without a warning, and no write reaches the file.
    return {path.stem: np.load(path, mmap_mode="c") for path in folder.glob("*.npy")}


def _in_memory(parse: Callable[[New], None]) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}

    def new(name: str, shape: tuple[int, ...], kind: Any) -> np.ndarray:
        arrays[name] = np.empty(shape, kind)
        return arrays[name]

    parse(new)
    return arrays


def _file(path: Path, shape: tuple[int, ...], kind: Any) -> np.ndarray:
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(kind), shape=shape)
    # Take the space now: a full disk is an error here, and a crash in the middle of a write to mapped memory.
    if hasattr(os, "posix_fallocate"):
        with open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def _key(sources: Sequence[Path], parse: Callable[..., None], options: str) -> str:
    digest = hashlib.sha256((options + _code()).encode() + Path(inspect.getfile(parse)).read_bytes())
    for source in sources:
        digest.update((_listing(source) if source.is_dir() else checksum(source)).encode())
    return digest.hexdigest()[:24]


@cache
def _code() -> str:
    """The loaders themselves: what an older version parsed is not taken for what this one would."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _listing(folder: Path) -> str:
    """A tree of files is known by their names, sizes and times: reading 100,000 images would take minutes."""
    files = sorted((p.relative_to(folder).as_posix(), p.stat()) for p in folder.rglob("*") if p.is_file())
    return "\n".join(f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in files)


def checksum(path: Path) -> str:
    """A file's SHA-256, remembered for as long as its size and time stay."""
    stat, where = path.stat(), path.resolve()
    stamp = cache_root() / "stamps" / hashlib.sha256(str(where).encode()).hexdigest()[:24]
    now = f"{stat.st_size} {stat.st_mtime_ns}"
    try:
        known, _, digest = stamp.read_text(encoding="ascii").rpartition(" ")
        if known == now and len(digest) == 64:
            return digest
    except (OSError, ValueError):
        pass
    with open(where, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    _remember(stamp, f"{now} {digest}")
    return digest


def _remember(stamp: Path, text: str) -> None:
    try:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        temporary = stamp.with_name(f"{stamp.name}.{os.getpid()}")
        temporary.write_text(text, encoding="ascii")
        os.replace(temporary, stamp)
    except OSError:
        pass  # it will be computed again
