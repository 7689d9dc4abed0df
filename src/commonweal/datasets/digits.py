"""Small handwritten digits: a pool of 1,797 images of 8 x 8, part of scikit-learn.

Alpaydin and Kaynak 1998, UCI Machine Learning Repository, CC BY 4.0. For quick trials without a
download.
"""

import numpy as np

from commonweal.datasets.partition import DirichletByClass
from commonweal.datasets.pools import Pool


def digits(test: float = 0.2, seed: int = 0) -> Pool:
    """1,797 rows (1, 8, 8), 10 classes, 20 clients by default; score: accuracy

    test: the share of each client's rows that is tested; seed: of all draws
    """
    from sklearn.datasets import load_digits  # slow to import

    table = load_digits()
    scaled = np.round(table.images * (255 / 16))  # 0 .. 16 as bytes
    x = np.minimum(scaled, 255).astype(np.uint8)[:, None]
    y = table.target.astype(np.int64)
    official = np.zeros(len(y), dtype=bool)
    return Pool(x, y, official, test, seed, DirichletByClass(clients=20), outputs=10)


ENTRIES = {"digits": digits}
