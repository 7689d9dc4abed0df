"""Random streams, each a function of (seed, round, client, purpose) and of no earlier draw.

So a run can be repeated, resumed at any round and moved between engines. A client is known by its
name, not by its position: its batches do not change when another client joins.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.random.bit_generator import ISeedSequence

__all__ = ["BEGIN", "CHANNEL", "CLASSIFY", "COHORT", "DRAW", "INIT_CLIENT", "JUDGE", "LANGEVIN"]
__all__ += ["NOISE", "PARTITION", "RELEASE", "SAMPLE", "SNAPSHOT", "SPLIT", "TRAIN"]
__all__ += ["Streams", "key", "purpose", "stream", "uniforms"]

# What the numbers are for. Two purposes never share a stream.
SPLIT, COHORT, TRAIN, INIT_CLIENT = 0, 1, 2, 3
RELEASE, SNAPSHOT, CHANNEL = 4, 5, 6
PARTITION, NOISE, DRAW = 16, 17, 18  # of datasets
BEGIN, LANGEVIN, CLASSIFY, SAMPLE, JUDGE = 32, 33, 34, 35, 36  # of synthetic data
WORD = (1 << 64) - 1


@lru_cache(1 << 16)  # each request to a client asks for its own
def key(name: str) -> int:
    """A stable 64-bit number for a client's name, the same on every machine."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def purpose(name: str) -> int:
    """The purpose of a request's stream: training has its own, any other word its hash."""
    return TRAIN if name == "train" else key(name) | 1 << 63


def stream(seed: int, round: int, who: int, purpose: int) -> np.random.Generator:
    """The generator of (seed, round, who, purpose); starting one costs microseconds."""
    counter = np.array([0, 0, round, purpose], dtype=np.uint64)
    key = _Key(np.array([seed & WORD, who], dtype=np.uint64))
    philox = np.random.Philox(key, counter=counter)  # type: ignore[arg-type]  # numpy's own class
    return np.random.Generator(philox)


class Streams(NamedTuple):
    """The streams of some clients in a round. What draws from them begins them again."""

    seed: int
    round: int
    keys: Sequence[int]  # (S,) of the clients
    purpose: int

    def begin(self) -> list[np.random.Generator]:
        """Generators at the beginning of the streams."""
        return [stream(self.seed, self.round, who, self.purpose) for who in self.keys]

    def of(self, positions: Sequence[int]) -> "Streams":
        """The streams of some of the clients."""
        return self._replace(keys=[self.keys[k] for k in positions])


class _Key(ISeedSequence):
    """Gives Philox its key. With `key=` it would first ask the system for entropy: four times the
    time, for every client of every round.
    """

    def __init__(self, key: np.ndarray) -> None:
        self.key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        return self.key


def uniforms(seed: int, who: np.ndarray, position: np.ndarray) -> np.ndarray:
    """One number in [0, 1) per (seed, who, position), for millions of rows (splitmix64)."""
    with np.errstate(over="ignore"):
        mixed = _mix(
            _mix(np.uint64(seed & WORD) + who.astype(np.uint64)) + position.astype(np.uint64)
        )
    return np.asarray((mixed >> np.uint64(11)) * 2.0**-53)


def _mix(z: np.ndarray) -> Any:
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
