"""The next word of a comment, by author: LEAF's subsampled Reddit, 817 people.

Caldas et al. 2018; train_data.json and test_data.json in `reddit`. A client is an author.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from commonweal.data.federation import Federation
from commonweal.datasets._leaf import (
    ClientRows,
    User,
    cached_rows,
    leaf_federation,
    leaf_files,
    leaf_users,
)
from commonweal.datasets._words import BEGIN, END, PAD, UNKNOWN, encode, vocabulary

MANUAL = (
    "LEAF's subsampled Reddit (github TalwalkarLab/leaf, data/reddit): train_data.json and "
    "test_data.json"
)
LENGTH = 10  # tokens per sequence
SPECIAL = {"<PAD>": PAD, "<UNK>": UNKNOWN, "<BOS>": BEGIN, "<EOS>": END}


def reddit(
    words: int = 10_000,
    clients: int | None = None,
    test: float = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Federation:
    """Rows of 10 tokens with 10 targets; score: share of words that are right

    Targets that are no words do not count.
    words: the size of the vocabulary, by frequency in the training rows
    clients: how many of the authors to use; test: the share of test rows, where LEAF made no split
    seed: which rows and clients; dir: the files' folder
    """
    paths = leaf_files("reddit", "reddit", dir)

    def read() -> Iterator[ClientRows]:
        known = vocabulary(_training_words(paths), words) | SPECIAL
        for user in leaf_users(paths):
            codes = []
            for inputs, targets in _sequences(user):
                codes.append([encode(inputs, known), encode(targets, known)])
            x, y = np.array(codes, dtype=np.int64).reshape(-1, 2, LENGTH).swapaxes(0, 1)
            y = np.where(y < len(SPECIAL), -1, y)
            yield user.name, x.astype(np.int32), y, user.part

    arrays = cached_rows("reddit", paths, read, str(words))
    return leaf_federation(
        arrays, test, seed, clients, outputs=words, loss="tokens", score="token-accuracy"
    )


ENTRIES = {"reddit": reddit}


def _training_words(paths: list[Path]) -> Iterable[str]:
    for user in leaf_users(paths):
        if user.part != "test":
            for inputs, _ in _sequences(user):
                yield from (word for word in inputs if word not in SPECIAL)


def _sequences(user: User) -> Iterator[tuple[list[str], list[str]]]:
    """Inputs and targets of all comments. Most targets are in a dict, some are bare."""
    for comment, target in zip(user.x, user.y, strict=True):
        targets = target["target_tokens"] if isinstance(target, dict) else target
        yield from zip(comment, targets, strict=True)
