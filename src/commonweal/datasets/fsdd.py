"""Ten spoken digits by six speakers, one of whom a model hears badly. A small stand-in for Speech Commands.

Jackson et al., Free Spoken Digit Dataset, CC BY-SA 4.0; the folder `recordings` or recordings.tar.xz in `fsdd`.
A client is a speaker.
"""

from pathlib import PurePosixPath
from typing import Literal

from commonweal.datasets._audio import samples, spectra
from commonweal.datasets._cache import New, cached
from commonweal.datasets._files import find, locate, members
from commonweal.datasets._rows import Gathered
from commonweal.datasets._shared import Test, noisy
from commonweal.errors import DataError
from commonweal.federation import Federation
from commonweal.noise import Noise

__all__ = ["fsdd"]

RATE = 8000


def fsdd(
    features: Literal["wave", "spectra"] = "wave",
    noise: Noise | None = None,
    test: Test = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Federation:
    """3,000 rows, 6 speakers, 10 classes; score: accuracy

    features: one second at 8 kHz (1, 8000) for model 'm5', or 512 numbers of its "spectra" for small models
    noise: wrong labels in training rows; test: the share of each speaker's rows that is held out, or "official": the
    first five of each digit; seed: which rows these are; dir: the folder of the recordings
    """
    folder = find("fsdd", "recordings", dir)
    path = folder if folder is not None else locate("fsdd", "fsdd", ["recordings.tar.xz"], dir)[0]

    def parse(new: New) -> None:
        rows = Gathered()
        for name, data in sorted(members(path, (".wav",))):
            digit, speaker, number = _meaning(name)
            rows.add(speaker, [samples(data, name, RATE, RATE)], [digit], "test" if number < 5 else "train")
        rows.write(new)

    found = cached("fsdd", [path], parse)
    x = found["x"] if features == "wave" else spectra(found["x"])
    held = found["part"] == "test" if test == "official" else test
    names = found["names"].tolist()
    return noisy(Federation.from_arrays(x, found["y"], found["owner"], held, seed, names, outputs=10), noise, seed)


def _meaning(name: str) -> tuple[int, str, int]:
    """Digit, speaker and number of `7_jackson_32.wav`."""
    parts = PurePosixPath(name).stem.split("_")
    if len(parts) != 3 or not parts[0].isdigit() or not parts[2].isdigit():
        raise DataError(f"{name!r} is not named <digit>_<speaker>_<number>.wav")
    return int(parts[0]), parts[1], int(parts[2])
