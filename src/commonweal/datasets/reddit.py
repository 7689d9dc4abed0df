"""The next word of a comment, by its author: LEAF's subsampled Reddit, 817 people.

Caldas et al. 2018; train_data.json and test_data.json in `reddit`. A client is an author.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from commonweal.datasets import _leaf
from commonweal.datasets._cache import New, cached
from commonweal.datasets._rows import Gathered
from commonweal.datasets._words import BEGIN, END, PAD, UNKNOWN, numbers, vocabulary
from commonweal.federation import Federation

__all__ = ["reddit"]

LENGTH = 10  # tokens a sequence
SPECIAL = {"<PAD>": PAD, "<UNK>": UNKNOWN, "<BOS>": BEGIN, "<EOS>": END}


def reddit(words: int = 10_000, test: float = 0.2, seed: int = 0, dir: str | None = None) -> Federation:
    """Rows of 10 tokens with 10 targets; score: share of words that are right (targets that are no words do not count)

    words: the size of the vocabulary, by frequency in the training rows
    test, seed: the share of test rows, and which, where LEAF made no split; dir: the files' folder
    """
    paths = _leaf.files("reddit", "reddit", dir)

    def parse(new: New) -> None:
        texts = (pair for user in _leaf.users(paths) if user.part != "test" for pair in _sequences(user))
        known = vocabulary((w for x, _ in texts for w in x if w not in SPECIAL), words) | SPECIAL
        rows = Gathered()
        for user in _leaf.users(paths):
            pairs = [(numbers(x, known), numbers(y, known)) for x, y in _sequences(user)]
            x, y = (np.array([pair[i] for pair in pairs], dtype=np.int64).reshape(-1, LENGTH) for i in (0, 1))
            rows.add(user.name, x.astype(np.int32), np.where(y < len(SPECIAL), -1, y), user.part)
        rows.write(new)

    found = cached("reddit", paths, parse, str(words))
    return _leaf.federation(found, test, seed, outputs=words, loss="tokens", score="token-accuracy")


def _sequences(user: _leaf.User) -> Iterator[tuple[list[str], list[str]]]:
    """Inputs and targets of all comments; most targets stand in a table, some bare."""
    for comment, told in zip(user.x, user.y, strict=True):
        targets: Any = told["target_tokens"] if isinstance(told, dict) else told
        yield from zip(comment, targets, strict=True)
