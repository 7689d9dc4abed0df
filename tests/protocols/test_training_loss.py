"""Which training loss clients report, and when they evaluate the received model for it."""

from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from commonweal.base import randomness
from commonweal.checks.rules import needed_only
from commonweal.checks.samples import sample_reports
from commonweal.clients import Client
from commonweal.data.federation import Federation
from commonweal.engines.simulator import Simulator
from commonweal.jobs.api import rule
from commonweal.jobs.rounds import run
from commonweal.protocols.algorithm import Request
from commonweal.protocols.averaging import Averaging
from commonweal.protocols.servers import SGD
from commonweal.rules import Rule
from commonweal.task.task import Task
from commonweal.training.batches import schedule
from helpers import SHAPES, federation, module

SIZES = {"p": 23, "q": 9, "r": 40}
EVALUATE = "commonweal.protocols.averaging.Averaging.evaluate_received"


def replies(task: Task, f: Federation, client: Client, by: str = "fedavg", **options: Any) -> Any:
    algorithm = Averaging(task, rule(by), client, SGD(), **options)
    engine = Simulator(f, seed=3)
    message = algorithm.ask(algorithm.init(f.population))
    return engine.collect(algorithm, Request(torch.arange(f.clients), message)).values


def by_hand(task: Task, f: Federation, client: Client, k: int) -> float:
    """The mean loss of the samples of the first epoch, by plain SGD of one client."""
    key = f.population.key(k)
    stream = randomness.stream(3, 1, key, randomness.purpose("train"))
    plan = schedule(client, task, f.train, torch.tensor([k]), [stream])
    w = task.initial.clone()
    total = 0.0
    for step in range(min(int(plan.steps_per_epoch[0]), int(plan.steps[0]))):
        index, weight, _ = plan.at(step, 1)
        x, y = f.train.x[index[0]], f.train.y[index[0]]
        leaf = w.clone().requires_grad_()
        loss = torch.nn.functional.cross_entropy(task.outputs(leaf, x), y)
        (grad,) = torch.autograd.grad(loss, leaf)
        total += loss.item() * len(y)
        w = w - client.lr * grad
        assert torch.equal(weight[0], torch.full((len(y),), 1 / len(y)))
    seen = min(len(f.train.client(k).y), int(plan.steps[0]) * int(plan.batch[0]))
    return total / seen


@pytest.mark.parametrize("steps", [None, 2])
@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("kind", ["logistic", "mlp", "cnn"])
def test_the_first_epoch_by_hand(kind: str, epochs: int, steps: int | None) -> None:
    """In closed form and by autograd, for clients of unequal size."""
    task, f = Task(module(kind)), federation(SIZES, SHAPES[kind])
    client = Client(lr=0.2, batch=8, epochs=epochs, steps=steps)
    values = replies(task, f, client)
    assert set(values) == {"update", "train_loss", "size"}
    for k in range(3):
        expected = by_hand(task, f, client, k)
        assert float(values["train_loss"][k]) == pytest.approx(expected, rel=1e-4)


def evaluations(by: str | Rule, **algorithm: Any) -> int:
    """How often the received model is evaluated in a round."""
    f = federation(SIZES)
    parts = {"algorithm": {"name": "averaging", **algorithm}, "client": {"name": "sgd", "batch": 8}}
    real = Averaging.evaluate_received
    with mock.patch(EVALUATE, autospec=True, side_effect=real) as evaluate:
        (done,) = run(Task(module("mlp")), f, rule=by, rounds=1, **parts)  # type: ignore[arg-type]
    assert np.isfinite(done.losses).all()
    return evaluate.call_count


def test_the_received_model_is_evaluated_where_the_rule_uses_it() -> None:
    assert evaluations("fedavg") == evaluations("uniform") == evaluations("fedmgda") == 0
    for name in ("aaggff-s", "adafed", "fedfa", "feddg-ga"):
        assert evaluations(name) == 1, name
    assert evaluations("guarded(rule=fedavg)") == 1
    assert evaluations("fedavg", loss="always") == 1
    assert evaluations("fedavg", loss="batch") == 0


def test_models_do_not_depend_on_it() -> None:
    f, ends = federation(SIZES), []
    for loss in ("full", "always"):
        algorithm = {"name": "averaging", "loss": loss}
        *_, last = run(Task(module("mlp")), f, rounds=3, algorithm=algorithm)
        ends.append(last)
    assert torch.equal(ends[0].state["w"], ends[1].state["w"])
    assert ends[0].losses != ends[1].losses


@pytest.mark.parametrize(
    ("by", "expected"),
    [("fedavg", "first epoch"), ("afl", "received")],
)
def test_the_record_has_the_kind_of_loss(by: str, expected: str) -> None:
    record = run(Task(module("mlp")), federation(SIZES), rule=by, rounds=1).result()
    assert record.facts.training_loss == expected


def test_a_rule_that_hides_its_need_of_losses_is_found() -> None:
    class Hidden(type(rule("term"))):  # type: ignore[misc]
        needs = frozenset({"size"})

    reports = sample_reports(0, 4, 4)
    assert torch.equal(needed_only(reports, rule("fedavg")).losses, torch.ones(4).double())
    weights = [Hidden()(r, {}).weights for r in (reports, needed_only(reports, Hidden()))]
    assert not torch.equal(*weights)
