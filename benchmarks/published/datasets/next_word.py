"""The next word of a text: LEAF's Reddit, Stack Overflow, and AFL's two domains.

reddit: LEAF's subsampled Reddit, 817 authors (Caldas et al. 2018); train_data.json and
test_data.json in `reddit`.
stackoverflow: TensorFlow Federated's Stack Overflow; `stackoverflow_train.h5` and
`stackoverflow_test.h5` in `stackoverflow`; needs h5py. A client is an author with texts in both.
ptb_cornell: the language task of AFL (Mohri, Sivek and Suresh, ICML 2019), the Wall Street Journal
and films, which have different vocabularies: Mikolov's Penn Treebank in `ptb`, the Cornell movie
lines in `cornell`. Clients are "document" and "conversation".
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from commonweal.base.errors import ConfigError, DataError
from commonweal.base.shares import product
from commonweal.data.federation import Federation
from commonweal.data.sources.files import locate, read_text
from commonweal.datasets.leaf import (
    ClientRows,
    User,
    cached_rows,
    leaf_federation,
    leaf_files,
    leaf_users,
)
from commonweal.datasets.pools import choose_clients

REDDIT = (
    "LEAF's subsampled Reddit (github TalwalkarLab/leaf, data/reddit): train_data.json and "
    "test_data.json"
)
STACKOVERFLOW = "stackoverflow_train.h5 and stackoverflow_test.h5 of TensorFlow Federated"
PTB_CORNELL = (
    "ptb.{train,valid,test}.txt (Mikolov's Penn Treebank) and movie_lines.txt (Cornell movie "
    "dialogs)"
)

# Text as a number per word: the most frequent words have their own, all others share one.

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


# Reddit

LENGTH = 10  # tokens per sequence
MARKS = {"<PAD>": PAD, "<UNK>": UNKNOWN, "<BOS>": BEGIN, "<EOS>": END}


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
    paths = leaf_files("reddit", "reddit", dir, REDDIT)

    def read() -> Iterator[ClientRows]:
        known = vocabulary(_reddit_words(paths), words) | MARKS
        for user in leaf_users(paths):
            codes = []
            for inputs, targets in _sequences(user):
                codes.append([encode(inputs, known), encode(targets, known)])
            x, y = np.array(codes, dtype=np.int64).reshape(-1, 2, LENGTH).swapaxes(0, 1)
            y = np.where(y < SPECIAL, -1, y)
            yield user.name, x.astype(np.int32), y, user.part

    arrays = cached_rows("reddit", paths, read, str(words))
    return leaf_federation(
        arrays, test, seed, clients, outputs=words, loss="tokens", score="token-accuracy"
    )


def _reddit_words(paths: list[Path]) -> Iterable[str]:
    for user in leaf_users(paths):
        if user.part != "test":
            for inputs, _ in _sequences(user):
                yield from (word for word in inputs if word not in MARKS)


def _sequences(user: User) -> Iterator[tuple[list[str], list[str]]]:
    """Inputs and targets of all comments. Most targets are in a dict, some are bare."""
    for comment, target in zip(user.x, user.y, strict=True):
        targets = target["target_tokens"] if isinstance(target, dict) else target
        yield from zip(comment, targets, strict=True)


# Stack Overflow

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
    paths = locate("stackoverflow", "stackoverflow", FILES, dir, STACKOVERFLOW)

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


def _read_texts(path: Path, most: int) -> Iterator[tuple[str, list[list[str]]]]:
    try:
        import h5py
    except ImportError:
        raise ConfigError("dataset 'stackoverflow' needs h5py: pip install h5py") from None
    try:
        with h5py.File(path) as file:
            for name, content in file["examples"].items():
                tokens = content["tokens"][:most].tolist()
                yield name, [text.decode("utf-8", "replace").split() for text in tokens]
    except (OSError, KeyError) as error:
        raise DataError(
            f"{str(path)!r} is not TensorFlow Federated's h5 file, or is damaged: {error}"
        ) from None


# The Treebank and films

Sentences = list[list[str]]


def ptb_cornell(
    length: int = 35,
    words: int = 10_000,
    test: float = 0.2,
    sample: bool = False,
    dir: str | None = None,
) -> Federation:
    """Rows of `length` tokens with as many targets, 2 clients; score: likelihood (1 / perplexity)

    words: the size of the vocabulary, by frequency in both training texts
    test: the share of film lines, the last, that is held out (of the Treebank its test file)
    sample: the few films in `cornell_sample`; dir: the folder of both sets' files
    """
    film_folder = "cornell_sample" if sample else "cornell"
    film_lines = "movie_lines_m0-m3.txt" if sample else "movie_lines.txt"
    paths = locate("ptb-cornell", "ptb", ["ptb.train.txt", "ptb.test.txt"], dir, PTB_CORNELL)
    paths += locate("ptb-cornell", film_folder, [film_lines], dir, PTB_CORNELL)

    def read() -> Iterator[ClientRows]:
        film = list(map(_spoken, read_text(paths[2], "iso-8859-1").splitlines()))
        cut = round(product(1 - test, len(film)))
        texts = {
            ("document", "train"): _sentences(paths[0]),
            ("document", "test"): _sentences(paths[1]),
            ("conversation", "train"): film[:cut],
            ("conversation", "test"): film[cut:],
        }
        training = texts["document", "train"] + texts["conversation", "train"]
        known = vocabulary(chain.from_iterable(training), words)
        for (name, part), sentences in texts.items():
            stream: list[int] = []
            for sentence in sentences:
                stream += [*encode(sentence, known), END]
            yield name, *_windows(np.array(stream), length), part

    arrays = cached_rows("ptb-cornell", paths, read, f"{length} {words} {test}")
    return leaf_federation(arrays, test, 0, outputs=words, loss="tokens", score="likelihood")


def _sentences(path: Path) -> Sentences:
    return list(map(str.split, read_text(path).splitlines()))


def _windows(codes: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """The text cut into rows. The targets are the words one further on."""
    count = (len(codes) - 1) // length
    end = count * length
    x = codes[:end].reshape(count, length)
    y = codes[1 : end + 1].reshape(count, length)
    return x.astype(np.int32), y.astype(np.int64)


def _spoken(line: str) -> list[str]:
    """The words of a film line, written as in the Treebank: lower case, numbers as N."""
    fields = line.split(" +++$+++ ")
    if len(fields) != 5:
        raise DataError(f"not a line of five fields separated by ' +++$+++ ': {line[:60]!r}")
    words = re.findall(r"[a-z]+|'[a-z]+|\d[\d.,]*|[?!]", fields[4].lower())
    return ["N" if word[0].isdigit() else word for word in words]
