"""Short sounds by speakers, in WAV files: cut or padded to one length, stored as 16-bit samples.

fsdd: ten spoken digits by six speakers, one of whom a model recognises badly (Jackson et al., Free
Spoken Digit Dataset, CC BY-SA 4.0); the folder `recordings` or recordings.tar.xz in `fsdd`.
speech_commands: thirty-five spoken words by two thousand speakers (Warden 2018, CC BY 4.0);
speech_commands_v0.02.tar.gz, or the folder of its name, in `speech_commands`. A client is a
speaker: the eight characters before `_nohash_`.
"""

import io
import re
import wave
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Literal

import numpy as np

from commonweal.base.errors import DataError
from commonweal.data.federation import Federation
from commonweal.data.sources.cache import New, cached, write_arrays
from commonweal.data.sources.files import list_members, locate_one, read_members
from commonweal.datasets.leaf import ClientRows, cached_rows
from commonweal.datasets.pools import Test, natural_federation

FSDD = (
    "recordings/*.wav of github Jakobovski/free-spoken-digit-dataset, as a folder or "
    "recordings.tar.xz"
)
SPEECH_COMMANDS = "http://download.tensorflow.org/data/speech_commands_v0.02.tar.gz"


def read_wave(data: bytes, name: str, rate: int, length: int) -> np.ndarray:
    """The samples (1, length) int16 of a WAV file, padded with silence."""
    try:
        with wave.open(io.BytesIO(data)) as sound:
            form = (sound.getnchannels(), sound.getsampwidth(), sound.getframerate())
            frames = sound.readframes(length)
    except (wave.Error, EOFError) as error:
        raise DataError(f"{name!r} is not a WAV file, or is cut short: {error}") from None
    expected = (1, 2, rate)
    if form != expected:
        raise DataError(
            f"{name!r} has (channels, bytes per sample, rate) {form}, not {expected}: convert it"
        )
    padded = np.zeros((1, length), dtype=np.int16)
    samples = np.frombuffer(frames, "<i2")
    padded[0, : len(samples)] = samples
    return padded


def spectra(x: np.ndarray, frames: int = 16, bands: int = 32) -> np.ndarray:
    """Log power of frequency bands at moments spread over each sound, (N, frames * bands)."""
    width = 8 * bands
    silence = (x[:, 0, ::-1] != 0).argmax(1)  # after the end of a sound
    last = np.maximum(x.shape[-1] - silence - width, 0)
    start = last[:, None] * np.arange(frames) // (frames - 1)
    index = start[:, :, None] + np.arange(width)
    pieces = np.take_along_axis(x[:, 0], index.reshape(len(x), -1), 1)
    pieces = pieces.reshape(len(x), frames, width).astype(np.float32) / 32768
    windowed = pieces * np.hanning(width).astype(np.float32)
    power = np.abs(np.fft.rfft(windowed)[:, :, 1:]) ** 2
    by_band = power.reshape(len(x), frames, bands, -1).mean(-1)
    loudness = np.log(by_band + 1e-6)
    centred = loudness - loudness.mean((1, 2), keepdims=True)
    scaled = centred / (loudness.std((1, 2), keepdims=True) + 1e-6)
    return np.asarray(scaled.reshape(len(x), -1), dtype=np.float32)


DIGITS_RATE = 8000
TEST_RECORDINGS = 5  # of each digit and speaker, the first ones


def fsdd(
    features: Literal["wave", "spectra"] = "wave",
    clients: int | None = None,
    test: Test = 0.2,
    seed: int = 0,
    dir: str | None = None,
) -> Federation:
    """3,000 rows, 6 speakers, 10 classes; score: accuracy

    features: one second at 8 kHz (1, 8000) for the model m5, or 512 numbers of its "spectra" for
    small models
    clients: how many of the speakers to use
    test: the share of each speaker's rows that is held out, or "official": the first five of each
    digit; seed: which rows and clients; dir: the folder of the recordings
    """
    path = locate_one("fsdd", "fsdd", ["recordings", "recordings.tar.xz"], dir, FSDD)

    def read() -> Iterator[ClientRows]:
        for name, data in sorted(read_members(path, (".wav",))):
            match = re.fullmatch(r"(\d+)_([^_]*)_(\d+)", PurePosixPath(name).stem)
            if match is None:
                raise DataError(f"{name!r} is not named <digit>_<speaker>_<number>.wav: rename it")
            digit, speaker, number = match.groups()
            part = "test" if int(number) < TEST_RECORDINGS else "train"
            yield (
                speaker,
                read_wave(data, name, DIGITS_RATE, DIGITS_RATE)[None],
                np.array([int(digit)]),
                part,
            )

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


NAME = "speech_commands_v0.02"
WORDS_RATE = 16_000


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
    path = locate_one(
        "speech-commands", "speech_commands", [NAME, f"{NAME}.tar.gz"], dir, SPEECH_COMMANDS
    )

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
        x = new("x", (len(chosen), 1, WORDS_RATE), np.int16)
        rows: list[tuple[str, str]] = []
        for name, data in read_members(path, (".wav",)):
            if name in chosen:
                x[len(rows)] = read_wave(data, name, WORDS_RATE, WORDS_RATE)
                rows.append(chosen[name])
        of_rows, speakers = zip(*rows, strict=True)
        names, owner = np.unique(speakers, return_inverse=True)
        write_arrays(new, y=np.searchsorted(words, of_rows), owner=owner, names=names, words=words)

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
