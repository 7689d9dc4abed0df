"""Ten spoken digits by six speakers, one of whom a model recognises badly.

Jackson et al., Free Spoken Digit Dataset, CC BY-SA 4.0; the folder `recordings` or
recordings.tar.xz in `fsdd`. A small substitute for Speech Commands. A client is a speaker.
"""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Literal

import numpy as np

from commonweal.base.errors import DataError
from commonweal.data.federation import Federation
from commonweal.datasets._audio import read_wave, spectra
from commonweal.datasets._leaf import ClientRows, cached_rows
from commonweal.datasets.pools import Test, natural_federation
from commonweal.sources.files import locate_one, read_members

MANUAL = (
    "recordings/*.wav of github Jakobovski/free-spoken-digit-dataset, as a folder or "
    "recordings.tar.xz"
)
RATE = 8000
TEST_RECORDINGS = 5  # of each digit and speaker, the first ones


def fsdd(
    features: Literal["wave", "spectra"] = "wave",
    clients: int | None = None,
    test: Test = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Federation:
    """3,000 rows, 6 speakers, 10 classes; score: accuracy

    features: one second at 8 kHz (1, 8000) for model 'm5', or 512 numbers of its "spectra" for
    small models
    clients: how many of the speakers to use
    test: the share of each speaker's rows that is held out, or "official": the first five of each
    digit; seed: which rows and clients; dir: the folder of the recordings
    """
    path = locate_one("fsdd", "fsdd", ["recordings", "recordings.tar.xz"], dir)

    def read() -> Iterator[ClientRows]:
        for name, data in sorted(read_members(path, (".wav",))):
            match = re.fullmatch(r"(\d+)_([^_]*)_(\d+)", PurePosixPath(name).stem)
            if match is None:
                raise DataError(f"{name!r} is not named <digit>_<speaker>_<number>.wav: rename it")
            digit, speaker, number = match.groups()
            part = "test" if int(number) < TEST_RECORDINGS else "train"
            yield speaker, read_wave(data, name, RATE, RATE)[None], np.array([int(digit)]), part

    arrays = cached_rows("fsdd", [path], read)
    return natural_federation(
        spectra(arrays["x"]) if features == "spectra" else arrays["x"],
        arrays["y"],
        arrays["owner"],
        arrays["part"] == "test" if test == "official" else test,
        seed,
        clients,
        arrays["names"].tolist(),
        outputs=10,
    )


ENTRIES = {"fsdd": fsdd}
