"""Fourteen kinds of clothing with labels that shops wrote, two in five of them wrong; dealt to clients by a partition.

Xiao et al., CVPR 2015; its lists (clean_train_key_list.txt, clean_label_kv.txt ...) and folder images in `clothing1m`.
"""

from pathlib import Path
from typing import Literal

from commonweal.datasets._cache import New, cached
from commonweal.datasets._files import decoded, locate
from commonweal.datasets._images import filled, write
from commonweal.datasets._shared import DIRICHLET, Pool, Test, partitioned
from commonweal.errors import DataError
from commonweal.federation import Federation
from commonweal.noise import Noise
from commonweal.partition import Partition

__all__ = ["clothing1m"]


def clothing1m(
    labels: Literal["clean", "noisy"] = "clean",
    size: int = 64,
    partition: Partition = DIRICHLET,
    noise: Noise | None = None,
    test: Test = "official",
    seed: int = 0,
    dir: str | None = None,
) -> Federation:
    """Rows (3, size, size), 14 classes; score: accuracy

    labels: train on the 47,570 clean or the million noisy ones (12 GB at size 64); test labels are clean
    size: of the pictures; partition: who owns which row; noise: more wrong labels in training rows
    test: the clean test list ("official"), or a share of each client's rows; seed: of all draws; dir: the files' folder
    """
    names = [f"{labels}_train_key_list.txt", "clean_test_key_list.txt", f"{labels}_label_kv.txt", "clean_label_kv.txt"]
    *lists, images = locate("clothing1m", "clothing1m", [*names, "images"], dir)

    def parse(new: New) -> None:
        wanted = {key: (label, False) for key, label in _labelled(lists[0], lists[2]).items()}
        wanted |= {key: (label, True) for key, label in _labelled(lists[1], lists[3]).items()}
        found = filled(new, images, {k.removeprefix("images/"): row for k, row in wanted.items()}, size)
        write(new, y=[label for label, _ in found], official=[held for _, held in found])

    arrays = cached("clothing1m", [*lists, images], parse, f"{labels} {size}")
    pool = Pool(arrays["x"], arrays["y"], arrays["official"])
    return partitioned(pool, partition, noise, test, seed, outputs=14)


def _labelled(keys: Path, labels: Path) -> dict[str, int]:
    try:
        known = dict(line.split() for line in decoded(labels).splitlines() if line)
        return {key: int(known[key]) for key in decoded(keys).split()}
    except (ValueError, KeyError) as error:
        raise DataError(f"{str(labels)!r} does not give '<image> <class>' for each of {keys.name}: {error}") from None
