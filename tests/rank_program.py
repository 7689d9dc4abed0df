"""A program for torchrun: it runs cases, which it reads as JSON, on all processes.

torchrun --nproc-per-node 2 tests/rank_program.py cases.json
"""

import atexit
import json
import os
import pickle
import signal
import sys
import warnings
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from commonweal.base.errors import CommonwealError
from commonweal.base.tensors import Tensors
from commonweal.data.federation import Federation
from commonweal.data.rows import Rows
from commonweal.engines import simulator, wire
from commonweal.engines.ranks import Ranks, connect
from commonweal.engines.wire import Parcel
from commonweal.jobs.rounds import run
from commonweal.models.trees import trees
from commonweal.protocols.algorithm import Algorithm
from commonweal.task.task import Task
from commonweal.training import evaluation
from helpers import SHAPES, federation, module

SIZES = {"a": 31, "b": 8, "c": 17, "d": 23, "e": 8}
DEFAULTS = {"rounds": 3, "deterministic": True, "seed": 5}
CLIENT = {"epochs": 2, "batch": 8, "lr": 0.05}


def small_groups() -> None:
    """Let groups and passes be so small that tiny models are divided among ranks."""
    simulator.CHUNK = 150
    simulator.BUDGET = 4096
    evaluation.PASS = 128


def parts_of(case: dict[str, Any]) -> tuple[Task, Federation]:
    """The task and the clients of a case."""
    kind = case.get("model", "mlp")
    if kind == "trees":
        rows = federation(SIZES, test=9)
        return Task(trees((4,), rows.outputs, case.get("rounds", 3), leaves=4)), rows
    rows = federation(SIZES, SHAPES[kind], test=9)
    if case.get("poisoned"):  # the loss of client c is not finite
        rows = replace(rows, train=changed(rows.train, int(rows.train.offsets[2]), 3.4e38))
    return Task(module(kind)), rows


def changed(rows: Rows, row: int, value: float) -> Rows:
    """The samples with another value in one of them."""
    x = torch.as_tensor(rows.inputs[slice(None)]).clone()
    x[row] = value
    return replace(rows, inputs=x)


def run_case(case: dict[str, Any], engine: str, folder: Path, resume: bool = False) -> list[int]:
    """Run a case into a folder. Returns the rounds that were run in this process."""
    task, rows = parts_of(case)
    given = {k: v for k, v in case.items() if k not in ("name", "model", "poisoned", "kill", "row")}
    if "client" in given:
        given["client"] = CLIENT | given["client"]
    options = DEFAULTS | given | {"engine": engine}
    if case.get("row") and os.environ.get("RANK") == "1":
        rows = replace(rows, train=changed(rows.train, 3, 0.5))
    numbers = []
    for done in run(task, rows, out=folder, resume=resume, **options):
        numbers.append(done.number)
        if case.get("kill") == 0 and done.number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
    return numbers


def refuse(*given: object, **named: object) -> NoReturn:
    raise AssertionError("something was unpickled")


def end_in_round(self: Ranks, algorithm: object, question: Parcel) -> Parcel:
    if question.header["do"] == "collect" and question.tensors["message/round"] == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer(self, algorithm, question)  # type: ignore[arg-type]


answer = Ranks._answer
compute = Ranks._computed
receive = wire.receive
replies: list[weakref.ref[Tensor]] = []  # that rank 0 has been given


def watched(tensors: Tensors) -> None:
    """Fail where the replies before these are still in memory: one rank's may be."""
    assert all(reference() is None for reference in replies), "two answers at a time"
    replies[:] = [weakref.ref(v) for name, v in tensors.items() if name.startswith("reply/")]


def compute_watched(self: Ranks, algorithm: Algorithm, question: Parcel) -> Tensors:
    tensors = compute(self, algorithm, question)
    watched(tensors)
    return tensors


def receive_watched(rank: int) -> Parcel:
    parcel = receive(rank)
    watched(parcel.tensors)
    return parcel


def main() -> None:
    warnings.simplefilter("ignore")
    cases = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    small_groups()
    left = Path(sys.argv[1]).with_suffix(f".left{os.environ['RANK']}")
    atexit.register(lambda: left.write_text(str(not dist.is_initialized())))  # after all others
    rank, _ = connect()
    if rank == 0:
        Ranks._computed = compute_watched  # type: ignore[method-assign]
        wire.receive = receive_watched
    pickle.loads = refuse
    pickle.load = refuse
    pickle.Unpickler = refuse  # type: ignore[assignment, misc]
    results: dict[str, object] = {}
    for case in cases:
        if case.get("kill") == rank == 1:
            Ranks._answer = end_in_round  # type: ignore[method-assign]
        folder = Path(sys.argv[1]).parent / "ranks" / case["name"]
        try:
            results[case["name"]] = run_case(case, "torchrun", folder, resume=folder.exists())
        except CommonwealError as error:
            results[case["name"]] = f"{type(error).__name__}: {error}"
        Path(sys.argv[1]).with_suffix(f".{rank}").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
