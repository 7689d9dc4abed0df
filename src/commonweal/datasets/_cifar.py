"""The binary layout of CIFAR: one or two label bytes, then 3,072 bytes of pixels, plane after plane."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from commonweal.datasets._cache import New, cached
from commonweal.datasets._files import find, locate, members, read
from commonweal.datasets._images import write
from commonweal.datasets._shared import Pool
from commonweal.errors import DataError

__all__ = ["pooled"]


def pooled(
    dataset: str, archive: str, train: Sequence[str], test: str, labels: int, sample: bool, dir: str | None
) -> Pool:
    """All images, from the archive, or from its files in a folder, or from the sample's."""
    folder = f"{dataset}_subset" if sample else dataset
    names = ["train_3000.bin", "test_1000.bin"] if sample else [*train, test]
    packed = None if sample else find(folder, archive, dir)
    paths = [packed] if packed else locate(dataset, folder, names, dir)

    def parse(new: New) -> None:
        held = _unpacked(packed, names) if packed else {name: read(p) for name, p in zip(names, paths, strict=True)}
        parts = [_records(held[name], labels, name) for name in names]
        x, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        write(new, x=x, y=y, official=np.arange(len(y)) >= len(y) - len(parts[-1][1]))

    arrays = cached(dataset, paths, parse, str(sample))
    return Pool(arrays["x"], arrays["y"], arrays["official"])


def _unpacked(path: Path, names: Sequence[str]) -> dict[str, bytes]:
    held = {Path(name).name: data for name, data in members(path, (".bin",))}
    missing = [name for name in names if name not in held]
    if missing:
        raise DataError(f"{str(path)!r} lacks {', '.join(missing)}: it is cut short or another archive")
    return held


def _records(data: bytes, labels: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    if not data or len(data) % (3072 + labels):
        raise DataError(f"{name} is cut short: {len(data)} bytes are not records of {3072 + labels}")
    table = np.frombuffer(data, np.uint8).reshape(-1, 3072 + labels)
    return table[:, labels:].reshape(-1, 3, 32, 32), table[:, labels - 1].astype(np.int64)
