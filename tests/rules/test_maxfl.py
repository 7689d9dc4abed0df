"""maxfl: the weights of Algorithm 1, and the number of clients that it makes content."""

import math

import pytest
import torch

from commonweal.base.errors import ConfigError
from commonweal.rules.maxfl import MaxFL
from commonweal.rules.rule import Reports


def weights(losses: list[float], alone: tuple[float, ...], ids: list[int]) -> list[float]:
    rule = MaxFL(alone=alone)
    reports = Reports(
        ids=torch.tensor(ids),
        sizes=torch.full((len(ids),), 5),
        losses=torch.tensor(losses),
        clients=len(alone),
    )
    found: list[float] = rule(reports, rule.init(len(alone))).weights.tolist()
    return found


def test_weights_are_those_of_the_paper() -> None:
    losses, alone, ids = [0.4, 2.0, 9.0], (0.5, 0.3, 1.0, 0.2), [2, 0, 1]
    raw = []
    for loss, client in zip(losses, ids, strict=True):
        s = 1 / (1 + math.exp(alone[client] - loss))
        raw.append(s * (1 - s) + 1e-3 / 3)
    expected = [value / sum(raw) for value in raw]
    assert weights(losses, alone, ids) == pytest.approx(expected, rel=1e-6)


def test_a_client_at_its_requirement_counts_most_and_one_far_above_hardly_at_all() -> None:
    near, above, far = weights([1.0, 2.0, 12.0], (1.0, 1.0, 1.0), [0, 1, 2])
    assert near > above > far > 0
    assert far < 0.001


def test_it_wins_the_clients_that_can_be_won() -> None:
    """Two of three quadratics agree; the mean of all three contents nobody."""
    centres = torch.tensor([[0.0], [0.4], [6.0]])
    alone = (0.3, 0.3, 0.3)
    w = centres.mean(0)
    rule = MaxFL(alone=alone)
    state = rule.init(3)
    for _ in range(400):
        losses = (w - centres).square().sum(1)
        reports = Reports(ids=torch.arange(3), sizes=torch.ones(3), losses=losses, clients=3)
        gradients = 2 * (w - centres)
        w = w - 0.1 * (rule(reports, state).weights.float() @ gradients)
    content = (w - centres).square().sum(1) <= torch.tensor(alone)
    assert content.tolist() == [True, True, False]
    assert not ((centres.mean(0) - centres).square().sum(1) <= torch.tensor(alone)).any()


def test_losses_of_other_clients_are_refused() -> None:
    with pytest.raises(ConfigError, match="alone has 2 losses for 3 clients"):
        MaxFL(alone=(1.0, 2.0)).init(3)
    with pytest.raises(ConfigError, match=r"alone = \[\.\.\.\]"):
        MaxFL(path="runs/alone").init(3)
