"""CIFAR-10's classes from two sources: a pool of 270,000 images of 32 x 32.

Darlow et al. 2018; CINIC-10.tar.gz, or its folders {train,valid,test}/<class>/*.png, in `cinic10`.
"""

from pathlib import PurePosixPath

from commonweal.data.sources.cache import New, cached
from commonweal.data.sources.files import find_file, locate
from commonweal.datasets.images import match_images, write_images
from commonweal.datasets.pools import Part, Pool, Test, pool_of

MANUAL = "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz"
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PARTS = ("train", "valid", "test")


def cinic10(part: Part = "all", test: Test = 0.2, seed: int = 0, dir: str | None = None) -> Pool:
    """270,000 rows (3, 32, 32), 10 classes; score: accuracy

    part: the 180,000 training and validation rows or the 90,000 test rows alone
    test: the share of each client's rows that is held out, or "official"; seed: of all draws
    dir: the files' folder
    """
    archive = find_file("cinic10", "CINIC-10.tar.gz", dir)
    path = archive or locate("cinic10", "cinic10", PARTS, dir, MANUAL)[0].parent

    def parse(new: New) -> None:
        write_images(new, path, match_images(path, _describe), 32)

    return pool_of(cached("cinic10", [path], parse), part, test, seed, outputs=10)


def _describe(name: str) -> tuple[int, bool] | None:
    """An image's class, and whether it is a test image, by its folders."""
    folders = PurePosixPath(name).parts[-3:-1]
    if len(folders) < 2 or folders[0] not in PARTS or folders[1] not in NAMES:
        return None
    return NAMES.index(folders[1]), folders[0] == "test"
