"""A long run that is killed again and again: it ends as if it had been left alone.

    python benchmarks/soak.py                             100,000 rounds, 200 kills: hours
    python benchmarks/soak.py --rounds 2000 --kills 20    minutes

Runs an experiment undisturbed, and prints memory and processor time per round for every tenth of
it. Then runs it again and kills it at random instants, while it opens its folder too. The exit code
is 1 where a file of the two folders differs (but timings.jsonl), or where memory grows.
"""

import argparse
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from campaign import contents, ended, forked
from commonweal.data.federation import Federation
from commonweal.jobs import rounds
from commonweal.jobs.job import job_from_parts
from commonweal.models.mlp import mlp
from commonweal.task.task import Task

CLIENTS = 6
SAVE_EVERY = 0.5  # seconds between checkpoints
EARLY = 0.1  # of the kills come while the run opens its folder, or soon after
GROWTH = 1.2  # memory at the end, relative to that after the first tenth


class Reading(NamedTuple):
    """What a process has used after a round."""

    round: int
    seconds: float  # of processor time
    memory: float  # MB that are resident


def work(folder: Path, count: int, note: Callable[[Reading], None]) -> None:
    """Run the experiment, or what is left of it."""
    rounds.SAVE_EVERY = SAVE_EVERY
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20 * CLIENTS, 4)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] > 0).astype(np.int64)
    federation = Federation.from_arrays(x, y, np.arange(len(y)) % CLIENTS, outputs=2)
    task = Task(mlp((4,), 2, hidden=(4,)))
    job = job_from_parts(
        task,
        federation,
        rule="aaggff-s",
        client="ditto(lr=0.01)",  # clients with states
        server="sgd(momentum=0.5)",
        rounds=count,
        cohort=3,
        evaluate_every=20,
    )
    for done in rounds.run(job, out=folder, resume=True):
        if done.number % max(1, count // 10) == 0:
            note(Reading(done.number, time.process_time(), memory()))


def memory() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def undisturbed(folder: Path, count: int, log: Path) -> list[Reading]:
    """Run to the end in a process of its own. Returns what it used, by tenth."""
    notes = folder.with_suffix(".notes")

    def begin() -> None:
        with open(notes, "w", buffering=1) as file:
            work(folder, count, lambda reading: print(*reading, file=file))

    if ended(forked(begin, log)) != 0:
        sys.exit(log.read_text())
    lines = [line.split() for line in notes.read_text().splitlines()]
    return [Reading(int(a), float(b), float(c)) for a, b, c in lines]


class Killing(NamedTuple):
    """What became of a run that was killed."""

    kills: int
    while_opening: int  # kills before the first new round
    memory: float  # the most that any of its processes had, in MB


def disturbed(folder: Path, count: int, kills: int, size: int, log: Path) -> Killing:
    """Run with kills at random instants, then to the end.

    Args:
        folder: of the run
        count: its rounds
        kills: how many
        size: of rounds.jsonl at the end, by which progress is measured
        log: for messages
    """
    draw = random.Random(0)
    lines = folder / "rounds.jsonl"
    early = 0
    start = time.monotonic()
    for number in range(kills):
        before = _size(lines)
        step = 2 * max(0.0, 0.98 * size - before) / (kills - number)
        goal = before + (0.0 if draw.random() < EARLY else draw.uniform(0, step))
        child = forked(lambda: work(folder, count, lambda reading: None), log)
        while _size(lines) < goal and os.waitpid(child, os.WNOHANG) == (0, 0):
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.5 if goal == before else 0.02))
        early += _size(lines) <= before
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)
        if number % 10 == 9:
            share = 100 * _size(lines) / size
            seconds = time.monotonic() - start
            print(f"{number + 1} kills, {share:.0f} %, {seconds:.0f} s", file=sys.stderr)
    if ended(forked(lambda: work(folder, count, lambda reading: None), log)) != 0:
        sys.exit(log.read_text())
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    return Killing(kills, early, most)


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=200)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        readings = undisturbed(root / "whole", given.rounds, root / "log")
        print("| rounds | ms of processor time per round | memory (MB) |\n|--:|--:|--:|")
        for before, after in pairwise(readings):
            took = 1e3 * (after.seconds - before.seconds) / (after.round - before.round)
            print(f"| {after.round:,} | {took:.2f} | {after.memory:.0f} |", flush=True)
        whole = contents(root / "whole")
        size = len(whole["rounds.jsonl"])
        killing = disturbed(root / "killed", given.rounds, given.kills, size, root / "log")
        same = contents(root / "killed") == whole
    verdict = "the same bytes as" if same else "DIFFERENT BYTES from"
    print(
        f"\n{given.rounds:,} rounds, {killing.kills} kills ({killing.while_opening} of them before "
        f"a new round): {verdict} the undisturbed run; at most {killing.memory:.0f} MB."
    )
    grown = readings[-1].memory > GROWTH * readings[0].memory
    sys.exit(0 if same and not grown else 1)


if __name__ == "__main__":
    main()
