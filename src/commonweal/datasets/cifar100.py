"""A hundred kinds of objects: a pool of 60,000 photographs of 32 x 32.

Krizhevsky 2009; the binary archive, or its .bin files, in `cifar100`; 3,000 + 1,000 of them in
`cifar100_subset`.
"""

from commonweal.datasets._cifar import read_binary
from commonweal.datasets._shared import Part, Pool, Test, pool_of

__all__ = ["cifar100"]

SOURCES = """
cifar100 https://www.cs.toronto.edu/~kriz/
03b5dce01913d631647c71ecec9e9cb8 cifar-100-binary.tar.gz
"""
ARCHIVE = "cifar-100-binary.tar.gz"


def cifar100(
    classes: tuple[int, ...] = (),
    sample: bool = False,
    size: int = 32,
    part: Part = "all",
    test: Test = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Pool:
    """60,000 rows (3, size, size), 100 classes; score: accuracy

    classes: only these; sample: the subset; size: to which images are resized
    part: the 50,000 training rows or the 10,000 test rows alone
    test: the share of each client's rows that is held out, or "official"; seed: of all draws
    dir: the files' folder
    """
    arrays = read_binary("cifar100", ARCHIVE, ["train.bin"], "test.bin", 2, sample, dir)
    return pool_of(arrays, part, test, seed, outputs=100, classes=classes, size=size)


ENTRIES = {"cifar100": cifar100}
