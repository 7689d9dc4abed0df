"""Epsilon and noise, against anchors of the literature and the exact Gaussian mechanism."""

import math

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from commonweal.base.errors import ConfigError
from commonweal.protocols.privacy import epsilon_of, noise_for


def test_anchors() -> None:
    assert epsilon_of(noise=1.0, rate=0.1, rounds=100, delta=1e-5) == pytest.approx(
        7.0466, abs=1e-4
    )
    writers = 100 / 535
    expected = [
        (8.0, 0.1, 0.9359),
        (4.0, 0.1, 1.3861),
        (8.0, writers, 1.375),
        (2.0, writers, 3.918),
    ]
    for epsilon, rate, noise in expected:
        result = noise_for(epsilon=epsilon, rate=rate, rounds=100, delta=1e-5)
        assert result == pytest.approx(noise, rel=5e-4)


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (3.0, 40), (20.0, 500)])
def test_everyone_in_every_round_is_one_gaussian_mechanism(noise: float, rounds: int) -> None:
    """Balle and Wang, ICML 2018, Thm 8, for a shift of sqrt(rounds) / noise."""
    delta = 1e-6
    shift = math.sqrt(rounds) / noise

    def excess(epsilon: float) -> float:
        above = norm.cdf(shift / 2 - epsilon / shift)
        below = math.exp(epsilon) * norm.cdf(-shift / 2 - epsilon / shift)
        return float(above - below) - delta

    exact = brentq(excess, 0, 100)
    spent = epsilon_of(noise=noise, rate=1, rounds=rounds, delta=delta)
    assert exact <= spent + 1e-9
    assert spent == pytest.approx(exact, abs=2e-3)


def test_the_noise_is_enough_and_hardly_more() -> None:
    for epsilon in (0.5, 8.0, 50.0):
        noise = noise_for(epsilon=epsilon, rate=0.05, rounds=50, delta=1e-5)
        spent = epsilon_of(noise=noise, rate=0.05, rounds=50, delta=1e-5)
        assert 0.99 * epsilon < spent <= epsilon


def test_more_of_anything_spends_more() -> None:
    base = {"noise": 1.0, "rate": 0.1, "rounds": 50, "delta": 1e-5}
    spent = epsilon_of(**base)
    for change in ({"noise": 0.9}, {"rate": 0.11}, {"rounds": 51}, {"delta": 9e-6}):
        assert epsilon_of(**base | change) > spent


@pytest.mark.parametrize(
    "wrong",
    [
        {"noise": 0.0},
        {"noise": math.nan},
        {"rate": 0.0},
        {"rate": 1.1},
        {"rounds": 0},
        {"delta": 0},
    ],
)
def test_numbers_without_meaning(wrong: dict[str, float]) -> None:
    numbers = {"noise": 1.0, "rate": 0.1, "rounds": 10, "delta": 1e-5} | wrong
    with pytest.raises(ConfigError, match=f"private: {next(iter(wrong))} = "):
        epsilon_of(**numbers)


def test_an_epsilon_that_no_noise_reaches() -> None:
    with pytest.raises(ConfigError, match="larger epsilon"):
        noise_for(epsilon=1e-9, rate=1.0, rounds=10, delta=1e-12)
