"""ECE and MCE by their definition, intercept and slope against scikit-learn and a root finder."""

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from cases import cases
from commonweal.task import calibration, scores
from commonweal.task.task import Task


def by_hand(confidence: list[float], right: list[float]) -> tuple[float, float]:
    gaps = []
    for b in range(20):
        inside = [k for k, c in enumerate(confidence) if b / 20 < c <= (b + 1) / 20]
        if inside:
            gap = abs(
                np.mean([right[k] for k in inside]) - np.mean([confidence[k] for k in inside])
            )
            gaps.append((len(inside) / len(confidence), float(gap)))
    return sum(n * g for n, g in gaps), max(g for _, g in gaps)


@pytest.mark.parametrize("seed", range(5))
def test_errors_are_their_definitions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [7, 1, 0, 60]
    confidence = torch.from_numpy(rng.uniform(0.1, 1.0, sum(sizes)))
    right = torch.from_numpy((rng.uniform(size=sum(sizes)) < 0.6).astype(float))
    offsets = torch.tensor([0, *np.cumsum(sizes)])
    stats = torch.stack([confidence, right], 1)
    ece, mce = calibration.ece(stats, offsets), calibration.mce(stats, offsets)
    for k in (0, 1, 3):
        a, b = int(offsets[k]), int(offsets[k + 1])
        expected = by_hand(confidence[a:b].tolist(), right[a:b].tolist())
        assert (float(ece[k]), float(mce[k])) == pytest.approx(expected, abs=1e-12)
    assert ece[2].isnan() and mce[2].isnan()
    assert ((mce >= ece) | mce.isnan()).all()


def test_a_model_that_is_as_right_as_it_is_sure_has_no_error() -> None:
    stats = torch.tensor([[0.75, 1.0], [0.75, 1.0], [0.75, 1.0], [0.75, 0.0]])
    assert float(calibration.ece(stats, torch.tensor([0, 4]))) == 0


def test_edges_belong_to_the_bin_below() -> None:
    rows = torch.tensor([[0.05, 1.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    table = calibration.bins(rows, torch.tensor([0, 3]))
    assert table[0, :, 0].tolist() == [2.0] + [0.0] * 18 + [1.0]


def test_confidence_of_a_single_output_is_that_of_two() -> None:
    logit, y = torch.tensor([[2.0], [-1.0], [0.5]]), torch.tensor([1, 1, 0])
    two = torch.cat([torch.zeros(3, 1), logit], 1)
    torch.testing.assert_close(calibration.row_stats(logit, y), calibration.row_stats(two, y))
    probability = torch.sigmoid(logit.double().abs())[:, 0]
    torch.testing.assert_close(calibration.row_stats(logit, y)[:, 0], probability)
    assert calibration.row_stats(logit, y)[:, 1].tolist() == [1.0, 0.0, 0.0]


def test_a_task_can_be_evaluated_by_them_but_no_run_is_scored_by_them() -> None:
    task = Task(torch.nn.Linear(2, 2), score="ece")
    _, stats = task.evaluate_rows(torch.zeros(6), torch.ones(1, 2), torch.tensor([0]))
    assert stats["ece"].shape == (1, 2)
    assert not set(scores.DIAGNOSTICS) & set(scores.SCORES)


@cases("scale", [1.0, 30.0, 1e-3])
@cases("seed", [0, 1, 2])
def test_intercept_and_slope_of_each_client(scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [200, 1, 0, 35, 12]
    y = rng.integers(0, 2, sum(sizes))
    margin = scale * (y + 1.5 * rng.normal(size=len(y)) + 0.5)
    stats = torch.tensor(np.stack([margin, y], 1))
    offsets = torch.tensor([0, *np.cumsum(sizes)])
    found = calibration.intercept(stats, offsets), calibration.slope(stats, offsets)
    errors = calibration.line_fit(stats, offsets).errors
    for k, size in enumerate(sizes):
        if size < 2:
            assert found[0][k].isnan() and found[1][k].isnan()
            continue
        a, b = int(offsets[k]), int(offsets[k + 1])
        own, labels = margin[a:b], y[a:b]
        root = brentq(lambda x: expit(own + x).sum() - labels.sum(), -1e3, 1e3, xtol=1e-12)  # noqa: B023
        assert float(found[0][k]) == pytest.approx(root, abs=1e-6)
        fitted = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(
            own[:, None] / scale, labels
        )
        slope = fitted.coef_[0, 0] / scale
        assert float(found[1][k]) == pytest.approx(slope, rel=1e-4, abs=1e-5)
        design = np.stack([np.ones(size), own], 1)
        p = expit(design @ [fitted.intercept_[0], slope])
        covariance = np.linalg.inv((design.T * (p * (1 - p))) @ design)
        assert float(errors[k]) == pytest.approx(covariance[1, 1] ** 0.5, rel=1e-3)


def test_calibrated_predictions_have_intercept_0_and_slope_1() -> None:
    rng = np.random.default_rng(5)
    margin = rng.normal(size=200_000) * 2 - 1
    y = rng.random(len(margin)) < expit(margin)
    stats, offsets = torch.tensor(np.stack([margin, y], 1)), torch.tensor([0, len(y)])
    assert float(calibration.intercept(stats, offsets)) == pytest.approx(0, abs=0.02)
    assert float(calibration.slope(stats, offsets)) == pytest.approx(1, abs=0.02)
    stretched = stats * torch.tensor([3.0, 1.0])
    assert float(calibration.slope(stretched, offsets)) == pytest.approx(1 / 3, abs=0.01)


@cases("margins", [[1.0, 2, 3, 4], [4.0, 3, 2, 1], [1.0, 1, 1, 1], [1.0, 2, 2, 3]])
def test_there_is_no_slope_where_a_margin_separates_the_classes(margins: list[float]) -> None:
    stats = torch.tensor([margins, [0.0, 0, 1, 1]]).T
    offsets = torch.tensor([0, 4])
    assert calibration.slope(stats, offsets).isnan()
    assert calibration.intercept(stats, offsets).isfinite()
