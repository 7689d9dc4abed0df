"""Mixtures of models against the definition: predictions are mixed, not parameters."""

import pytest
import torch
from torch import Tensor, nn

from commonweal.task.task import Task
from commonweal.task.uses import Uses, mix_outputs, mixed_module, one_model
from commonweal.task.vectorize import Vectorize, single, vmap_clients
from commonweal.training.evaluation import evaluate, evaluate_models
from helpers import close, federation

SIZES = {"a": 9, "b": 5, "c": 7}
WEIGHTS = torch.tensor([[0.5, 0.2, 0.3], [0.0, 1.0, 0.0], [0.1, 0.1, 0.8]])


def three_models(task: Task) -> Tensor:
    """Three models (3, 3, d) of each of three clients."""
    models = [task.reinitialised(seed).initial for seed in range(9)]
    return torch.stack(models).view(3, 3, task.size)


def stack_of(outputs: int, norm: bool) -> nn.Module:
    torch.manual_seed(0)
    middle = [nn.LayerNorm(6)] if norm else []  # with it the stack is not dense
    return nn.Sequential(nn.Linear(4, 6), *middle, nn.ReLU(), nn.Linear(6, outputs))


@pytest.mark.parametrize("vectorize", [single, vmap_clients])
@pytest.mark.parametrize("norm", [False, True])
def test_probabilities_of_a_clients_models_are_mixed(norm: bool, vectorize: Vectorize) -> None:
    task, f = Task(stack_of(3, norm)), federation(SIZES)
    models = three_models(task)
    found = evaluate_models(task, Uses(models, WEIGHTS), f.train, torch.arange(3), vectorize)
    for k in range(3):
        rows = f.train.client(k)
        each = torch.stack([task.outputs(w, rows.x).softmax(-1) for w in models[k]])
        mixed = (WEIGHTS[k][:, None, None] * each).sum(0)
        right = mixed[torch.arange(len(rows.y)), rows.y]
        close(found.losses[k], -right.log().mean().double())
        assert float(found.score[k]) == pytest.approx(
            float((mixed.argmax(1) == rows.y).float().mean())
        )


@pytest.mark.parametrize("vectorize", [single, vmap_clients])
def test_one_model_is_evaluated_as_a_model(vectorize: Vectorize) -> None:
    task, f = Task(stack_of(3, norm=False)), federation(SIZES)
    models = three_models(task)[:, 0]
    for k in range(3):
        ids = torch.tensor([k])
        found = evaluate_models(task, one_model(models[k : k + 1]), f.train, ids, vectorize)
        close(found.losses, evaluate(task, models[k], f.train, ids).losses)


def test_how_outputs_are_mixed_depends_on_the_loss() -> None:
    outputs, weights = torch.randn(2, 5, 1), torch.tensor([0.3, 0.7])
    by_hand = 0.3 * outputs[0] + 0.7 * outputs[1]
    for loss in ("squared", "cox"):
        close(mix_outputs(loss, outputs, weights), by_hand)
    # The constants that Cox's log-risks are known up to change no difference of two samples.
    shifted = mix_outputs("cox", outputs + torch.tensor([3.0, -8.0])[:, None, None], weights)
    close(shifted.diff(dim=0), by_hand.diff(dim=0))
    positive = 0.3 * outputs[0].sigmoid() + 0.7 * outputs[1].sigmoid()
    close(mix_outputs("binary", outputs, weights).sigmoid(), positive)
    tokens = torch.randn(2, 4, 3, 6)
    mixed = 0.3 * tokens[0].softmax(-1) + 0.7 * tokens[1].softmax(-1)
    close(mix_outputs("tokens", tokens, weights).softmax(-1), mixed)


def test_certain_models_are_mixed_without_overflow() -> None:
    outputs = torch.tensor([[[200.0]], [[-200.0]]])
    close(
        mix_outputs("binary", outputs, torch.tensor([0.25, 0.75])).sigmoid(), torch.tensor([[0.25]])
    )
    assert mix_outputs("binary", outputs, torch.tensor([1.0, 0.0])).item() == 200


def test_a_mixture_is_exported_as_one_module() -> None:
    task = Task(stack_of(3, norm=True))
    models = three_models(task)[0]
    x = torch.randn(6, 4)
    module = mixed_module(task, task.module, Uses(models, WEIGHTS[0]))
    program = torch.export.export(module, (x,)).module()
    each = torch.stack([task.outputs(w, x).softmax(-1) for w in models])
    close(program(x).softmax(-1), (WEIGHTS[0][:, None, None] * each).sum(0))
    alone = mixed_module(task, task.module, Uses(models, WEIGHTS[1]))
    assert isinstance(alone, nn.Sequential)  # models of weight 0 are left out
    assert torch.equal(alone(x), task.outputs(models[1], x))
