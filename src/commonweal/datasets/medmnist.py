"""Small medical images: pneumonia in chest X-rays, skin lesions, organs in CT; dealt to clients by a partition.

Yang et al. 2023 (MedMNIST v2), CC BY 4.0; the npz files in `medmnist`, or each in a folder of its own name.
"""

import zipfile
from typing import Literal

import numpy as np

from commonweal.datasets._cache import New, cached
from commonweal.datasets._files import find, locate
from commonweal.datasets._images import write
from commonweal.datasets._shared import DIRICHLET, Pool, Test, partitioned
from commonweal.errors import DataError
from commonweal.federation import Federation
from commonweal.noise import Noise
from commonweal.partition import Partition

__all__ = ["medmnist"]


def medmnist(
    which: Literal["pneumonia", "derma", "organc"] = "pneumonia",
    size: Literal[28, 64] = 28,
    partition: Partition = DIRICHLET,
    noise: Noise | None = None,
    test: Test = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Federation:
    """5,856 X-rays (2 classes), 10,015 lesions (7, RGB) or 23,583 organs (11) of size x size; score: accuracy

    which: the set; size: of its images; partition: who owns which row; noise: wrong labels in training rows
    test: the share of each client's rows that is held out, or "official"; seed: of all draws; dir: the file's folder
    """
    name = f"{which}mnist.npz" if size == 28 else f"{which}mnist_{size}.npz"
    path = find(f"{which}mnist", name, dir) or locate("medmnist", "medmnist", [name], dir)[0]

    def parse(new: New) -> None:
        try:
            with np.load(path) as held:
                x = np.concatenate([held[f"{part}_images"] for part in ("train", "val", "test")])
                y = np.concatenate([held[f"{part}_labels"] for part in ("train", "val", "test")])
                tests = len(held["test_labels"])
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise DataError(f"{str(path)!r} is not MedMNIST's npz file, or is cut short: {error}") from None
        x = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)
        write(new, x=x, y=y[:, 0].astype(np.int64), official=np.arange(len(y)) >= len(y) - tests)

    arrays = cached(f"medmnist-{which}", [path], parse)
    return partitioned(Pool(arrays["x"], arrays["y"], arrays["official"]), partition, noise, test, seed)
