"""Histograms for trees: sums of derivatives, and numbers of rows, by node and bin.

Sums are exact. Each row's derivatives are rounded to multiples of 2^-30, whose sums float64 holds
without rounding up to 8 million. So neither the order of rows nor how they are divided among
processes and machines changes a bit, and what is left of a parent after one child is subtracted is
exactly the other child's.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from commonweal.training.bins import Bins

UNIT = 2.0**-30
AT_ONCE = 1 << 20  # cells of rows that are added up together

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Cells(NamedTuple):
    """The bins of rows, but for each feature's most frequent one: columns of 0 and 1 are sparse.

    Attributes:
        of_row: The cells of each row, counted through all features (N, k). Places that a row does
            not need have a cell after the last one.
        frequent: The cell of each feature that rows do not name (features,).
        total: How many cells there are.
    """

    of_row: NDArray[np.int32]
    frequent: Integers
    total: int

    @classmethod
    def of(cls, x: Tensor, bins: Bins) -> "Cells":
        """The cells of the rows x (N, features)."""
        count = bins.total
        frequent = np.zeros(len(bins.sizes), np.int64)
        taken = np.zeros(len(x), np.int64)  # places of each row
        named = []
        cuts = bins.by_feature()
        for feature, column in enumerate(x.numpy().T):
            codes = np.searchsorted(cuts[feature], column)  # of NaN: that of the largest values
            if bins.missing[feature]:
                codes[np.isnan(column)] = bins.sizes[feature] - 1
            most = int(np.bincount(codes, minlength=1).argmax())
            rows = np.flatnonzero(codes != most)
            frequent[feature] = bins.starts[feature] + most
            named.append((rows, taken[rows], (bins.starts[feature] + codes[rows])))
            taken[rows] += 1
        of_row = np.full((len(x), int(taken.max(initial=0))), count, np.int32)
        for rows, place, cells in named:
            of_row[rows, place] = cells
        return cls(of_row, frequent, count)

    def only(self, features: Integers, bins: Bins, some: Bins) -> "Cells":
        """The cells of some features, counted through those only.

        Args:
            features: The features, in their order.
            bins: The bins of all features.
            some: Those of these features.
        """
        if len(features) == len(self.frequent):
            return self
        count = some.total
        number = np.full(self.total + 1, count, np.int32)
        first = np.repeat(bins.starts[features] - some.starts, some.sizes)
        number[first + np.arange(count)] = np.arange(count)
        return Cells(number[self.of_row], number[self.frequent[features]].astype(np.int64), count)

    def with_clients(self, client: Integers, clients: int) -> "Cells":
        """The cells with another one for each client, in which all its rows are.

        Args:
            client: Whose row each is (N,). Those from number `clients` on have no cell.
            clients: How many clients have a cell, after those of the features.
        """
        of_row = np.where(self.of_row == self.total, self.total + clients, self.of_row)
        own = self.total + np.minimum(client, clients)
        of_row = np.column_stack([of_row, own]).astype(np.int32)
        return Cells(of_row, self.frequent, self.total + clients)


def exact(values: Floats) -> Floats:
    """Values rounded to multiples of a unit, whose sums are exact."""
    return np.rint(values / UNIT) * UNIT


def histograms(
    cells: Cells, bins: Bins, rows: Integers, slot: Integers, derivatives: Floats, slots: int
) -> tuple[Floats, NDArray[np.int32]]:
    """Add up the rows of some nodes by cell.

    Args:
        cells: The cells of the rows.
        bins: The bins of the features.
        rows: The numbers of the rows that count (n,).
        slot: Which histogram each of them belongs to (n,).
        derivatives: Their first and second derivatives (n, 2), rounded by `exact`.
        slots: The number of histograms.

    Returns:
        The sums of first and second derivatives (slots, cells, 2), and the rows (slots, cells).
    """
    width = cells.total + 1
    per_row = cells.of_row.shape[1]
    values = np.column_stack([derivatives, np.ones(len(rows))])
    sums = np.zeros((slots * width, 3))
    at_once = max(1, AT_ONCE // max(1, per_row))
    for begin in range(0, len(rows), at_once):
        part = slice(begin, begin + at_once)
        first = slot[part].astype(np.int32) * np.int32(width)
        place = first[:, None] + cells.of_row[rows[part]]
        ends = np.arange(len(place) + 1, dtype=np.int32) * np.int32(per_row)
        named = csr_array((np.ones(place.size), place.ravel(), ends), (len(place), len(sums)))
        sums += named.T @ values[part]
    by_cell = sums.reshape(slots, width, 3)[:, :-1]
    of_slot = [np.bincount(slot, column, slots) for column in values.T]
    everything = np.stack(of_slot, -1)
    # (slots, features, 3)
    by_feature = np.add.reduceat(by_cell[:, : bins.total], bins.starts, axis=1)
    by_cell[:, cells.frequent] += everything[:, None] - by_feature
    return by_cell[..., :2], by_cell[..., 2].astype(np.int32)
