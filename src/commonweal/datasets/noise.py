"""Label noise: wrong labels in training rows, to test how robust a method is.

A noise is a frozen value. Called with labels, the number of classes and a seed, it returns labels
of which the share `rate` (to the nearest row) is wrong.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from commonweal import randomness
from commonweal.datasets._bounds import check_bounds
from commonweal.errors import DataError

__all__ = ["Noise", "Pair", "Symmetric"]


class Noise(ABC):
    """The interface of label noise. Subclasses are frozen dataclasses of their parameters."""

    @abstractmethod
    def __call__(self, labels: np.ndarray, classes: int, seed: int) -> np.ndarray:
        """The labels (N,) with some of them wrong."""


@dataclass(frozen=True)
class Pair(Noise):
    """Class c is labelled c + 1, as annotators confuse neighbours. (Han et al., NeurIPS 2018)

    rate: the share of wrong labels
    """

    rate: float = 0.1

    def __post_init__(self) -> None:
        check_bounds("noise rate", self.rate, least=0, most=1)

    def __call__(self, labels: np.ndarray, classes: int, seed: int) -> np.ndarray:
        _check_labels(labels, classes)
        wrong = _choose_rows(self.rate, len(labels), _rng(seed))
        noisy = labels.copy()
        noisy[wrong] = (labels[wrong] + 1) % classes
        return noisy


@dataclass(frozen=True)
class Symmetric(Noise):
    """Any other class, equally likely. (van Rooyen, Menon and Williamson, NeurIPS 2015)

    rate: the share of wrong labels
    """

    rate: float = 0.1

    def __post_init__(self) -> None:
        check_bounds("noise rate", self.rate, least=0, most=1)

    def __call__(self, labels: np.ndarray, classes: int, seed: int) -> np.ndarray:
        _check_labels(labels, classes)
        rng = _rng(seed)
        wrong = _choose_rows(self.rate, len(labels), rng)
        noisy = labels.copy()
        noisy[wrong] = (labels[wrong] + rng.integers(1, classes, len(wrong))) % classes
        return noisy


ENTRIES = {"pair": Pair, "symmetric": Symmetric}


def _rng(seed: int) -> np.random.Generator:
    return randomness.stream(seed, 0, 0, randomness.NOISE)


def _choose_rows(rate: float, rows: int, rng: np.random.Generator) -> np.ndarray:
    count = int(np.floor(rate * rows + 0.5))
    return rng.permutation(rows)[:count]


def _check_labels(labels: np.ndarray, classes: int) -> None:
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or classes < 2:
        raise DataError(
            "label noise needs one whole-number label per row and at least two classes, "
            f"not {labels.dtype} labels of shape {labels.shape} and {classes} classes"
        )
