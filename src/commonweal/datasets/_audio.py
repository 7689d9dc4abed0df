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
    """How loud each band is at each of some moments, spread over the sound's own length: (N, frames * bands) logs."""
    width = 8 * bands
    end = x.shape[-1] - (x[:, 0, ::-1] != 0).argmax(1)  # silence after it is padding
    start = np.maximum(end - width, 0)[:, None] * np.arange(frames) // (frames - 1)  # (N, frames)
    pieces = np.take_along_axis(x, (start[:, :, None] + np.arange(width)).reshape(len(x), 1, -1), 2)
    pieces = pieces.reshape(len(x), frames, width).astype(np.float32) / 32768 * np.hanning(width).astype(np.float32)
    power = np.abs(np.fft.rfft(pieces)[:, :, 1:]) ** 2
    loud = np.log(power.reshape(len(x), frames, bands, -1).mean(-1) + 1e-6)
    result = (loud - loud.mean((1, 2), keepdims=True)) / (loud.std((1, 2), keepdims=True) + 1e-6)
    return np.asarray(result.reshape(len(x), -1), dtype=np.float32)
