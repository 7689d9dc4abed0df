"""Text as numbers, a word each: the most frequent words of the training text have one, the others share one."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

__all__ = ["BEGIN", "END", "PAD", "UNKNOWN", "numbers", "shifted", "vocabulary"]

PAD, UNKNOWN, BEGIN, END = range(4)  # the next number is the most frequent word's


def vocabulary(words: Iterable[str], size: int) -> dict[str, int]:
    """Numbers for the most frequent words, `size` with the four that are none; ties by the alphabet."""
    count = Counter(words)
    best = sorted(count, key=lambda word: (-count[word], word))[: max(size - 4, 0)]
    return {word: 4 + i for i, word in enumerate(best)}


def numbers(words: Sequence[str], known: dict[str, int]) -> list[int]:
    return [known.get(word, UNKNOWN) for word in words]


def shifted(sentences: Iterable[Sequence[int]], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Each sentence as inputs BEGIN w1 w2 ... and targets w1 w2 ... END, cut or padded; padding's target is -1."""
    rows = [[BEGIN, *sentence, END][: length + 1] for sentence in sentences]
    table = np.full((len(rows), length + 1), PAD, dtype=np.int32)
    for i, row in enumerate(rows):
        table[i, : len(row)] = row
    y = table[:, 1:].astype(np.int64)
    return table[:, :-1], np.where(y == PAD, -1, y)
