"""Thirty-five spoken words by two thousand speakers.

Warden 2018, CC BY 4.0; speech_commands_v0.02.tar.gz, or the folder of its name, in `speech_commands`. A client is a
speaker: the eight characters before `_nohash_`.
"""

from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np

from commonweal.datasets._audio import samples
from commonweal.datasets._cache import New, cached
from commonweal.datasets._files import find, listing, locate, members
from commonweal.datasets._images import write
from commonweal.errors import DataError
from commonweal.federation import Federation

__all__ = ["speech_commands"]

NAME = "speech_commands_v0.02"
RATE = 16_000


def speech_commands(
    part: Literal["training", "all"] = "training",
    least: int = 3,
    test: float = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Federation:
    """Rows (1, 16000), one second each, 35 classes; score: accuracy

    part: without the publisher's validation and testing files (as AAggFF: 2,005 speakers), or "all"
    least: speakers with fewer recordings are left out; test: the share of each speaker's rows that is held out
    seed: which rows these are; dir: the archive's folder
    """
    folder = find("speech_commands", NAME, dir)
    path = folder if folder is not None else locate("speech-commands", "speech_commands", [f"{NAME}.tar.gz"], dir)[0]

    def parse(new: New) -> None:
        _fill(new, path, least, part == "training")

    found = cached("speech-commands", [path], parse, f"{part} {least}")
    names, outputs = found["names"].tolist(), len(found["words"])
    return Federation.from_arrays(found["x"], found["y"], found["owner"], test, seed, names, outputs=outputs)


def _fill(new: New, path: Path, least: int, training: bool) -> None:
    files = listing(path, ("_list.txt", ".wav"))
    lists = (data for name, data in members(path, ("_list.txt",)) if training)
    held = {line for data in lists for line in data.decode("ascii").split()}
    sounds = {name: PurePosixPath(name).parts[-2:] for name in files if "_nohash_" in name}
    sounds = {name: (word, file.split("_")[0]) for name, (word, file) in sounds.items() if f"{word}/{file}" not in held}
    count = Counter(speaker for _, speaker in sounds.values())
    wanted = {name: row for name, row in sounds.items() if count[row[1]] >= least}
    if not wanted:
        raise DataError(f"{str(path)!r} holds no <word>/<speaker>_nohash_<k>.wav of speakers with {least} or more")
    words = sorted({word for word, _ in sounds.values()})
    names = sorted({speaker for _, speaker in wanted.values()})
    x, found = new("x", (len(wanted), 1, RATE), np.int16), list[tuple[str, ...]]()
    for name, data in members(path, (".wav",)):
        if name in wanted:
            x[len(found)] = samples(data, name, RATE, RATE)
            found.append(wanted[name])
    y, owner = (
        np.searchsorted(known, column) for known, column in zip((words, names), zip(*found, strict=True), strict=True)
    )
    write(new, y=y, owner=owner, names=names, words=words)
