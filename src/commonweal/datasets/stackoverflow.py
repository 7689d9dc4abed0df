"""The next word of a question or an answer, by author: TensorFlow Federated's Stack Overflow.

`stackoverflow_train.h5` and `stackoverflow_test.h5` in `stackoverflow`; needs h5py. A client is an
author with texts in both files.
"""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from commonweal.base.errors import ConfigError, DataError, install
from commonweal.data.federation import Federation
from commonweal.datasets._leaf import ClientRows, cached_rows, leaf_federation
from commonweal.datasets._words import encode, shift, vocabulary
from commonweal.datasets.pools import choose_clients
from commonweal.sources.files import locate

MANUAL = "stackoverflow_train.h5 and stackoverflow_test.h5 of TensorFlow Federated"
FILES = ("stackoverflow_train.h5", "stackoverflow_test.h5")


def stackoverflow(
    clients: int = 1000,
    texts: int = 128,
    length: int = 20,
    words: int = 10_000,
    seed: int = 0,
    dir: str | None = None,
) -> Federation:
    """Rows of `length` tokens with as many targets; score: share of words that are right

    clients: how many authors at most; texts: how many per author and file at most
    words: the size of the vocabulary, by frequency in the training rows
    seed: which authors; dir: the files' folder
    """
    paths = locate("stackoverflow", "stackoverflow", FILES, dir)

    def read() -> Iterator[ClientRows]:
        train = dict(_read_texts(paths[0], texts))
        test = dict(_read_texts(paths[1], texts))
        both = sorted(set(train) & set(test))
        if not both:
            raise DataError("no author has texts in both files: get them again")
        chosen = choose_clients(both, min(clients, len(both)), seed)
        authors = list(map(both.__getitem__, chosen))
        training_texts = chain.from_iterable(map(train.__getitem__, authors))
        known = vocabulary(chain.from_iterable(training_texts), words)
        for part, content in (("train", train), ("test", test)):
            for name in authors:
                codes = [encode(text, known) for text in content[name]]
                yield name, *shift(codes, length), part

    options = f"{clients} {texts} {length} {words} {seed}"
    arrays = cached_rows("stackoverflow", paths, read, options)
    return leaf_federation(arrays, 0.2, seed, outputs=words, loss="tokens", score="token-accuracy")


ENTRIES = {"stackoverflow": stackoverflow}


def _read_texts(path: Path, most: int) -> Iterator[tuple[str, list[list[str]]]]:
    try:
        import h5py
    except ImportError:
        raise ConfigError(f"dataset 'stackoverflow' needs h5py: {install('h5')}") from None
    try:
        with h5py.File(path) as file:
            for name, content in file["examples"].items():
                tokens = content["tokens"][:most].tolist()
                yield name, [text.decode("utf-8", "replace").split() for text in tokens]
    except (OSError, KeyError) as error:
        raise DataError(
            f"{str(path)!r} is not TensorFlow Federated's h5 file, or is damaged: {error}"
        ) from None
