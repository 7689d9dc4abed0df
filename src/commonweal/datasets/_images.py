"""Pictures in files: decoded once, cut and scaled to one size, kept as bytes."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from commonweal.datasets._cache import New
from commonweal.datasets._files import listing, members
from commonweal.errors import DataError

__all__ = ["SUFFIXES", "by_name", "decode", "filled", "write"]

SUFFIXES = (".png", ".jpg", ".jpeg", ".JPEG", ".JPG", ".PNG")


def decode(data: bytes, where: str, size: int, crop: int | None = None, mode: str = "RGB") -> np.ndarray:
    """A picture as (C, size, size) bytes: the middle square of side `crop` (or the whole), scaled."""
    from PIL import Image, UnidentifiedImageError

    try:
        picture = Image.open(io.BytesIO(data)).convert(mode)
    except (UnidentifiedImageError, OSError, ValueError) as error:
        raise DataError(f"{where!r} is not a picture, or is cut short: {error}") from None
    if crop is not None:
        left, top = (picture.width - crop) // 2, (picture.height - crop) // 2
        picture = picture.crop((left, top, left + crop, top + crop))
    if picture.size != (size, size):
        picture = picture.resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(picture)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def filled(
    new: New, path: Path, wanted: Mapping[str, Any], size: int, crop: int | None = None, mode: str = "RGB"
) -> list[Any]:
    """Fill array x with the wanted pictures of a folder or archive; give what is wanted with each, in order."""
    missing = set(wanted) - set(listing(path, SUFFIXES))
    if missing:
        some = ", ".join(sorted(missing)[:3])
        raise DataError(f"{str(path)!r} lacks {len(missing)} of {len(wanted)} pictures, such as {some}")
    if not wanted:
        raise DataError(f"{str(path)!r} holds no pictures where they are looked for")
    x = new("x", (len(wanted), len(mode), size, size), np.uint8)
    found: list[Any] = []
    for name, data in members(path, SUFFIXES):
        if name in wanted:
            x[len(found)] = decode(data, f"{path}/{name}", size, crop, mode)
            found.append(wanted[name])
    return found


def by_name(path: Path, meaning: Callable[[str], Any]) -> dict[str, Any]:
    """The pictures of a folder or archive with what their names mean, those left out that mean None."""
    known = {name: meaning(name) for name in listing(path, SUFFIXES)}
    return {name: value for name, value in known.items() if value is not None}


def write(new: New, **columns: Any) -> None:
    """Arrays beside the pictures."""
    for name, values in columns.items():
        array = np.asarray(values)
        new(name, array.shape, array.dtype)[...] = array
