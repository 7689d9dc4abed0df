"""How time grows: of a round with its cohort, parameters and rows; of a run with what it has."""

import math
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from commonweal import run
from commonweal.app.ui.server import application
from commonweal.config.experiment import Experiment
from commonweal.jobs.job import job_from_experiment
from commonweal.record.record import Record

from .contenders import hand_written, ours
from .report import Target, table
from .timing import InProcess, Timed, in_turns, spread
from .work import LOGISTIC, MLP, Work

__all__ = ["GROWTH", "RUNS", "grow", "grow_runs"]

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


# Runs: processor seconds of each thing that a person waits for


def _clients(count: int) -> dict[str, float]:
    """A run of three rounds with ten of so many clients, all of them evaluated."""
    return _run(replace(LOGISTIC, clients=count, cohort=10), 3)


def _everyone(count: int) -> dict[str, float]:
    """A run of three rounds in which so many clients take part."""
    return _run(replace(LOGISTIC, clients=count, cohort=count), 3)


def _rounds(count: int) -> dict[str, float]:
    """A run of so many rounds with 20 clients, evaluated after each."""
    return _run(replace(LOGISTIC, clients=20, cohort=10), count)


def _run(work: Work, rounds: int) -> dict[str, float]:
    """A run that is written, read and shown on the page."""
    work = replace(work, rows=4, features=8, batch=4)
    data, task = work.federation(), work.task()
    client = {"name": "sgd", "batch": work.batch}
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "run"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # starlette has a new client
            from starlette.testclient import TestClient
        page = TestClient(application(Path(root)), base_url="http://127.0.0.1")

        def get(name: str) -> None:
            page.get(f"/api/{name}?id=run").raise_for_status()

        given: dict[str, Any] = {"rounds": rounds, "cohort": work.cohort, "client": client}
        training = _seconds(lambda: list(run(task, data, out=folder, **given)))
        steps: dict[str, Callable[[], object]] = {
            "Record.read": lambda: Record.read(folder),
            "table of clients": lambda: Record.read(folder).clients(),
            "a client's history": lambda: Record.read(folder).history("0"),
            "page of all runs": lambda: get("home"),
            "page of the run": lambda: get("run"),
        }
        shown = {name: min(_seconds(step) for _ in range(3)) for name, step in steps.items()}
        return {"rounds": training} | shown


def _rows(count: int) -> dict[str, float]:
    """A table as a CSV file of so many rows and 100 clients: read for the first time, and again."""
    generator = np.random.default_rng()  # tables that were read before are in the cache
    site = generator.integers(0, 100, count)
    x = generator.standard_normal((count, 4)).round(3)
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / "table.csv"
        lines = np.column_stack([site, x, x[:, 0] > 0])
        np.savetxt(path, lines, "s%d,%g,%g,%g,%g,%d", header="site,a,b,c,d,y", comments="")
        dataset = {"name": "table", "path": str(path), "client": "site", "label": "y"}
        experiment = Experiment(dataset=dataset, model="logistic", rounds=1, cohort=10)
        steps: dict[str, Callable[[], object]] = {
            "table, first time": lambda: job_from_experiment(experiment),
            "table, again": lambda: job_from_experiment(experiment),
            "a round, evaluated": lambda: list(run(experiment)),
        }
        return {name: _seconds(step) for name, step in steps.items()}


RUNS: dict[str, tuple[Callable[[int], dict[str, float]], tuple[int, ...]]] = {
    "clients, of which 10 take part": (_clients, (10, 100, 1000, 10_000, 100_000)),
    "clients, which all take part": (_everyone, (10, 100, 1000, 10_000)),
    "rounds": (_rounds, (10, 100, 1000, 10_000)),
    "rows of a table": (_rows, (10_000, 100_000, 1_000_000, 3_000_000)),
}


def _seconds(step: Callable[[], object]) -> float:
    before = time.process_time()
    step()
    return time.process_time() - before


def grow_runs(largest: int | None = None) -> list[Target]:
    """Print what a run takes with more clients, rounds and rows, and the last exponents."""
    torch.set_num_threads(1)
    for axis, (measure, values) in RUNS.items():
        chosen = [value for value in values if largest is None or value <= largest]
        chosen = chosen or [values[0]]
        measure(chosen[0])  # imports
        times = [measure(value) for value in chosen]
        rows = []
        for name in times[0]:
            seconds = [measured[name] for measured in times]
            slopes = [_slope(*pair) for pair in pairwise(zip(chosen, seconds, strict=True))]
            last = [f"{slope:.2f}" for slope in slopes[-1:]]
            rows.append([name, *(f"{1e3 * value:.1f}" for value in seconds), *last])
        header = [axis, *(f"{value:,}" for value in chosen), *["exponent"] * (len(chosen) > 1)]
        print(f"\n### A run by its {axis}, processor ms\n\n{table(header, rows)}", flush=True)
    return []
