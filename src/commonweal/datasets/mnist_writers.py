"""MNIST by the hand that wrote it: 539 people, some of whom a model reads badly. A natural stand-in for FEMNIST.

Yadav and Bottou 2019 (QMNIST) found the writer of each digit again; MNIST's files in `mnist`, theirs in
`qmnist_writers`. A client is a writer of the training series, or a series: census staff and high-school students.
"""

from typing import Literal

import numpy as np

from commonweal.datasets._files import locate
from commonweal.datasets._idx import pooled, values
from commonweal.datasets._shared import noisy
from commonweal.errors import DataError
from commonweal.federation import Federation
from commonweal.noise import Noise

__all__ = ["mnist_writers"]

SERIES = {0: "staff", 1: "staff", 4: "students"}


def mnist_writers(
    by: Literal["writer", "series"] = "writer",
    noise: Noise | None = None,
    test: float = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Federation:
    """60,000 rows (1, 28, 28), 539 writers (or 2 series), 10 classes; score: accuracy

    by: what a client is; noise: wrong labels in training rows; test: the share of each client's rows that is held out
    seed: which rows these are; dir: the folder of both sets' files
    """
    x, y, official = pooled("mnist", "mnist", dir)
    table = values(locate("mnist-writers", "qmnist_writers", ["qmnist-train-labels-idx2-int.gz"], dir)[0])
    x, y = x[~official], y[~official]
    if table.shape != (len(y), 8) or not np.array_equal(table[:, 0], y):
        raise DataError(f"the writers' table of shape {table.shape} is not of these {len(y)} MNIST images")
    clients = table[:, 2] if by == "writer" else np.array([SERIES.get(int(s), f"series {s}") for s in table[:, 1]])
    return noisy(Federation.from_arrays(x, y, clients, test, seed), noise, seed)
