"""Distances against closed forms, and assessments of rows whose quality is known."""

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from torch import nn

from commonweal.base.errors import ConfigError, DataError
from commonweal.data.federation import Federation
from commonweal.protocols.synthetic import Quality, assess, frechet, nearest
from commonweal.task.task import Task
from synthetic_helpers import digits, task


def normal(n: int, p: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, p)))


def test_the_frechet_distance_is_the_formula() -> None:
    a = normal(60, 5, 0)
    b = normal(40, 5, 1) @ normal(5, 5, 2) + 0.5
    A = np.cov(a.numpy().T)
    B = np.cov(b.numpy().T)
    gap = ((a.mean(0) - b.mean(0)) ** 2).sum().item()
    expected = gap + np.trace(A + B - 2 * np.real(sqrtm(A @ B)))
    assert frechet(a, b) == pytest.approx(expected, rel=1e-9)
    assert frechet(b, a) == pytest.approx(expected, rel=1e-9)


def test_the_frechet_distance_of_a_shift_and_of_a_scale() -> None:
    a = normal(50, 3, 0)
    assert frechet(a, a) == pytest.approx(0, abs=1e-9)
    assert frechet(a, a + torch.tensor([1.0, 2.0, 0.0])) == pytest.approx(5.0)
    variances = torch.cov(a.T).trace().item()
    centred = a - a.mean(0)
    assert frechet(centred, 3 * centred) == pytest.approx((3 - 1) ** 2 * variances)
    one = normal(20, 1, 0)
    assert frechet(one, one + 2) == pytest.approx(4.0)


def test_too_few_rows_for_a_covariance_are_refused() -> None:
    many = normal(50, 5, 0)
    few = normal(5, 5, 1)
    words = "5 rows have no covariance of full rank in 5 dimensions"
    with pytest.raises(DataError, match=words):
        frechet(many, few)
    with pytest.raises(DataError, match=words):
        frechet(few, many)


def test_nearest_is_brute_force() -> None:
    a = normal(300, 4, 0).float()
    b = normal(70, 4, 1).float()
    expected = [min(float((row - other).norm()) for other in b) for row in a[:20]]
    distances = nearest(a, b)
    assert distances.shape == (300,)
    np.testing.assert_allclose(distances[:20].numpy(), expected, rtol=1e-4)


@pytest.fixture(scope="module")
def parts() -> tuple[Task, Federation]:
    return task(8), digits(rows=1000)


def assessed(parts: tuple[Task, Federation], x: torch.Tensor, y: torch.Tensor) -> Quality:
    model, f = parts
    return assess(model, f, model.initial, x, y, epochs=8, lr=5e-3, dimensions=8)


def test_copies_of_training_rows_are_good_and_recognised_as_copies(
    parts: tuple[Task, Federation],
) -> None:
    own = parts[1].train
    quality = assessed(parts, own.x[:100], own.y[:100])
    assert quality.recognised > 0.85 and quality.coverage >= 0.9
    assert quality.nearest == pytest.approx(0, abs=1e-3) and quality.near == 1.0
    assert quality.nearest_held > 0.5
    assert quality.extractor.startswith("last hidden layer of Sequential")
    assert "8 principal axes" in quality.extractor
    assert quality.scores.shape == (3,)
    assert quality.metrics["mean"] == pytest.approx(float(quality.scores.mean()))


def test_noise_is_far_from_everything(parts: tuple[Task, Federation]) -> None:
    own = parts[1].train
    good = assessed(parts, own.x[:100], own.y[:100])
    noise = torch.rand(100, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    bad = assessed(parts, noise, own.y[:100])
    assert bad.frechet > 3 * good.frechet and bad.frechet_real == good.frechet_real
    assert bad.recognised < 0.4 and bad.near == 0.0 and bad.nearest > good.nearest_held


def test_unused_rows_are_as_near_as_unused_rows(parts: tuple[Task, Federation]) -> None:
    rows = parts[1].test
    quality = assessed(parts, rows.x, rows.y)
    assert quality.nearest == quality.nearest_held
    assert quality.near == pytest.approx(0.05, abs=0.01)
    assert quality.frechet == pytest.approx(0, abs=1e-6)


def test_one_class_covers_one_class(parts: tuple[Task, Federation]) -> None:
    own = parts[1].train
    zeros = own.x[own.y == 0][:40]
    quality = assessed(parts, zeros, torch.zeros(len(zeros), dtype=torch.int64))
    assert quality.coverage == pytest.approx(0.1)


def test_own_features_need_a_name_and_are_used(parts: tuple[Task, Federation]) -> None:
    model, f = parts
    with pytest.raises(ConfigError, match="say in `extractor` what they are"):
        assess(model, f, model.initial, f.test.x, f.test.y, features=lambda x: x.flatten(1))
    quality = assess(
        model,
        f,
        model.initial,
        f.test.x + 0.25,
        f.test.y,
        features=lambda x: x.flatten(1)[:, 20:24],
        extractor="four pixels",
        dimensions=4,
        epochs=1,
    )
    assert quality.frechet == pytest.approx(4 * 0.25**2, rel=1e-3)
    assert quality.extractor == "four pixels, first 4 principal axes of the test rows"


def test_a_model_without_a_linear_layer_needs_features() -> None:
    model = Task(nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten()))
    f = digits()
    with pytest.raises(ConfigError, match="Sequential has no linear layer to take features from"):
        assess(model, f, model.initial, f.test.x, f.test.y, epochs=1)
