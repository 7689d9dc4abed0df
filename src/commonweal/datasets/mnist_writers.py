"""MNIST by writer: 539 people, some of whose digits a model reads badly.

Yadav and Bottou 2019 (QMNIST) recovered the writer of each digit; MNIST's files in `mnist`, theirs
in `qmnist_writers`. A natural substitute for FEMNIST. A client is a writer of the training series,
or a series: census staff and high-school students.
"""

from typing import Literal

import numpy as np

from commonweal.base.errors import DataError
from commonweal.data.federation import Federation
from commonweal.data.sources.files import locate
from commonweal.datasets.mnist import read_idx, read_images
from commonweal.datasets.pools import natural_federation

WRITERS = "qmnist-train-labels-idx2-int.gz"
SERIES = {0: "staff", 1: "staff", 4: "students"}


def mnist_writers(
    by: Literal["writer", "series"] = "writer",
    clients: int | None = None,
    test: float = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Federation:
    """60,000 rows (1, 28, 28), 539 writers (or 2 series), 10 classes; score: accuracy

    by: what a client is; clients: how many of them to use
    test: the share of each client's rows that is tested; seed: which rows and clients
    dir: the folder of both sets' files
    """
    arrays = read_images("mnist", "mnist", dir)
    table = read_idx(locate("mnist-writers", "qmnist_writers", [WRITERS], dir)[0])
    is_train = ~arrays["official"]
    x = arrays["x"][is_train]
    y = arrays["y"][is_train]
    if table.shape != (len(y), 8) or not np.array_equal(table[:, 0], y):
        raise DataError(
            f"the writers' table of shape {table.shape} does not match these {len(y)} MNIST images"
        )
    client = table[:, 2]
    if by == "series":
        client = np.array([SERIES.get(k, f"series {k}") for k in table[:, 1].tolist()])
    return natural_federation(x, y, client, test, seed, clients, outputs=10)


ENTRIES = {"mnist-writers": mnist_writers}
