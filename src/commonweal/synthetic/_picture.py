"""Synthetic images as one picture: a class a line, a sample a column."""

import io

import numpy as np
from torch import Tensor

__all__ = ["picture"]

WIDTH = 420  # pixels that the picture should at least have, so that small images can be seen


def picture(x: Tensor, y: Tensor) -> bytes:
    """A PNG of images (M, C, H, W) in [0, 1] with one or three channels; nothing for rows that are no images."""
    if x.ndim != 4 or x.shape[1] not in (1, 3):
        return b""
    from matplotlib import image  # slow to import, and only pictures need it

    images = np.pad(
        x.clamp(0, 1).numpy(), ((0, 0), (0, 0), (1, 0), (1, 0)), constant_values=0.5
    )  # (M, C, H + 1, W + 1)
    classes = [images[(y == c).numpy()] for c in sorted(set(y.tolist()))]
    lines = np.full((len(classes), max(map(len, classes)), *images.shape[1:]), 0.5, np.float32)
    for line, members in zip(lines, classes, strict=True):
        line[: len(members)] = members
    sheet = lines.transpose(0, 3, 1, 4, 2).reshape(len(lines) * images.shape[2], -1, images.shape[1])
    sheet = np.repeat(sheet, 3 // sheet.shape[2], 2)  # grey is three equal channels
    zoom = max(1, -(-WIDTH // sheet.shape[1]))
    data = io.BytesIO()
    image.imsave(data, sheet.repeat(zoom, 0).repeat(zoom, 1), format="png")
    return data.getvalue()
