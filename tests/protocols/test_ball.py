"""The projection of the model on a ball, and Theorem 5 of agnostic federated learning."""

import math

import numpy as np
import pytest
import torch

import commonweal
from commonweal.base.errors import ConfigError
from commonweal.base.tensors import flatten, unflatten
from commonweal.protocols.servers import SGD, Adam, Ball, Polyak
from commonweal.rules import AFL
from rule_helpers import normals, reports


def test_it_is_the_nearest_point_of_the_ball() -> None:
    """Against steps and projections in numpy, some of them inside the ball; via a file's form."""
    server = Ball(SGD(0.5), radius=1.5)
    w = torch.tensor([0.5, -0.5], dtype=torch.float64)
    expected = w.numpy()
    state = server.init(w)
    inside = 0
    for direction in normals(1, 20, 2):
        w, state = server(w, direction, unflatten(flatten(state)))
        expected = expected - 0.5 * direction.numpy()
        length = np.sqrt((expected**2).sum())
        inside += length < 1.5
        expected = expected / max(1, length / 1.5)
        np.testing.assert_allclose(w.numpy(), expected, rtol=1e-12)
    assert 0 < inside < 20


def test_the_inner_steps_keep_their_memory() -> None:
    wide, plain = Ball(Adam(), radius=1e9), Adam()
    w = v = torch.ones(3)
    state, other = wide.init(w), plain.init(v)
    for direction in normals(2, 5, 3).float():
        w, state = wide(w, direction, state)
        v, other = plain(v, direction, other)
    assert torch.equal(w, v)


def test_a_mean_inside_is_projected_too() -> None:
    server = Ball(Polyak(SGD(1.0)), radius=1.0)
    w, state = server(torch.zeros(2), torch.tensor([-3.0, -4.0]), server.init(torch.zeros(2)))
    assert server.output(w, state).tolist() == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rounds", [50, 800])
def test_theorem_5(seed: int, rounds: int) -> None:
    """Clients |w - a_k|^2 / 2 whose optima lie outside the ball, with full gradients."""
    clients, radius = 4, 1.0
    optima = 1.5 * normals(seed, clients, 2) + 2.0
    steep = radius + float(optima.norm(dim=1).max())  # G_w
    steep_mixture = math.sqrt(clients) * steep**2 / 2  # G_lambda; R_Lambda is 1
    lr = 2 * radius / (math.sqrt(rounds) * steep)
    server = Polyak(Ball(SGD(lr), radius))
    rule = AFL(lr=2 / (math.sqrt(rounds) * steep_mixture), lagged=True)
    w = torch.zeros(2, dtype=torch.float64)
    state, mixture = server.init(w), rule.init(clients)
    for _ in range(rounds):
        apart = w - optima
        decision = rule(reports(apart.square().sum(1) / 2), mixture)
        w, state = server(w, decision.weights @ apart, state)
        mixture = decision.state
        assert w.norm() <= radius + 1e-12

    def worst(models: torch.Tensor) -> torch.Tensor:
        return torch.cdist(models, optima).square().amax(1) / 2

    angle = torch.linspace(0, 2 * math.pi, 4001, dtype=torch.float64)
    circle = radius * torch.stack([angle.cos(), angle.sin()], 1)
    grid = torch.cat([r * circle for r in torch.linspace(0, 1, 101, dtype=torch.float64)])
    gap = worst(server.output(w, state)[None])[0] - worst(grid).min()
    assert -1e-6 <= gap <= 3 * (radius * steep + steep_mixture) / math.sqrt(rounds)


def test_a_run_stays_in_its_ball() -> None:
    server = {"name": "ball", "step": {"name": "sgd"}, "radius": 0.1}
    experiment = commonweal.Experiment(dataset="vowel", rounds=3, rule="afl", server=server)
    for done in commonweal.run(experiment):
        assert done.state["w"].norm().item() == pytest.approx(0.1, rel=1e-5)


@pytest.mark.parametrize("radius", [0.0, -1.0, math.nan])
def test_a_radius_must_be_above_0(radius: float) -> None:
    with pytest.raises(ConfigError, match=r"ball radius = .* above 0"):
        Ball(SGD(), radius)
