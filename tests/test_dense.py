"""The closed form of dense stacks against autograd, and which modules it takes."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from commonweal.clients import Client
from commonweal.dense import dense_task
from commonweal.federation import Federation
from commonweal.task import Batch, Task
from commonweal.training import chunks, single, train_locally, vmap_clients
from helpers import close, federation, planned

SIZES = {"a": 5, "b": 20, "c": 57, "d": 41, "e": 20}
STACKS: dict[str, Callable[[int], nn.Module]] = {
    "one layer": lambda outputs: nn.Linear(4, outputs),
    "flat": lambda outputs: nn.Sequential(nn.Flatten(), nn.Linear(4, outputs)),
    "two": lambda outputs: nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, outputs)),
    "no bias": lambda outputs: nn.Sequential(
        nn.Linear(4, 7, bias=False), nn.ReLU(), nn.Linear(7, outputs, bias=False)
    ),
    "nested": lambda outputs: nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.Linear(6, 5), nn.ReLU()),
        nn.Sequential(nn.Linear(5, 3), nn.ReLU()),
        nn.Linear(3, outputs),
    ),
}


def task_of(name: str, loss: str = "cross-entropy") -> Task:
    torch.manual_seed(0)
    target = (0.3, 1.7) if loss == "squared" else None
    return Task(STACKS[name](3 if loss == "cross-entropy" else 1), loss, target=target)


def batch_of(loss: str, rows: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, rows, 4, generator=generator)
    y = torch.randint(0, 3 if loss == "cross-entropy" else 2, (3, rows), generator=generator)
    weight = torch.rand(3, rows, generator=generator)
    weight[1, -2:] = 0  # padding
    return Batch(x, y.float() * 1.5 if loss == "squared" else y, weight)


@pytest.mark.parametrize("loss", ["cross-entropy", "binary", "squared"])
@pytest.mark.parametrize("name", STACKS)
def test_losses_and_gradients_are_those_of_autograd(name: str, loss: str) -> None:
    task, batch = task_of(name, loss), batch_of(loss)
    dense = dense_task(task)
    assert dense is not None
    w = torch.stack([task.reinitialised(seed) for seed in range(3)]).requires_grad_()
    factors = torch.tensor([1.0, 2.0, -0.5])
    for factor in (torch.ones(3), factors):
        losses, buffers = dense.batch_loss(w, batch)
        assert buffers.shape == (3, 0)
        (grads,) = torch.autograd.grad((losses * factor).sum(), w)
        for k in range(3):
            leaf = w[k].detach().requires_grad_()
            want, _ = task.batch_loss(leaf, Batch(*(part[k] for part in batch)))
            close(losses[k], want)
            close(grads[k], torch.autograd.grad(want * factor[k], leaf)[0])


class Doubled(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        doubled: Tensor = 2 * self[0](x)
        return doubled


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    next(module.parameters()).requires_grad_(False)
    return module


def tied() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    module[0].register_forward_hook(lambda _module, _inputs, output: 2 * output)
    return module


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "own forward": lambda: Doubled(nn.Linear(4, 4)),
    "frozen": frozen,
    "tied": tied,
    "hook": hooked,
    "weight norm": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))),
    "normalised": lambda: nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 3)),
    "dropout": lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 3)),
    "ends in ReLU": lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU()),
    "begins with ReLU": lambda: nn.Sequential(nn.ReLU(), nn.Linear(4, 3)),
    "flat later": lambda: nn.Sequential(nn.Linear(4, 3), nn.Flatten()),
    "flat by half": lambda: nn.Sequential(nn.Flatten(2), nn.Linear(4, 3)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_modules_are_left_to_autograd(name: str) -> None:
    assert dense_task(Task(OTHERS[name]())) is None


def test_other_losses_are_left_to_autograd() -> None:
    assert dense_task(Task(nn.Linear(4, 1), "cox", "concordance")) is None


CLIENTS = {
    "plain": Client(batch=8, epochs=2),
    "one step": Client(batch=0),
    "steps": Client(steps=7, batch=8),
    "decay": Client(batch=8, weight_decay=0.1),
    "momentum": Client(batch=8, epochs=2, momentum=0.9, lr=0.05),
    "both": Client(batch=8, epochs=2, momentum=0.8, weight_decay=0.1, lr=0.05),
    "clip": Client(batch=8, clip=0.3),
    "adam": Client(batch=8, lr=0.01, optimizer="adam"),
}


def updates(task: Task, client: Client, f: Federation, at_once: int, models: bool) -> Tensor:
    plan = planned(client, task, f, list(range(f.clients)), round=3)
    message = {"w": task.initial, "round": torch.tensor(3)}
    trained = train_locally(
        client, task, message, {}, f.train, plan, vmap_clients, at_once, models=models
    )
    return trained.replies["update"]


@pytest.mark.parametrize("name", CLIENTS)
def test_training_is_that_of_single_clients(name: str) -> None:
    """Which the loop trains by autograd; chunks of one, of some and of all clients."""
    f, client = federation(SIZES), CLIENTS[name]
    for stack in ("one layer", "nested"):
        task = task_of(stack)
        one = task.size + 8 * task.width(f.train.x)
        for at_once in (1, 2 * one, 1 << 30):
            for models in (False, True):
                got = updates(task, client, f, at_once, models)
                again = updates(task, client, f, at_once, models)
                assert torch.equal(got, again)
                for k in range(f.clients):
                    plan = planned(client, task, f, [k], round=3)
                    message = {"w": task.initial, "round": torch.tensor(3)}
                    want = train_locally(client, task, message, {}, f.train, plan, single)
                    close(got[k], want.replies["update"][0], rtol=1e-4, atol=1e-6)


def test_chunks_come_by_size_and_leave_nobody_out() -> None:
    f, task = federation(SIZES), task_of("two")
    plan = planned(Client(batch=8), task, f, list(range(5)))
    one = task.size + 8 * task.width(f.train.x)
    parts = chunks(task, f.train, plan, 2 * one)
    assert [part.tolist() for part in parts] == [[2, 3], [1, 4], [0]]


def test_bytes_are_images_here_too() -> None:
    f = federation(SIZES)
    x = (f.train.x * 40 + 100).clamp(0, 255).byte()
    as_bytes = replace(f, train=replace(f.train, x=x))
    as_floats = replace(f, train=replace(f.train, x=x.float() / 255))
    task, client = task_of("two"), CLIENTS["plain"]
    close(updates(task, client, as_bytes, 1, False), updates(task, client, as_floats, 1, False))
