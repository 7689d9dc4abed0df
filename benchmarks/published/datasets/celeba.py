"""Does a celebrity smile? Photographs by the person in them, 9,343 people with five or more.

Liu et al., ICCV 2015 (non-commercial research only), as LEAF federates it; identity_CelebA.txt,
list_attr_celeba.txt and the folder or zip img_align_celeba in `celeba`, or LEAF's json for the
labels. A client is a celebrity.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from commonweal.base.errors import DataError, did_you_mean
from commonweal.data.federation import Federation
from commonweal.data.sources.cache import New, cached, write_arrays
from commonweal.data.sources.files import locate, locate_one, read_members, read_pairs, read_text
from commonweal.datasets.images import Known, match_images, write_images
from commonweal.datasets.leaf import leaf_federation, leaf_files, leaf_users

MANUAL = (
    "identity_CelebA.txt, list_attr_celeba.txt and img_align_celeba from the CelebA project's page"
)
ATTRIBUTES = ("list_attr_celeba.csv.zip", "list_attr_celeba.txt")


class Photo(NamedTuple):
    person: str
    label: int
    part: str  # "train", "test", or "" where there is no split


def celeba(
    source: Literal["original", "leaf"] = "original",
    attribute: str = "Smiling",
    least: int = 5,
    size: int = 84,
    clients: int | None = None,
    test: float = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Federation:
    """200,288 rows (3, size, size), 9,343 celebrities, 2 classes; score: accuracy

    source: labels from CelebA's own lists, or from LEAF's json with its split
    attribute: one of the 40 (original); least: celebrities with fewer images are left out
    size: of the images; clients: how many of the celebrities to use
    test: the share of each client's rows that is held out; seed: which rows and clients
    dir: the files' folder
    """
    if source == "leaf":
        lists = leaf_files("celeba", "celeba", dir, MANUAL)
    else:
        lists = locate("celeba", "celeba", ["identity_CelebA.txt"], dir, MANUAL)
        lists.append(locate_one("celeba", "celeba", ATTRIBUTES, dir, MANUAL))
    images = locate_one(
        "celeba", "celeba", ["img_align_celeba.zip", "img_align_celeba"], dir, MANUAL
    )

    def parse(new: New) -> None:
        photos = from_leaf(lists) if source == "leaf" else from_lists(lists[0], lists[1], attribute)
        count = Counter(photo.person for photo in photos.values())
        names = [person for person in count if count[person] >= least]
        names.sort(key=lambda name: (len(name), name))
        ids = dict(zip(names, range(len(names)), strict=True))
        known: dict[str, Known] = {}
        for name, photo in photos.items():
            if photo.person in ids:
                known[name] = photo.label, photo.part, ids[photo.person]
        paths = _by_path(images, known)
        write_images(new, images, paths, size, ("y", "part", "owner"))
        write_arrays(new, names=names)

    options = f"{source} {attribute} {least} {size}"
    arrays = cached("celeba", [*lists, images], parse, options)
    return leaf_federation(arrays, test, seed, clients, outputs=1, loss="binary")


def _by_path(images: Path, chosen: dict[str, Known]) -> dict[str, Known]:
    """The wanted photos by their names in the folder or archive."""
    paths = match_images(images, lambda path: chosen.get(PurePosixPath(path).name))
    if len(paths) < len(chosen):
        there = {PurePosixPath(path).name for path in paths}
        missing = sorted(set(chosen) - there)
        raise DataError(
            f"{str(images)!r} lacks {len(missing)} of {len(chosen)} images, such as {missing[0]}"
        )
    return paths


def from_leaf(paths: list[Path]) -> dict[str, Photo]:
    """The photos in LEAF's json."""
    photos = {}
    for user in leaf_users(paths):
        for name, label in zip(user.x, user.y, strict=True):
            photos[name] = Photo(user.name, int(label), user.part)
    return photos


def from_lists(identities: Path, attributes: Path, attribute: str) -> dict[str, Photo]:
    """The photos in CelebA's own lists of people and of 40 attributes."""
    people = read_pairs(identities)
    lines = _read_attributes(attributes)
    header = next(lines)
    if attribute not in header:
        raise DataError(f"attribute = {attribute!r}: {did_you_mean(attribute, header)}")
    # Counted from the right: the original has no name for the first column.
    column = header.index(attribute) - len(header)
    photos = {}
    for name, *values in filter(None, lines):
        photos[name] = Photo(people[name], int(values[column] == "1"), "")
    return photos


def _read_attributes(path: Path) -> Iterator[list[str]]:
    if path.suffix == ".zip":
        for _, data in read_members(path, (".csv",)):
            for line in data.decode("ascii").splitlines():
                yield line.split(",")
    else:
        for line in read_text(path).splitlines()[1:]:  # the first line is the number of photos
            yield line.split()
