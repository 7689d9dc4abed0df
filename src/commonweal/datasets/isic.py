"""Skin lesions from six centres, of which the largest has 12,413 images and the smallest 439: Fed-ISIC2019.

Ogier du Terrail et al., NeurIPS 2022 (FLamby), CC BY-NC 4.0; `train_test_split.csv` in `isic2019_meta` and FLamby's
preprocessed images in `isic2019`. A client is a centre.
"""

import csv
from pathlib import Path

import numpy as np

from commonweal.datasets._cache import New, cached
from commonweal.datasets._files import decoded, find, locate
from commonweal.datasets._images import by_name, filled, write
from commonweal.datasets._shared import Test
from commonweal.errors import DataError
from commonweal.federation import Federation

__all__ = ["isic"]

FOLDER = "ISIC_2019_Training_Input_preprocessed"
CENTRES = ("BCN", "HAM vidir molemax", "HAM vidir modern", "HAM rosendahl", "MSK", "HAM vienna dias")


def isic(size: int = 200, test: Test = "official", seed: int = 0, dir: str | None = None) -> Federation:
    """23,247 rows (3, size, size), 6 centres, 8 classes; score: top-5

    size: of the middle square of 200 pixels that is kept; test: FLamby's own split, or a share of each centre's rows
    seed: which rows these are; dir: the folder of the table and of the images' folder
    """
    lists = find("isic2019", "train_test_split.csv", dir) or find("isic2019_meta", "train_test_split.csv", dir)
    lists = lists or locate("isic", "isic2019", ["train_test_split.csv"], dir)[0]
    images = locate("isic", "isic2019", [FOLDER], dir)[0]

    def parse(new: New) -> None:
        rows = table(lists)
        found = filled(new, images, by_name(images, lambda name: rows.get(Path(name).stem)), size, crop=200)
        label, centre, held = zip(*found, strict=True)
        write(new, y=label, centre=centre, official=held)

    arrays = cached("isic", [lists, images], parse, str(size))
    held = arrays["official"] if test == "official" else test
    present = np.unique(arrays["centre"])
    names, owner = [CENTRES[c] for c in present], np.searchsorted(present, arrays["centre"])
    return Federation.from_arrays(arrays["x"], arrays["y"], owner, held, seed, names, outputs=8, score="top-5")


def table(path: Path) -> dict[str, tuple[int, int, bool]]:
    """Each image's class, centre, and whether it is a test image."""
    try:
        rows = csv.DictReader(decoded(path).splitlines())
        return {row["image"]: (int(row["target"]), int(row["center"]), row["fold"] == "test") for row in rows}
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(f"{str(path)!r} is not FLamby's table with image, target, center and fold: {error}") from None
