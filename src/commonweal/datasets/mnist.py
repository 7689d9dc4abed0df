"""Handwritten digits: a pool of 70,000 images of 28 x 28.

LeCun, Cortes and Burges; four IDX files in `mnist`.
"""

from commonweal.datasets._idx import read_images
from commonweal.datasets._shared import Part, Pool, Test, pool_of

__all__ = ["mnist"]

SOURCES = """
mnist https://ossci-datasets.s3.amazonaws.com/mnist/
440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609 train-images-idx3-ubyte.gz
3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c train-labels-idx1-ubyte.gz
8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6 t10k-images-idx3-ubyte.gz
f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6 t10k-labels-idx1-ubyte.gz
"""


def mnist(
    classes: tuple[int, ...] = (),
    size: int = 28,
    part: Part = "all",
    test: Test = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Pool:
    """70,000 rows (1, size, size), 10 classes; score: accuracy

    classes: only these digits; size: to which images are resized
    part: the 60,000 training rows or the 10,000 test rows alone
    test: the share of each client's rows that is held out, or "official"; seed: of all draws
    dir: the files' folder
    """
    arrays = read_images("mnist", "mnist", dir)
    return pool_of(arrays, part, test, seed, outputs=10, classes=classes, size=size)


ENTRIES = {"mnist": mnist}
