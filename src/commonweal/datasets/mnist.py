"""MNIST and its relatives: images of 28 x 28 in IDX files, pools to be partitioned.

IDX is two zero bytes, a type, the number of axes, their lengths, and the values.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from commonweal.base.errors import DataError
from commonweal.data.sources.cache import Arrays, New, cached, write_arrays
from commonweal.data.sources.files import locate, read_bytes
from commonweal.datasets.pools import Part, Pool, Test, pool_of

FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
EMNIST = {"balanced": 47, "byclass": 62, "bymerge": 47, "digits": 10, "letters": 26, "mnist": 10}
TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def mnist(
    classes: tuple[int, ...] = (),
    size: int = 28,
    part: Part = "all",
    test: Test = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Pool:
    """Handwritten digits: a pool of 70,000 images of 28 x 28.

    LeCun, Cortes and Burges; four IDX files in `mnist`.

    70,000 rows (1, size, size), 10 classes; score: accuracy

    classes: only these digits; size: to which images are resized
    part: the 60,000 training rows or the 10,000 test rows alone
    test: the share of each client's rows that is tested, or "official"; seed: of all draws
    dir: the files' folder
    """
    arrays = read_images("mnist", "mnist", dir)
    return pool_of(arrays, part, test, seed, outputs=10, classes=classes, size=size)


def fashion_mnist(
    classes: tuple[int, ...] = (),
    size: int = 28,
    part: Part = "all",
    test: Test = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Pool:
    """Ten kinds of garments: a pool of 70,000 images of 28 x 28.

    Xiao, Rasul and Vollgraf 2017, MIT; four IDX files in `fashion_mnist`. The setting of AFL and
    q-FFL is `classes = [0, 2, 6]`, `test = "official"` and the partition `labels`: a client each
    for t-shirts, pullovers and shirts.

    70,000 rows (1, size, size), 10 classes; score: accuracy

    classes: only these garments; the other parameters are those of mnist
    """
    arrays = read_images("fashion-mnist", "fashion_mnist", dir)
    return pool_of(arrays, part, test, seed, outputs=10, classes=classes, size=size)


def emnist(
    which: Literal["balanced", "byclass", "bymerge", "digits", "letters", "mnist"] = "balanced",
    classes: tuple[int, ...] = (),
    part: Part = "all",
    test: Test = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Pool:
    """Handwritten digits and letters: pools of images of 28 x 28 in six ways to divide them.

    Cohen et al., EMNIST: an extension of MNIST to handwritten letters, 2017; its IDX files in
    `emnist`. FEMNIST-skewed of Li et al. 2020 (q-FFL) and AdaFed is `which = "byclass"`, `classes`
    36 to 45 (a to j) and the partition `shards` with 5 classes per client.

    Up to 814,255 rows (1, 28, 28), 10 to 62 classes; score: accuracy

    which: the division; byclass: digits, then A to Z, then a to z; letters: A and a are one class
    classes: only these; part: the training or the test rows alone
    test, seed, dir: as for mnist
    """
    kinds = ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1")
    files = [f"emnist-{which}-{kind}-ubyte.gz" for kind in kinds]
    arrays = dict(read_images("emnist", "emnist", dir, files))
    arrays["x"] = np.swapaxes(arrays["x"], 2, 3)  # the files hold images column by column
    if which == "letters":  # numbered from 1
        arrays["y"] = arrays["y"] - 1
    return pool_of(arrays, part, test, seed, outputs=EMNIST[which], classes=classes)


ENTRIES = {"emnist": emnist, "fashion-mnist": fashion_mnist, "mnist": mnist}


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
        train_x, train_y, test_x, test_y = map(read_idx, paths)
        if len(train_x) != len(train_y) or len(test_x) != len(test_y):
            raise DataError(
                f"{str(paths[0])!r} and its neighbours: images and labels differ in number"
            )
        x = np.concatenate([train_x, test_x])[:, None].astype(np.uint8)
        y = np.concatenate([train_y, test_y]).astype(np.int64)
        write_arrays(new, x=x, y=y, official=np.arange(len(y)) >= len(train_y))

    return cached(dataset, paths, parse)
