"""CIFAR-10's classes from two sources, 270,000 pooled images of 32 x 32, dealt to clients by a partition.

Darlow et al. 2018; CINIC-10.tar.gz, or its folders {train,valid,test}/<class>/*.png, in `cinic10`.
"""

from pathlib import PurePosixPath

from commonweal.datasets._cache import New, cached
from commonweal.datasets._files import find, locate
from commonweal.datasets._images import by_name, filled, write
from commonweal.datasets._shared import DIRICHLET, Pool, Test, partitioned
from commonweal.federation import Federation
from commonweal.noise import Noise
from commonweal.partition import Partition

__all__ = ["cinic10"]

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def cinic10(
    partition: Partition = DIRICHLET,
    noise: Noise | None = None,
    test: Test = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Federation:
    """270,000 rows (3, 32, 32), 10 classes; score: accuracy

    partition: who owns which row; noise: wrong labels in training rows
    test: the share of each client's rows that is held out, or "official"; seed: of all draws; dir: the files' folder
    """
    packed = find("cinic10", "CINIC-10.tar.gz", dir)
    path = packed or locate("cinic10", "cinic10", ["train", "valid", "test"], dir)[0].parent

    def parse(new: New) -> None:
        found = filled(new, path, by_name(path, _meaning), 32)
        write(new, y=[label for _, label in found], official=[part == "test" for part, _ in found])

    arrays = cached("cinic10", [path], parse)
    pool = Pool(arrays["x"], arrays["y"], arrays["official"])
    return partitioned(pool, partition, noise, test, seed, outputs=10)


def _meaning(name: str) -> tuple[str, int] | None:
    """Part and class of a picture by its folders."""
    folders = PurePosixPath(name).parts[-3:-1]
    if len(folders) < 2 or folders[0] not in ("train", "valid", "test") or folders[1] not in CLASSES:
        return None
    return folders[0], CLASSES.index(folders[1])
