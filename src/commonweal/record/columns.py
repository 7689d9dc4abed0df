"""Columns of numbers, appended to one file.

A chunk is a safetensors file; chunks stand one after the other in a file that only grows. Who
appends one keeps its place. No number is rounded: floats are stored as float32 only where nothing
is lost, integers in the smallest type. A column with few different values is stored as numbers
of entries in the column `NAME.values`.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy
from pydantic import Field

from commonweal.base.errors import RunError
from commonweal.base.files import append, check_plain, digest, reading

Array = np.ndarray[tuple[int], np.dtype[np.generic]]
Columns = dict[str, Array]

VALUES = ".values"  # the end of the name of a column that others point into
MOST_CODES = 1 << 16


class Place(NamedTuple):
    """The place of a chunk in its file, and a digest of its bytes."""

    at: Annotated[int, Field(ge=0)]
    size: Annotated[int, Field(ge=8)]
    digest: str

    @property
    def end(self) -> int:
        return self.at + self.size


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
        (data,) = self._checked([place], "run again")
        try:
            stored = safetensors.numpy.load(data)
            columns = {name: _wide(values) for name, values in stored.items()}
            for name in [name for name in columns if name.endswith(VALUES)]:
                codes = name.removesuffix(VALUES)
                columns[codes] = np.take(columns.pop(name), columns[codes].astype(int))
        except (safetensors.SafetensorError, ValueError, LookupError, TypeError) as error:
            raise RunError(f"{str(self.path)!r} is damaged ({error}): run again") from None
        self._last = (place, columns)
        return columns

    def check(self, places: Sequence[Place]) -> None:
        """Raise RunError where the file does not consist of the chunks at these places."""
        ends = [0, *(place.end for place in places)]
        if any(place.at != end for place, end in zip(places, ends, strict=False)):
            raise RunError(f"{str(self.path)!r} is damaged: its chunks do not adjoin")
        for _ in self._checked(places, "its digest differs"):
            pass

    def _checked(self, places: Sequence[Place], advice: str) -> Iterator[bytes]:
        """The bytes of chunks. The file is not mapped to memory: a resumed run may cut it."""
        changed = f"{str(self.path)!r} was changed after it was written: {advice}"
        with reading(self.path):
            check_plain(self.path)
            with open(self.path, "rb") as file:
                for place in places:
                    if place.end > os.fstat(file.fileno()).st_size:
                        raise OSError(0, "it is shorter than it was written")
                    file.seek(place.at)
                    data = file.read(place.size)
                    if digest(data) != place.digest:
                        raise RunError(changed)
                    yield data

    def cut(self, end: int) -> None:
        """Remove what was written after some byte."""
        if not self.path.exists() or self.path.stat().st_size <= end:
            return
        with open(self.path, "ab") as file:
            os.ftruncate(file.fileno(), end)
            os.fsync(file.fileno())


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


def _wide(values: Array) -> Array:
    return values.astype("<f8" if values.dtype.kind == "f" else "<i8")
