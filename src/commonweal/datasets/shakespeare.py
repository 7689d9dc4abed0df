"""The next character of a speech, by role: Shakespeare's plays, with large and small roles.

McMahan et al., AISTATS 2017; LEAF (Caldas et al. 2018). From the plays (Moby edition, public
domain, a file per play) in `shakespeare`, or from LEAF's json in `shakespeare_leaf`. A client is a
role in a play.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np

from commonweal.base.errors import DataError
from commonweal.base.shares import product
from commonweal.data.federation import Federation
from commonweal.data.sources.cache import Arrays
from commonweal.data.sources.files import locate_one, read_members
from commonweal.datasets.leaf import (
    ClientRows,
    cached_rows,
    leaf_federation,
    leaf_files,
    leaf_users,
)

ARCHIVE = "shakespeare_plays_by_file.tar.xz"
CONTEXT = 80  # characters
CLASSES = 96  # "\n" is 0, " " is 1, ..., "~" is 95; everything else becomes a space


def shakespeare(
    source: Literal["plays", "leaf"] = "plays",
    least: int = 1000,
    stride: int = 20,
    clients: int | None = None,
    test: float = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Federation:
    """Rows of 80 characters and the next one, 96 classes; about 635 roles; score: accuracy

    source: the plays, or LEAF's json; least: roles with fewer characters are left out
    stride: characters from one row to the next (1, as LEAF does, gives 4 million rows)
    clients: how many of the roles to use
    test: the share of test rows: the last of each role, so that no training row overlaps them
    (plays)
    seed: which clients, and which rows are test rows where LEAF made no split
    dir: the files' folder
    """
    arrays = _read_leaf(dir) if source == "leaf" else _read_plays(least, stride, test, dir)
    return leaf_federation(arrays, test, seed, clients, outputs=CLASSES)


ENTRIES = {"shakespeare": shakespeare}


def _read_plays(least: int, stride: int, test: float, dir: str | None) -> Arrays:
    path = locate_one("shakespeare", "shakespeare", ["plays", ARCHIVE], dir)

    def read() -> Iterator[ClientRows]:
        for name, text in read_roles(path):
            if len(text) >= max(least, CONTEXT + 2):
                codes = encode(text)
                x = np.lib.stride_tricks.sliding_window_view(codes[:-1], CONTEXT)[::stride]
                y = codes[CONTEXT::stride].astype(np.int64)
                yield name, x, y, _parts(len(y), test)

    return cached_rows("shakespeare", [path], read, f"{least} {stride} {test}")


def encode(text: str) -> np.ndarray:
    """A number per character.

    >>> encode("a\\nb").tolist()
    [66, 0, 67]
    """
    code = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int32)
    printable = (code >= 32) & (code < 127)
    number = np.where(printable, code - 31, 1)
    return np.where(code == 10, 0, number).astype(np.int32)


def _parts(rows: int, test: float) -> np.ndarray:
    """The part of each row: the last rows are test rows."""
    if test == 0:
        return np.full(rows, "train")
    rounded = math.floor(product(1 - test, rows) + 0.5)
    train_rows = min(rounded, max(1, rows - 1))
    return np.where(np.arange(rows) >= train_rows, "test", "train")


def read_roles(path: Path) -> Iterator[tuple[str, str]]:
    """Every role's speeches, in the order of the plays. Poems have no acts and are left out."""
    for name, data in read_members(path, (".txt",)):
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name} in {str(path)!r} is not UTF-8 text (byte {error.start}): save it as UTF-8"
            ) from None
        begin = re.search(r"^ACT I\b", text, re.MULTILINE)
        if begin:
            play = PurePosixPath(name).stem
            for role, speech in _speeches(text[begin.start() :]).items():
                yield f"{play} {role}", speech


def _speeches(text: str) -> dict[str, str]:
    """Each role's lines. A speech starts with NAME<tab>line and continues with <tab>line.

    A long name may begin on the line above.
    """
    lines: dict[str, list[str]] = {}
    role = ""
    above = ""
    for line in re.sub(r"\[[^\]]*\]", "", text).split("\n"):
        head, tab, words = line.partition("\t")
        if head.startswith(("ACT", "SCENE")):
            role = ""
            above = ""
        elif not tab:
            above = head.strip() if head.isupper() else ""
            continue
        elif head.strip():
            role = f"{above} {head.strip()}".strip()
            above = ""
        if role and words.strip():
            lines.setdefault(role, []).append(words.strip())
    return {name: "\n".join(speeches) for name, speeches in lines.items()}


def _read_leaf(dir: str | None) -> Arrays:
    paths = leaf_files("shakespeare", "shakespeare_leaf", dir)

    def read() -> Iterator[ClientRows]:
        for user in leaf_users(paths):
            x = np.array(list(map(encode, user.x)), dtype=np.int32).reshape(-1, CONTEXT)
            yield user.name, x, encode("".join(user.y)).astype(np.int64), user.part

    return cached_rows("shakespeare-leaf", paths, read)
