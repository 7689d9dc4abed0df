"""What the tests of client methods share: a small federation and module, and fast settings."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from commonweal.base.tensors import Tensors
from commonweal.clients import Client
from commonweal.config import catalog
from commonweal.data.federation import Federation
from commonweal.task.task import Task
from commonweal.task.vectorize import single
from commonweal.training.local import train_locally
from helpers import planned

METHODS = list(catalog.entries("clients"))
SIZES = {"a": 12, "b": 20, "c": 31, "d": 20, "e": 12}
ROUNDS = 4

# SuPerFed's own models join in the second round.
FAST: dict[str, dict[str, Any]] = {
    "fedbn": {"layers": ["0"]},
    "fedrep": {"head_epochs": 2},
    "fine-tune": {"tune_epochs": 1},
    "superfed-mm": {"begin": 1.0},
    "superfed-lm": {"begin": 1.0},
    "pfedme": {"inner": 2, "inner_lr": 0.05},
}


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


def client(name: str, **parameters: Any) -> Client:
    """A method that takes few steps."""
    common = {"name": name, "epochs": 2, "batch": 5, "lr": 0.1}
    if parameters.get("optimizer", "sgd") == "sgd":
        common["momentum"] = 0.5
    method: Client = catalog.build("clients", common | FAST.get(name, {}) | parameters)
    return method


def trained(
    method: Client,
    t: Task,
    f: Federation,
    message: Tensors,
    state: Tensors | None = None,
    who: int = 2,
    seed: int = 0,
) -> tuple[Tensors, Tensors]:
    """One client's local training: its reply and its next state, without the client axis."""
    state = method.init_client(t, 5) if state is None else state
    plan = planned(method, t, f, [who], seed, int(message["round"]))
    stacked = {name: value[None] for name, value in state.items()}
    reply, after, _ = train_locally(method, t, message, stacked, f.train, plan, single)
    return {n: v[0] for n, v in reply.items()}, {n: v[0] for n, v in after.items()}


def sent(t: Task, round: int = 1, **more: Tensor) -> Tensors:
    """A message of the server."""
    rounds = torch.tensor(ROUNDS)
    return {"w": t.initial, "round": torch.tensor(round), "rounds": rounds, **more}
