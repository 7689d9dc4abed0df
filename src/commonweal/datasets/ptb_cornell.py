"""The next word in two domains that few words unite: the Wall Street Journal and film dialogue.

The language task of AFL (Mohri, Sivek and Suresh, ICML 2019): Mikolov's Penn Treebank in `ptb`, the Cornell movie lines
in `cornell`. Clients are "document" and "conversation".
"""

import re

import numpy as np

from commonweal.datasets._cache import New, cached
from commonweal.datasets._files import decoded, locate
from commonweal.datasets._leaf import federation
from commonweal.datasets._rows import Gathered
from commonweal.datasets._words import END, numbers, vocabulary
from commonweal.errors import DataError
from commonweal.federation import Federation

__all__ = ["ptb_cornell"]


def ptb_cornell(
    length: int = 35,
    words: int = 10_000,
    test: float = 0.2,
    sample: bool = False,
    dir: str | None = None,
) -> Federation:
    """Rows of `length` tokens with as many targets, 2 clients; score: likelihood, the inverse of the perplexity

    words: the size of the vocabulary, by frequency in both training texts; test: the share of film lines, the last,
    that is held out (of the Treebank its test file); sample: the few films in `cornell_sample`
    dir: the folder of both sets' files
    """
    paths = locate("ptb-cornell", "ptb", ["ptb.train.txt", "ptb.test.txt"], dir)
    film = ("cornell_sample", "movie_lines_m0-m3.txt") if sample else ("cornell", "movie_lines.txt")
    paths += locate("ptb-cornell", film[0], [film[1]], dir)

    def parse(new: New) -> None:
        train, held = (decoded(path).splitlines() for path in paths[:2])
        lines = [_spoken(line) for line in decoded(paths[2], "iso-8859-1").splitlines()]
        cut = round((1 - test) * len(lines))
        texts = {
            ("document", "train"): [line.split() for line in train],
            ("document", "test"): [line.split() for line in held],
            ("conversation", "train"): lines[:cut],
            ("conversation", "test"): lines[cut:],
        }
        known = vocabulary((w for (_, part), text in texts.items() if part == "train" for s in text for w in s), words)
        rows = Gathered()
        for (name, part), text in texts.items():
            rows.add(name, *_windows([n for s in text for n in (*numbers(s, known), END)], length), part)
        rows.write(new)

    found = cached("ptb-cornell", paths, parse, f"{length} {words} {test}")
    return federation(found, test, 0, outputs=words, loss="tokens", score="likelihood")


def _windows(stream: list[int], length: int) -> tuple[np.ndarray, np.ndarray]:
    """The stream of words cut into rows, each with the words one further on as targets."""
    codes = np.array(stream)
    count = (len(codes) - 1) // length
    x, y = codes[: count * length], codes[1 : count * length + 1]
    return x.reshape(count, length).astype(np.int32), y.reshape(count, length).astype(np.int64)


def _spoken(line: str) -> list[str]:
    """The words of a film line in the Treebank's manner: lower case, numbers as N."""
    fields = line.split(" +++$+++ ")
    if len(fields) != 5:
        raise DataError(f"not a line of five fields separated by ' +++$+++ ': {line[:60]!r}")
    return ["N" if w[0].isdigit() else w for w in re.findall(r"[a-z]+|'[a-z]+|\d[\d.,]*|[?!]", fields[4].lower())]
