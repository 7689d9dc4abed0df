"""Short sounds in WAV files: cut or padded to one length, kept as 16-bit samples."""

import io
import wave

import numpy as np

from commonweal.errors import DataError

__all__ = ["samples", "spectra"]


def samples(data: bytes, where: str, rate: int, length: int) -> np.ndarray:
    """(1, length) int16, silence after the end."""
    try:
        with wave.open(io.BytesIO(data)) as sound:
            form = (sound.getnchannels(), sound.getsampwidth(), sound.getframerate())
            frames = sound.readframes(length)
    except (wave.Error, EOFError) as error:
        raise DataError(f"{where!r} is not a WAV file, or is cut short: {error}") from None
    if form != (1, 2, rate):
        raise DataError(f"{where!r} has (channels, bytes a sample, rate) {form}, not {(1, 2, rate)}: convert it")
    result = np.zeros((1, length), dtype=np.int16)
    got = np.frombuffer(frames, "<i2")
    result[0, : len(got)] = got
    return result


def spectra(x: np.ndarray, frames: int = 16, bands: int = 32) -> np.ndarray:
    """How loud each of some bands is in each of some stretches of time, in logarithms: (N, frames * bands)."""
    n, _, length = x.shape
    pieces = x[:, 0, : length - length % frames].reshape(n, frames, -1).astype(np.float32) / 32768
    power = np.abs(np.fft.rfft(pieces * np.hanning(pieces.shape[-1]), axis=-1))[:, :, 1:] ** 2
    power = power[:, :, : power.shape[-1] - power.shape[-1] % bands].reshape(n, frames, bands, -1).mean(-1)
    loud = np.log(power + 1e-6)
    result: np.ndarray = ((loud - loud.mean((1, 2), keepdims=True)) / loud.std((1, 2), keepdims=True)).reshape(n, -1)
    return result.astype(np.float32)
