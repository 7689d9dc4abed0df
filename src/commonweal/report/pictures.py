"""Synthetic images as one picture: a row per class, a column per sample."""

import io

import numpy as np
from torch import Tensor

WIDTH = 420  # least width in pixels: small images are enlarged
GREY = 0.5  # of the lines between images, and of missing ones


def picture(x: Tensor, y: Tensor) -> bytes:
    """A PNG of images (M, C, H, W) in [0, 1]; empty for other rows.

    Images have one or three channels.
    """
    if x.ndim != 4 or x.shape[1] not in (1, 3):
        return b""
    from matplotlib import image  # slow to import

    images = x.clamp(0, 1).numpy()
    sheet = _sheet(images, y.numpy())
    zoom = max(1, -(-WIDTH // sheet.shape[1]))
    enlarged = sheet.repeat(zoom, 0).repeat(zoom, 1)
    data = io.BytesIO()
    image.imsave(data, enlarged, format="png")
    return data.getvalue()


def _sheet(images: np.ndarray, y: np.ndarray) -> np.ndarray:
    """All images side by side, as one of three channels (height, width, 3)."""
    nothing = (0, 0)
    line = (1, 0)  # before the first row and column of an image
    framed = np.pad(images, (nothing, nothing, line, line), constant_values=GREY)
    grid = _grid(framed, y)
    rows, _, channels, height, _ = grid.shape
    by_line = grid.transpose(0, 3, 1, 4, 2)
    sheet = by_line.reshape(rows * height, -1, channels)
    return np.repeat(sheet, 3 // channels, 2)


def _grid(images: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The images by class (rows, columns, C, H, W), grey where a class has fewer than others."""
    classes, counts = np.unique(y, return_counts=True)
    shape = (len(classes), counts.max(), *images.shape[1:])
    grid = np.full(shape, GREY, np.float32)
    for row, label, count in zip(grid, classes, counts, strict=True):
        row[:count] = images[y == label]
    return grid
