"""Where a phase trains the last layers only, what the others give is computed once per round."""

from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from commonweal.jobs.rounds import Round, run
from commonweal.training.autograd import Head
from commonweal.training.task import Task
from helpers import SHAPES, federation, module

SIZES = {"a": 31, "b": 8, "c": 17}
OUTPUTS = "commonweal.training.autograd.Head.outputs"


def trained(task: Task, options: dict[str, Any], rounds: int = 2) -> tuple[Round, int]:
    """The last round of FedRep, and how often the body's outputs were computed."""
    client = {"name": "fedrep", "batch": 8, "lr": 0.1, "head_epochs": 4} | options
    f = federation(SIZES, SHAPES["cnn"])
    with mock.patch(OUTPUTS, autospec=True, side_effect=Head.outputs) as outputs:
        *_, last = run(task, f, client=client, rounds=rounds, seed=2)
    return last, outputs.call_count


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9, "weight_decay": 0.1},
        {"clip": 0.5},
        {"optimizer": "adam", "lr": 0.01},
    ],
)
def test_the_numbers_are_those_of_the_whole_model(options: dict[str, Any]) -> None:
    got, calls = trained(Task(module("cnn")), options)
    assert calls == 2 * (4 + 1 + 3)  # batches of the first epoch, in two rounds
    with mock.patch.object(Head, "of", return_value=None):
        expected, none = trained(Task(module("cnn")), options)
    assert none == 0
    torch.testing.assert_close(got.state["w"], expected.state["w"], rtol=0, atol=1e-6)
    assert got.losses == pytest.approx(expected.losses, abs=1e-5)
    assert got.personal == pytest.approx(expected.personal, abs=1e-6)


class Own(nn.Module):
    """A module of which nothing is known but its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.below = nn.Linear(36, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(self.below(x.flatten(1)).tanh())
        return outputs


@pytest.mark.parametrize("kind", ["cnn-norm", "own"])
def test_other_models_are_trained_as_before(kind: str) -> None:
    """With BatchNorm a batch's statistics change; a forward of one's own may do anything."""
    task = Task(Own() if kind == "own" else module(kind))
    assert trained(task, {})[1] == 0
