"""Cox's partial likelihood and the concordance, against plain loops over the definition."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from commonweal.base.errors import DataError
from commonweal.data.federation import Federation
from commonweal.jobs.rounds import run
from commonweal.training.evaluation import evaluate
from commonweal.training.scores import find, undefined
from commonweal.training.task import Batch, Task


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
    score = find("concordance")
    values = score.reduce(score.row_stats(torch.zeros(4, 1), y), torch.tensor([0, 2, 4]))
    assert values[0].isnan() and values[1] == 0.5


def test_labels_that_are_no_times_and_events_are_refused() -> None:
    x, y = rows(8)
    with pytest.raises(DataError, match="event 0 or 1"):
        Federation.from_arrays(x, 2 * y, np.arange(8) % 2, loss="cox", score="concordance")
    with pytest.raises(DataError, match="needs \\(time, event\\) per row"):
        Federation.from_arrays(x, y[:, 0], np.arange(8) % 2, loss="cox", score="concordance")
