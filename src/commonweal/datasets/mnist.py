"""Handwritten digits, 70,000 pooled images of 28 x 28, dealt to clients by a partition.

LeCun, Cortes and Burges; four IDX files in `mnist`.
"""

from commonweal.datasets._idx import pooled
from commonweal.datasets._shared import DIRICHLET, Test, only, partitioned
from commonweal.federation import Federation
from commonweal.noise import Noise
from commonweal.partition import Partition

__all__ = ["mnist"]


def mnist(
    partition: Partition = DIRICHLET,
    noise: Noise | None = None,
    classes: tuple[int, ...] = (),
    test: Test = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Federation:
    """70,000 rows (1, 28, 28), 10 classes; score: accuracy

    partition: who owns which row; noise: wrong labels in training rows; classes: only these digits
    test: the share of each client's rows that is held out, or "official"; seed: of all draws; dir: the files' folder
    """
    return partitioned(only(pooled("mnist", "mnist", dir), classes), partition, noise, test, seed)
