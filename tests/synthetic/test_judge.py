"""Distances against closed forms, and judgements of rows whose worth is known."""

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from commonweal.errors import ConfigError, DataError
from commonweal.federation import Federation
from commonweal.synthetic import Judgement, frechet, judge, nearest
from commonweal.task import Task
from made import digits, task


def normal(n: int, p: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, p)))


def test_the_frechet_distance_is_the_formula() -> None:
    a, b = normal(60, 5, 0), normal(40, 5, 1) @ normal(5, 5, 2) + 0.5
    A, B = np.cov(a.numpy().T), np.cov(b.numpy().T)
    gap = ((a.mean(0) - b.mean(0)) ** 2).sum().item()
    expected = gap + np.trace(A + B - 2 * np.real(sqrtm(A @ B)))
    assert frechet(a, b) == pytest.approx(expected, rel=1e-9)
    assert frechet(b, a) == pytest.approx(expected, rel=1e-9)


def test_the_frechet_distance_of_a_shift_and_of_a_scale() -> None:
    a = normal(50, 3, 0)
    assert frechet(a, a) == pytest.approx(0, abs=1e-9)
    assert frechet(a, a + torch.tensor([1.0, 2.0, 0.0])) == pytest.approx(5.0)
    spread = torch.cov(a.T).trace().item()
    centred = a - a.mean(0)
    assert frechet(centred, 3 * centred) == pytest.approx(4 * spread)  # (3 - 1)^2 times the variances
    one = normal(20, 1, 0)
    assert frechet(one, one + 2) == pytest.approx(4.0)


def test_too_few_rows_for_a_covariance_are_refused() -> None:
    with pytest.raises(DataError, match="5 rows have no covariance of full rank in 5 dimensions"):
        frechet(normal(50, 5, 0), normal(5, 5, 1))


def test_nearest_is_brute_force() -> None:
    a, b = normal(300, 4, 0).float(), normal(70, 4, 1).float()
    expected = [min(float((row - other).norm()) for other in b) for row in a[:20]]
    found = nearest(a, b)
    assert found.shape == (300,)
    np.testing.assert_allclose(found[:20].numpy(), expected, rtol=1e-4)


@pytest.fixture(scope="module")
def parts() -> tuple[Task, Federation]:
    return task(8), digits(rows=1000)


def judged(parts: tuple[Task, Federation], x: torch.Tensor, y: torch.Tensor) -> Judgement:
    model, f = parts
    return judge(model, f, model.initial, x, y, epochs=8, lr=5e-3, dimensions=8)


def test_copies_of_training_rows_are_good_and_found_out(parts: tuple[Task, Federation]) -> None:
    own = parts[1].train
    found = judged(parts, own.x[:100], own.y[:100])
    assert found.recognised > 0.85 and found.coverage >= 0.9
    assert found.nearest == pytest.approx(0, abs=1e-3) and found.near == 1.0
    assert found.nearest_held > 0.5
    assert found.extractor.startswith("last hidden layer of Sequential") and "8 principal axes" in found.extractor
    assert found.scores.shape == (3,) and found.metrics["mean"] == pytest.approx(float(found.scores.mean()))


def test_noise_is_far_from_everything(parts: tuple[Task, Federation]) -> None:
    own = parts[1].train
    good = judged(parts, own.x[:100], own.y[:100])
    bad = judged(parts, torch.rand(100, 1, 8, 8, generator=torch.Generator().manual_seed(0)), own.y[:100])
    assert bad.frechet > 3 * good.frechet and bad.frechet_real == good.frechet_real
    assert bad.recognised < 0.4 and bad.near == 0.0 and bad.nearest > good.nearest_held


def test_held_out_rows_are_as_near_as_held_out_rows(parts: tuple[Task, Federation]) -> None:
    rows = parts[1].test
    found = judged(parts, rows.x, rows.y)
    assert found.nearest == found.nearest_held and found.near == pytest.approx(0.05, abs=0.01)
    assert found.frechet == pytest.approx(0, abs=1e-6)


def test_one_class_covers_one_class(parts: tuple[Task, Federation]) -> None:
    own = parts[1].train
    zeros = own.x[own.y == 0][:40]
    found = judged(parts, zeros, torch.zeros(len(zeros), dtype=torch.int64))
    assert found.coverage == pytest.approx(0.1)


def test_own_features_need_a_name_and_are_used(parts: tuple[Task, Federation]) -> None:
    model, f = parts
    with pytest.raises(ConfigError, match="say in `extractor` what they are"):
        judge(model, f, model.initial, f.test.x, f.test.y, features=lambda x: x.flatten(1))
    found = judge(
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
    assert found.frechet == pytest.approx(4 * 0.25**2, rel=1e-3)
    assert found.extractor == "four pixels, first 4 principal axes of the test rows"
