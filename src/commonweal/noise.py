"""Wrong labels on purpose, in training rows only: how well does a method bear annotators who err?

A noise is a frozen value; called with labels, the number of classes and a seed it gives labels of which the share
`rate` (to the nearest row) is wrong.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from commonweal import randomness
from commonweal.errors import ConfigError, DataError

__all__ = ["Pair", "Symmetric"]


class Noise(Protocol):
    def __call__(self, labels: np.ndarray, classes: int, seed: int) -> np.ndarray: ...  # (N,) -> (N,)


@dataclass(frozen=True)
class Pair:
    """Class c is taken for class c + 1, as annotators confuse neighbours. (Han et al., NeurIPS 2018)

    rate: the share of wrong labels
    """

    rate: float = 0.1

    def __call__(self, labels: np.ndarray, classes: int, seed: int) -> np.ndarray:
        wrong, _ = _chosen(self.rate, labels, classes, seed)
        noisy = labels.copy()
        noisy[wrong] = (labels[wrong] + 1) % classes
        return noisy


@dataclass(frozen=True)
class Symmetric:
    """Any other class, all alike. (van Rooyen, Menon and Williamson, NeurIPS 2015)

    rate: the share of wrong labels
    """

    rate: float = 0.1

    def __call__(self, labels: np.ndarray, classes: int, seed: int) -> np.ndarray:
        wrong, rng = _chosen(self.rate, labels, classes, seed)
        noisy = labels.copy()
        noisy[wrong] = (labels[wrong] + rng.integers(1, classes, len(wrong))) % classes
        return noisy


def _chosen(rate: float, labels: np.ndarray, classes: int, seed: int) -> tuple[np.ndarray, np.random.Generator]:
    if not 0 <= rate <= 1:
        raise ConfigError(f"noise rate = {rate}: the share of wrong labels must be from 0 to 1")
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or classes < 2:
        raise DataError("label noise needs one whole-number label a row and two classes or more")
    rng = randomness.stream(seed, 0, 0, randomness.NOISE)
    return rng.permutation(len(labels))[: int(np.floor(rate * len(labels) + 0.5))], rng
