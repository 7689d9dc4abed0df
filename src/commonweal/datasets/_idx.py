"""IDX, the format of MNIST and its relatives.

Two zero bytes, a type, the number of axes, their lengths, the values.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from commonweal.base.errors import DataError
from commonweal.datasets._cache import Arrays, New, cached, write
from commonweal.datasets._files import locate, read_bytes

__all__ = ["FILES", "read_idx", "read_images"]

TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def read_idx(path: Path) -> np.ndarray:
    """The array in an IDX file."""
    data = read_bytes(path)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in TYPES:
        raise DataError(f"{str(path)!r} is not an IDX file: it begins with {data[:4].hex(' ')}")
    dtype = np.dtype(TYPES[data[2]])
    start = 4 + 4 * data[3]
    shape = []
    if len(data) >= start:
        shape = np.frombuffer(data[4:start], ">i4").tolist()
    size = math.prod(shape) * dtype.itemsize
    if not shape or len(data) != start + size:
        raise DataError(
            f"{str(path)!r} is cut short: its {len(data)} bytes are not the {tuple(shape)} values "
            "it announces"
        )
    return np.frombuffer(data, dtype, offset=start).reshape(shape)


def read_images(dataset: str, folder: str, dir: str | None, files: Sequence[str] = FILES) -> Arrays:
    """All images x (N, 1, H, W) as bytes, y, and official: which are the publisher's test rows."""
    paths = locate(dataset, folder, files, dir)

    def parse(new: New) -> None:
        train_x, train_y, test_x, test_y = (read_idx(path) for path in paths)
        if len(train_x) != len(train_y) or len(test_x) != len(test_y):
            raise DataError(
                f"{str(paths[0])!r} and its neighbours: images and labels differ in number"
            )
        x = np.concatenate([train_x, test_x])[:, None]
        y = np.concatenate([train_y, test_y])
        write(
            new,
            x=x.astype(np.uint8),
            y=y.astype(np.int64),
            official=np.arange(len(y)) >= len(train_y),
        )

    return cached(dataset, paths, parse)
