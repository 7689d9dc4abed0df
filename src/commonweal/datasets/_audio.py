"""Short sounds in WAV files: cut or padded to one length, stored as 16-bit samples."""

import io
import wave

import numpy as np

from commonweal.base.errors import DataError


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
