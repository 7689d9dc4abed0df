"""IDX, the format of MNIST and its relatives: two zero bytes, a type, the number of axes, their lengths, the values."""

from pathlib import Path

import numpy as np

from commonweal.datasets._cache import New, cached
from commonweal.datasets._files import locate, read
from commonweal.datasets._shared import Pool
from commonweal.errors import DataError

__all__ = ["pooled", "values"]

TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
FILES = [f"{part}-{what}-ubyte.gz" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")]


def values(path: Path) -> np.ndarray:
    """The array in an IDX file."""
    data = read(path)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in TYPES:
        raise DataError(f"{str(path)!r} is not an IDX file: it begins with {data[:4].hex(' ')}")
    axes = data[3]
    shape = tuple(int(n) for n in np.frombuffer(data, ">i4", axes, 4)) if len(data) >= 4 + 4 * axes else ()
    kind = np.dtype(TYPES[data[2]])
    if len(data) != 4 + 4 * axes + int(np.prod(shape)) * kind.itemsize or not shape:
        raise DataError(f"{str(path)!r} is cut short: its {len(data)} bytes are not the {shape} values it announces")
    return np.frombuffer(data, kind, offset=4 + 4 * axes).reshape(shape)


def pooled(dataset: str, folder: str, dir: str | None) -> Pool:
    """All images (N, 1, H, W) as bytes."""
    paths = locate(dataset, folder, FILES, dir)

    def parse(new: New) -> None:
        train, train_y, test, test_y = (values(path) for path in paths)
        if len(train) != len(train_y) or len(test) != len(test_y):
            raise DataError(f"{str(paths[0])!r} and its neighbours have images and labels of different number")
        new("x", (len(train) + len(test), 1, *train.shape[1:]), np.uint8)[:] = np.concatenate([train, test])[:, None]
        new("y", (len(train) + len(test),), np.int64)[:] = np.concatenate([train_y, test_y])
        new("official", (len(train) + len(test),), bool)[:] = np.arange(len(train) + len(test)) >= len(train)

    arrays = cached(dataset, paths, parse)
    return Pool(arrays["x"], arrays["y"], arrays["official"])
