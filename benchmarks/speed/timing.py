"""Contenders that are timed in turns, so that all of them see the same neighbours."""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

__all__ = [
    "Contender",
    "InProcess",
    "Spread",
    "Timed",
    "in_turns",
    "ratio",
    "spread",
    "threads_text",
]


class Timed(NamedTuple):
    """Seconds per round: on the clock, and of the processor (0: unknown)."""

    wall: float
    processor: float


class Contender(Protocol):
    name: str

    def turn(self) -> Timed:
        """Run some rounds."""

    def close(self) -> None:
        """End what was started."""


@dataclass
class InProcess:
    """A function of this process that runs one round."""

    name: str
    round: Callable[[], object]
    threads: int = 1
    rounds: int = 1  # per turn
    _warm: bool = field(default=False, repr=False)

    def turn(self) -> Timed:
        torch.set_num_threads(self.threads)
        if not self._warm:
            self._run()
            self._warm = True
        return self._run()

    def _run(self) -> Timed:
        wall = time.perf_counter()
        processor = time.process_time()
        for _ in range(self.rounds):
            self.round()
        processor = time.process_time() - processor
        wall = time.perf_counter() - wall
        return Timed(wall / self.rounds, processor / self.rounds)

    def close(self) -> None:
        pass


class Spread(NamedTuple):
    """The median and the quartiles."""

    low: float
    median: float
    high: float

    def text(self, digits: int = 2) -> str:
        low, median, high = (f"{value:.{digits}f}" for value in self)
        return median if low == high else f"{median} ({low}-{high})"


def spread(values: Iterable[float]) -> Spread:
    ordered = sorted(values)
    if len(ordered) == 1:
        return Spread(*(ordered * 3))
    low, median, high = statistics.quantiles(ordered, n=4, method="inclusive")
    return Spread(low, median, high)


def ratio(ours: list[Timed], theirs: list[Timed], processor: bool = False) -> Spread:
    """Our time over theirs, turn by turn."""
    column = 1 if processor else 0
    return spread(a[column] / b[column] for a, b in zip(ours, theirs, strict=True))


def in_turns(contenders: list[Contender], turns: int) -> dict[str, list[Timed]]:
    """The times of every contender, one turn of each after the other."""
    times: dict[str, list[Timed]] = {each.name: [] for each in contenders}
    for _ in range(turns):
        for each in contenders:
            times[each.name].append(each.turn())
    return times


def threads_text(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
