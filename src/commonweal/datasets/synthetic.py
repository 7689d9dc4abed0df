"""Clients drawn from a model: as many as you like, with labels, features and sizes as you like.

After Li et al., MLSys 2020 (FedProx): client k has n_k rows x ~ N(feature * c_k, diag(j^-1.2)) and
labels argmax((W + label * W_k)' x), with c_k, W and W_k standard normal and n_k log-normal.
"""

import math
from collections.abc import Iterator

import numpy as np

from commonweal.base import randomness
from commonweal.base.arguments import check_bounds
from commonweal.base.memory import check_memory
from commonweal.data.federation import Federation

MOST_QUANTITY = 10  # a client of e^10 = 22,000 times the median is one deviation away
CHUNK = 1 << 22  # numbers drawn at once


def synthetic(
    clients: int = 100,
    rows: int = 50,
    features: int = 20,
    classes: int = 5,
    label: float = 0.5,
    feature: float = 0.5,
    quantity: float = 1.0,
    test: float = 0.2,
    seed: int = 0,
) -> Federation:
    """Any number of clients; score: accuracy

    clients: how many; rows: median per client (at least 2); features, classes: how many
    label: how much the clients' labelling differs; feature: how much their inputs differ
    quantity: the standard deviation of log n_k (0: equal sizes)
    test: the share of each client's rows that is tested; seed: of all draws
    """
    for name, value in (("clients", clients), ("features", features)):
        check_bounds(f"synthetic {name}", value, least=1)
    for name, value in (("rows", rows), ("classes", classes)):
        check_bounds(f"synthetic {name}", value, least=2)
    for name, skew in (("label", label), ("feature", feature), ("quantity", quantity)):
        check_bounds(f"synthetic {name}", skew, least=0)
    check_bounds("synthetic quantity", quantity, most=MOST_QUANTITY)
    expected = clients * rows * math.exp(quantity**2 / 2)  # the mean of a log-normal size
    check_memory(
        f"synthetic data of {clients:,} clients with {rows:,} rows of {features:,} features each",
        expected * (4 * features + 16) + 64 * clients + 4 * features * classes,
    )
    rng = randomness.stream(seed, 0, 0, randomness.DRAW)
    drawn = np.round(rows * np.exp(quantity * rng.standard_normal(clients)))
    sizes = np.maximum(2, drawn).astype(np.int64)
    shared = rng.standard_normal((features, classes), dtype=np.float32)
    x = np.empty((sizes.sum(), features), dtype=np.float32)
    y = np.empty(sizes.sum(), dtype=np.int64)
    start = 0
    for chunk in _chunks(sizes, shared.size):
        rows_of_chunk = slice(start, start + len(chunk))
        x[rows_of_chunk], y[rows_of_chunk] = _draw_rows(chunk, shared, label, feature, rng)
        start = rows_of_chunk.stop
    owner = np.repeat(np.arange(clients), sizes)
    names = list(map(str, range(clients)))
    return Federation.from_arrays(x, y, owner, test, seed, names, outputs=classes)


ENTRIES = {"synthetic": synthetic}


def _chunks(sizes: np.ndarray, width: int) -> Iterator[np.ndarray]:
    """The owners of the rows of some clients at a time, counted from the first of them."""
    mean_size = max(1, int(sizes.sum()) // len(sizes))
    step = max(1, CHUNK // (width * mean_size))
    for first in range(0, len(sizes), step):
        chunk = sizes[first : first + step]
        yield np.repeat(np.arange(len(chunk)), chunk)


def _draw_rows(
    owner: np.ndarray,
    shared: np.ndarray,
    label: float,
    feature: float,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels of some clients' rows."""
    clients = int(owner[-1]) + 1
    features, classes = shared.shape
    scale = np.arange(1, features + 1, dtype=np.float32) ** -0.6  # variances fall as j^-1.2
    centre = feature * rng.standard_normal((clients, features), dtype=np.float32)
    own = rng.standard_normal((clients, features, classes), dtype=np.float32)
    weights = shared + label * own
    x = centre[owner] + scale * rng.standard_normal((len(owner), features), dtype=np.float32)
    y = np.einsum("nf,nfc->nc", x, weights[owner]).argmax(1)
    return x, y
