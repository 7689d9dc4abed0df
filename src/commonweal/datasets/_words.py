"""Text as a number per word: the most frequent words have their own, all others share one."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

PAD, UNKNOWN, BEGIN, END = range(4)
SPECIAL = 4  # numbers that are no words; the next is the most frequent word's


def vocabulary(words: Iterable[str], size: int) -> dict[str, int]:
    """Numbers for the most frequent words, `size` with the four special ones; ties by alphabet."""
    count = Counter(words)
    frequent = sorted(count, key=lambda word: (-count[word], word))
    known = frequent[: max(size - SPECIAL, 0)]
    return {word: number for number, word in enumerate(known, SPECIAL)}


def encode(words: Sequence[str], known: Mapping[str, int]) -> list[int]:
    return [known.get(word, UNKNOWN) for word in words]


def shift(sentences: Iterable[Sequence[int]], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs BEGIN w1 w2 ... and targets w1 w2 ... END, cut or padded; padding's target is -1."""
    rows = [[BEGIN, *sentence, END][: length + 1] for sentence in sentences]
    table = np.full((len(rows), length + 1), PAD, dtype=np.int32)
    for i, row in enumerate(rows):
        table[i, : len(row)] = row
    targets = table[:, 1:].astype(np.int64)
    return table[:, :-1], np.where(targets == PAD, -1, targets)
