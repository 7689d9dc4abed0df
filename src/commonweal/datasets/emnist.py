"""Handwritten digits and letters: pools of images of 28 x 28 in six ways to divide them.

Cohen et al., EMNIST: an extension of MNIST to handwritten letters, 2017; its IDX files in `emnist`.
FEMNIST-skewed of Li et al. 2020 (q-FFL) and AdaFed is `which = "byclass"`, `classes` 36 to 45 (a to
j) and the partition `shards` with 5 classes per client.
"""

from typing import Literal

import numpy as np

from commonweal.datasets._idx import read_images
from commonweal.datasets._shared import Part, Pool, Test, pool_of

__all__ = ["emnist"]

MANUAL = """
the IDX files of EMNIST (emnist-letters-train-images-idx3-ubyte.gz and the like), from gzip.zip of
https://www.nist.gov/itl/products-and-services/emnist-dataset
"""
CLASSES = {"balanced": 47, "byclass": 62, "bymerge": 47, "digits": 10, "letters": 26, "mnist": 10}


def emnist(
    which: Literal["balanced", "byclass", "bymerge", "digits", "letters", "mnist"] = "balanced",
    classes: tuple[int, ...] = (),
    part: Part = "all",
    test: Test = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Pool:
    """Up to 814,255 rows (1, 28, 28), 10 to 62 classes; score: accuracy

    which: the division; byclass: digits, then A to Z, then a to z; letters: A and a are one class
    classes: only these; part: the training or the test rows alone
    test: the share of each client's rows that is held out, or "official"; seed: of all draws
    dir: the files' folder
    """
    kinds = ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1")
    files = [f"emnist-{which}-{kind}-ubyte.gz" for kind in kinds]
    arrays = dict(read_images("emnist", "emnist", dir, files))
    arrays["x"] = np.swapaxes(arrays["x"], 2, 3)  # the files hold images column by column
    if which == "letters":  # numbered from 1
        arrays["y"] = arrays["y"] - 1
    return pool_of(arrays, part, test, seed, outputs=CLASSES[which], classes=classes)


ENTRIES = {"emnist": emnist}
