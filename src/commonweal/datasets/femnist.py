"""Handwritten digits and letters by their writer: LEAF's FEMNIST, 62 classes.

Caldas et al. 2018; the json files that LEAF makes, in `femnist` (`train` and `test` below it).
A client is a writer.
"""

from collections.abc import Iterator

import numpy as np

from commonweal.data.federation import Federation
from commonweal.datasets.leaf import (
    ClientRows,
    cached_rows,
    leaf_federation,
    leaf_files,
    leaf_users,
)


def femnist(
    sample: bool = False,
    clients: int | None = None,
    test: float = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Federation:
    """Rows (1, 28, 28), white paper; 62 classes: digits, upper case, lower case; score: accuracy

    sample: the few writers in `femnist_sample` instead; clients: how many of the writers to use
    test: the share of test rows, where LEAF made no split; seed: which rows and clients
    dir: the files' folder
    """
    paths = leaf_files("femnist", "femnist_sample" if sample else "femnist", dir)

    def read() -> Iterator[ClientRows]:
        for user in leaf_users(paths):
            grey = np.round(np.array(user.x, dtype=np.float64) * 255)
            x = grey.astype(np.uint8).reshape(-1, 1, 28, 28)
            yield user.name, x, np.array(user.y, dtype=np.int64), user.part

    return leaf_federation(cached_rows("femnist", paths, read), test, seed, clients, outputs=62)


ENTRIES = {"femnist": femnist}
