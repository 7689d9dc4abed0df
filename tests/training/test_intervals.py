"""Confidence intervals of scores: how often they hold the true value, and known numbers."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from commonweal.metrics import wilson
from commonweal.task import scores
from commonweal.task.intervals import Interval, interval

CLIENTS = 800
Draw = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]


def binary(share: float, shift: float) -> Draw:
    def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        y = (rng.random(n) < share).astype(np.int64)
        return np.stack([np.zeros(n), rng.normal(shift * (y - 0.6))], 1), y

    return draw


def classes(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    y = rng.choice(4, size=n, p=[0.4, 0.3, 0.2, 0.1])
    return rng.normal(size=(n, 4)) + 1.5 * np.eye(4)[y], y


def values(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    x = rng.normal(size=n)
    return x[:, None], x + rng.normal(size=n)


def survival(censored: float) -> Draw:
    def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.normal(size=n)
        time, end = rng.exponential(np.exp(-x)), rng.exponential(censored, size=n)
        return x[:, None], np.stack([np.minimum(time, end), (time < end).astype(float)], 1)

    return draw


def reduced(
    name: str, draw: Draw, rows: int, clients: int, seed: int = 0
) -> tuple[torch.Tensor, Interval]:
    rng = np.random.default_rng(seed)
    outputs, y = draw(rng, rows * clients)  # rows are drawn alike for all clients
    score = scores.find_score(name, 2.0)
    stats = score.row_stats(torch.from_numpy(outputs), torch.from_numpy(y))
    offsets = torch.arange(clients + 1) * rows
    found = score.reduce(stats, offsets)
    bounds = interval(name, stats, offsets, found, 2.0)
    assert bounds is not None
    return found, bounds


@pytest.mark.parametrize(
    ("name", "draw", "rows"),
    [
        ("accuracy", binary(0.3, 1.0), 60),
        ("auroc", binary(0.5, 1.0), 40),
        ("auroc", binary(0.1, 1.5), 60),
        ("auroc", binary(0.3, 3.0), 40),
        ("auprc", binary(0.3, 1.5), 80),
        ("f1", binary(0.1, 1.5), 60),
        ("f1", binary(0.5, 1.0), 40),
        ("balanced-accuracy", binary(0.1, 1.5), 60),
        ("balanced-accuracy", classes, 200),
        ("brier", binary(0.3, 1.0), 60),
        ("log-loss", binary(0.3, 1.0), 60),
        ("net-benefit@0.3", binary(0.3, 1.0), 60),
        ("net-benefit@0.6", binary(0.5, 1.5), 40),
        ("net-benefit@0.1", binary(0.1, 1.5), 60),
        ("sensitivity@0.9", binary(0.3, 1.5), 100),
        ("sensitivity@0.8", binary(0.5, 1.0), 60),
        ("calibration-intercept", binary(0.3, 1.0), 60),
        ("calibration-slope", binary(0.3, 1.0), 100),
        ("mae", values, 30),
        ("rmse", values, 100),
        ("r2-pooled", values, 100),
        ("concordance", survival(0.2), 40),
        ("concordance", survival(5.0), 40),
    ],
)
def test_about_19_of_20_intervals_hold_the_true_score(name: str, draw: Draw, rows: int) -> None:
    truth = float(reduced(name, draw, 3000, 5, seed=1)[0].mean())
    found, bounds = reduced(name, draw, rows, CLIENTS)
    defined = ~found.isnan().numpy()
    inside = (bounds.low <= truth) & (truth <= bounds.high)
    assert 0.92 < inside[defined].mean() <= 1
    assert (bounds.low[defined] <= found.numpy()[defined] + 1e-9).all()
    assert (found.numpy()[defined] <= bounds.high[defined] + 1e-9).all()


def test_perfect_scores_of_few_rows_are_uncertain() -> None:
    y = torch.tensor([0, 0, 0, 1, 1])
    margin = torch.tensor([[-2.0], [-1.0], [-1.0], [1.0], [2.0]])
    offsets = torch.tensor([0, 5])
    for name in ("auroc", "f1", "accuracy", "balanced-accuracy"):
        score = scores.find_score(name)
        stats = score.row_stats(margin, y)
        bounds = interval(name, stats, offsets, score.reduce(stats, offsets), None)
        assert bounds is not None
        assert bounds.high[0] == pytest.approx(1) and bounds.low[0] < 0.75
        assert bounds.support[0] == (5 if name == "accuracy" else 2)


def test_an_accuracys_interval_is_wilsons() -> None:
    _, bounds = reduced("accuracy", binary(0.3, 1.0), 17, 3)
    found, _ = reduced("accuracy", binary(0.3, 1.0), 17, 3)
    for k, value in enumerate(found.tolist()):
        assert (bounds.low[k], bounds.high[k]) == pytest.approx(wilson(value, 17))
