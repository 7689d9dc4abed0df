"""A hundred kinds of things, 60,000 pooled photographs of 32 x 32, dealt to clients by a partition.

Krizhevsky 2009; the binary archive, or its .bin files, in `cifar100`; 3,000 + 1,000 of them in `cifar100_subset`.
"""

from commonweal.datasets._cifar import pooled
from commonweal.datasets._shared import DIRICHLET, Test, only, partitioned
from commonweal.federation import Federation
from commonweal.noise import Noise
from commonweal.partition import Partition

__all__ = ["cifar100"]


def cifar100(
    partition: Partition = DIRICHLET,
    noise: Noise | None = None,
    classes: tuple[int, ...] = (),
    sample: bool = False,
    test: Test = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Federation:
    """60,000 rows (3, 32, 32), 100 classes; score: accuracy

    partition: who owns which row; noise: wrong labels in training rows; classes: only these; sample: the subset
    test: the share of each client's rows that is held out, or "official"; seed: of all draws; dir: the files' folder
    """
    pool = pooled("cifar100", "cifar-100-binary.tar.gz", ["train.bin"], "test.bin", 2, sample, dir)
    return partitioned(only(pool, classes), partition, noise, test, seed, outputs=len(classes) or 100)
