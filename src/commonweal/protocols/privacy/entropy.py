"""Random numbers that nobody can predict, and a stand-in that can be repeated.

Who knows the cohorts or the noise of a run can undo both. So they come from the operating system's
cryptographic generator; a seed is for simulations, whose promise is simulated too.
"""

import os
from collections.abc import Callable
from typing import Literal

import numpy as np
from scipy.special import ndtri

from commonweal.base import randomness

Entropy = Literal["system", "seed"]
Bytes = Callable[[int], bytes]  # from a number of bytes to as many random ones


def source(entropy: Entropy, seed: int, round: int, purpose: int) -> Bytes:
    """Return where the random bytes of a round come from."""
    if entropy == "system":
        return os.urandom
    return randomness.stream(seed, round, 0, purpose).bytes


def coins(rate: float, count: int, draw: Bytes) -> np.ndarray:
    """Toss coins (count,) that are true with the given probability, independently."""
    words = _words(count, draw)
    if rate >= 1:
        return np.ones(count, dtype=bool)
    return words < np.uint64(int(rate * 2.0**64))


def secure_normal(count: int, draw: Bytes) -> np.ndarray:
    """Draw standard normal numbers (count,), by the inverse of their distribution function."""
    uniform = ((_words(count, draw) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return np.asarray(ndtri(uniform))


def _words(count: int, draw: Bytes) -> np.ndarray:
    return np.frombuffer(draw(8 * count), dtype="<u8")
