"""Bins of features for trees, from counts that are summed over clients.

The server sends thresholds and receives how many rows of all clients are at most each; where many
rows lie between two of them it asks for more in between. The first thresholds are the same for all
data, as they divide the floating-point numbers themselves: no client states its range, or a value.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from commonweal.models.tree_ensemble import not_above

STAGES = 12  # requests at most
THRESHOLDS = 2048  # of a request, by feature
PARTS = 256  # into which a cell is divided
TOP = 0x7F800000  # the key of infinity

Integers = NDArray[np.int64]
Floats = NDArray[np.float32]


def keys_of(values: Floats) -> Integers:
    """Whole numbers in the order of floating-point numbers: those of neighbours differ by 1.

    >>> keys_of(np.array([-1e-45, -0.0, 0.0, 1e-45], np.float32)).tolist()
    [-1, 0, 0, 1]
    """
    bits = values.astype(np.float32).view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def floats_of_keys(keys: Integers) -> Floats:
    """The floating-point numbers of keys."""
    magnitude = np.abs(keys).astype(np.int32).view(np.float32)
    return np.where(keys < 0, -magnitude, magnitude)


@dataclass(frozen=True, eq=False)
class Distribution:
    """The distribution of one feature's values: rows by cell. Other cells are empty.

    Attributes:
        low: The keys above which the cells begin (C,).
        high: The keys up to which they reach (C,).
        rows: The rows in each (C,).
    """

    low: Integers
    high: Integers
    rows: Integers

    @classmethod
    def unknown(cls) -> "Distribution":
        """The distribution before the first request."""
        low, high = np.array([-TOP]), np.array([TOP])
        return cls(low, high, np.array([np.iinfo(np.int64).max]))

    def coarse(self, bins: int) -> NDArray[np.bool_]:
        """The cells (C,) that are to be divided: those in which bins end.

        bins: the largest number of bins
        """
        divisible: NDArray[np.bool_] = (self.high - self.low > 1) & (self.rows > 1)
        if len(self.rows) > bins:  # else there may be a bin for each value
            divisible &= np.isin(np.arange(len(self.rows)), self.last_of_bins(bins))
        return divisible

    def last_of_bins(self, bins: int) -> Integers:
        """The cells in which so many bins of equal size end, as scikit-learn defines them."""
        below = np.cumsum(self.rows)
        parts = np.linspace(0, 100, bins + 1)[1:-1] / 100  # rounded as there
        cells: Integers = np.searchsorted(below, below[-1] * parts)
        return cells

    def divided(self, coarse: NDArray[np.bool_]) -> tuple[Integers, Integers]:
        """The ends (low, high) of the parts into which coarse cells are divided, in their order."""
        low, width = self.low[coarse], (self.high - self.low)[coarse]
        if len(low) == 0:
            return low, low
        parts = np.minimum(width, np.clip(THRESHOLDS // len(low), 2, PARTS))
        cell = np.repeat(np.arange(len(low)), parts)
        number = np.arange(len(cell)) - np.repeat(np.cumsum(parts) - parts, parts)
        ends = [low[cell] + width[cell] * (number + more) // parts[cell] for more in (0, 1)]
        return ends[0], ends[1]

    def keys(self, coarse: NDArray[np.bool_]) -> Integers:
        """Return the keys up to which rows are counted, so that coarse cells can be divided."""
        return np.unique(np.concatenate(self.divided(coarse)))

    def refined(self, coarse: NDArray[np.bool_], keys: Integers, below: Integers) -> "Distribution":
        """The distribution with coarse cells replaced by their parts.

        Args:
            coarse: The cells that are divided (C,).
            keys: Where the rows were counted.
            below: How many rows are at most each of them.
        """
        low, high = self.divided(coarse)
        rows = below[np.searchsorted(keys, high)] - below[np.searchsorted(keys, low)]
        order = np.argsort(np.concatenate([self.low[~coarse], low]), kind="stable")
        merged = []
        for whole, parts in ((self.low, low), (self.high, high), (self.rows, rows)):
            merged.append(np.concatenate([whole[~coarse], parts])[order])
        occupied = merged[2] > 0
        return Distribution(*(column[occupied] for column in merged))

    def cuts(self, bins: int, least: int = 1) -> Floats:
        """The thresholds between bins: one for each cell, or at most so many of equal size.

        Args:
            bins: The largest number of bins.
            least: Bins with fewer rows are merged with their neighbours.
        """
        after = np.arange(len(self.rows))
        if len(self.rows) > bins:
            after = self.last_of_bins(bins)
        after = np.unique(after[after < len(self.rows) - 1])
        if least > 1:
            after = self._merged(after, least)
        last = floats_of_keys(self.high[after]).astype(np.float64)
        first = floats_of_keys(self.low[after + 1] + 1).astype(np.float64)
        return not_above((last + first) / 2)

    def _merged(self, after: Integers, least: int) -> Integers:
        """The cells of `after` in which bins end that have so many rows, from the lowest on."""
        below = np.cumsum(self.rows)
        ends = []
        taken = 0
        for cell in after.tolist():
            if below[cell] - taken >= least and below[-1] - below[cell] >= least:
                ends.append(cell)
                taken = below[cell]
        return np.array(ends, np.int64)


def rows_up_to(ordered: Tensor, thresholds: Tensor, lengths: Tensor) -> Tensor:
    """Return the number of rows up to each threshold.

    Args:
        ordered: The values of each feature (features, N), rising; missing ones are NaN, the last.
        thresholds: Of all features, one after another.
        lengths: How many thresholds each feature has (features,).
    """
    counts = [torch.empty(0, dtype=torch.int64)]
    for values, own in zip(ordered, torch.split(thresholds, lengths.tolist()), strict=True):
        below = np.searchsorted(values.numpy(), own.numpy(), side="right")
        counts.append(torch.from_numpy(below))
    return torch.cat(counts)


@dataclass(frozen=True, eq=False)
class Bins:
    """The bins of all features: cells of a histogram, one after another.

    Attributes:
        cuts: The thresholds between the bins of all features, one after another.
        lengths: How many thresholds each feature has (features,).
        missing: Whether a feature has a bin of missing values, its last one (features,).
    """

    cuts: Floats
    lengths: Integers
    missing: NDArray[np.bool_]

    @property
    def sizes(self) -> Integers:
        """The number of bins of each feature (features,)."""
        return self.lengths + 1 + self.missing

    @property
    def total(self) -> int:
        """The number of cells."""
        return int(self.sizes.sum())

    @property
    def starts(self) -> Integers:
        """The first cell of each feature (features,)."""
        return np.cumsum(self.sizes) - self.sizes

    def only(self, features: Integers) -> "Bins":
        """The bins of some features."""
        if len(features) == len(self.lengths):
            return self
        cuts = self.by_feature()
        chosen = [cuts[feature] for feature in features]
        return Bins(np.concatenate(chosen), self.lengths[features], self.missing[features])

    def equals(self, other: "Bins") -> bool:
        """Return whether other bins are the same."""
        return (
            np.array_equal(self.cuts, other.cuts)
            and np.array_equal(self.lengths, other.lengths)
            and np.array_equal(self.missing, other.missing)
        )

    def by_feature(self) -> Sequence[Floats]:
        """The thresholds of each feature."""
        return np.split(self.cuts, np.cumsum(self.lengths)[:-1])

    def of_feature(self, feature: int) -> Floats:
        """The thresholds of one feature."""
        last = self.lengths[: feature + 1].sum()
        return self.cuts[last - self.lengths[feature] : last]
