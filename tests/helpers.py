"""What several tests share: tiny federations and modules, brute-force oracles, and the paths of the real data."""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from commonweal import randomness
from commonweal.algorithm import Averaging
from commonweal.engines.simulator import Simulator
from commonweal.federation import Federation, Rows
from commonweal.local import Local, Plan, Tensors, plan
from commonweal.rules.fedavg import FedAvg
from commonweal.server import SGD
from commonweal.task import Task

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def data(*names: str) -> Path:
    """The path of a real data file or folder; the test that asks is skipped where it is not at hand."""
    path = DATA.joinpath(*names)
    if not path.exists():
        pytest.skip(f"{path} is not there")
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
    sizes: dict[str, int], shape: tuple[int, ...] = (4,), classes: int = 3, test: int = 6, **what: object
) -> Federation:
    """Clients with that many training rows each and `test` test rows."""
    parts = {name: rows_of(name, n + test, shape, classes) for name, n in sizes.items()}
    train = joined([(x[: sizes[name]], y[: sizes[name]]) for name, (x, y) in parts.items()])
    held = joined([(x[sizes[name] :], y[sizes[name] :]) for name, (x, y) in parts.items()])
    return Federation(train, held, tuple(sizes), outputs=classes, **what)  # type: ignore[arg-type]


def joined(parts: Sequence[tuple[Tensor, Tensor]]) -> Rows:
    offsets = torch.tensor([0, *np.cumsum([len(y) for _, y in parts]).tolist()])
    return Rows(torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]), offsets)


SHAPES: dict[str, tuple[int, ...]] = {"logistic": (4,), "mlp": (4,), "norm": (4,), "cnn": (1, 6, 6)}
SHAPES |= {"cnn-norm": (1, 6, 6), "dropout": (4,)}


def module(kind: str, outputs: int = 3, seed: int = 0) -> nn.Module:
    """A small module by kind; its rows have SHAPES[kind]."""
    layers = {
        "logistic": lambda: [nn.Linear(4, outputs)],
        "mlp": lambda: [nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, outputs)],
        "norm": lambda: [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, outputs)],
        "cnn": lambda: [nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, outputs)],
        "cnn-norm": lambda: [
            nn.Conv2d(1, 3, 3),
            nn.BatchNorm2d(3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(48, outputs),
        ],
        "dropout": lambda: [nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, outputs)],
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(*layers[kind]())


def vector(m: nn.Module) -> Tensor:
    """A module's trained parameters and then its floating-point buffers: the order that Task promises."""
    pieces = [p.detach() for p in m.parameters() if p.requires_grad]
    return torch.cat([p.flatten() for p in [*pieces, *(b for b in m.buffers() if b.is_floating_point())]])


def loaded(task: Task, w: Tensor) -> nn.Module:
    """A plain module with the vector's values, filled in piece by piece."""
    m, at = deepcopy(task.module), 0
    with torch.no_grad():
        for p in [*(p for p in m.parameters() if p.requires_grad), *(b for b in m.buffers() if b.is_floating_point())]:
            p.copy_(w[at : at + p.numel()].view(p.shape))
            at += p.numel()
    assert at == len(w)
    return m


def torch_loss(criterion: str, outputs: Tensor, y: Tensor) -> Tensor:
    """The mean loss by torch's own functions."""
    if criterion == "cross-entropy":
        return nn.functional.cross_entropy(outputs, y)
    if criterion == "binary":
        return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], y.float())
    return nn.functional.mse_loss(outputs[:, 0], y)


def torch_sgd(task: Task, local: Local, w: Tensor, rows: Rows, batches: Sequence[Tensor], round: int = 1) -> Tensor:
    """A client's visit by torch.optim.SGD on the plain module: the vector after these batches."""
    m = loaded(task, w).train()
    trained = [p for p in m.parameters() if p.requires_grad]
    rate = local.lr * local.decay ** math.floor((round - 1) / local.decay_every)
    optimiser = torch.optim.SGD(trained, lr=rate, momentum=local.momentum, weight_decay=local.weight_decay)
    for index in batches:
        optimiser.zero_grad()
        torch_loss(task.criterion, m(rows.x[index]), rows.y[index]).backward()
        if local.clip is not None:
            nn.utils.clip_grad_norm_(trained, local.clip)
        optimiser.step()
    return vector(m)


def stream(name: str, seed: int = 0, round: int = 1) -> np.random.Generator:
    return randomness.stream(seed, round, randomness.key(name), randomness.TRAIN)


def planned(local: Local, task: Task, f: Federation, ids: Sequence[int], seed: int = 0, round: int = 1) -> Plan:
    streams = [stream(f.names[i], seed, round) for i in ids]
    return plan(local, task, f.train, torch.tensor(ids), streams)


def batches_of(p: Plan) -> list[Tensor]:
    """The row numbers of each step of a plan of one client."""
    taken = [p.at(t, 1)[:2] for t in range(int(p.steps[0]))]
    return [rows[0][share[0] > 0] for rows, share in taken]


def averaging(local: Local | None = None, rule: object = None, step: object = None) -> Averaging:
    return Averaging(rule or FedAvg(), local or Local(), step or SGD())  # type: ignore[arg-type]


def collected(
    task: Task, f: Federation, mode: str, local: Local, ids: Sequence[int] | None = None, **how: object
) -> Tensors:
    """The replies of a cohort to the task's initial model."""
    simulator = Simulator(task, f, mode, **how)  # type: ignore[arg-type]
    algorithm = averaging(local)
    seen = algorithm.ask(algorithm.init(task, f.clients))
    return simulator.collect(algorithm, seen, torch.arange(f.clients) if ids is None else torch.tensor(ids), 0)


@dataclass(frozen=True)
class Visitor(Local):
    """A client with a memory: how often it was visited, the last vector it trained, and a number of its own."""

    def keep(self, task: Task, seed: int) -> Tensors:
        return {"visits": torch.tensor(0), "last": torch.zeros(task.size), "own": torch.tensor(seed)}

    def reply(self, task: Task, v: Tensors, seen: Tensors, kept: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        update, _ = super().reply(task, v, seen, kept, steps)
        told = {"visited": kept["visits"], "far": (v["w"] - kept["last"]).square().sum()}
        return update | told, {"visits": kept["visits"] + 1, "last": v["w"], "own": kept["own"]}
