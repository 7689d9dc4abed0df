"""Small handwritten digits, 1,797 images of 8 x 8 that scikit-learn carries: for quick trials without a download.

Alpaydin and Kaynak 1998, UCI Machine Learning Repository, CC BY 4.0.
"""

import numpy as np

from commonweal.datasets._shared import Pool, partitioned
from commonweal.federation import Federation
from commonweal.noise import Noise
from commonweal.partition import Dirichlet, Partition

__all__ = ["digits"]

TWENTY = Dirichlet(clients=20)


def digits(partition: Partition = TWENTY, noise: Noise | None = None, test: float = 0.2, seed: int = 0) -> Federation:
    """1,797 rows (1, 8, 8), 10 classes; score: accuracy

    partition: who owns which row; noise: wrong labels in training rows
    test: the share of each client's rows that is held out; seed: of all draws
    """
    from sklearn.datasets import load_digits  # slow to import

    table = load_digits()
    x = np.minimum(np.round(table.images * (255 / 16)), 255).astype(np.uint8)[:, None]  # 0 .. 16 as bytes
    y = table.target.astype(np.int64)
    return partitioned(Pool(x, y, np.zeros(len(y), dtype=bool)), partition, noise, test, seed)
