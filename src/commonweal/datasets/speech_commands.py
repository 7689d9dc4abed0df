"""Thirty-five spoken words by two thousand speakers.

Warden 2018, CC BY 4.0; speech_commands_v0.02.tar.gz, or the folder of its name, in
`speech_commands`. A client is a speaker: the eight characters before `_nohash_`.
"""

from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

import numpy as np

from commonweal.base.errors import DataError
from commonweal.data.federation import Federation
from commonweal.datasets._audio import read_wave
from commonweal.datasets._cache import New, cached, write
from commonweal.datasets._files import list_members, locate_one, read_members
from commonweal.datasets._shared import natural_federation

SOURCES = """
speech_commands http://download.tensorflow.org/data/
af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58 speech_commands_v0.02.tar.gz
"""
NAME = "speech_commands_v0.02"
RATE = 16_000


class Recording(NamedTuple):
    word: str
    speaker: str


def speech_commands(
    part: Literal["train", "all"] = "train",
    least: int = 3,
    clients: int | None = None,
    test: float = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Federation:
    """Rows (1, 16000), one second each, 35 classes; score: accuracy

    part: without the publisher's validation and testing files (as AAggFF: 2,005 speakers), or "all"
    least: speakers with fewer recordings are left out; clients: how many of the speakers to use
    test: the share of each speaker's rows that is held out; seed: which rows and clients
    dir: the archive's folder
    """
    path = locate_one("speech-commands", "speech_commands", [NAME, f"{NAME}.tar.gz"], dir)

    def parse(new: New) -> None:
        recordings = _recordings(path, skip=_listed(path) if part == "train" else set())
        words = sorted({recording.word for recording in recordings.values()})
        chosen = _of_frequent_speakers(path, recordings, least)
        spoken, speakers = zip(*_fill_sounds(new, path, chosen), strict=True)
        names, owner = np.unique(speakers, return_inverse=True)
        write(new, y=np.searchsorted(words, spoken), owner=owner, names=names, words=words)

    arrays = cached("speech-commands", [path], parse, f"{part} {least}")
    return natural_federation(
        arrays["x"],
        arrays["y"],
        arrays["owner"],
        test,
        seed,
        clients,
        arrays["names"].tolist(),
        outputs=len(arrays["words"]),
    )


ENTRIES = {"speech-commands": speech_commands}


def _listed(path: Path) -> set[str]:
    """The files of the publisher's validation and testing lists, as <word>/<file>."""
    files: set[str] = set()
    for _, data in read_members(path, ("_list.txt",)):
        files.update(data.decode("ascii").split())
    return files


def _recordings(path: Path, skip: set[str]) -> dict[str, Recording]:
    recordings = {}
    for name in list_members(path, (".wav",)):
        file = PurePosixPath(name)
        word = file.parent.name
        if "_nohash_" in file.name and f"{word}/{file.name}" not in skip:
            recordings[name] = Recording(word, file.name.split("_")[0])
    return recordings


def _of_frequent_speakers(
    path: Path, recordings: dict[str, Recording], least: int
) -> dict[str, Recording]:
    count = Counter(recording.speaker for recording in recordings.values())
    chosen = {name: row for name, row in recordings.items() if count[row.speaker] >= least}
    if not chosen:
        raise DataError(
            f"{str(path)!r} holds no <word>/<speaker>_nohash_<k>.wav of speakers with {least} or "
            "more: get it again, or lower least"
        )
    return chosen


def _fill_sounds(new: New, path: Path, chosen: dict[str, Recording]) -> list[Recording]:
    x = new("x", (len(chosen), 1, RATE), np.int16)
    rows: list[Recording] = []
    for name, data in read_members(path, (".wav",)):
        if name in chosen:
            x[len(rows)] = read_wave(data, name, RATE, RATE)
            rows.append(chosen[name])
    return rows
