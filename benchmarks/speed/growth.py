"""How a round's time grows: with the cohort S, the population K, the parameters d, the rows n."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from .contenders import hand_written, ours
from .report import Target, table
from .timing import InProcess, Timed, in_turns, spread
from .work import MLP, Work

__all__ = ["GROWTH", "grow"]

AXES: dict[str, Callable[[int], Work]] = {
    "S, clients per round": lambda s: replace(MLP, clients=s, cohort=s),
    "K, clients in all": lambda k: replace(MLP, clients=k, rows=20, features=64),
    "d, units of the hidden layer": lambda hidden: replace(MLP, hidden=hidden),
    "n, rows per client": lambda n: replace(MLP, rows=n),
}
GROWTH: dict[str, tuple[int, ...]] = {
    "S, clients per round": (10, 30, 100, 300, 1000),
    "K, clients in all": (100, 1000, 10_000, 100_000),
    "d, units of the hidden layer": (10, 50, 200, 800),
    "n, rows per client": (20, 60, 200, 600),
}


def grow(axes: dict[str, tuple[int, ...]], turns: int, threads: int = 1) -> list[Target]:
    """Print processor times and exponents along every axis. Returns the target for S."""
    targets = []
    for axis, values in axes.items():
        works = [AXES[axis](value) for value in values]
        names = [f"{value:,}" for value in values]
        here: list[Sequence[str]] = []
        for label, loop in (("commonweal", False), ("hand loop", True)):
            ways = [
                InProcess(name, _round(work, loop), threads)
                for name, work in zip(names, works, strict=True)
            ]
            times = in_turns(list(ways), turns)
            medians = [_median(times[name]) for name in names]
            here.append([f"{label}, processor ms", *(f"{1e3 * m:.1f}" for m in medians)])
            slopes = [_slope(*pair) for pair in pairwise(zip(values, medians, strict=True))]
            here.append(["exponent", "", *(f"{slope:.2f}" for slope in slopes)])
            if axis.startswith("S") and not loop:
                steepest = max(slopes)
                targets.append(Target("exponent in S", 1.05, steepest))
        print(f"\n### {axis}\n")
        print(table([axis[0], *names], here), flush=True)
    return targets


def _round(work: Work, loop: bool) -> Callable[[], object]:
    task = work.task()
    data = work.federation()
    return hand_written(work, task, data, False) if loop else ours(work, task, data)


def _median(times: list[Timed]) -> float:
    return spread(turn.processor for turn in times).median


def _slope(first: tuple[int, float], second: tuple[int, float]) -> float:
    return math.log(second[1] / first[1]) / math.log(second[0] / first[0])
