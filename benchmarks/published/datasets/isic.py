"""Skin lesions from six centres, with 12,413 images in the largest and 439 in the smallest.

Ogier du Terrail et al., NeurIPS 2022 (FLamby: Fed-ISIC2019), CC BY-NC 4.0; `train_test_split.csv`
in `isic2019_meta` and FLamby's preprocessed images in `isic2019`. A client is a centre. AAggFF
(Hahn et al., ICML 2024) uses 21,310 of the images: `complete` with the challenge's metadata.
"""

import csv
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from commonweal.base.errors import DataError
from commonweal.data.federation import Federation
from commonweal.data.sources.cache import New, cached
from commonweal.data.sources.files import find_file, locate, read_text
from commonweal.datasets.images import match_images, write_images
from commonweal.datasets.pools import Test, natural_federation

MANUAL = (
    "train_test_split.csv of FLamby and the images of the ISIC 2019 challenge, preprocessed by "
    "FLamby"
)
FOLDER = "ISIC_2019_Training_Input_preprocessed"
SPLIT = "train_test_split.csv"
METADATA = "ISIC_2019_Training_Metadata.csv"
CENTRES = "BCN, HAM vidir molemax, HAM vidir modern, HAM rosendahl, MSK, HAM vienna dias"


class Lesion(NamedTuple):
    label: int
    centre: int
    is_test: bool


def isic(
    size: int = 200,
    clients: int | None = None,
    complete: bool = False,
    test: Test = "official",
    seed: int = 0,
    dir: str | None = None,
) -> Federation:
    """23,247 rows (3, size, size), 6 centres, 8 classes; score: top-5

    size: to which the central square of 200 pixels is resized
    complete: only the images whose lesion, age, sex and site are known
    clients: how many of the centres to use
    test: FLamby's own split ("official"), or a share of each centre's rows
    seed: which rows and clients; dir: the folder of the table and of the images' folder
    """
    split = find_file("isic2019", SPLIT, dir) or find_file("isic2019_meta", SPLIT, dir)
    split = split or locate("isic", "isic2019", [SPLIT], dir, MANUAL)[0]
    images = locate("isic", "isic2019", [FOLDER], dir, MANUAL)[0]
    sources = [split, images]
    if complete:
        sources += locate("isic", "isic2019", [METADATA], dir, MANUAL)

    def parse(new: New) -> None:
        lesions = read_split(split)
        if complete:
            table = csv.DictReader(read_text(sources[-1]).splitlines())
            if "image" not in (table.fieldnames or ()):
                raise DataError(f"{str(sources[-1])!r} has no column image: it is other metadata")
            described = {row["image"] for row in table if all(row.values())}
            for image in lesions.keys() - described:
                del lesions[image]
        chosen = match_images(images, lambda name: lesions.get(PurePosixPath(name).stem))
        write_images(new, images, chosen, size, ("y", "centre", "official"), crop=200)

    arrays = cached("isic", sources, parse, str(size))
    centres, owner = np.unique(arrays["centre"], return_inverse=True)
    return natural_federation(
        arrays["x"],
        arrays["y"],
        owner,
        arrays["official"] if test == "official" else test,
        seed,
        clients,
        np.array(CENTRES.split(", "))[centres].tolist(),
        outputs=8,
        score="top-5",
    )


def read_split(path: Path) -> dict[str, Lesion]:
    """FLamby's table: each image's class, centre, and whether it is a test image."""
    lesions = {}
    try:
        for row in csv.DictReader(read_text(path).splitlines()):
            is_test = row["fold"] == "test"
            lesions[row["image"]] = Lesion(int(row["target"]), int(row["center"]), is_test)
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(
            f"{str(path)!r} is not FLamby's table with image, target, center and fold: {error}"
        ) from None
    return lesions
