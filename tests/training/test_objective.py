"""Objectives of models with BatchNorm: what is measured, and what decays."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from cases import cases
from commonweal.base.tensors import Tensors, stack
from commonweal.clients import Client
from commonweal.task.task import Batch, Task
from commonweal.task.vectorize import Vectorize, single, vmap_clients
from commonweal.training.local import Trained, train_locally
from commonweal.training.objective import At, Custom, Objective, Proximal
from helpers import close, federation, planned

SIZES = {"a": 20, "b": 20, "c": 20}


def normalised() -> Task:
    torch.manual_seed(0)
    layers = (nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    return Task(nn.Sequential(*layers), "cross-entropy")


@dataclass(frozen=True)
class Given(Client):
    """Minimises any objective of w, own and a small vector."""

    given: Objective = field(default=Objective())

    def init_client(self, task: Task, seed: int) -> Tensors:
        return {"own": task.reinitialised(seed).initial}

    def start(self, task: Task, message: Tensors, state: Tensors) -> Tensors:
        return {"w": message["w"], "own": state["own"], "small": torch.ones(2)}

    def objective(self, task: Task, message: Tensors) -> Objective:
        return self.given

    def reply(
        self, task: Task, vectors: Tensors, message: Tensors, state: Tensors, steps: Tensor
    ) -> tuple[Tensors, Tensors]:
        return {"small": vectors["small"]}, {"own": vectors["own"]}


def trained(given: Objective, how: Vectorize, **settings: object) -> Trained:
    f, task = federation(SIZES), normalised()
    keys = {"batch": 5, "epochs": 2, "lr": 0.05, **settings}
    client = Given(given=given, **keys)  # type: ignore[arg-type]
    ids = [0] if how is single else [0, 1, 2]
    plan = planned(client, task, f, ids, round=3)
    message = {"round": torch.tensor(3), "w": task.initial}
    states = stack([client.init_client(task, seed) for seed in ids])
    return train_locally(client, task, message, states, f.train, plan, how)


def loss_of_w(task: Task, vectors: Tensors, batch: Batch) -> Tensor:
    return task.batch_loss(vectors["w"], batch)[0]


def loss_of_own(task: Task, vectors: Tensors, batch: Batch) -> Tensor:
    return task.batch_loss(vectors["own"], batch)[0]


def loss_with_a_small_vector(task: Task, vectors: Tensors, batch: Batch) -> Tensor:
    return loss_of_w(task, vectors, batch) + vectors["small"].square().sum()


OPTIMIZERS = [
    {"weight_decay": 0.1},
    {"weight_decay": 0.1, "momentum": 0.5},
    {"weight_decay": 0.1, "clip": 0.2},
    {"weight_decay": 0.1, "optimizer": "adam", "lr": 0.01},
    {"weight_decay": 0.1, "optimizer": "adamw", "lr": 0.01},
]


@cases("how", [single, vmap_clients])
@cases("settings", OPTIMIZERS)
def test_a_custom_loss_trains_as_the_loss_at_a_point_does(
    how: Vectorize, settings: dict[str, object]
) -> None:
    want = trained(Objective(), how, **settings)
    n = normalised().num_trainable
    assert not torch.equal(
        want.models[:, n:], normalised().initial[n:].expand(len(want.models), -1)
    )
    close(trained(Objective((), custom=Custom(loss_of_w)), how, **settings).models, want.models)
    also_small = Custom(loss_with_a_small_vector, ("w", "small"))
    got = trained(Objective((), custom=also_small), how, **settings | {"clip": None})
    close(got.models, trained(Objective(), how, **settings | {"clip": None}).models)
    assert (got.replies["small"] != 1).all()


@cases("how", [single, vmap_clients])
def test_a_custom_loss_of_another_vector_measures_that_one(how: Vectorize) -> None:
    both = Objective((At("w"), At("own")))
    want = trained(both, how, weight_decay=0.1)
    got = trained(Objective(custom=Custom(loss_of_own, ("own",))), how, weight_decay=0.1)
    close(got.models, want.models)
    close(got.states["own"], want.states["own"])


@cases("how", [single, vmap_clients])
@cases("settings", OPTIMIZERS)
def test_statistics_of_a_vector_without_a_loss_stay(
    how: Vectorize, settings: dict[str, object]
) -> None:
    n = normalised().num_trainable
    near = trained(Objective(proximal=(Proximal("own", 0.5, "received"),)), how, **settings)
    begin = normalised().initial[n:]
    assert torch.equal(near.states["own"][:, n:], begin.expand(len(near.models), -1))
    assert (near.states["own"][:, :n] != normalised().initial[:n]).any()


def test_statistics_that_an_objective_names_are_measured_there() -> None:
    custom = Custom(loss_of_w)
    there = trained(Objective((), custom=custom, statistics=(("w", At("own")),)), single)
    n = normalised().num_trainable
    plain = trained(Objective((), custom=custom), single)
    close(there.models[:, :n], plain.models[:, :n])
    with pytest.raises(AssertionError):
        close(there.models[:, n:], plain.models[:, n:])
