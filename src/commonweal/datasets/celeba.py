"""Does a celebrity smile? Photographs by the person in them, 9,343 people with five or more.

Liu et al., ICCV 2015 (non-commercial research only), as LEAF federates it; identity_CelebA.txt, list_attr_celeba.txt
and the folder or zip img_align_celeba in `celeba`, or LEAF's json for the labels. A client is a celebrity.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from commonweal.datasets import _leaf
from commonweal.datasets._cache import New, cached
from commonweal.datasets._files import decoded, find, locate, members
from commonweal.datasets._images import by_name, filled, write
from commonweal.datasets._shared import noisy
from commonweal.errors import DataError, did_you_mean
from commonweal.federation import Federation
from commonweal.noise import Noise

__all__ = ["celeba"]

Known = dict[str, tuple[str, int, str]]  # picture -> celebrity, label, part


def celeba(
    source: Literal["original", "leaf"] = "original",
    attribute: str = "Smiling",
    least: int = 5,
    size: int = 84,
    noise: Noise | None = None,
    test: float = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Federation:
    """200,288 rows (3, size, size), 9,343 celebrities, 2 classes; score: accuracy

    source: labels from CelebA's own lists, or from LEAF's json with its split; attribute: one of the 40 (original)
    least: celebrities with fewer pictures are left out; size: of the pictures; noise: wrong labels in training rows
    test: the share of each client's rows that is held out; seed: which rows these are; dir: the files' folder
    """
    if source == "leaf":
        lists = _leaf.files("celeba", "celeba", dir)
    else:
        lists = [*locate("celeba", "celeba", ["identity_CelebA.txt"], dir), _attributes(dir)]
    zipped = find("celeba", "img_align_celeba.zip", dir)
    images = zipped or locate("celeba", "celeba", ["img_align_celeba"], dir)[0]

    def parse(new: New) -> None:
        known = from_leaf(lists) if source == "leaf" else from_lists(lists[0], lists[1], attribute)
        count = Counter(who for who, _, _ in known.values())
        wanted = {name: row for name, row in known.items() if count[row[0]] >= least}
        found = filled(new, images, _paths(images, wanted), size)
        who, label, part = zip(*found, strict=True)
        names = sorted(set(who), key=lambda name: (len(name), name))
        number = {name: k for k, name in enumerate(names)}
        write(new, y=label, part=part, owner=[number[name] for name in who], names=names)

    arrays = cached("celeba", [*lists, images], parse, f"{source} {attribute} {least} {size}")
    return noisy(_leaf.federation(arrays, test, seed, outputs=1, loss="binary"), noise, seed)


def _attributes(dir: str | None) -> Path:
    return (
        find("celeba", "list_attr_celeba.csv.zip", dir) or locate("celeba", "celeba", ["list_attr_celeba.txt"], dir)[0]
    )


def _paths(images: Path, wanted: Known) -> dict[str, Any]:
    """What is wanted, by the names that the pictures have in their folder or archive."""
    found = by_name(images, lambda name: wanted.get(Path(name).name))
    if len(found) < len(wanted):
        lacking = sorted(set(wanted) - {Path(name).name for name in found})
        raise DataError(f"{str(images)!r} lacks {len(lacking)} of {len(wanted)} pictures, such as {lacking[0]}")
    return found


def from_leaf(paths: list[Path]) -> Known:
    """The pictures in LEAF's json."""
    users = _leaf.users(paths)
    return {name: (u.name, int(label), u.part) for u in users for name, label in zip(u.x, u.y, strict=True)}


def from_lists(identities: Path, attributes: Path, attribute: str) -> Known:
    """The pictures in CelebA's own lists of people and of 40 attributes."""
    people = dict(line.split() for line in decoded(identities).splitlines() if line)
    lines = _lines(attributes)
    header = next(lines)
    if attribute not in header:
        raise DataError(f"attribute = {attribute!r}: {did_you_mean(attribute, header)}")
    column = header.index(attribute) - len(header)  # from the right: the original has no name for the first column
    return {row[0]: (people[row[0]], int(row[column] == "1"), "") for row in lines if row}


def _lines(path: Path) -> Iterator[list[str]]:
    if path.suffix == ".zip":
        text = b"".join(data for _, data in members(path, (".csv",))).decode("ascii")
        yield from (line.split(",") for line in text.splitlines())
    else:
        lines = decoded(path).splitlines()
        yield from (line.split() for line in lines[1:])  # the first line is the number of pictures
