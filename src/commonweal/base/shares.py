"""Shares of whole numbers: exact products, and intervals.

0.07 of 100 is 7, although 0.07 * 100 is above 7 in floating point.
"""

from typing import TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

ROUNDING = 1e-12  # what decimals lose in a few operations, relative to their product


@overload
def product(share: float, number: int) -> float: ...


@overload
def product(share: float, number: np.ndarray) -> np.ndarray: ...


def product(share: float, number: int | np.ndarray) -> float | np.ndarray:
    """Return share * number, exact where it is a whole or a half number but for rounding.

    So that ceil, floor and round give what they give for the decimal that was written.

    >>> import math
    >>> math.ceil(0.07 * 100), math.ceil(product(0.07, 100))
    (8, 7)
    """
    value = np.float64(share) * number
    halves = np.rint(2 * value) / 2
    exact = np.where(np.abs(value - halves) <= ROUNDING * np.abs(value), halves, value)
    return exact if isinstance(number, np.ndarray) else float(exact)


def wilson_bounds(share: Array, rows: Array, z: float) -> tuple[Array, Array]:
    """Return the ends of Wilson's intervals of shares of rows, for a quantile of the normal."""
    n = np.maximum(rows, 1e-12)
    scale = 1 + z * z / n
    middle = (share + z * z / (2 * n)) / scale
    half = z / scale * np.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    return np.clip(middle - half, 0, 1), np.clip(middle + half, 0, 1)
