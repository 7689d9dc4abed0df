"""Small medical images, a pool: pneumonia in chest X-rays, skin lesions, or organs in CT.

Yang et al. 2023 (MedMNIST v2), CC BY 4.0; the npz files in `medmnist`, or each in a folder of its
own name.
"""

from typing import Literal

import numpy as np

from commonweal.data.sources.cache import New, cached, write_arrays
from commonweal.data.sources.files import find_file, locate, read_npz
from commonweal.datasets.pools import Part, Pool, Test, pool_of

CLASSES = {"pneumonia": 2, "derma": 7, "organc": 11}
PARTS = ("train", "val", "test")


def medmnist(
    which: Literal["pneumonia", "derma", "organc"] = "pneumonia",
    size: Literal[28, 64] = 28,
    part: Part = "all",
    test: Test = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Pool:
    """5,856 X-rays (2 classes), 10,015 lesions (7, RGB) or 23,583 organs (11); score: accuracy

    which: the set; size: of its images; part: the training and validation rows or the test rows
    alone
    test: the share of each client's rows that is tested, or "official"; seed: of all draws
    dir: the file's folder
    """
    name = f"{which}mnist.npz" if size == 28 else f"{which}mnist_{size}.npz"
    path = find_file(f"{which}mnist", name, dir) or locate("medmnist", "medmnist", [name], dir)[0]

    def parse(new: New) -> None:
        images = [f"{part}_images" for part in PARTS]
        labels = [f"{part}_labels" for part in PARTS]
        read = read_npz(path, images + labels)
        x = np.concatenate(list(map(read.__getitem__, images)))
        y = np.concatenate(list(map(read.__getitem__, labels)))[:, 0].astype(np.int64)
        x = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)
        write_arrays(new, x=x, y=y, official=np.arange(len(y)) >= len(y) - len(read["test_labels"]))

    arrays = cached(f"medmnist-{which}", [path], parse)
    return pool_of(arrays, part, test, seed, outputs=CLASSES[which])


ENTRIES = {"medmnist": medmnist}
