"""GIFAIR against counting pairs, and as the gradient of a price on pairwise differences."""

from itertools import combinations

import pytest
import torch

from cases import cases
from commonweal.base.errors import ConfigError
from commonweal.rules import GIFAIR, FedAvg
from rule_helpers import reports, uniforms, vowel, weigh


def counted(losses: list[float], sizes: list[float], strength: float) -> list[float]:
    """Pair by pair: who is worse off gains lam, who is better off loses it."""
    p = [n / sum(sizes) for n in sizes]
    lam = strength * min(p) / max(1, len(p) - 1)
    weights = list(p)
    for i, j in combinations(range(len(p)), 2):
        sign = (losses[i] > losses[j]) - (losses[i] < losses[j])
        weights[i] += lam * sign
        weights[j] -= lam * sign
    return weights


@pytest.mark.parametrize("strength", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
    "losses",
    [[1.0, 2.0, 3.0, 0.5], [1.0, 1.0, 2.0, 1.0], [0.0, 0.0, 0.0, 0.0], [1e-30, 1e4, 0.0, 1e-30]],
)
def test_weights_count_pairs(strength: float, losses: list[float]) -> None:
    for sizes in ([1.0, 1.0, 1.0, 1.0], [4.0, 1.0, 2.0, 3.0]):
        got = weigh(GIFAIR(strength), reports(losses, sizes=sizes))
        assert got.tolist() == pytest.approx(counted(losses, sizes, strength), rel=1e-12, abs=1e-15)


def test_many_clients_count_pairs() -> None:
    losses = (uniforms(0, 60) * 20).round().tolist()  # ties
    sizes = (1 + 9 * uniforms(9, 60)).tolist()
    got = weigh(GIFAIR(), reports(losses, sizes=sizes))
    assert got.tolist() == pytest.approx(counted(losses, sizes, 1.0), rel=1e-10)


def test_weights_are_the_gradient_of_the_objective() -> None:
    """sum p f + lam sum of |f_i - f_j| over pairs, by central differences in the losses."""
    f = [0.3, 1.0, 0.7, 2.0]
    sizes = [1.0, 2.0, 3.0, 4.0]
    h = 1e-6
    lam = 0.5 * 0.1 / 3

    def objective(losses: list[float]) -> float:
        spread = sum(abs(a - b) for a, b in combinations(losses, 2))
        return sum(n / 10 * x for n, x in zip(sizes, losses, strict=True)) + lam * spread

    got = weigh(GIFAIR(0.5), reports(f, sizes=sizes)).tolist()
    for i in range(4):
        up = list(f)
        down = list(f)
        up[i] += h
        down[i] -= h
        assert (objective(up) - objective(down)) / (2 * h) == pytest.approx(got[i], rel=1e-6)


def test_strength_zero_and_equal_losses_are_fedavg() -> None:
    for rule, losses in ((GIFAIR(0.0), [1.0, 5.0, 2.0]), (GIFAIR(1.0), [2.0, 2.0, 2.0])):
        told = reports(losses, sizes=[1, 2, 3])
        torch.testing.assert_close(weigh(rule, told), weigh(FedAvg(), told), rtol=1e-15, atol=0)


@cases("seed", range(10))
def test_at_the_bound_no_weight_is_below_zero_and_they_sum_to_one(seed: int) -> None:
    size = 2 + seed
    got = weigh(GIFAIR(1.0), reports(uniforms(seed, size), sizes=1 + 99 * uniforms(seed + 1, size)))
    assert (got >= -1e-16).all()
    assert got.sum().item() == pytest.approx(1, abs=1e-12)


def test_the_bound_is_reached_by_the_smallest_client_that_fares_best() -> None:
    assert weigh(GIFAIR(1.0), reports([0.1, 1.0, 2.0], sizes=[1, 4, 5])).tolist() == pytest.approx(
        [0.0, 0.4, 0.6]
    )
    assert weigh(GIFAIR(0.5), reports([0.1, 1.0, 2.0], sizes=[1, 4, 5])).tolist() == pytest.approx(
        [0.05, 0.4, 0.55]
    )


def test_one_alone_has_all_the_weight() -> None:
    assert weigh(GIFAIR(), reports([3.0], clients=9)).tolist() == [1.0]


def test_a_column_of_a_table_is_as_good_as_a_vector() -> None:
    """Losses that do not lie side by side in memory."""
    table = uniforms(3, 5, 2)
    assert torch.equal(
        weigh(GIFAIR(), reports(table[:, 0])), weigh(GIFAIR(), reports(table[:, 0].clone()))
    )


def test_an_experiment_runs() -> None:
    for done in vowel("gifair", cohort=5):
        assert sum(done.weights.values()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("strength", [-0.1, 1.1])
def test_a_strength_out_of_range_is_an_error(strength: float) -> None:
    with pytest.raises(ConfigError, match=f"strength = {strength}"):
        GIFAIR(strength)
