"""Ten kinds of garments: a pool of 70,000 images of 28 x 28.

Xiao, Rasul and Vollgraf 2017, MIT; four IDX files in `fashion_mnist`. The setting of AFL and q-FFL
is `classes = [0, 2, 6]`, `test = "official"` and the partition `labels`: a client each for
t-shirts, pullovers and shirts.
"""

from commonweal.datasets._idx import read_images
from commonweal.datasets._shared import Part, Pool, Test, pool_of

__all__ = ["fashion_mnist"]

SOURCES = """
fashion_mnist https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/
3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84 train-images-idx3-ubyte.gz
a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845 train-labels-idx1-ubyte.gz
346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073 t10k-images-idx3-ubyte.gz
67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5 t10k-labels-idx1-ubyte.gz
"""


def fashion_mnist(
    classes: tuple[int, ...] = (),
    size: int = 28,
    part: Part = "all",
    test: Test = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Pool:
    """70,000 rows (1, size, size), 10 classes; score: accuracy

    classes: only these garments; size: to which images are resized
    part: the 60,000 training rows or the 10,000 test rows alone
    test: the share of each client's rows that is held out, or "official"; seed: of all draws
    dir: the files' folder
    """
    arrays = read_images("fashion-mnist", "fashion_mnist", dir)
    return pool_of(arrays, part, test, seed, outputs=10, classes=classes, size=size)


ENTRIES = {"fashion-mnist": fashion_mnist}
