"""The closed form of dense stacks against autograd, and which modules it takes."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from cases import cases
from commonweal.base.tensors import Tensors, merge, put, stack, take
from commonweal.clients import Client
from commonweal.clients.alone import Alone
from commonweal.clients.apfl import APFL
from commonweal.clients.ditto import Ditto
from commonweal.clients.fedbabu import FedBABU
from commonweal.clients.fedper import FedPer
from commonweal.clients.fedprox import FedProx
from commonweal.clients.fedrep import FedRep
from commonweal.clients.lg_fedavg import LGFedAvg
from commonweal.clients.pfedme import PFedMe
from commonweal.clients.propfair import PropFairClient
from commonweal.clients.scaffold import Scaffold
from commonweal.clients.semi_vred import SemiVRedClient
from commonweal.clients.superfed import SuPerFedLM, SuPerFedMM
from commonweal.clients.term import TERMClient
from commonweal.data.federation import Federation
from commonweal.task.masks import head_mask
from commonweal.task.task import Batch, Task
from commonweal.task.vectorize import Vectorize, single, vmap_clients
from commonweal.training import local
from commonweal.training.autograd import AutogradTrainer
from commonweal.training.batches import chunks
from commonweal.training.dense import DenseTrainer, dense_stack
from commonweal.training.local import Trained, train_locally
from commonweal.training.objective import (
    MEAN,
    At,
    Between,
    Custom,
    Objective,
    Phase,
    Proximal,
    Reduction,
)
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


def squared_mean(losses: Tensor, weight: Tensor) -> Tensor:
    return (losses * weight).sum(-1).square()


@cases("reduction", [MEAN, Reduction(squared_mean)])
@cases("loss", ["cross-entropy", "binary", "squared"])
@cases("name", STACKS)
def test_gradients_are_those_of_autograd(name: str, loss: str, reduction: Reduction) -> None:
    task, batch = task_of(name, loss), batch_of(loss)
    stack = dense_stack(task)
    assert stack is not None
    w = torch.stack([task.reinitialised(seed).initial for seed in range(3)])
    flat = batch._replace(inputs=stack.inputs(batch.x))
    by_models = stack.gradients(stack.views(w), flat, reduction)
    at_first = stack.gradients(stack.views(w[0]), flat, reduction)
    for grads, models in ((by_models, w), (at_first, w[:1].expand(3, -1))):
        got = torch.zeros_like(w)
        for layer, x, grad in zip(stack.views(got), *grads[:2], strict=True):
            layer.weight.copy_(grad.mT @ x)
            if layer.bias is not None:
                layer.bias.copy_(grad.sum(1, keepdim=True))
        for k in range(3):
            leaf = models[k].clone().requires_grad_()
            losses, _ = task.row_losses(leaf, Batch(batch.x[k], batch.y[k], batch.weight[k]))
            value = reduction.value(losses, batch.weight[k])
            close(got[k], torch.autograd.grad(value, leaf)[0])


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


@cases("name", OTHERS)
def test_other_modules_are_left_to_autograd(name: str) -> None:
    assert dense_stack(Task(OTHERS[name]())) is None


def test_other_losses_are_left_to_autograd() -> None:
    assert dense_stack(Task(nn.Linear(4, 1), "cox", "concordance")) is None


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


@cases("name", CLIENTS)
def test_training_is_that_of_single_clients(name: str) -> None:
    """Which the loop trains by autograd; chunks of one, of some and of all clients."""
    f, client = federation(SIZES), CLIENTS[name]
    for kind in ("one layer", "nested"):
        task = task_of(kind)
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
    as_bytes = replace(f, train=replace(f.train, inputs=x))
    as_floats = replace(f, train=replace(f.train, inputs=x.float() / 255))
    task, client = task_of("two"), CLIENTS["plain"]
    close(updates(task, client, as_bytes, 1, False), updates(task, client, as_floats, 1, False))


@cases("text", ["110", "0011", "101001", "111", "000"])
def test_parts_of_vectors_are_taken_and_merged_by_runs(text: str) -> None:
    mask = torch.tensor([letter == "1" for letter in text])
    values = torch.randn(2, len(mask))
    assert torch.equal(take(values, mask), values[:, mask])
    own = torch.randn(2, int(mask.sum()))
    want = values.clone()
    want[:, mask] = own
    assert torch.equal(merge(values, own, mask), want)
    assert torch.equal(merge(values[:, ~mask], own, mask), want)
    assert torch.equal(torch.vmap(lambda o: merge(values[0], o, mask))(own)[0], want[0])
    put(values, own, mask)
    assert torch.equal(values, want)
    with pytest.raises(ValueError, match="values for"):
        put(values, torch.zeros(2, own.shape[1] + 1), mask)


@dataclass(frozen=True)
class HeadOnLine(SuPerFedMM):
    """A loss between two models that trains some layers of them only."""

    def phases(self, task: Task) -> tuple[Phase, ...]:
        return (Phase(self.epochs, head_mask(task)),)


@dataclass(frozen=True)
class Given(Client):
    """Minimises any objective of w, own, a mixing coefficient and a constant."""

    given: Objective = field(default=Objective())

    def draws(self, task: Task) -> int:
        return 1

    def init_client(self, task: Task, seed: int) -> Tensors:
        return {"own": task.reinitialised(seed).initial, "a": torch.tensor([0.3])}

    def start(self, task: Task, message: Tensors, state: Tensors) -> Tensors:
        constant = torch.linspace(-1, 1, task.size)
        return {"w": message["w"], "own": state["own"], "a": state["a"], "constant": constant}

    def objective(self, task: Task, message: Tensors) -> Objective:
        return self.given

    def reply(
        self, task: Task, vectors: Tensors, message: Tensors, state: Tensors, steps: Tensor
    ) -> tuple[Tensors, Tensors]:
        return {}, {"own": vectors["own"], "a": vectors["a"]}


def halfway(vectors: Tensors, lr: float) -> Tensors:
    return {"w": vectors["w"].lerp(vectors["own"], lr)}


def absolute(task: Task, vectors: Tensors, batch: Batch) -> Tensor:
    return (vectors["w"] - vectors["received"]).abs().sum() / 10


TILTED = TERMClient(t=2.0).objective(Task(nn.Linear(2, 2)), {}).reduction
BOTH = (At("w"), At("own"))
PULLED = (Proximal("w", 0.3, "constant", "constant"), Proximal("own", 0.2, "received"))
OBJECTIVES: dict[str, Objective] = {
    "two points": Objective(BOTH),
    "own only": Objective((At("own"),)),
    "proximal": Objective(BOTH, proximal=PULLED),
    "linear": Objective(proximal=(Proximal("w", linear="constant"),)),
    "no anchor": Objective(proximal=(Proximal("w", 0.6),)),
    "near the received model": Objective(proximal=(Proximal("w", 0.6, "received"),)),
    "no anchors, linear": Objective(
        BOTH, proximal=(Proximal("w", 0.4, linear="constant"), Proximal("own", 0.3))
    ),
    "between, no anchor": Objective(
        (Between("w", "own", "noise", angle=2.0),), proximal=(Proximal("own", 0.3),)
    ),
    "tilted": Objective(BOTH, TILTED),
    "no derivative": Objective(BOTH, Reduction(squared_mean)),
    "inner steps": Objective(BOTH, steps=3, lr=0.02, after=halfway),
    "between, fixed": Objective((Between("w", "own", 0.3),)),
    "between, by vector": Objective((Between("w", "own", "a"),), TILTED),
    "between, learned": Objective((Between("w", "own", "a", learns=True),)),
    "between, second": Objective((At("w"), Between("w", "own", "noise", first_trains=False))),
    "between, angle": Objective((Between("w", "own", "noise", angle=2.0),), proximal=PULLED),
    "between, all": Objective(
        (Between("w", "own", "a", True, True, 1.0),), TILTED, PULLED, None, (), 2, 0.03, halfway
    ),
    "custom": Objective(custom=Custom(absolute)),
    "custom only": Objective((), custom=Custom(absolute, ("w",))),
    "own term": Objective(proximal=(Proximal("own", 0.2, "w"),)),
    "two betweens": Objective((Between("w", "own", 0.3), Between("own", "w", 0.1))),
    "angle and point": Objective((At("w"), Between("w", "own", 0.3, angle=1.0))),
    "anchor that moves": Objective(BOTH, proximal=(Proximal("own", 0.2, "w"),)),
    "linear term that moves": Objective(BOTH, proximal=(Proximal("own", linear="w"),)),
    "two terms": Objective(proximal=(Proximal("w", 0.2), Proximal("w", 0.1, "constant"))),
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"momentum": 0.5, "weight_decay": 0.1},
    "clip": {"clip": 0.3, "momentum": 0.5},
    "adam": {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.1},
}


METHODS: dict[str, Client] = {
    "fedrep": FedRep(batch=8, head_epochs=3, epochs=2),
    "fedrep with all": FedRep(batch=8, head_epochs=3, momentum=0.8, weight_decay=0.1, lr=0.05),
    "fedrep, lower head": FedRep(batch=8, head_epochs=2, head=("0",)),
    "fedbabu": FedBABU(batch=8, epochs=2),
    "fedper": FedPer(batch=8, momentum=0.5),
    "fedprox": FedProx(batch=8, mu=0.5),
    "fedprox with all": FedProx(batch=8, epochs=2, mu=0.5, momentum=0.5, weight_decay=0.1),
    "fedprox with decay": FedProx(batch=8, epochs=2, mu=0.5, weight_decay=0.1),
    "fedprox, clipped": FedProx(batch=8, epochs=2, mu=0.5, clip=0.1),
    "scaffold": Scaffold(batch=8),
    "scaffold with momentum": Scaffold(batch=8, epochs=2, momentum=0.5, weight_decay=0.1),
    "ditto": Ditto(batch=8, lam=0.5, momentum=0.5),
    "apfl": APFL(batch=8),
    "pfedme": PFedMe(batch=8, inner=3),
    "pfedme with all": PFedMe(batch=8, inner=3, momentum=0.5, weight_decay=0.1, lam=2.0),
    "apfl, fixed": APFL(batch=8, epochs=2, alpha=0.3, adaptive=False),
    "apfl with all": APFL(batch=8, epochs=2, momentum=0.5, weight_decay=0.1),
    "apfl, clipped": APFL(batch=8, clip=0.1),
    "superfed-mm": SuPerFedMM(batch=8, begin=0),
    "superfed-mm with all": SuPerFedMM(
        batch=8, epochs=2, begin=0, mu=0.3, momentum=0.5, weight_decay=0.1
    ),
    "superfed-mm, no penalties": SuPerFedMM(batch=8, begin=0, mu=0.0, nu=0.0),
    "superfed-mm, before": SuPerFedMM(batch=8, begin=5, mu=0.3),
    "superfed-mm, early": SuPerFedMM(batch=8, begin=5, early=True),
    "superfed-mm, clipped": SuPerFedMM(batch=8, begin=0, clip=0.1),
    "superfed-mm, in the head": HeadOnLine(batch=8, begin=0, momentum=0.5),
    "superfed-lm": SuPerFedLM(batch=8, begin=0),
    "superfed-lm with all": SuPerFedLM(
        batch=8, epochs=2, begin=0, mu=0.3, momentum=0.5, weight_decay=0.1
    ),
    "superfed-lm, early": SuPerFedLM(batch=8, begin=5, early=True, momentum=0.5),
    "propfair": PropFairClient(batch=8),
    "propfair, beyond": PropFairClient(batch=8, epochs=2, baseline=0.9, margin=0.3, huber=True),
    "propfair with all": PropFairClient(batch=8, momentum=0.5, weight_decay=0.1),
    "propfair, clipped": PropFairClient(batch=8, clip=0.1),
    "semi-vred": SemiVRedClient(batch=8, epochs=2),
    "term": TERMClient(batch=8, epochs=2, t=2.0),
    "term, untilted": TERMClient(batch=8, t=0.0),
    "term with all": TERMClient(batch=8, t=-1.0, momentum=0.5, weight_decay=0.1),
    "alone": Alone(batch=8, epochs=2),
    "alone with all": Alone(batch=8, momentum=0.5, weight_decay=0.1),
    "lg-fedavg": LGFedAvg(batch=8, epochs=2),
    "lg-fedavg, two runs": LGFedAvg(batch=8, lower=("0.1", "1.0")),
}


@cases("name", METHODS)
def test_methods_in_groups_are_those_of_single_clients(name: str) -> None:
    """Epochs begin at other steps for each client, as their sizes differ."""
    f, task, client = federation(SIZES), task_of("nested"), METHODS[name]
    message = {
        "round": torch.tensor(3),
        "rounds": torch.tensor(9),
        "w": task.reinitialised(9).initial,
    }
    message |= {n: torch.randn_like(v) / 9 for n, v in client.init_shared(task).items()}
    each = [client.init_client(task, seed) for seed in range(f.clients)]

    def trained(
        ids: list[int], how: Vectorize, at_once: int | None = None, models: bool = True
    ) -> Trained:
        plan = planned(client, task, f, ids, round=3)
        states = stack([each[k] for k in ids])
        return train_locally(client, task, message, states, f.train, plan, how, at_once, models)

    one = task.size + 8 * task.width(f.train.x)
    alone = [trained([k], single) for k in range(f.clients)]
    for at_once, models in itertools.product((None, 2 * one), (True, False)):
        together = trained(list(range(f.clients)), vmap_clients, at_once, models)
        for k in range(f.clients):
            for got, want in zip(together[:2], alone[k][:2], strict=True):
                assert set(got) == set(want)
                for value in got:
                    close(got[value][k], want[value][0], rtol=1e-4, atol=1e-6)


def both_trainers(client: Client, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Compare what the closed form and autograd give for a group; whether both were used."""
    f, task = federation(SIZES), task_of("nested")
    message = {
        "round": torch.tensor(3),
        "rounds": torch.tensor(9),
        "w": task.reinitialised(9).initial,
    }
    message |= {n: torch.randn_like(v) / 9 for n, v in client.init_shared(task).items()}
    states = stack([client.init_client(task, seed) for seed in range(f.clients)])
    plan = planned(client, task, f, list(range(f.clients)), round=3)
    autograd = Mock(wraps=AutogradTrainer)
    monkeypatch.setattr(local, "AutogradTrainer", autograd)

    def trained() -> Trained:
        return train_locally(client, task, message, states, f.train, plan, vmap_clients)

    chosen = trained()
    is_dense = not autograd.called
    monkeypatch.setattr(DenseTrainer, "of", lambda *_: None)
    reference = trained()
    for values, others in zip(chosen[:2], reference[:2], strict=True):
        assert values.keys() == others.keys()
        for name, value in values.items():
            close(value, others[name], rtol=1e-4, atol=2e-6)
    for k in range(f.clients):  # one client after the other
        own = planned(client, task, f, [k], round=3)
        state = {name: value[k : k + 1] for name, value in states.items()}
        one = train_locally(client, task, message, state, f.train, own, single)
        for values, others in zip(chosen[:2], one[:2], strict=True):
            for name, value in values.items():
                close(value[k], others[name][0], rtol=1e-4, atol=2e-6)
    assert not torch.equal(chosen.models, task.initial.expand_as(chosen.models))
    return is_dense


# What the closed form leaves to autograd.
BY_AUTOGRAD = {"superfed-mm, clipped", "superfed-mm, in the head"}
DECLINED = {"custom", "custom only", "own term", "two betweens"}
DECLINED |= {"angle and point", "anchor that moves", "linear term that moves", "two terms"}


@pytest.mark.parametrize("name", METHODS)
def test_both_trainers_agree_on_every_method(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert both_trainers(METHODS[name], monkeypatch) == (name not in BY_AUTOGRAD)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_both_trainers_agree_on_every_field_of_an_objective(
    name: str, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"batch": 8, "epochs": 1.5, "lr": 0.05} | OPTIMIZERS[optimizer]
    client = Given(given=OBJECTIVES[name], **settings)
    angle = any(isinstance(p, Between) and p.angle for p in client.given.at)
    declined = name in DECLINED or (angle and optimizer in ("clip", "adam"))
    assert both_trainers(client, monkeypatch) != declined


@cases("how", [single, vmap_clients, None])
@cases("settings", [{}, {"momentum": 0.5}, {"weight_decay": 0.2}])
def test_a_proximal_term_without_an_anchor_decays_to_zero(
    how: Vectorize | None, settings: dict[str, Any]
) -> None:
    """Against torch's SGD, whose weight decay is the gradient of strength/2 |v|^2."""
    f, strength = federation(SIZES), 0.7
    task = task_of("two") if how is None else Task(Doubled(nn.Linear(4, 3)), "cross-entropy")
    client = Given(
        given=Objective(proximal=(Proximal("w", strength),)), batch=0, epochs=4, lr=0.1, **settings
    )
    ids = [2] if how is single else [0, 1, 2]
    plan = planned(client, task, f, ids, round=1)
    message = {"round": torch.tensor(1), "w": task.initial + 0.5}
    states = stack([client.init_client(task, seed) for seed in ids])
    vectorize = vmap_clients if how is None else how
    trained = train_locally(client, task, message, states, f.train, plan, vectorize)
    rows = f.train.client(2)
    w = (task.initial + 0.5).requires_grad_()
    decay = strength + settings.get("weight_decay", 0.0)
    sgd = torch.optim.SGD([w], 0.1, settings.get("momentum", 0.0), weight_decay=decay)
    for _ in range(4):
        sgd.zero_grad()
        outputs = torch.func.functional_call(task.module, task.tensors(w), (rows.x,))
        loss = nn.functional.cross_entropy(outputs, rows.y)
        (w.grad,) = torch.autograd.grad(loss, w)
        sgd.step()
    close(trained.models[-1], w.detach(), rtol=1e-4, atol=1e-6)


def test_every_field_of_an_objective_is_compared() -> None:
    parts: list[Any] = list(OBJECTIVES.values())
    for objective in OBJECTIVES.values():
        parts += [*objective.at, *objective.proximal]
    for kind, default in (
        (Objective, Objective()),
        (At, At()),
        (Between, Between("w", "own", 0.3)),
        (Proximal, Proximal("w")),
    ):
        used = [part for part in parts if type(part) is kind]
        for name in kind._fields:
            if (kind, name) != (Objective, "statistics"):  # of BatchNorm: never a dense stack
                assert any(getattr(part, name) != getattr(default, name) for part in used), name
