"""What several tests share: small federations and modules, oracles, the path of the real data."""

import math
import os
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from commonweal.base import randomness
from commonweal.base.randomness import Streams
from commonweal.base.tensors import Tensors
from commonweal.clients import Client
from commonweal.data.federation import Federation
from commonweal.data.rows import Rows
from commonweal.engines.simulator import Simulator
from commonweal.protocols.algorithm import Group, Request
from commonweal.protocols.averaging import Averaging
from commonweal.protocols.servers import SGD, ServerOptimizer
from commonweal.rules import Rule
from commonweal.rules.fedavg import FedAvg
from commonweal.task.task import Task
from commonweal.task.vectorize import single
from commonweal.training.ask import Samples
from commonweal.training.batches import BatchSchedule, schedule
from commonweal.training.client_state import NO_STATE, ClientState

DATA = os.environ.get("COMMONWEAL_DATA")  # some tests change the variable


def data(*names: str) -> Path:
    """The path of a real data file or folder. Skips the test where it is missing."""
    if not DATA:
        pytest.skip("COMMONWEAL_DATA is not set: set it to the folder of the real data")
    path = Path(DATA).joinpath(*names)
    if not path.exists():
        pytest.skip(f"{path} does not exist")
    return path


def close(a: Tensor, b: Tensor, rtol: float = 1e-4, atol: float = 3e-6) -> None:
    """Equal up to the rounding of float32 over a few steps."""
    torch.testing.assert_close(a, b, rtol=rtol, atol=atol, check_dtype=False)


def rows_of(name: str, n: int, shape: tuple[int, ...], classes: int) -> tuple[Tensor, Tensor]:
    """Rows that depend on the client's name only, each class around a centre of its own."""
    rng = np.random.default_rng(randomness.key(name) % (1 << 32))
    y = rng.integers(0, classes, n)
    centres = np.random.default_rng(0).normal(size=(classes, *shape))
    x = centres[y] + rng.normal(size=(n, *shape))
    return torch.from_numpy(x).float(), torch.from_numpy(y)


def federation(
    sizes: dict[str, int],
    shape: tuple[int, ...] = (4,),
    classes: int = 3,
    test: int = 6,
    **what: Any,
) -> Federation:
    """Clients with that many training rows each and `test` test rows."""
    train, held = [], []
    for name, n in sizes.items():
        x, y = rows_of(name, n + test, shape, classes)
        train.append((x[:n], y[:n]))
        held.append((x[n:], y[n:]))
    return Federation(joined(train), joined(held), tuple(sizes), outputs=classes, **what)


def joined(parts: Sequence[tuple[Tensor, Tensor]]) -> Rows:
    offsets = torch.tensor([0, *np.cumsum([len(y) for _, y in parts]).tolist()])
    return Rows(torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]), offsets)


SHAPES: dict[str, tuple[int, ...]] = {
    "logistic": (4,),
    "mlp": (4,),
    "norm": (4,),
    "cnn": (1, 6, 6),
    "cnn-norm": (1, 6, 6),
    "dropout": (4,),
}

LAYERS: dict[str, Callable[[int], list[nn.Module]]] = {
    "logistic": lambda n: [nn.Linear(4, n)],
    "mlp": lambda n: [nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, n)],
    "norm": lambda n: [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, n)],
    "cnn": lambda n: [nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, n)],
    "cnn-norm": lambda n: [
        nn.Conv2d(1, 3, 3),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(48, n),
    ],
    "dropout": lambda n: [nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, n)],
}


def module(kind: str, outputs: int = 3, seed: int = 0) -> nn.Sequential:
    """A small module by kind; its rows have SHAPES[kind]."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(*LAYERS[kind](outputs))


def pieces(m: nn.Module) -> list[Tensor]:
    """Trainable parameters, then buffers: the order of a task's vector."""
    parameters: list[Tensor] = [p for p in m.parameters() if p.requires_grad]
    return parameters + list(m.buffers())


def vector(m: nn.Module) -> Tensor:
    return torch.cat([piece.detach().flatten() for piece in pieces(m)])


def loaded(task: Task, w: Tensor) -> nn.Module:
    """A plain module with the vector's values, filled in piece by piece."""
    m = deepcopy(task.module)
    at = 0
    with torch.no_grad():
        for piece in pieces(m):
            piece.copy_(w[at : at + piece.numel()].view(piece.shape))
            at += piece.numel()
    assert at == len(w)
    return m


def torch_loss(loss: str, outputs: Tensor, y: Tensor) -> Tensor:
    """The mean loss by torch's own functions."""
    if loss == "cross-entropy":
        return nn.functional.cross_entropy(outputs, y)
    if loss == "binary":
        return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], y.float())
    return nn.functional.mse_loss(outputs[:, 0], y)


def torch_optimizer(
    client: Client, parameters: list[nn.Parameter], lr: float
) -> torch.optim.Optimizer:
    decay = client.weight_decay
    betas = (client.beta1, client.beta2)
    if client.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=lr, betas=betas, weight_decay=decay)
    if client.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, betas=betas, weight_decay=decay)
    return torch.optim.SGD(parameters, lr=lr, momentum=client.momentum, weight_decay=decay)


def torch_training(
    task: Task,
    client: Client,
    w: Tensor,
    rows: Rows,
    batches: Sequence[Tensor],
    round: int = 1,
) -> Tensor:
    """Local training by torch.optim on the plain module: the vector after these batches."""
    m = loaded(task, w).train()
    parameters = [p for p in m.parameters() if p.requires_grad]
    lr = client.lr * client.decay ** math.floor((round - 1) / client.decay_every)
    optimizer = torch_optimizer(client, parameters, lr)
    for index in batches:
        optimizer.zero_grad()
        loss = torch_loss(task.loss, m(rows.x[index]), rows.y[index])
        torch.autograd.backward([loss])
        if client.clip is not None:
            nn.utils.clip_grad_norm_(parameters, client.clip)
        optimizer.step()
    return vector(m)


def stream(name: str, seed: int = 0, round: int = 1) -> np.random.Generator:
    return randomness.stream(seed, round, randomness.key(name), randomness.TRAIN)


def group_of(
    rows: Rows,
    name: str,
    position: int = 0,
    states: ClientState = NO_STATE,
    round: int = 1,
    seed: int = 0,
) -> Group:
    """A client of that name that answers alone, from its samples at a position in `rows`."""
    streams = Streams(seed, round, [randomness.key(name)], randomness.TRAIN)
    return Group(torch.tensor([position]), Samples.of(rows), states, streams, single)


def planned(
    client: Client,
    task: Task,
    f: Federation,
    ids: Sequence[int],
    seed: int = 0,
    round: int = 1,
    times: np.ndarray | int = 1,
) -> BatchSchedule:
    streams = [stream(f.names[i], seed, round) for i in ids]
    return schedule(client, task, f.train, torch.tensor(ids), streams, times)


def batches_of(plan: BatchSchedule) -> list[Tensor]:
    """The row numbers of each step of one client's schedule."""
    taken = [plan.at(step, 1) for step in range(int(plan.steps[0]))]
    return [drawn.samples[0][drawn.weight[0] > 0] for drawn in taken]


def averaging(
    task: Task,
    client: Client | None = None,
    rule: Rule | None = None,
    server: ServerOptimizer | None = None,
    **more: Any,
) -> Averaging:
    """Averaging whose clients evaluate the received model with any rule."""
    options = {"loss": "always"} | more
    return Averaging(task, rule or FedAvg(), client or Client(), server or SGD(), **options)


def collected(
    task: Task,
    f: Federation,
    vectorize: str,
    client: Client,
    ids: Sequence[int] | None = None,
    **options: Any,
) -> Tensors:
    """The replies of a cohort to the task's initial model."""
    simulator = Simulator(f, vectorize=vectorize, **options)
    algorithm = averaging(task, client)
    message = algorithm.ask(algorithm.init(f.population))
    cohort = torch.arange(f.clients) if ids is None else torch.tensor(ids)
    return simulator.collect(algorithm, Request(cohort, message)).values


@dataclass(frozen=True)
class Visitor(Client):
    """A client with a state: its number of rounds, the last vector it trained, and its seed."""

    def init_client(self, task: Task, seed: int) -> Tensors:
        last = torch.zeros(task.size)
        return {"visits": torch.tensor(0), "last": last, "own": torch.tensor(seed)}

    def reply(
        self, task: Task, vectors: Tensors, message: Tensors, state: Tensors, steps: Tensor
    ) -> tuple[Tensors, Tensors]:
        w = vectors["w"]
        moved = (w - state["last"]).square().sum()
        after = {"visits": state["visits"] + 1, "last": w, "own": state["own"]}
        return {"visited": state["visits"], "far": moved}, after
