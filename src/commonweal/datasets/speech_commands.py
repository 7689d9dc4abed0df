"""Thirty-five spoken words by two thousand speakers.

Warden 2018, CC BY 4.0; speech_commands_v0.02.tar.gz, or the folder of its name, in
`speech_commands`. A client is a speaker: the eight characters before `_nohash_`.
"""

from collections import Counter
from pathlib import PurePosixPath
from typing import Literal

import numpy as np

from commonweal.base.errors import DataError
from commonweal.data.federation import Federation
from commonweal.datasets._audio import read_wave
from commonweal.datasets.pools import natural_federation
from commonweal.sources.cache import New, cached, write
from commonweal.sources.files import list_members, locate_one, read_members

SOURCES = """
speech_commands http://download.tensorflow.org/data/
af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58 speech_commands_v0.02.tar.gz
"""
NAME = "speech_commands_v0.02"
RATE = 16_000


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
        skip: set[str] = set()  # the publisher's validation and testing files, as <word>/<file>
        if part == "train":
            for _, data in read_members(path, ("_list.txt",)):
                skip.update(data.decode("ascii").split())
        spoken = {}  # file -> word, speaker
        for name in list_members(path, (".wav",)):
            file = PurePosixPath(name)
            word = file.parent.name
            if "_nohash_" in file.name and f"{word}/{file.name}" not in skip:
                spoken[name] = word, file.name.split("_")[0]
        words = sorted({word for word, _ in spoken.values()})
        count = Counter(speaker for _, speaker in spoken.values())
        chosen = {name: row for name, row in spoken.items() if count[row[1]] >= least}
        if not chosen:
            raise DataError(
                f"{str(path)!r} holds no <word>/<speaker>_nohash_<k>.wav of speakers with {least} "
                "or more: get it again, or lower least"
            )
        x = new("x", (len(chosen), 1, RATE), np.int16)
        rows: list[tuple[str, str]] = []
        for name, data in read_members(path, (".wav",)):
            if name in chosen:
                x[len(rows)] = read_wave(data, name, RATE, RATE)
                rows.append(chosen[name])
        of_rows, speakers = zip(*rows, strict=True)
        names, owner = np.unique(speakers, return_inverse=True)
        write(new, y=np.searchsorted(words, of_rows), owner=owner, names=names, words=words)

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
