"""The next word of a question or an answer, by its author: TensorFlow Federated's Stack Overflow.

`stackoverflow_train.h5` and `stackoverflow_test.h5` in `stackoverflow`; needs h5py. A client is an author with texts in
both files.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from commonweal.datasets._cache import New, cached
from commonweal.datasets._files import locate
from commonweal.datasets._leaf import federation
from commonweal.datasets._rows import Gathered
from commonweal.datasets._words import numbers, shifted, vocabulary
from commonweal.errors import ConfigError, DataError
from commonweal.federation import Federation

__all__ = ["stackoverflow"]

FILES = ("stackoverflow_train.h5", "stackoverflow_test.h5")


def stackoverflow(
    clients: int = 1000,
    texts: int = 128,
    length: int = 20,
    words: int = 10_000,
    dir: str | None = None,
) -> Federation:
    """Rows of `length` tokens with as many targets; score: share of words that are right

    clients: how many authors, the first by name; texts: at most so many of each in a file
    words: the size of the vocabulary, by frequency in the training rows; dir: the files' folder
    """
    paths = locate("stackoverflow", "stackoverflow", FILES, dir)

    def parse(new: New) -> None:
        train, test = (dict(_texts(path, texts)) for path in paths)
        authors = sorted(set(train) & set(test))[:clients]
        known = vocabulary((w for name in authors for text in train[name] for w in text), words)
        rows = Gathered()
        for part, held in (("train", train), ("test", test)):
            for name in authors:
                rows.add(name, *shifted([numbers(text, known) for text in held[name]], length), part)
        rows.write(new)

    found = cached("stackoverflow", paths, parse, f"{clients} {texts} {length} {words}")
    return federation(found, 0.2, 0, outputs=words, loss="tokens", score="token-accuracy")


def _texts(path: Path, most: int) -> Iterator[tuple[str, list[list[str]]]]:
    try:
        import h5py
    except ImportError:
        raise ConfigError("dataset 'stackoverflow' needs h5py: pip install 'commonweal[h5]'") from None
    try:
        with h5py.File(path) as file:
            for name, held in file["examples"].items():
                tokens: list[Any] = held["tokens"][:most].tolist()
                yield name, [text.decode("utf-8", "replace").split() for text in tokens]
    except (OSError, KeyError) as error:
        raise DataError(f"{str(path)!r} is not TensorFlow Federated's h5 file, or it is damaged: {error}") from None
