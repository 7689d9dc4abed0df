"""Fourteen kinds of clothing, with labels that shops wrote, two in five of them wrong: a pool.

Xiao et al., CVPR 2015; its lists (clean_train_key_list.txt, clean_label_kv.txt ...) and the folder
images in `clothing1m`.
"""

from pathlib import Path
from typing import Literal

from commonweal.base.errors import DataError
from commonweal.data.sources.cache import New, cached
from commonweal.data.sources.files import locate, read_pairs, read_text
from commonweal.datasets.images import write_images
from commonweal.datasets.pools import Part, Pool, Test, pool_of

MANUAL = "the lists and images that its authors give on request (github Cysu/noisy_label)"


def clothing1m(
    labels: Literal["clean", "noisy"] = "clean",
    size: int = 64,
    part: Part = "all",
    test: Test = "official",
    seed: int = 0,
    dir: str | None = None,
) -> Pool:
    """Rows (3, size, size), 14 classes; score: accuracy

    labels: train on the 47,570 clean or the million noisy ones (12 GB at size 64); test labels are
    clean
    size: of the images; part: the training rows or the test rows alone
    test: the clean test list ("official"), or a share of each client's rows; seed: of all draws
    dir: the files' folder
    """
    names = [
        f"{labels}_train_key_list.txt",
        f"{labels}_label_kv.txt",
        "clean_test_key_list.txt",
        "clean_label_kv.txt",
        "images",
    ]
    *lists, images = locate("clothing1m", "clothing1m", names, dir, MANUAL)

    def parse(new: New) -> None:
        chosen = _read_labels(lists[0], lists[1], is_test=False)
        chosen |= _read_labels(lists[2], lists[3], is_test=True)
        write_images(new, images, chosen, size)

    arrays = cached("clothing1m", [*lists, images], parse, f"{labels} {size}")
    return pool_of(arrays, part, test, seed, outputs=14)


def _read_labels(keys: Path, labels: Path, is_test: bool) -> dict[str, tuple[int, bool]]:
    """Classes by the images' names in their folder, and whether these are test images."""
    chosen = {}
    try:
        known = read_pairs(labels)
        for name in read_text(keys).split():
            chosen[name.removeprefix("images/")] = int(known[name]), is_test
    except (ValueError, KeyError) as error:
        raise DataError(
            f"{str(labels)!r} does not give '<image> <class>' for each of {keys.name}: {error}"
        ) from None
    return chosen
