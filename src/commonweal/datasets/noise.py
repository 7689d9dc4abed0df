"""Label noise: wrong labels in training rows, to test how robust a method is.

A noise is a frozen value. Called with labels, the number of classes and a seed, it returns labels
of which the share `rate` (to the nearest row) is wrong.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from commonweal.base import randomness
from commonweal.base.arguments import check_bounds
from commonweal.base.errors import DataError
from commonweal.base.shares import product


class Noise(ABC):
    """The interface of label noise. Subclasses are frozen dataclasses of their parameters."""

    @abstractmethod
    def __call__(self, labels: np.ndarray, classes: int, seed: int) -> np.ndarray:
        """The labels (N,) with some of them wrong."""

    def by_client(
        self, labels: np.ndarray, sizes: np.ndarray, classes: int, seed: int
    ) -> np.ndarray:
        """The same for clients with `sizes` rows each, one after the other."""
        return self(labels, classes, seed)


@dataclass(frozen=True)
class _AtRate(Noise):
    """Noise that moves a share of the labels, `rate`, to other classes."""

    rate: float = 0.1

    def __post_init__(self) -> None:
        check_bounds("noise rate", self.rate, least=0, most=1)

    def __call__(self, labels: np.ndarray, classes: int, seed: int) -> np.ndarray:
        _check_labels(labels, classes)
        rng = _rng(seed)
        count = math.floor(product(self.rate, len(labels)) + 0.5)
        wrong = rng.permutation(len(labels))[:count]
        noisy = labels.copy()
        noisy[wrong] = (labels[wrong] + self.steps(count, classes, rng)) % classes
        return noisy

    @abstractmethod
    def steps(self, count: int, classes: int, rng: np.random.Generator) -> np.ndarray | int:
        """Return by how many classes each wrong label is shifted."""


@dataclass(frozen=True)
class Pair(_AtRate):
    """Class c is labelled c + 1, as annotators confuse neighbours. (Han et al., NeurIPS 2018)

    rate: the share of wrong labels
    """

    def steps(self, count: int, classes: int, rng: np.random.Generator) -> int:
        return 1


@dataclass(frozen=True)
class Symmetric(_AtRate):
    """Any other class, equally likely. (van Rooyen, Menon and Williamson, NeurIPS 2015)

    rate: the share of wrong labels
    """

    def steps(self, count: int, classes: int, rng: np.random.Generator) -> np.ndarray:
        return rng.integers(1, classes, count)


@dataclass(frozen=True)
class Uneven(Noise):
    """Some clients are noisy, each in its own degree. (Xu et al., FedCorr, CVPR 2022, section 4.1)

    share: the probability that a client is noisy
    least: a noisy client's share of random labels is drawn between this and 1; a random label is
        right by chance in one of as many cases as there are classes
    """

    share: float = 0.4
    least: float = 0.5

    def __post_init__(self) -> None:
        check_bounds("noise share", self.share, least=0, most=1)
        check_bounds("noise least", self.least, least=0, most=1)

    def __call__(self, labels: np.ndarray, classes: int, seed: int) -> np.ndarray:
        return self.by_client(labels, np.array([len(labels)]), classes, seed)

    def by_client(
        self, labels: np.ndarray, sizes: np.ndarray, classes: int, seed: int
    ) -> np.ndarray:
        _check_labels(labels, classes)
        rng = _rng(seed)
        level = rng.uniform(self.least, 1, len(sizes)) * (rng.random(len(sizes)) < self.share)
        random = rng.random(len(labels)) < np.repeat(level, sizes)
        noisy = labels.copy()
        noisy[random] = rng.integers(0, classes, int(random.sum()))
        return noisy


ENTRIES = {"pair": Pair, "symmetric": Symmetric, "uneven": Uneven}


def _rng(seed: int) -> np.random.Generator:
    return randomness.stream(seed, 0, 0, randomness.NOISE)


def _check_labels(labels: np.ndarray, classes: int) -> None:
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or classes < 2:
        raise DataError(
            "label noise needs one whole-number label per row and at least two classes, "
            f"not {labels.dtype} labels of shape {labels.shape} and {classes} classes"
        )
