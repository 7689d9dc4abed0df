"""Columns of numbers, appended to one file and read by column or by entry.

A chunk is a safetensors file; chunks stand one after the other in a file that only grows. Who
appends one keeps its place. No number is rounded: floats are stored as float32 only where nothing
is lost, integers in the smallest type. A column with few different values is stored as numbers
of entries in the column `NAME.values`.
"""

import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from commonweal.base.errors import RunError
from commonweal.base.files import append, check_plain, digest

__all__ = ["Array", "Chunks", "Columns", "Place"]

Array = np.ndarray[tuple[int], np.dtype[np.generic]]
Columns = dict[str, Array]

VALUES = ".values"  # the end of the name of a column that others point into
MOST_CODES = 1 << 16
TYPES = {"U8": "<u1", "U16": "<u2", "U32": "<u4", "I64": "<i8", "F32": "<f4", "F64": "<f8"}
# A column -> the columns of which the first that is there holds the clients' numbers.
Keys = Mapping[str, tuple[str, ...]]
Header = Mapping[str, tuple[np.dtype[np.generic], int, int]]  # type, first byte, entries


class Place(NamedTuple):
    """Where a chunk is, and a digest of its bytes."""

    at: int
    size: int
    digest: str

    @property
    def end(self) -> int:
        return self.at + self.size

    @classmethod
    def parse(cls, value: Sequence[object]) -> "Place":
        """Raises ValueError where this is not a place."""
        at, size, seal = value
        if type(at) is not int or type(size) is not int or at < 0 or size < 8:
            raise ValueError(f"chunk = {value!r}")
        return cls(at, size, str(seal))


class Chunks:
    """A file of chunks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last: tuple[Place, Columns] | None = None  # several columns of one are asked for

    def append(self, columns: Columns) -> Place:
        """Add a chunk with a single write."""
        stored: Columns = {}
        for name, values in columns.items():
            stored |= _stored(name, values)
        data = safetensors.numpy.save(stored)
        return Place(append(self.path, data), len(data), digest(data))

    def read(self, place: Place) -> Columns:
        """A chunk's columns. Raises RunError where they are not those that were written."""
        if self._last is not None and self._last[0] == place:
            return self._last[1]
        with self._open() as file:
            data = _read(file, place.at, place.size)
        if digest(data) != place.digest:
            raise RunError(f"{str(self.path)!r} was changed after it was written: run again")
        try:
            stored = safetensors.numpy.load(data)
            columns = {n: _decoded(n, stored) for n in stored if not n.endswith(VALUES)}
        except (safetensors.SafetensorError, ValueError, KeyError, IndexError) as error:
            raise RunError(f"{str(self.path)!r} is damaged ({error}): run again") from None
        self._last = (place, columns)
        return columns

    def entries(
        self, places: Iterable[Place], keys: Keys, client: int
    ) -> Iterator[dict[str, float]]:
        """A client's entry of some columns of each chunk; empty where it has none.

        Reads the clients' numbers and single entries only, without looking at digests.
        """
        with self._open() as file:
            for place in places:
                try:
                    yield _entries(file, place, keys, client)
                except (ValueError, LookupError, TypeError, RuntimeError, struct.error) as error:
                    raise RunError(f"{str(self.path)!r} is damaged ({error}): run again") from None

    def damaged(self, places: Iterable[Place]) -> str:
        """What is wrong with the chunks at these places; empty where nothing is."""
        end = 0
        try:
            with self._open() as file:
                for place in places:
                    data = _read(file, place.at, place.size)
                    if place.at != end or digest(data) != place.digest:
                        return (
                            f"{str(self.path)!r} was changed after it was written: its digest "
                            "differs"
                        )
                    end = place.end
        except RunError as error:
            return str(error)
        return ""

    def cut(self, end: int) -> None:
        """Remove what was written after some byte."""
        if not self.path.exists() or self.path.stat().st_size <= end:
            return
        with open(self.path, "ab") as file:
            os.ftruncate(file.fileno(), end)
            os.fsync(file.fileno())

    @contextmanager
    def _open(self) -> Iterator[int]:
        """The file's handle. Not mapped to memory: the file may be cut by a resumed run."""
        try:
            check_plain(self.path)
            handle = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise RunError(f"{str(self.path)!r} cannot be read ({error.strerror})") from None
        try:
            yield handle
        except OSError as error:
            raise RunError(f"{str(self.path)!r} cannot be read ({error.strerror})") from None
        finally:
            os.close(handle)


# What is stored


def _stored(name: str, values: Array) -> Columns:
    """A column as it is written: numbers of different values where that is shorter."""
    plain = _narrow(values)
    if plain.dtype.kind != "f" or len(plain) < 2:
        return {name: plain}
    bits = plain.view(f"<u{plain.itemsize}")  # also tells 0 from -0
    different, codes = np.unique(bits, return_inverse=True)
    if len(different) > min(MOST_CODES, len(plain) // 2):
        return {name: plain}
    return {name: _narrow(codes), name + VALUES: different.view(plain.dtype)}


def _narrow(values: Array) -> Array:
    """The same numbers in the smallest type."""
    if values.dtype.kind == "f":
        exact = np.where(np.isnan(values), np.nan, values).astype("<f8")  # one kind of NaN
        with np.errstate(over="ignore", under="ignore"):
            short = exact.astype("<f4")
        return short if np.array_equal(exact, short, equal_nan=True) else exact
    most = int(values.max(initial=0))
    if values.min(initial=0) < 0 or most >= 1 << 32:
        return values.astype("<i8")
    return values.astype("<u1" if most < 1 << 8 else "<u2" if most < 1 << 16 else "<u4")


def _decoded(name: str, stored: Columns) -> Array:
    if name + VALUES not in stored:
        return _wide(stored[name])
    return np.take(_wide(stored[name + VALUES]), stored[name].astype(np.int64))


def _wide(values: Array) -> Array:
    return values.astype("<f8" if values.dtype.kind == "f" else "<i8")


# Single entries


def _read(file: int, at: int, size: int) -> bytes:
    if size > os.fstat(file).st_size - at:
        raise OSError(0, "it is shorter than it was written")
    return os.pread(file, size, at)


def _entries(file: int, place: Place, keys: Keys, client: int) -> dict[str, float]:
    header = _header(file, place)
    positions: dict[str, int | None] = {}
    arrays = {}
    for name, candidates in keys.items():
        if name not in header:
            continue
        key = next(each for each in candidates if each in header)
        if key not in positions:
            places = np.flatnonzero(_column(file, header, key) == client)
            positions[key] = int(places[0]) if len(places) else None
        position = positions[key]
        if position is not None:
            arrays[name] = _entry(file, header, name, position)
    return arrays


def _header(file: int, place: Place) -> Header:
    (length,) = struct.unpack("<Q", _read(file, place.at, 8))
    if length > place.size - 8:
        raise ValueError("a header is longer than its chunk")
    arrays = {}
    for name, about in json.loads(_read(file, place.at + 8, length)).items():
        begin, end = about["data_offsets"]
        kind = np.dtype(TYPES[about["dtype"]])
        if not 0 <= begin <= end <= place.size - 8 - length:
            raise ValueError(f"{name} is not within its chunk")
        arrays[name] = (kind, place.at + 8 + length + begin, (end - begin) // kind.itemsize)
    return arrays


def _column(file: int, header: Header, name: str) -> Array:
    kind, at, count = header[name]
    return np.frombuffer(_read(file, at, count * kind.itemsize), kind)


def _entry(file: int, header: Header, name: str, position: int) -> float:
    kind, at, count = header[name]
    if not 0 <= position < count:
        raise ValueError(f"{name} has {count} entries")
    data = _read(file, at + position * kind.itemsize, kind.itemsize)
    value = np.frombuffer(data, kind)[0]
    if name + VALUES in header:
        return _entry(file, header, name + VALUES, int(value))
    return float(value)
