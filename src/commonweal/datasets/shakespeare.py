"""The next character of a speech, by role: a federation of Shakespeare's men and women, great and small.

McMahan et al., AISTATS 2017; LEAF (Caldas et al. 2018). From the plays themselves (Moby edition, public domain, a file
a play) in `shakespeare`, or from LEAF's json in `shakespeare_leaf`. A client is a role in a play.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from commonweal.datasets import _leaf
from commonweal.datasets._cache import New, cached
from commonweal.datasets._characters import CLASSES, coded
from commonweal.datasets._files import find, locate, members
from commonweal.datasets._rows import Gathered
from commonweal.errors import DataError
from commonweal.federation import Federation

__all__ = ["shakespeare"]

ARCHIVE = "shakespeare_plays_by_file.tar.xz"
CONTEXT = 80  # characters


def shakespeare(
    source: Literal["plays", "leaf"] = "plays",
    least: int = 1000,
    stride: int = 20,
    test: float = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Federation:
    """Rows of 80 characters and the one after them, 96 classes; about 635 roles; score: accuracy

    source: the plays, or LEAF's json; least: roles with fewer characters are left out
    stride: characters from one row to the next (1, as LEAF does, gives 4 million rows)
    test: the share of test rows, the last of each role, so that no training row has read them (plays)
    seed: which rows are test rows where LEAF made no split; dir: the files' folder
    """
    if source == "leaf":
        return _from_leaf(test, seed, dir)
    folder = find("shakespeare", "plays", dir)
    path = folder if folder is not None else locate("shakespeare", "shakespeare", [ARCHIVE], dir)[0]

    def parse(new: New) -> None:
        rows = Gathered()
        for name, text in roles(path):
            if len(text) >= max(least, CONTEXT + 2):
                x, y = _windows(text, stride)
                held = np.arange(len(y)) >= min(np.floor((1 - test) * len(y) + 0.5), max(1, len(y) - 1))
                rows.add(name, x, y, np.where(held & (test > 0), "test", "train"))
        rows.write(new)

    found = cached("shakespeare", [path], parse, f"{least} {stride} {test}")
    return _leaf.federation(found, test, seed, outputs=CLASSES)


def _windows(text: str, stride: int) -> tuple[np.ndarray, np.ndarray]:
    codes = coded(text)
    x = np.lib.stride_tricks.sliding_window_view(codes[:-1], CONTEXT)[::stride]
    return x, codes[CONTEXT::stride].astype(np.int64)


def roles(path: Path) -> Iterator[tuple[str, str]]:
    """Every role's speeches, in the order of the plays; poems have no acts and are left out."""
    for name, data in members(path, (".txt",)):
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{name} in {str(path)!r} is not UTF-8 text (byte {error.start})") from None
        begin = re.search(r"^ACT I\b", text, re.MULTILINE)
        if begin:
            play = Path(name).stem
            yield from ((f"{play} {role}", speech) for role, speech in _speeches(text[begin.start() :]).items())


def _speeches(text: str) -> dict[str, str]:
    """A speech opens with NAME<tab>line (a long name may begin a line above) and goes on with <tab>line."""
    said: dict[str, list[str]] = {}
    role, above = "", ""
    for line in re.sub(r"\[[^\]]*\]", "", text).split("\n"):
        head, tab, words = line.partition("\t")
        if head.startswith(("ACT", "SCENE")):
            role, above = "", ""
        elif not tab:
            above = head.strip() if head.isupper() else ""
            continue
        elif head.strip():
            role, above = f"{above} {head.strip()}".strip(), ""
        if role and words.strip():
            said.setdefault(role, []).append(words.strip())
    return {name: "\n".join(lines) for name, lines in said.items()}


def _from_leaf(test: float, seed: int, dir: str | None) -> Federation:
    paths = _leaf.files("shakespeare", "shakespeare_leaf", dir)

    def parse(new: New) -> None:
        rows = Gathered()
        for user in _leaf.users(paths):
            x = np.array([coded(text) for text in user.x], dtype=np.int32).reshape(-1, CONTEXT)
            rows.add(user.name, x, np.array([coded(c)[0] for c in user.y], dtype=np.int64), user.part)
        rows.write(new)

    return _leaf.federation(cached("shakespeare-leaf", paths, parse), test, seed, outputs=CLASSES)
