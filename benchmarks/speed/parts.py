"""What else takes time: client methods, evaluation, Heart, a comparison, the command."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from commonweal import run
from commonweal.base.errors import CommonwealError, ConfigError
from commonweal.config import catalog
from commonweal.config.experiment import read, values
from commonweal.data.rows import Rows
from commonweal.datasets.heart import heart
from commonweal.study.compare import Step, run_cells, run_cells_in_processes
from commonweal.study.plan import Cell, cells
from commonweal.task.task import Batch, Task
from commonweal.training.evaluation import evaluate

from .contenders import ours
from .report import Target, compared, table
from .timing import Contender, InProcess, Spread, Timed, in_turns, ratio, spread
from .work import CNN, MLP, Work

__all__ = ["command", "evaluation", "heart_run", "personal", "sweep"]

# Rules of a sweep.
SWEPT = ["fedavg", "uniform", "afl", "qfedavg", "term", "propfair", "aaggff-s", "aaggff-d"]
SWEPT += ["fedfa", "gifair", "cvar", "owa"]
EXAMPLES = Path(__file__).parents[2] / "examples"


FEW_IMAGES = replace(CNN, clients=4, cohort=2, rows=40)  # enough for ratios of client methods

# By the issue that asked for speed: FedRep's steps on the head need no gradient of the body, whose
# outputs can be computed once; SuPerFed trains two models.
GRADIENTS = {"fedrep": 2.0, "superfed-lm, begun": 2.0, "superfed-mm, begun": 2.0}

# Client methods


def personal(turns: int, work: Work = MLP, cnn: Work = FEW_IMAGES) -> list[Target]:
    """Every client method relative to sgd, and how many gradients of a batch it takes."""
    momentum = {"momentum": 0.9, "weight_decay": 1e-4}  # as SuPerFed's authors train it
    thesis = replace(work, layers=2, batch=min(work.batch, 10))
    settings = {
        "plain SGD": _methods(turns, work, {}),
        "momentum": _methods(turns, thesis, momentum),
        "CNN": _methods(min(turns, 3), cnn, {}),
    }
    sgd_gradients = count_gradients({"name": "sgd"})
    rows = []
    targets = []
    for name in settings["plain SGD"]:
        gradients = GRADIENTS.get(name, count_gradients(_clients()[name]) / sgd_gradients)
        row = [f"{name} [{gradients:g}]"]
        for setting, ratios in settings.items():
            row.append(ratios[name].text() if name in ratios else "")
            if name in ratios:
                measured = ratios[name].median / gradients
                targets.append(Target(f"{name}: of its gradients ({setting})", 1.3, measured))
        rows.append(row)
    print(
        "\n### Client methods: processor time of a round relative to sgd [gradients of a batch]\n"
    )
    print(table(("", *settings), rows), flush=True)
    return targets


def _methods(turns: int, work: Work, sgd: dict[str, Any]) -> dict[str, Spread]:
    """The processor time of a round with every method that fits, relative to sgd."""
    data = work.federation()
    ways: list[Contender] = []
    for name, given in _clients().items():
        client = given | {"batch": work.batch, "lr": 0.01} | sgd
        try:
            one_round = ours(work, work.task(), data, client=client)
        except ConfigError:  # of fedbn: there are no normalisation layers
            continue
        for _ in range(3 * work.clients // work.cohort):  # most clients have a state then
            one_round()
        ways.append(InProcess(name, one_round))
    times = in_turns(ways, turns)
    return {name: ratio(taken, times["sgd"], processor=True) for name, taken in times.items()}


def _clients() -> dict[str, dict[str, Any]]:
    """All client methods; SuPerFed also with the own models from the first round on."""
    clients: dict[str, dict[str, Any]] = {}
    for name in catalog.entries("clients"):
        clients[name] = {"name": name}
        if name.startswith("superfed"):
            clients[f"{name}, begun"] = {"name": name, "begin": 0.0}
    return clients


def count_gradients(given: dict[str, Any]) -> int:
    """How many gradients of a batch a client's round takes: of the batch's loss, or of its own."""
    work = Work("", "mlp", clients=1, rows=20, cohort=1, batch=10, features=8, hidden=4)
    count = 0
    original = Task.row_losses

    def counting(task: Task, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        nonlocal count
        count += 1
        return original(task, w, batch)

    client = given | {"batch": work.batch, "lr": 0.01}
    one_round = ours(work, work.task(), work.federation(), client=client, vectorize="loop")
    with (
        mock.patch.object(Task, "row_losses", counting),
        mock.patch.object(torch.autograd, "grad", wraps=torch.autograd.grad) as grad,
    ):
        one_round()
    return max(count, grad.call_count)


# Evaluation, and what a person waits for


def evaluation(turns: int, clients: int = 10_000) -> list[Target]:
    """The evaluation of many clients beside one forward pass over their pooled rows."""
    work = replace(MLP, clients=clients, rows=1)
    data = work.federation()
    rows = Rows(data.train.x, data.train.y, torch.arange(clients + 1))
    task = work.task()

    def forward() -> None:
        with torch.no_grad():
            for part in torch.split(torch.arange(clients), 4096):
                task.outputs(task.initial, rows.x[part])

    times = in_turns(
        [
            InProcess("commonweal", lambda: evaluate(task, task.initial, rows)),
            InProcess("forward pass", forward),
        ],
        turns,
    )
    print(f"\n### Evaluation of {clients:,} clients\n")
    print(compared(times, "commonweal"), flush=True)
    measured = ratio(times["commonweal"], times["forward pass"]).median
    return [Target("evaluation: of a forward pass", 1.1, measured)]


def heart_run(turns: int, rounds: int = 200) -> list[Target]:
    """Heart with an evaluation after every round, as a user runs it."""
    try:
        heart()
    except CommonwealError as error:
        print(f"\nHeart is skipped: {error}")
        return []
    experiment = read(EXAMPLES / "heart.toml", ["evaluate_every=1", f"rounds={rounds}"])

    name = f"{rounds} rounds"

    def whole() -> None:
        for _ in run(experiment):
            pass

    times = in_turns([InProcess(name, whole)], turns)
    print("\n### Heart, evaluated after every round\n")
    print(compared(times, name), flush=True)
    return [Target(f"Heart, {name}, seconds", 2.0, _seconds(times[name]))]


def sweep(rules: int, seeds: int, rounds: int, processes: bool = True) -> list[Target]:
    """Several rules and seeds on the vowels: one run after the other, and in worker processes."""
    base = values(EXAMPLES / "vowel.toml") | {"rounds": rounds}
    names = catalog.entries("rules")
    chosen = [name for name in SWEPT if name in names][:rules]
    ways: dict[str, Callable[[list[Cell]], Iterator[Step]]] = {"one after the other": run_cells}
    if processes:
        count = os.cpu_count() or 1
        ways[f"{count} processes"] = lambda plan: run_cells_in_processes(plan, count)
    found = []
    for name, way in ways.items():
        with tempfile.TemporaryDirectory() as folder:
            plan = cells(base, chosen, seeds, [], Path(folder))
            torch.set_num_threads(1)
            wall = time.perf_counter()
            for step in way(plan):
                if step.failure:
                    raise RuntimeError(step.failure)
            wall = time.perf_counter() - wall
        milliseconds = 1e3 * wall / (len(plan) * rounds)
        found.append((name, f"{wall:.1f}", f"{milliseconds:.1f}"))
    print(f"\n### {len(chosen)} rules x {seeds} seeds on the vowels, {rounds} rounds each\n")
    print(table(("", "seconds", "ms per round"), found), flush=True)
    return []


def command(turns: int, only_help: bool = False) -> list[Target]:
    """The first round of the command, and its help, from a new process."""
    with tempfile.TemporaryDirectory() as folder:
        first = ("run", str(EXAMPLES / "vowel.toml"), "rounds=1", "--out")
        ways = {
            "first round": lambda: _commonweal(*first, f"{folder}/{time.monotonic_ns()}"),
            "--help": lambda: _commonweal("--help"),
        }
        if only_help:
            del ways["first round"]
        times = in_turns([InProcess(name, way) for name, way in ways.items()], turns)
    print("\n### The command\n")
    print(compared(times, "--help"), flush=True)
    limits = {"first round": 4.0, "--help": 0.5}
    return [
        Target(f"commonweal, {name}, seconds", most, _seconds(times[name]))
        for name, most in limits.items()
        if name in times
    ]


def _seconds(turns: list[Timed]) -> float:
    return spread(turn.wall for turn in turns).median


def _commonweal(*arguments: str) -> None:
    source = Path(__file__).parents[2] / "src"
    path = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "commonweal", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    if done.returncode != 0:
        raise RuntimeError(f"commonweal {' '.join(arguments)}: {done.stderr.strip()}")
