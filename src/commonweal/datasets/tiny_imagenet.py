"""Two hundred kinds of things, 110,000 pooled photographs of 64 x 64, dealt to clients by a partition.

Le and Yang 2015; tiny-imagenet-200.zip, or the folder tiny-imagenet-200 that it holds, in `tiny_imagenet`. The test
part has no labels: the validation part stands for it.
"""

from pathlib import Path, PurePosixPath

from commonweal.datasets._cache import New, cached
from commonweal.datasets._files import find, listing, locate, members
from commonweal.datasets._images import by_name, filled, write
from commonweal.datasets._shared import DIRICHLET, Pool, Test, partitioned
from commonweal.errors import DataError
from commonweal.federation import Federation
from commonweal.noise import Noise
from commonweal.partition import Partition

__all__ = ["tiny_imagenet"]


def tiny_imagenet(
    partition: Partition = DIRICHLET,
    noise: Noise | None = None,
    test: Test = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Federation:
    """110,000 rows (3, 64, 64), 200 classes in the order of their WordNet ids; score: accuracy

    partition: who owns which row; noise: wrong labels in training rows
    test: the share of each client's rows that is held out, or "official"; seed: of all draws; dir: the files' folder
    """
    folder = find("tiny_imagenet", "tiny-imagenet-200", dir)
    path = folder or locate("tiny-imagenet", "tiny_imagenet", ["tiny-imagenet-200.zip"], dir)[0]

    def parse(new: New) -> None:
        known = _labels(path)
        found = filled(new, path, by_name(path, lambda name: _meaning(name, known)), 64)
        write(new, y=[label for label, _ in found], official=[held for _, held in found])

    arrays = cached("tiny-imagenet", [path], parse)
    return partitioned(Pool(arrays["x"], arrays["y"], arrays["official"]), partition, noise, test, seed)


def _labels(path: Path) -> dict[str, int]:
    """The class of each training folder and of each validation picture."""
    names = [PurePosixPath(name).parts for name in listing(path, (".JPEG",))]
    ids = sorted({parts[-3] for parts in names if len(parts) > 3 and parts[-4] == "train"})
    number = {wnid: i for i, wnid in enumerate(ids)}
    text = next((data for name, data in members(path, ("val_annotations.txt",))), None)
    if text is None or not ids:
        raise DataError(f"{str(path)!r} lacks val/val_annotations.txt or train/<id>/images: it is not Tiny ImageNet")
    lines = [line.split("\t") for line in text.decode("ascii").splitlines() if line]
    return number | {line[0]: number[line[1]] for line in lines}


def _meaning(name: str, known: dict[str, int]) -> tuple[int, bool] | None:
    """Class of a picture, and whether it is of the validation part."""
    parts = PurePosixPath(name).parts
    if len(parts) > 3 and parts[-4] == "train":
        return known[parts[-3]], False
    if len(parts) > 2 and parts[-3] == "val":
        return known[parts[-1]], True
    return None
