"""The next word in two domains with different vocabularies: the Wall Street Journal and films.

The language task of AFL (Mohri, Sivek and Suresh, ICML 2019): Mikolov's Penn Treebank in `ptb`, the
Cornell movie lines in `cornell`. Clients are "document" and "conversation".
"""

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from commonweal.base.errors import DataError
from commonweal.data.federation import Federation
from commonweal.datasets._leaf import ClientRows, cached_rows, leaf_federation
from commonweal.datasets._words import END, encode, vocabulary
from commonweal.sources.files import locate, read_text

MANUAL = (
    "ptb.{train,valid,test}.txt (Mikolov's Penn Treebank) and movie_lines.txt (Cornell movie "
    "dialogs)"
)
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
    paths = locate("ptb-cornell", "ptb", ["ptb.train.txt", "ptb.test.txt"], dir)
    paths += locate("ptb-cornell", film_folder, [film_lines], dir)

    def read() -> Iterator[ClientRows]:
        film = list(map(_spoken, read_text(paths[2], "iso-8859-1").splitlines()))
        cut = round((1 - test) * len(film))
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


ENTRIES = {"ptb-cornell": ptb_cornell}


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
