"""Handwritten digits and letters by the hand that wrote them: LEAF's FEMNIST, 62 classes.

Caldas et al. 2018; the json files that LEAF makes, in `femnist` (`train` and `test` below it). A client is a writer.
"""

import numpy as np

from commonweal.datasets import _leaf
from commonweal.datasets._cache import New, cached
from commonweal.datasets._rows import Gathered
from commonweal.datasets._shared import noisy
from commonweal.federation import Federation
from commonweal.noise import Noise

__all__ = ["femnist"]


def femnist(
    sample: bool = False, noise: Noise | None = None, test: float = 0.2, seed: int = 0, dir: str | None = None
) -> Federation:
    """Rows (1, 28, 28), white paper; 62 classes: digits, upper case, lower case; score: accuracy

    sample: the few writers in `femnist_sample` instead; noise: wrong labels in training rows
    test, seed: the share of test rows, and which, where LEAF made no split; dir: the files' folder
    """
    paths = _leaf.files("femnist", "femnist_sample" if sample else "femnist", dir)

    def parse(new: New) -> None:
        rows = Gathered()
        for user in _leaf.users(paths):
            x = np.round(np.array(user.x, dtype=np.float64) * 255).astype(np.uint8)
            rows.add(user.name, x.reshape(-1, 1, 28, 28), np.array(user.y, dtype=np.int64), user.part)
        rows.write(new)

    return noisy(_leaf.federation(cached("femnist", paths, parse), test, seed, outputs=62), noise, seed)
