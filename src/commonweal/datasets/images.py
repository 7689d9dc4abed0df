"""Images in files: decoded once, cropped and resized to one size, stored as bytes."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import interpolate

from commonweal.base.arguments import check_bounds
from commonweal.base.errors import DataError
from commonweal.data.sources.cache import New, write_arrays
from commonweal.data.sources.files import list_members, read_members

SUFFIXES = (".png", ".jpg", ".jpeg", ".JPEG", ".JPG", ".PNG")
BLOCK = 10_000  # images that are resized at once
Known = tuple[int | str, ...]  # what is known of an image: a value per column


def resize(x: np.ndarray, size: int) -> np.ndarray:
    """Square images (N, C, H, W) of bytes at another size, bilinear and antialiased."""
    check_bounds("dataset size", size, least=1, most=1024)
    if x.shape[-1] == size:
        return x
    resized = np.empty((*x.shape[:2], size, size), np.uint8)
    for start in range(0, len(x), BLOCK):
        block = torch.from_numpy(np.array(x[start : start + BLOCK])).float()
        block = interpolate(block, (size, size), mode="bilinear", antialias=True)
        resized[start : start + BLOCK] = block.round().clamp(0, 255).byte().numpy()
    return resized


def match_images(path: Path, describe: Callable[[str], Known | None]) -> dict[str, Known]:
    """The images of a folder or archive, with what `describe` says of a name (None: not used)."""
    described = {}
    for name in list_members(path, SUFFIXES):
        known = describe(name)
        if known is not None:
            described[name] = known
    return described


def write_images(
    new: New,
    path: Path,
    wanted: Mapping[str, Known],
    size: int,
    columns: Sequence[str] = ("y", "official"),
    crop: int | None = None,
) -> None:
    """Write the wanted images as x (N, 3, size, size), and what is known of them as columns."""
    if not wanted:
        raise DataError(f"{str(path)!r} holds no images where they are expected")
    missing = sorted(set(wanted) - set(list_members(path, SUFFIXES)))
    if missing:
        some = ", ".join(missing[:3])
        raise DataError(
            f"{str(path)!r} lacks {len(missing)} of {len(wanted)} images, such as {some}"
        )
    x = new("x", (len(wanted), 3, size, size), np.uint8)
    known: list[Known] = []
    for name, data in read_members(path, SUFFIXES):
        if name in wanted:
            x[len(known)] = _decode(data, f"{path}/{name}", size, crop)
            known.append(wanted[name])
    for column, values in zip(columns, zip(*known, strict=True), strict=True):
        write_arrays(new, **{column: values})


def _decode(data: bytes, name: str, size: int, crop: int | None) -> np.ndarray:
    """An image as (3, size, size) bytes: the central square of side `crop`, or all, resized."""
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(data)).convert("RGB")
    except (UnidentifiedImageError, OSError, ValueError) as error:
        raise DataError(f"{name!r} is not an image, or is cut short: {error}") from None
    if crop is not None:
        left = (image.width - crop) // 2
        top = (image.height - crop) // 2
        image = image.crop((left, top, left + crop, top + crop))
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image).transpose(2, 0, 1)
