"""Two hundred kinds of objects: a pool of 110,000 photographs of 64 x 64.

Le and Yang 2015; tiny-imagenet-200.zip, or the folder tiny-imagenet-200 in it, in `tiny_imagenet`.
The publisher's test part has no labels: its validation part is used as the test part.
"""

from pathlib import Path, PurePosixPath

from commonweal.base.errors import DataError
from commonweal.data.sources.cache import New, cached
from commonweal.data.sources.files import list_members, locate_one, read_members
from commonweal.datasets.images import match_images, write_images
from commonweal.datasets.pools import Part, Pool, Test, pool_of

MANUAL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
FORMS = ("tiny-imagenet-200", "tiny-imagenet-200.zip")


def tiny_imagenet(
    part: Part = "all", test: Test = 0.2, seed: int = 0, dir: str | None = None
) -> Pool:
    """110,000 rows (3, 64, 64), 200 classes in the order of their WordNet ids; score: accuracy

    part: the 100,000 training rows or the 10,000 test rows alone
    test: the share of each client's rows that is held out, or "official"; seed: of all draws
    dir: the files' folder
    """
    path = locate_one("tiny-imagenet", "tiny_imagenet", FORMS, dir, MANUAL)

    def parse(new: New) -> None:
        labels = _read_labels(path)
        images = match_images(path, lambda name: _describe(name, labels))
        write_images(new, path, images, 64)

    return pool_of(cached("tiny-imagenet", [path], parse), part, test, seed)


def _read_labels(path: Path) -> dict[str, int]:
    """The class of each training folder and of each validation image."""
    images = [PurePosixPath(name).parts for name in list_members(path, (".JPEG",))]
    ids = sorted({parts[-3] for parts in images if parts[-4:-3] == ("train",)})
    annotations = list(read_members(path, ("val_annotations.txt",)))
    if not annotations or not ids:
        raise DataError(
            f"{str(path)!r} lacks val/val_annotations.txt or train/<id>/images: "
            "it is not Tiny ImageNet"
        )
    labels = dict(zip(ids, range(len(ids)), strict=True))
    for line in annotations[0][1].decode("ascii").splitlines():
        if line:
            image, wordnet_id = line.split("\t")[:2]
            labels[image] = labels[wordnet_id]
    return labels


def _describe(name: str, labels: dict[str, int]) -> tuple[int, bool] | None:
    """An image's class, and whether it belongs to the validation part."""
    parts = PurePosixPath(name).parts
    if parts[-4:-3] == ("train",):
        return labels[parts[-3]], False
    if parts[-3:-2] == ("val",):
        return labels[parts[-1]], True
    return None
