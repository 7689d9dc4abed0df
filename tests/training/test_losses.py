"""Losses by name, weights of classes and logarithmic targets, against other computations."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import poisson
from sklearn.linear_model import LogisticRegression, PoissonRegressor
from sklearn.utils.class_weight import compute_class_weight
from torch import nn

import commonweal
from commonweal.base.errors import CommonwealError
from commonweal.config.experiment import Experiment
from commonweal.data.federation import Federation
from commonweal.jobs.job import job_from_experiment
from commonweal.task.losses import LOSSES
from commonweal.task.task import Batch, Task
from commonweal.training.dense import dense_stack
from commonweal.training.objective import MEAN

LR = {"name": "sgd", "lr": 0.5, "batch": 0, "epochs": 5}


def test_losses_are_those_of_torch_and_scipy() -> None:
    rng = torch.Generator().manual_seed(0)
    outputs, y = torch.randn(50, 1, generator=rng), torch.randn(50, generator=rng)
    for name, function in (("huber", nn.HuberLoss), ("absolute", nn.L1Loss)):
        expected = function(reduction="none")(outputs[:, 0], y)
        assert torch.allclose(LOSSES[name](outputs, y), expected)
    counts = np.arange(50.0) % 7
    half = LOSSES["poisson"](outputs.double(), torch.from_numpy(counts))
    best = poisson.logpmf(counts, np.maximum(counts, 1e-300))
    likelihood = poisson.logpmf(counts, outputs[:, 0].double().exp().numpy())
    assert half.numpy() == pytest.approx(best - likelihood, abs=1e-9)
    assert bool((half >= 0).all())


@pytest.mark.parametrize("loss", ["squared", "huber", "absolute", "poisson", "cross-entropy"])
def test_derivatives_in_closed_form_are_those_of_autograd(loss: str) -> None:
    """With weights of classes where there are classes."""
    torch.manual_seed(1)
    width = 3 if loss == "cross-entropy" else 1
    weight = (0.5, 2.0, 3.0) if width == 3 else None
    task = Task(nn.Linear(4, width), loss, class_weight=weight)
    y = torch.randint(3, (2, 6)) if width == 3 else torch.rand(2, 6) * 3
    outputs = torch.randn(2, 6, width, requires_grad=True)
    factors = torch.rand(2, 6)
    losses = task.losses(outputs.flatten(0, 1), y.flatten()).view(2, 6)
    (expected,) = torch.autograd.grad((losses * factors).sum(), outputs)
    stack = dense_stack(task)
    assert stack is not None
    batch = Batch(torch.zeros(2, 6, 4), y, factors)
    found = stack.output_gradients(outputs.detach(), batch, MEAN)
    assert torch.allclose(found, expected, atol=1e-6)


def federation(y: np.ndarray, x: np.ndarray) -> Federation:
    return Federation.from_arrays(x, y, np.arange(len(y)) % 4, test=0.25)


def rows(n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2)).astype(np.float32)
    return x, x @ np.array([0.8, -0.5]) + 1.0


def trained(data: Federation, outputs: int = 1, rounds: int = 60, **settings: Any) -> Any:
    torch.manual_seed(0)
    task = Task(nn.Linear(2, outputs))
    *_, last = commonweal.run(task, data, client=LR, rounds=rounds, **settings)
    return last


def test_poisson_regression_is_that_of_scikit_learn() -> None:
    x, signal = rows()
    y = np.random.default_rng(1).poisson(np.exp(signal)).astype(np.float32)
    data = federation(y, x)
    last = trained(data, loss="poisson", score="mae")
    other = PoissonRegressor(alpha=0).fit(data.train.x.numpy(), data.train.y.numpy())
    with torch.no_grad():
        found = last.module()(data.test.x)[:, 0].numpy()
    assert found == pytest.approx(other.predict(data.test.x.numpy()), rel=0.03)


def test_a_skewed_target_is_learnt_by_its_logarithm() -> None:
    x, signal = rows()
    y = np.exp(3 * signal - 12).astype(np.float32)
    log = trained(federation(y, x), target="log", score="r2")
    with torch.no_grad():
        found = log.module()(torch.from_numpy(x))[:, 0].numpy()
    assert found == pytest.approx(y, rel=0.05)
    assert log.metrics["mean"] > 0.99
    with pytest.raises(CommonwealError, match="labels above 0, but one is -"):
        trained(federation(y - 1, x), target="log")
    with pytest.raises(CommonwealError, match="is for counts"):
        trained(federation(y - 1, x), loss="poisson")


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    x, signal = rows(1200)
    y = (np.random.default_rng(2).random(1200) < 1 / (1 + np.exp(3.5 - 2 * signal))).astype(int)
    data = federation(y, x)
    last = trained(data, 2, class_weight="balanced", score=("balanced-accuracy", "f1"))
    classes = np.array([0, 1])
    expected = compute_class_weight("balanced", classes=classes, y=data.train.y.numpy())
    assert last.job.task.class_weight == pytest.approx(tuple(expected))
    other = LogisticRegression(C=1e6, class_weight="balanced").fit(
        data.train.x.numpy(), data.train.y.numpy()
    )
    with torch.no_grad():
        found = last.module()(data.test.x).softmax(1)[:, 1].numpy()
    assert found == pytest.approx(other.predict_proba(data.test.x.numpy())[:, 1], abs=0.02)
    plain = trained(data, 2, score=("balanced-accuracy", "f1"))
    assert last.metrics["mean"] > plain.metrics["mean"] + 0.05


def test_keys_of_an_experiment(tmp_path: Path) -> None:
    lines = ["client,x,label"] + [
        f"{i % 3},{i % 7},{'yes' if i % 6 == 0 else 'no'}" for i in range(90)
    ]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    part = {"name": "table", "path": str(tmp_path / "t.csv")}
    for given, weights in (
        ("balanced", (0.6, 3.0)),
        ({"yes": 5}, (1.0, 5.0)),
        ([1, 2.5], (1.0, 2.5)),
    ):
        job = job_from_experiment(Experiment(dataset=part, class_weight=given))
        assert job.task.class_weight == pytest.approx(weights, rel=0.02)
    for settings, words in (
        ({"class_weight": {"ja": 2}}, "names 'ja', which is no class"),
        ({"class_weight": [1]}, "has 1 numbers for 2 classes"),
        ({"class_weight": "heavy"}, "give 'balanced', a list"),
        ({"loss": "huber"}, "is for regression"),
        ({"target": "log"}, "is for regression"),
    ):
        with pytest.raises(CommonwealError, match=words):
            job_from_experiment(Experiment(dataset=part, **settings))
