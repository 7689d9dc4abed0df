"""The mean of a client's sample scores is its score, and their spread is the score's."""

import numpy as np
import pytest
import torch
from torch import Tensor

from cases import cases
from commonweal.task.sample_scores import WITHOUT, sample_scores
from commonweal.task.scores import SCORES, Score, find_score

VARIANCE = 2.5
SIZES = [40, 1, 0, 2, 7, 3, 25, 5]
AT_NUMBERS = ("net-benefit@0.3", "sensitivity@0.8")
OFFSETS = torch.tensor([0, *np.cumsum(SIZES).tolist()])


def outputs_and_labels(name: str, seed: int) -> tuple[Tensor, Tensor]:
    """Outputs with ties, and labels that they tell something about."""
    rng = np.random.default_rng(seed)
    n = sum(SIZES)
    losses = find_score(name).losses
    if "cox" in losses:
        label = np.stack([rng.integers(1, 9, n), rng.random(n) < 0.6], 1)
        return torch.tensor(rng.integers(0, 6, (n, 1)).astype(float)), torch.tensor(label * 1.0)
    if "squared" in losses:
        values = torch.tensor(rng.normal(size=n))
        return (values + torch.tensor(rng.standard_t(3, n)))[:, None], values
    classes = 2 if name in ("auroc", "auprc") or name in AT_NUMBERS else 6
    y = rng.integers(0, classes, n)
    logits = np.round(rng.normal(size=(n, classes)) + 1.5 * (y[:, None] == range(classes)), 1)
    return torch.tensor(logits), torch.tensor(y)


def scored(name: str, seed: int) -> tuple[Tensor, Score]:
    score = find_score(name, VARIANCE)
    return score.row_stats(*outputs_and_labels(name, seed)), score


@cases("name", [*sorted(SCORES), *AT_NUMBERS])
@cases("seed", [0, 1, 2])
def test_the_mean_over_samples_is_the_score(name: str, seed: int) -> None:
    stats, score = scored(name, seed)
    values = score.reduce(stats, OFFSETS)
    samples = sample_scores(name, stats, OFFSETS, values, VARIANCE)
    assert samples is not None and samples.shape == (sum(SIZES),)
    for k, size in enumerate(SIZES):
        own = samples[OFFSETS[k] : OFFSETS[k + 1]]
        if values[k].isnan():
            assert own.isnan().all()
        elif size:
            assert float(own.mean()) == pytest.approx(float(values[k]), abs=1e-9)


def removed(stats: Tensor, offsets: Tensor, i: int) -> tuple[Tensor, Tensor]:
    keep = torch.arange(len(stats)) != i
    return stats[keep], offsets - (offsets > i).long()


@cases("name", sorted(WITHOUT))
@cases("seed", [0, 1])
def test_the_score_without_a_sample_is_that_of_the_others(name: str, seed: int) -> None:
    stats, score = scored(name, seed)
    if name == "r2-pooled":
        score = find_score(name)
    if name in ("token-accuracy", "likelihood"):
        stats[:, 1] = torch.arange(len(stats)) % 3
        stats[:, 0] *= stats[:, 1] > 0
    without = WITHOUT[name](stats, OFFSETS)
    owner = torch.repeat_interleave(torch.arange(len(SIZES)), OFFSETS.diff())
    for i, k in enumerate(owner.tolist()):
        expected = float(score.reduce(*removed(stats, OFFSETS, i))[k])
        assert float(without[i]) == pytest.approx(expected, abs=1e-9, nan_ok=True)


def test_the_f1_of_two_classes_is_that_of_the_second() -> None:
    rng = np.random.default_rng(3)
    score = find_score("f1")
    y = torch.tensor(rng.integers(0, 2, sum(SIZES)))
    stats = score.row_stats(torch.tensor(rng.normal(size=(len(y), 2))), y)
    without = WITHOUT["f1"](stats, OFFSETS)
    owner = torch.repeat_interleave(torch.arange(len(SIZES)), OFFSETS.diff())
    for i, k in enumerate(owner.tolist()):
        expected = float(score.reduce(*removed(stats, OFFSETS, i))[k])
        assert float(without[i]) == pytest.approx(expected, abs=1e-12, nan_ok=True)


@cases(
    "name",
    [
        "auroc",
        "auprc",
        "f1",
        "balanced-accuracy",
        "r2",
        "rmse",
        "concordance",
        "brier",
        *AT_NUMBERS,
    ],
)
def test_the_spread_of_samples_is_that_of_the_score_of_new_ones(name: str) -> None:
    """The error that the pseudo-values imply, and the deviation of the score over new samples."""
    rng = np.random.default_rng(0)
    scores, errors = [], []
    size, offsets = 120, torch.tensor([0, 120])
    for _ in range(300):
        y = rng.integers(0, 2, size).astype(float)
        outputs = torch.tensor((y + rng.normal(size=size) - 0.5)[:, None])
        labels = torch.tensor(y)
        if name == "concordance":
            labels = torch.tensor(
                np.stack([rng.exponential(np.exp(-y)), rng.random(size) < 0.7], 1)
            )
        elif name in ("r2", "rmse"):
            labels = labels + torch.tensor(rng.normal(size=size))
        else:
            labels = labels.long()
        score = find_score(name)
        stats = score.row_stats(outputs, labels)
        value = score.reduce(stats, offsets)
        samples = sample_scores(name, stats, offsets, value, None)
        assert samples is not None
        scores.append(float(value[0]))
        errors.append(float(samples.std()) / np.sqrt(size))
    assert np.mean(errors) == pytest.approx(np.std(scores), rel=0.12)


def test_the_only_positive_sample_carries_what_the_score_is_above_the_anchor() -> None:
    stats = torch.tensor([[2.0, 0.0], [3.0, 1.0], [1.0, 0.0], [4.0, 0.0]], dtype=torch.float64)
    offsets = torch.tensor([0, 4])
    value = find_score("auroc").reduce(stats, offsets)
    samples = sample_scores("auroc", stats, offsets, value, None)
    assert samples is not None
    assert float(samples[1]) == pytest.approx(0.5 + 4 * (2 / 3 - 0.5))
    assert float(samples.mean()) == pytest.approx(2 / 3)


def test_thousands_of_samples_take_little_memory_and_time() -> None:
    rng = np.random.default_rng(0)
    size = 5000
    stats = torch.tensor(np.stack([rng.normal(size=size), rng.random(size) < 0.3], 1))
    time = torch.tensor(np.stack([rng.normal(size=size), rng.random(size), stats[:, 1]], 1))
    offsets = torch.tensor([0, size])
    for name, values in (("auroc", stats), ("auprc", stats), ("concordance", time)):
        assert WITHOUT[name](values, offsets).std() > 0


def test_a_score_that_clients_report_has_no_samples() -> None:
    nothing = torch.zeros(0, 2)
    assert sample_scores("higher:mine", nothing, torch.tensor([0]), nothing[:, 0], None) is None
