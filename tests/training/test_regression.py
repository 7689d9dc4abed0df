"""Regression in the target's own units, scores with a direction, and runs that diverge."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    f1_score,
    mean_absolute_error,
    root_mean_squared_error,
)
from torch import Tensor, nn

from commonweal import metrics
from commonweal.base.errors import DivergedError
from commonweal.data.federation import Federation
from commonweal.jobs.reopening import reopen
from commonweal.jobs.rounds import run
from commonweal.record.record import Record
from commonweal.task.scores import find_score, undefined
from commonweal.task.task import Task

SIZES = (30, 12, 5)
OFFSETS = [0, *np.cumsum(SIZES).tolist()]


def by_client(name: str, outputs: Tensor, y: Tensor) -> list[float]:
    chosen = find_score(name)
    values: list[float] = chosen.reduce(
        chosen.row_stats(outputs, y), torch.tensor(OFFSETS)
    ).tolist()
    return values


def parts(*arrays: Tensor) -> list[tuple[np.ndarray, ...]]:
    return [tuple(array.numpy()[a:b] for array in arrays) for a, b in pairwise(OFFSETS)]


@pytest.fixture
def classes() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(47, 4, generator=generator).round(decimals=1)
    return outputs, torch.randint(4, (47,), generator=generator)


# Scores against scikit-learn


@pytest.mark.filterwarnings("ignore:y_pred contains classes")
def test_balanced_accuracy_and_f1_against_scikit_learn(classes: tuple[Tensor, Tensor]) -> None:
    outputs, y = classes
    predicted = outputs.argmax(1)
    want = [balanced_accuracy_score(t, p) for t, p in parts(y, predicted)]
    assert by_client("balanced-accuracy", outputs, y) == pytest.approx(want)
    want = [f1_score(t, p, average="macro") for t, p in parts(y, predicted)]
    assert by_client("f1", outputs, y) == pytest.approx(want)


@pytest.mark.parametrize("width", [1, 2])
def test_f1_and_average_precision_of_two_classes_against_scikit_learn(width: int) -> None:
    generator = torch.Generator().manual_seed(1)
    outputs = torch.randn(47, width, generator=generator).round(decimals=1)
    y = torch.randint(2, (47,), generator=generator)
    margin = outputs[:, 0] if width == 1 else outputs[:, 1] - outputs[:, 0]
    predicted = (margin > 0).long()
    want = [f1_score(t, p) for t, p in parts(y, predicted)]
    assert by_client("f1", outputs, y) == pytest.approx(want)
    want = [average_precision_score(t, m) for t, m in parts(y, margin.double())]
    assert by_client("auprc", outputs, y) == pytest.approx(want)


def test_errors_are_positive_and_in_units() -> None:
    generator = torch.Generator().manual_seed(2)
    y = 29 + 10 * torch.randn(47, generator=generator)
    outputs = y[:, None] + torch.randn(47, 1, generator=generator)
    want = [mean_absolute_error(t, o[:, 0]) for t, o in parts(y, outputs)]
    assert by_client("mae", outputs, y) == pytest.approx(want, rel=1e-5)
    want = [root_mean_squared_error(t, o[:, 0]) for t, o in parts(y, outputs)]
    assert by_client("rmse", outputs, y) == pytest.approx(want, rel=1e-5)


def test_r2_divides_by_one_variance_for_all() -> None:
    """A client whose labels hardly change has the error of the others, and so their R^2."""
    generator = torch.Generator().manual_seed(3)
    y = torch.cat([torch.full((30,), 5.0), 10 * torch.randn(17, generator=generator)])
    outputs = y[:, None] + 1
    pooled = y.double().numpy().var()
    score = find_score("r2-pooled", float(pooled))
    got = score.reduce(score.row_stats(outputs, y), torch.tensor(OFFSETS)).tolist()
    assert got == pytest.approx([1 - 1 / pooled] * 3, rel=1e-6)
    assert undefined("r2-pooled", y, torch.tensor(OFFSETS)) == []
    assert undefined("r2", y, torch.tensor(OFFSETS)) == [0]


def test_clients_without_a_positive_row_have_no_f1_or_average_precision() -> None:
    y = torch.tensor([0, 0, 1, 0, 1])
    for name in ("f1", "auprc"):
        assert undefined(name, y, torch.tensor([0, 2, 5])) == [0]


def test_the_worst_error_is_the_highest() -> None:
    errors = [3.0, 1.0, 2.0]
    found = metrics.summary(errors, lower_is_better=True)
    assert (found["worst"], found["best"], found["gap"]) == (3.0, 1.0, 2.0)
    assert metrics.worst(errors, 0.67, lower_is_better=True) == 2.5
    changed = metrics.against([1.0, 3.0], [1.5, 2.0], lower_is_better=True)
    assert changed == metrics.Against(1.0, -1.0, 1.0, 0.5)


def test_wilson_against_the_quadratic_it_solves() -> None:
    """The bounds are the shares p with |share - p| = 1.96 sqrt(p (1 - p) / n)."""
    for share, rows in ((0.0, 3), (0.4, 10), (0.97, 300), (1.0, 1)):
        for p in metrics.wilson(share, rows):
            distance = 1.959963984540054 * np.sqrt(p * (1 - p) / rows)
            assert abs(share - p) == pytest.approx(distance, abs=1e-9)


def test_two_equal_differences_prove_nothing() -> None:
    assert not metrics.paired([0.5, 0.6], [0.4, 0.5]).significant


# Training on a raw target


def raw(mean: float = 29.0, deviation: float = 10.0, noise: float = 0.1) -> Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4)).astype(np.float32)
    signal = x @ np.array([0.6, -0.5, 0.4, 0.3]) + noise * rng.normal(size=300)
    y = mean + deviation * signal
    return Federation.from_arrays(x, y.astype(np.float32), np.arange(300) % 5)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))


def trained(federation: Federation, scores: Sequence[str]) -> dict[str, float]:
    task = Task(mlp(), "squared", scores[0])
    done = list(run(task, federation, score=list(scores), rounds=30, evaluate_every=30))
    last = done[-1]
    return {scores[0]: last.metrics["mean"]} | {n: m["mean"] for n, m in last.more.items()}


def test_a_raw_target_is_learned_with_the_default_learning_rate() -> None:
    found = trained(raw(), ["r2", "mae", "rmse"])
    assert found["r2"] > 0.9
    assert 0 < found["mae"] < found["rmse"] < 4  # the deviation is 10


def test_the_units_of_the_target_change_nothing_but_the_units() -> None:
    small = trained(raw(0.0, 1.0), ["r2", "mae"])
    large = trained(raw(-500.0, 1000.0), ["r2", "mae"])
    assert large["r2"] == pytest.approx(small["r2"], abs=1e-3)
    assert large["mae"] == pytest.approx(1000 * small["mae"], rel=1e-2)


def test_saved_and_returned_models_give_units(tmp_path: Path) -> None:
    federation = raw()
    task = Task(mlp(), "squared", "mae")
    *_, last = run(task, federation, rounds=5, out=tmp_path / "r")
    module = last.module()
    x, y = federation.test.x, federation.test.y
    with torch.no_grad():
        predicted = module(x)[:, 0]
    assert last.evaluation is not None
    first = federation.test.client(0)
    error = (predicted[: len(first.y)] - first.y).abs().mean()
    assert float(error) == pytest.approx(float(last.evaluation.score[0]), rel=1e-5)
    job, state = reopen(tmp_path / "r", task, federation)
    again = job.task.outputs(job.algorithm.model(state), x)[:, 0]
    assert torch.allclose(again, predicted, atol=1e-4)
    scale = Record.read(tmp_path / "r").facts.target
    assert scale is not None
    assert scale.mean == pytest.approx(float(federation.train.y.mean()), rel=1e-5)
    assert abs(float(predicted.mean()) - float(y.mean())) < 5


def test_a_constant_target_is_not_scaled() -> None:
    federation = Federation.from_arrays(np.zeros((8, 4)), np.full(8, 3.0), np.arange(8) % 2)
    assert federation.target is None
    assert raw().target == pytest.approx((29.0, 10 * 0.93), rel=0.1)


# Divergence


def test_a_run_that_diverges_names_the_round_and_the_remedy() -> None:
    task = Task(mlp(), "squared", "r2")
    with pytest.raises(DivergedError, match=r"diverged in round 1: lower client.lr, now 1e\+10"):
        list(run(task, raw(), client={"name": "sgd", "lr": 1e10}, rounds=20))


def test_a_model_that_explodes_without_infinity_is_named_too() -> None:
    task = Task(nn.Linear(4, 1), "squared", "r2")
    client = {"name": "sgd", "lr": 2.0, "epochs": 1}
    with pytest.raises(DivergedError, match=r"lower client.lr, now 2"):
        list(run(task, raw(), client=client, rounds=200))
