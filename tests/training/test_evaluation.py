"""Evaluation against a loop over clients with the plain module."""

import numpy as np
import pytest
import torch

from cases import cases
from commonweal.clients import Client
from commonweal.data.federation import Federation
from commonweal.protocols.algorithm import Request
from commonweal.task.scores import SCORES
from commonweal.task.task import Task
from commonweal.task.uses import one_model
from commonweal.task.vectorize import Vectorize, single, vmap_clients
from commonweal.training import evaluation
from commonweal.training.evaluation import evaluate, evaluate_models
from helpers import SHAPES, averaging, close, federation, group_of, loaded, module, torch_loss

SIZES = {"a": 5, "b": 20, "c": 57, "d": 41}


@pytest.mark.parametrize("at_once", [1, 100, 1 << 24])
@pytest.mark.parametrize("kind", ["mlp", "cnn-norm"])
def test_evaluation_is_a_loop_over_clients(
    kind: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "PASS", at_once)
    task, f = Task(module(kind)), federation(SIZES, SHAPES[kind])
    plain = loaded(task, task.initial).eval()
    for ids in (None, [2, 0], [3, 1, 2, 0]):
        chosen = None if ids is None else torch.tensor(ids)
        result = evaluate(task, task.initial, f.train, chosen)
        assert result.losses.dtype == result.score.dtype == torch.float64
        assert not result.losses.requires_grad and list(result.scores) == ["accuracy"]
        for k, client in enumerate(range(4) if ids is None else ids):
            rows = f.train.client(client)
            assert result.sizes[k] == len(rows.y)
            close(result.losses[k], torch_loss("cross-entropy", plain(rows.x), rows.y))
            correct = (plain(rows.x).argmax(1) == rows.y).double()
            assert result.score[k].item() == pytest.approx(correct.mean().item())


@pytest.mark.parametrize("vectorize", [single, vmap_clients])
@pytest.mark.parametrize("at_once", [1, 300, 1 << 24])
@pytest.mark.parametrize("kind", ["mlp", "cnn-norm"])
def test_own_models_are_evaluated_on_their_clients_rows(
    kind: str, at_once: int, vectorize: Vectorize, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "PASS", at_once)
    task, f = Task(module(kind)), federation(SIZES, SHAPES[kind])
    ids = torch.tensor([3, 1, 2, 0])
    models = torch.stack([task.reinitialised(seed).initial for seed in range(4)])
    result = evaluate_models(task, one_model(models), f.train, ids, vectorize)
    for k, client in enumerate(ids.tolist()):
        alone = evaluate(task, models[k], f.train, torch.tensor([client]))
        close(result.losses[k], alone.losses[0])
        assert result.score[k] == alone.score[0] and result.sizes[k] == alone.sizes[0]


@cases("vectorize", [single, vmap_clients])
def test_several_scores_are_evaluated_in_one_pass(vectorize: Vectorize) -> None:
    f = federation(SIZES)
    task = Task(module("mlp"), also=("likelihood", "ece", "top-5"))
    result = evaluate(task, task.initial, f.train)
    assert list(result.scores) == ["accuracy", "likelihood", "ece", "top-5"]
    uses = one_model(task.initial.expand(4, -1))
    own = evaluate_models(task, uses, f.train, torch.arange(4), vectorize)
    for name, values in result.scores.items():
        score = Task(module("mlp"), score=name)
        assert torch.equal(evaluate(score, task.initial, f.train).score, values)
        close(own.scores[name], values)


def test_a_client_without_rows_has_nan() -> None:
    owner = ["one", "three", "three", "three"]
    f = Federation.from_arrays(np.zeros((4, 4)), [0, 1, 2, 0], owner)
    task = Task(module("mlp"))
    result = evaluate(task, task.initial, f.test)
    assert result.losses.isnan().tolist() == result.score.isnan().tolist() == [True, False]
    assert result.scored.tolist() == [1]


@cases("score", sorted(SCORES.keys() - {"concordance"}))  # whose labels are pairs
def test_evaluation_without_any_rows_is_nan(score: str) -> None:
    f = Federation.from_arrays(np.zeros((4, 4)), [0, 1, 1, 0], ["a", "a", "b", "b"], test=0)
    if "squared" in SCORES[score].losses:
        task = Task(module("mlp", 1), "squared", score)
    else:
        task = Task(module("mlp", 2), score=score)
    result = evaluate(task, task.initial, f.test)
    assert result.losses.isnan().tolist() == result.score.isnan().tolist() == [True, True]


def test_values_of_some_clients_are_replaced() -> None:
    task, f = Task(module("mlp")), federation(SIZES)
    shared = evaluate(task, task.initial, f.train)
    ids = torch.tensor([2, 0])
    other = evaluate(task, task.reinitialised(3).initial, f.train, ids)
    both = shared.updated(ids, other)
    assert torch.equal(both.losses[ids], other.losses)
    assert torch.equal(both.score[ids], other.score)
    rest = torch.tensor([1, 3])
    assert torch.equal(both.losses[rest], shared.losses[rest])
    assert torch.equal(shared.losses, evaluate(task, task.initial, f.train).losses)


def test_clients_evaluate_before_they_train() -> None:
    task, f = Task(module("norm")), federation(SIZES)
    algorithm = averaging(task, Client(lr=0.5, epochs=3))
    ids = torch.tensor([2])
    request = Request(ids, algorithm.ask(algorithm.init(f.population)))
    replies, _ = algorithm.answer(request, group_of(f.train, "c", 2))
    result = evaluate(task, task.initial, f.train, ids)
    assert torch.equal(replies["loss"], result.losses)
    assert torch.equal(replies["score"], result.score)
    assert replies["size"].tolist() == [57]
