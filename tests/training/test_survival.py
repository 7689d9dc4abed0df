"""Cox's partial likelihood and the concordance, against plain loops over the definition."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cases import cases
from commonweal.base.errors import DataError
from commonweal.data.federation import Federation
from commonweal.jobs.rounds import run
from commonweal.task.scores import find_score, undefined
from commonweal.task.survival import comparable_pairs, cox_losses
from commonweal.task.task import Batch, Task
from commonweal.training.evaluation import evaluate


def partial_likelihood(risk: list[float], time: list[float], event: list[float]) -> float:
    """The negative log partial likelihood per row, by its definition."""
    total = 0.0
    for i in range(len(risk)):
        if event[i]:
            at_risk = [math.exp(risk[j]) for j in range(len(risk)) if time[j] >= time[i]]
            total += math.log(sum(at_risk)) - risk[i]
    return total / len(risk)


def harrell(risk: list[float], time: list[float], event: list[float]) -> float:
    pairs = right = 0.0
    for i in range(len(risk)):
        for j in range(len(risk)):
            if event[i] and time[i] < time[j]:
                pairs += 1
                right += 1.0 if risk[i] > risk[j] else 0.5 * (risk[i] == risk[j])
    return right / pairs


def pairwise_losses(risk: Tensor, y: Tensor) -> Tensor:
    """The losses by comparing all rows with all rows, in float64."""
    time, event = y.unbind(-1)
    at_risk = time[None, :] >= time[:, None]
    together = torch.where(at_risk, risk.double()[None, :], -torch.inf).logsumexp(-1)
    return (together - risk.double()) * event


def pairwise_counts(risk: Tensor, time: Tensor, event: Tensor) -> tuple[Tensor, Tensor]:
    """The right and all comparable pairs of each row, by comparing all rows with all rows."""
    comparable = ((time[:, None] < time[None, :]) & (event[:, None] > 0)).double()
    higher = (risk[:, None] > risk[None, :]).double()
    tied = (risk[:, None] == risk[None, :]).double()
    right = (higher + tied / 2) * comparable
    return right.sum(0) + right.sum(1), comparable.sum(0) + comparable.sum(1)


def tied_rows(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Risks and labels: every other time with many ties of risk, and always with ties of time."""
    rng = np.random.default_rng(seed)
    risk = rng.normal(size=n) * rng.choice([0.1, 3, 30])
    if seed % 2:
        risk = risk.round()
    time = rng.integers(1, 2 + n // int(rng.integers(1, 5)), n)
    event = rng.random(n) < rng.choice([0, 0.3, 0.9, 1])
    labels = np.stack([time, event], 1).astype(np.float32)
    return torch.from_numpy(risk.astype(np.float32)), torch.from_numpy(labels)


def some_offsets(n: int, seed: int) -> Tensor:
    """Up to five clients, some without rows."""
    cuts = np.sort(np.random.default_rng(seed).integers(0, n + 1, seed % 5))
    return torch.tensor([0, *cuts.tolist(), n])


def rows(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features, and times whose hazard is exp(x0 - x1), a third censored."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)).astype(np.float32)
    time = rng.exponential(np.exp(-(x[:, 0] - x[:, 1]))).round(1) + 0.1
    event = rng.random(n) > 0.33
    return x, np.stack([time, event], 1).astype(np.float32)


def federation() -> Federation:
    x, y = rows(240)
    return Federation.from_arrays(
        x, y, np.arange(240) % 4, test=0.5, loss="cox", score="concordance", outputs=1
    )


def task() -> Task:
    torch.manual_seed(0)
    return Task(nn.Linear(3, 1), "cox", "concordance")


def columns(outputs: Tensor, y: Tensor) -> tuple[list[float], list[float], list[float]]:
    return outputs[:, 0].tolist(), y[:, 0].tolist(), y[:, 1].tolist()


def test_losses_and_scores_of_clients_are_those_of_their_own_risk_sets() -> None:
    t, f = task(), federation()
    found = evaluate(t, t.initial, f.test)
    for k in range(4):
        own = f.test.client(k)
        given = columns(t.outputs(t.initial, own.x), own.y)
        assert float(found.losses[k]) == pytest.approx(partial_likelihood(*given), rel=1e-5)
        assert float(found.score[k]) == pytest.approx(harrell(*given))


def test_padding_is_in_no_risk_set() -> None:
    t = task()
    x, y = (torch.from_numpy(array) for array in rows(6))
    weight = torch.tensor([0.25, 0.25, 0.25, 0.25, 0.0, 0.0])
    padded, _ = t.batch_loss(t.initial, Batch(x, y, weight))
    given = columns(t.outputs(t.initial, x[:4]), y[:4])
    assert float(padded) == pytest.approx(partial_likelihood(*given), rel=1e-5)


@pytest.mark.parametrize("vectorize", ["vmap", "loop"])
def test_training_finds_the_hazard(vectorize: str) -> None:
    client = {"name": "sgd", "lr": 0.5, "batch": 0}
    *_, last = run(task(), federation(), client=client, rounds=40, vectorize=vectorize)
    assert last.metrics["mean"] > 0.75
    weight = last.state["w"][:2]
    assert weight[0] > 0.5 and weight[1] < -0.5


def test_without_a_pair_to_rank_the_concordance_is_undefined() -> None:
    y = torch.tensor([[1.0, 0], [2.0, 1], [1.0, 1], [2.0, 0]])
    assert undefined("concordance", y, torch.tensor([0, 2, 4])) == [0]
    score = find_score("concordance")
    values = score.reduce(score.row_stats(torch.zeros(4, 1), y), torch.tensor([0, 2, 4]))
    assert values[0].isnan() and values[1] == 0.5


def test_labels_that_are_no_times_and_events_are_refused() -> None:
    x, y = rows(8)
    with pytest.raises(DataError, match="event 0 or 1"):
        Federation.from_arrays(x, 2 * y, np.arange(8) % 2, loss="cox", score="concordance")
    with pytest.raises(DataError, match="needs \\(time, event\\) per row"):
        Federation.from_arrays(x, y[:, 0], np.arange(8) % 2, loss="cox", score="concordance")


# The sorted forms against the pairwise ones


SIZES = [0, 1, 2, 3, 7, 8, 9, 33, 150]


@cases("n", SIZES)
def test_losses_are_those_of_all_pairs(n: int) -> None:
    for seed in range(30):
        risk, y = tied_rows(n, seed)
        want = pairwise_losses(risk, y)
        torch.testing.assert_close(cox_losses(risk, y).double(), want, rtol=1e-5, atol=1e-5)
        offsets = some_offsets(n, seed)
        parts = [pairwise_losses(risk[a:b], y[a:b]) for a, b in pairwise(offsets.tolist())]
        exact = cox_losses(risk.double(), y, offsets)
        torch.testing.assert_close(exact, torch.cat(parts), rtol=1e-12, atol=1e-12)


@cases("n", SIZES)
def test_pairs_are_those_of_all_pairs(n: int) -> None:
    for seed in range(30):
        risk, y = tied_rows(n, seed)
        offsets = some_offsets(n, seed)
        got = comparable_pairs(risk, y[:, 0], y[:, 1], offsets)
        parts = [pairwise_counts(risk[a:b], *y[a:b].T) for a, b in pairwise(offsets.tolist())]
        assert torch.equal(got.right, torch.cat([right for right, _ in parts]))
        assert torch.equal(got.all, torch.cat([every for _, every in parts]))


def test_rows_in_any_order_have_the_same_losses_and_pairs() -> None:
    risk, y = tied_rows(60, 4)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(cox_losses(risk[order], y[order]), cox_losses(risk, y)[order])
    offsets = torch.tensor([0, 60])
    moved = comparable_pairs(risk[order], y[order, 0], y[order, 1], offsets)
    pairs = comparable_pairs(risk, y[:, 0], y[:, 1], offsets)
    assert torch.equal(moved.right, pairs.right[order])
    assert torch.equal(moved.all, pairs.all[order])


@cases("n", [1, 2, 9, 40])
def test_gradients_are_those_of_all_pairs_also_in_groups(n: int) -> None:
    parts = [tied_rows(n, seed) for seed in range(6)]
    risk = torch.stack([risk for risk, _ in parts]).requires_grad_()
    y = torch.stack([labels for _, labels in parts])
    together = torch.vmap(cox_losses)(risk, y)
    one_by_one = torch.stack([cox_losses(*part) for part in zip(risk, y, strict=True)])
    wanted = torch.stack([pairwise_losses(*part) for part in zip(risk, y, strict=True)])
    (want,) = torch.autograd.grad(wanted.square().sum(), risk)
    for losses in (together, one_by_one):
        torch.testing.assert_close(losses.double(), wanted, rtol=1e-5, atol=1e-5)
        (got,) = torch.autograd.grad(losses.double().square().sum(), risk, retain_graph=True)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4 * float(want.abs().max()))


def test_risks_far_apart_neither_overflow_nor_vanish() -> None:
    risk = torch.tensor([-300.0, 0.0, 500.0, -2000.0, 88.0])
    y = torch.tensor([[5.0, 1], [4, 1], [1, 1], [6, 1], [2, 0]])
    torch.testing.assert_close(cox_losses(risk, y).double(), pairwise_losses(risk, y))


@cases("lost", [math.nan, math.inf, -math.inf])
def test_a_lost_risk_loses_the_score_of_its_client_alone(lost: float) -> None:
    risk, y = tied_rows(40, 6)
    risk[3] = lost
    score = find_score("concordance")
    values = score.reduce(score.row_stats(risk[:, None], y), torch.tensor([0, 20, 40]))
    assert values[0].isnan() and float(values[1]) == pytest.approx(
        harrell(*columns(risk[20:, None], y[20:]))
    )


def test_a_hundred_thousand_rows_of_a_client_need_no_table_of_pairs() -> None:
    """Which would have 40 GB."""
    n = 100_000
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 3)).astype(np.float32)
    y = np.stack([rng.exponential(np.exp(-x[:, 0])), rng.random(n) < 0.5], 1).astype(np.float32)
    f = Federation.from_arrays(x, y, ["a"] * n, test=0.9, loss="cox", score="concordance")
    t = task()
    w = t.initial.clone()
    w[:3] = torch.tensor([1.0, 0, 0])
    evaluation = evaluate(t, w, f.test)
    sample = slice(0, 3000)
    given = torch.from_numpy(x[sample, :1]), torch.from_numpy(y[sample])
    right, every = pairwise_counts(given[0][:, 0], *given[1].T)
    assert float(evaluation.score[0]) == pytest.approx(float(right.sum() / every.sum()), abs=0.02)
    assert undefined("concordance", f.test.y, f.test.offsets) == []
    weight = torch.full((n,), 1 / n)
    leaf = w.requires_grad_()
    loss, _ = t.batch_loss(leaf, Batch(torch.from_numpy(x), torch.from_numpy(y), weight))
    (gradient,) = torch.autograd.grad(loss, leaf)
    assert gradient.isfinite().all() and float(gradient[:3].abs().max()) < 0.01  # at the hazard


def test_training_is_the_same_however_clients_are_grouped() -> None:
    models = {}
    for how in ("auto", "vmap", "loop"):
        client = {"name": "sgd", "lr": 0.3, "batch": 7}
        *_, last = run(task(), federation(), client=client, rounds=3, vectorize=how)
        models[how] = last.state["w"]
    torch.testing.assert_close(models["auto"], models["loop"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(models["vmap"], models["loop"], rtol=1e-4, atol=1e-5)


def test_clients_without_comparable_pairs_are_found() -> None:
    labels = [[1.0, 0], [2, 1], [1, 1], [2, 0], [3, 1], [3, 1], [4, 0]]
    offsets = torch.tensor([0, 2, 2, 4, 6, 7])
    assert undefined("concordance", torch.tensor(labels), offsets) == [0, 3, 4]
