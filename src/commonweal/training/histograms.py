"""Histograms for trees: sums of derivatives, and numbers of rows, by node and bin.

scikit-learn's code adds them up. The sums are exact: each row's derivatives are rounded to float32
and to multiples of 2^-30, whose sums float64 holds without rounding up to 8 million. So neither the
order of rows nor how they are divided among processes and machines changes a bit, and what is left
of a parent after one child is subtracted is exactly the other child's.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from commonweal.training.bins import Bins

UNIT = 2.0**-30

Codes = NDArray[np.uint8]
Integers = NDArray[np.int64]
Rows = NDArray[np.uint32]
Floats = NDArray[np.float64]


def codes_of(x: Tensor, bins: Bins) -> Codes:
    """The bins (features, N) of the values of rows (N, features); missing ones are after the last.

    A value is at most the threshold after bin b if its code is at most b.
    """
    codes = np.empty((x.shape[1], len(x)), np.uint8)
    for own, cuts, column in zip(codes, bins.by_feature(), x.numpy().T, strict=True):
        own[:] = np.searchsorted(cuts, column)
        own[np.isnan(column)] = len(cuts) + 1
    return codes


def exact(values: Floats) -> NDArray[np.float32]:
    """Values rounded to multiples of a unit, whose sums in float64 are exact."""
    units = np.rint(values * (1 / UNIT)).astype(np.float32)
    units *= np.float32(UNIT)
    return units


class Histograms:
    """Adds up the derivatives of rows by bin.

    Args:
        codes: The bins of the rows' features (features, N).
        bins: The bins.
        first: The first derivatives of all rows (N,), rounded by `exact`.
        second: The second ones.
        client: Whose row each is (N,), for a cell of each client after those of the features;
            None: without.
        clients: How many clients have a cell. Rows of those after them have none.
    """

    def __init__(
        self,
        codes: Codes,
        bins: Bins,
        first: NDArray[np.float32],
        second: NDArray[np.float32],
        client: Integers | None = None,
        clients: int = 0,
    ) -> None:
        # Slow to import, and only needed where trees are grown.
        from sklearn.ensemble._hist_gradient_boosting import histogram

        self.first = first
        self.second = second
        self.client = client
        self.clients = clients
        width = int(bins.lengths.max(initial=0)) + 2
        feature = np.repeat(np.arange(len(bins.sizes)), bins.sizes)
        bin = np.arange(bins.total) - bins.starts[feature]
        self._places = feature * width + bin
        if len(first) == 0:  # scikit-learn needs a row, which is in no node
            first = second = np.zeros(1, np.float32)
            codes = np.zeros((len(codes), 1), np.uint8)
        threads = torch.get_num_threads()
        self._type = histogram.HISTOGRAM_DTYPE
        self._builder = histogram.HistogramBuilder(codes.T, width, first, second, False, threads)

    def of(self, nodes: Sequence[Rows]) -> tuple[Floats, NDArray[np.int32]]:
        """The sums (nodes, 2, cells) of derivatives, and rows (nodes, cells), of some rows each."""
        cells = len(self._places)
        sums = np.empty((len(nodes), 2, cells + self.clients))
        counts = np.empty((len(nodes), cells + self.clients), np.int32)
        for rows, own, count in zip(nodes, sums, counts, strict=True):
            whole = self._builder.compute_histograms_brute(rows)
            by_cell = np.frombuffer(whole, self._type).take(self._places)
            own[0, :cells] = by_cell["sum_gradients"]
            own[1, :cells] = by_cell["sum_hessians"]
            count[:cells] = by_cell["count"]
            if self.client is not None:
                client = np.minimum(self.client[rows], self.clients)
                for values, place in zip((self.first, self.second), own, strict=True):
                    by_client = np.bincount(client, values[rows], self.clients + 1)
                    place[cells:] = by_client[: self.clients]
                count[cells:] = np.bincount(client, minlength=self.clients + 1)[: self.clients]
        return sums, counts
