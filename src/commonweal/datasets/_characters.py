"""Text as numbers, a character each: newline, then the printable characters of ASCII."""

import numpy as np

__all__ = ["CLASSES", "coded"]

CLASSES = 96  # "\n" is 0, " " is 1, ..., "~" is 95; everything else becomes a space


def coded(text: str) -> np.ndarray:
    """The text's numbers.

    >>> coded("a\\nb").tolist()
    [66, 0, 67]
    """
    bytes_of = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int32)
    number = np.where((bytes_of >= 32) & (bytes_of < 127), bytes_of - 31, 1)
    return np.where(bytes_of == 10, 0, number).astype(np.int32)
