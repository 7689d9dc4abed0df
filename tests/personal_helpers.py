"""What the tests of client methods share: a tiny federation, a tiny module, and every method with fast settings."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from commonweal import catalog, randomness
from commonweal.algorithm import Averaging
from commonweal.federation import Federation
from commonweal.local import Local, Plan, Tensors, alone, bound, plan, visit
from commonweal.rules.fedavg import FedAvg
from commonweal.server import SGD
from commonweal.task import Task

METHODS = list(catalog.entries("clients"))
SIZES = {"a": 12, "b": 20, "c": 31, "d": 20, "e": 12}


def federation(sizes: dict[str, int] = SIZES, test: float = 0.25) -> Federation:
    """Three classes in four dimensions; each client has its own way to name them."""
    rng = np.random.default_rng(3)
    owner = np.repeat(list(sizes), list(sizes.values()))
    x = rng.normal(size=(len(owner), 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int) + (x[:, 1] > 0.2)
    y = (y + np.array([ord(name) for name in owner])) % 3
    return Federation.from_arrays(x, y, owner, test=test)


def task(norm: bool = False) -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        hidden = [nn.Linear(4, 6), nn.BatchNorm1d(6)] if norm else [nn.Linear(4, 6)]
        return Task(nn.Sequential(*hidden, nn.ReLU(), nn.Linear(6, 3)))


def client(name: str, **parameters: Any) -> Any:
    """A method that takes few steps; SuPerFed's own models join in the second round."""
    own = {"fedrep": {"head_epochs": 2}, "superfed-mm": {"begin": 1.0}, "superfed-lm": {"begin": 1.0}}
    own |= {"pfedme": {"inner": 2, "inner_lr": 0.05}}
    part = {"name": name, "epochs": 2, "batch": 5, "lr": 0.1, "momentum": 0.5, **own.get(name, {}), **parameters}
    return bound(catalog.build("clients", part), 4)


def averaging(local: Any, rule: Any = None) -> Averaging:
    return Averaging(rule or FedAvg(), local, SGD())


def planned(local: Local, t: Task, f: Federation, ids: list[int], round: int = 1, seed: int = 0) -> Plan:
    streams = [randomness.stream(seed, round, randomness.key(f.names[i]), randomness.TRAIN) for i in ids]
    return plan(local, t, f.train, torch.tensor(ids), streams)


def visited(
    local: Any, t: Task, f: Federation, seen: Tensors, kept: Tensors | None = None, who: int = 2, seed: int = 0
) -> tuple[Tensors, Tensors]:
    """One client's visit: its reply and what it keeps, without the clients' axis."""
    kept = local.keep(t, 5) if kept is None else kept
    p = planned(local, t, f, [who], int(seen["round"]), seed)
    stacked = {name: value[None] for name, value in kept.items()}
    reply, after = visit(local, t, seen, stacked, f.train, p, alone)
    return {n: v[0] for n, v in reply.items()}, {n: v[0] for n, v in after.items()}


def sent(t: Task, round: int = 1, **more: Tensor) -> Tensors:
    return {"w": t.initial, "round": torch.tensor(round), **more}


def contents(folder: Path) -> dict[str, bytes]:
    files = (f for f in sorted(folder.rglob("*")) if f.is_file() and f.name != "timings.jsonl")
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in files}
