"""Where the first phase trains the last layers only, the others are run once for each sample."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from commonweal.base.tensors import Tensors
from commonweal.clients.fedrep import FedRep
from commonweal.jobs.rounds import Round, run
from commonweal.task.masks import body_mask, head_mask
from commonweal.task.task import Task
from commonweal.task.vectorize import Vectorize, single, vmap_clients
from commonweal.training import head, local
from commonweal.training.batches import BatchSchedule
from commonweal.training.client import Client
from commonweal.training.local import train_locally
from commonweal.training.objective import Phase
from helpers import SHAPES, federation, module, planned

SIZES = {"a": 31, "b": 8, "c": 17}
WHOLE = mock.patch.object(local, "divided", return_value=None)


def trained(task: Task, kind: str = "cnn", **options: Any) -> tuple[Round, int]:
    """The last of two rounds, and how often the layers below the head were run for a group."""
    client = {"name": "fedrep", "batch": 8, "lr": 0.1, "head_epochs": 4}
    settings: dict[str, Any] = {"client": client, "rounds": 2, "seed": 2} | options
    f = federation(SIZES, SHAPES[kind])
    with mock.patch.object(local, "rows_above", side_effect=head.rows_above) as rows_above:
        *_, last = run(task, f, **settings)
    return last, rows_above.call_count


def equal(got: Round, expected: Round) -> None:
    torch.testing.assert_close(got.state["w"], expected.state["w"], rtol=0, atol=1e-6)
    assert got.losses == pytest.approx(expected.losses, abs=1e-5)
    assert got.personal == pytest.approx(expected.personal, abs=1e-6)


@pytest.mark.parametrize("vectorize", ["loop", "vmap"])
@pytest.mark.parametrize("kind", ["cnn", "mlp"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9, "weight_decay": 0.1},
        {"clip": 0.5},
        {"optimizer": "adam", "lr": 0.01},
        {"batch": 0},
    ],
)
def test_the_numbers_are_those_of_the_whole_model(
    options: dict[str, Any], kind: str, vectorize: str
) -> None:
    client = {"name": "fedrep", "batch": 8, "lr": 0.1, "head_epochs": 4} | options
    settings = {"client": client, "vectorize": vectorize}
    got, calls = trained(Task(module(kind)), kind, **settings)
    assert calls >= 2
    with WHOLE:
        expected, none = trained(Task(module(kind)), kind, **settings)
    assert none == 0
    equal(got, expected)


def test_the_last_epochs_of_fedbabu_are_those_of_a_head() -> None:
    client = {"name": "fedbabu", "batch": 8, "lr": 0.1, "tune_epochs": 3}
    got, calls = trained(Task(module("mlp")), "mlp", client=client)
    assert calls > 0
    with WHOLE:
        expected, _ = trained(Task(module("mlp")), "mlp", client=client)
    equal(got, expected)


def normalised() -> Task:
    """Linear, Tanh, LayerNorm, Linear; the head is the last two."""
    torch.manual_seed(0)
    layers = [nn.Linear(36, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 3)]
    return Task(nn.Sequential(nn.Flatten(), *layers))


def test_a_head_may_begin_with_any_layer() -> None:
    client = {"name": "fedrep", "batch": 8, "lr": 0.1, "head": ("3", "4")}
    got, calls = trained(normalised(), client=client)
    assert calls >= 2
    with WHOLE:
        expected, _ = trained(normalised(), client=client)
    equal(got, expected)


@dataclass(frozen=True)
class OwnBody(FedRep):
    """Clients that keep all layers: bodies differ from the second round on."""

    def private(self, task: Task) -> Tensor:
        return torch.ones(task.size, dtype=torch.bool)


def test_bodies_that_differ_are_trained_as_before() -> None:
    client = OwnBody(batch=8, lr=0.1, head_epochs=2)
    got, calls = trained(Task(module("mlp")), "mlp", client=client, vectorize="loop")
    assert calls == len(SIZES)  # in the first round only
    with WHOLE:
        expected, _ = trained(Task(module("mlp")), "mlp", client=client, vectorize="loop")
    equal(got, expected)


class Own(nn.Module):
    """A module of which nothing is known but its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.below = nn.Linear(36, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(self.below(x.flatten(1)).tanh())
        return outputs


def own() -> nn.Module:
    return Own()


def hooked() -> nn.Module:
    """A stack that gives twice what its layers do."""
    stack = nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.Linear(5, 3))
    stack.register_forward_hook(lambda _, inputs, outputs: 2 * outputs)
    return stack


def batchnorm() -> nn.Module:
    """In training, a sample's outputs depend on the others of its batch."""
    return module("cnn-norm")


def dropout() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.Dropout(0.5), nn.Linear(5, 3))


@pytest.mark.parametrize("make", [own, hooked, batchnorm, dropout])
def test_other_models_are_trained_as_before(make: Callable[[], nn.Module]) -> None:
    assert trained(Task(make()))[1] == 0


def test_batches_that_change_are_trained_as_before() -> None:
    f = federation(SIZES, SHAPES["cnn"])
    f = replace(f, train=replace(f.train, transform=lambda x, generator: -x))
    with mock.patch.object(local, "rows_above") as rows_above:
        run(Task(module("cnn")), f, client="fedrep", rounds=1).result()
    assert rows_above.call_count == 0


@dataclass(frozen=True)
class Turns(Client):
    """Head, body, head; a round may end in any of them."""

    personalizes = False

    def phases(self, task: Task) -> tuple[Phase, ...]:
        return (
            Phase(2, head_mask(task)),
            Phase(1, body_mask(task)),
            Phase(1, head_mask(task)),
        )


@pytest.mark.parametrize("steps", [None, 3, 5, 9])
@pytest.mark.parametrize("times", [1, np.array([1, 5, 2])])
def test_clients_take_their_phases_together_as_they_do_one_by_one(
    steps: int | None, times: np.ndarray | int
) -> None:
    """Clients come to the next phase after different numbers of steps."""
    task = Task(module("mlp"))
    f = federation(SIZES)
    client = Turns(batch=8, lr=0.1, momentum=0.5, steps=steps)
    plan = planned(client, task, f, [0, 1, 2], times=times)

    def replies(part: BatchSchedule, vectorize: Vectorize) -> Tensors:
        message = {"w": task.initial, "round": torch.tensor(1)}
        return train_locally(
            client, task, message, {}, f.train, part, vectorize, losses=True
        ).replies

    together = replies(plan, vmap_clients)
    for k in range(3):
        alone = replies(plan.of(np.array([k])), single)
        torch.testing.assert_close(together["update"][k], alone["update"][0], rtol=0, atol=1e-6)
        torch.testing.assert_close(together["train_loss"][k], alone["train_loss"][0])
    with WHOLE:
        whole = replies(plan, vmap_clients)
    torch.testing.assert_close(together["update"], whole["update"], rtol=0, atol=1e-6)
