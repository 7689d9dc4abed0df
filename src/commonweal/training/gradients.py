"""First and second derivatives of losses with respect to a model's outputs, sample by sample.

They are those of scikit-learn's boosting, so that both grow the same trees: of half the squared
error, and with a second derivative of 1 where the loss has none.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

Floats = NDArray[np.float64]
Both = tuple[Floats, Floats]  # the derivatives (N, c) by the sums of c columns of trees


def _cross_entropy(sums: Floats, y: Floats) -> Both:
    if sums.shape[1] == 1:
        return _binary(sums, y)
    likely = softmax(sums, axis=1)
    first = likely.copy()
    first[np.arange(len(y)), y.astype(np.int64)] -= 1
    return first, likely * (1 - likely)


def _binary(sums: Floats, y: Floats) -> Both:
    positive = expit(sums)
    return positive - y[:, None], positive * (1 - positive)


def _squared(sums: Floats, y: Floats) -> Both:
    return sums - y[:, None], np.ones_like(sums)


def _huber(sums: Floats, y: Floats) -> Both:
    return np.clip(sums - y[:, None], -1, 1), np.ones_like(sums)


def _absolute(sums: Floats, y: Floats) -> Both:
    return np.sign(sums - y[:, None]), np.ones_like(sums)


def _poisson(sums: Floats, y: Floats) -> Both:
    rates = np.exp(sums)
    return rates - y[:, None], rates


GRADIENTS: dict[str, Callable[[Floats, Floats], Both]] = {  # sums (N, c), labels (N,)
    "cross-entropy": _cross_entropy,
    "binary": _binary,
    "squared": _squared,
    "huber": _huber,
    "absolute": _absolute,
    "poisson": _poisson,
}


def cox(sums: Floats, y: Floats, offsets: NDArray[np.int64]) -> Both:
    """The derivatives of Cox's loss (Breslow's way with ties), by client.

    The rows of a client are each other's risk sets, as in its loss.

    Args:
        sums: The logarithms of the risks (N, 1).
        y: Times and events (N, 2).
        offsets: Where each client's rows begin (K + 1,).
    """
    first = np.zeros_like(sums)
    second = np.zeros_like(sums)
    for a, b in pairwise(offsets.tolist()):
        if b > a:
            first[a:b, 0], second[a:b, 0] = _cox_of_client(sums[a:b, 0], y[a:b])
    return first, second


def _cox_of_client(log_risk: Floats, y: Floats) -> Both:
    order = np.argsort(-y[:, 0], kind="stable")
    earliness = -y[order, 0]  # rising: those who stay longest come first
    event = y[order, 1]
    risk = np.exp(log_risk[order] - log_risk.max())  # the factor cancels out
    begin = np.searchsorted(earliness, earliness, side="left")  # of rows with the same time
    end = np.searchsorted(earliness, earliness, side="right")
    at_risk = np.cumsum(risk)[end - 1]

    def until(terms: Floats) -> Floats:
        """The sum of terms over all rows that are not later."""
        sums: Floats = np.cumsum(terms[::-1])[::-1][begin]
        return sums

    expected = risk * until(event / at_risk)
    first, second = np.empty_like(risk), np.empty_like(risk)
    first[order] = expected - event
    second[order] = expected - risk**2 * until(event / at_risk**2)
    return first, second
