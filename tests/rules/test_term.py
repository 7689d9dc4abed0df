"""TERM against high-precision decimals, and as the gradient of the tilted loss."""

import math
from decimal import Decimal, localcontext

import pytest
import torch

from commonweal.rules import TERM, FedAvg, Uniform
from rule_helpers import reports, uniforms, vowel, weigh


def decimals(losses: list[float], sizes: list[int], t: float) -> list[float]:
    """n exp(t f) / sum with 60 digits and no limit on exponents that matters."""
    with localcontext() as context:
        context.prec = 60
        context.Emax = 10**9
        context.Emin = -(10**9)
        parts = [n * (Decimal(t) * Decimal(f)).exp() for f, n in zip(losses, sizes, strict=True)]
        return [float(part / sum(parts)) for part in parts]


@pytest.mark.parametrize("t", [0.1, 1.0, 5.0, -2.0])
@pytest.mark.parametrize(
    "losses",
    [
        [0.3, 2.0, 1.1],
        [0.0, 0.0, 0.0],
        [1e-30, 0.0, 1.0],
        [1e4, 1e4 + 1, 9999.5],
        [1e4, 0.0, 1e-30],
    ],
)
def test_weights_are_tilted_sizes(t: float, losses: list[float]) -> None:
    sizes = [5, 1, 10**9]
    got = weigh(TERM(relative=False, t=t), reports(losses, sizes=sizes))
    # Exponents of size 1e4 t are rounded to 1e-12 before they are powers.
    assert got.tolist() == pytest.approx(decimals(losses, sizes, t), rel=1e-10, abs=1e-300)
    uniform = weigh(TERM(relative=False, t=t, prior="uniform"), reports(losses, sizes=sizes))
    assert uniform.tolist() == pytest.approx(decimals(losses, [1, 1, 1], t), rel=1e-10, abs=1e-300)


@pytest.mark.parametrize("t", [0.3, 2.0, -1.5])
def test_weights_are_the_gradient_of_the_tilted_loss(t: float) -> None:
    """Li et al. 2021, Lemma 1: 1/t log sum p exp(t f) has the tilted mean of gradients."""
    f = uniforms(1, 4).tolist()
    sizes = [1, 2, 3, 4]
    h = 1e-6
    weights = weigh(TERM(relative=False, t=t), reports(f, sizes=sizes)).tolist()

    def objective(losses: list[float]) -> float:
        return (
            math.log(sum(n / 10 * math.exp(t * x) for n, x in zip(sizes, losses, strict=True))) / t
        )

    for i in range(4):
        up = list(f)
        down = list(f)
        up[i] += h
        down[i] -= h
        assert (objective(up) - objective(down)) / (2 * h) == pytest.approx(weights[i], rel=1e-7)


def test_no_tilt_is_the_prior() -> None:
    told = reports([0.1, 9.0, 1e4], sizes=[1, 2, 3])
    assert torch.equal(weigh(TERM(relative=False, t=0.0), told), weigh(FedAvg(), told))
    assert torch.equal(
        weigh(TERM(relative=False, t=0.0, prior="uniform"), told), weigh(Uniform(), told)
    )


def test_tilts_reach_from_the_best_client_to_the_worst() -> None:
    told = reports([0.5, 1.0, 2.0])
    assert weigh(TERM(relative=False, t=1000.0), told).tolist() == [0.0, 0.0, 1.0]
    assert weigh(TERM(relative=False, t=-1000.0), told).tolist() == pytest.approx(
        [1.0, 0.0, 0.0], abs=1e-200
    )
    worst = [float(weigh(TERM(relative=False, t=t), told)[2]) for t in (-2.0, -1.0, 0.0, 1.0, 2.0)]
    assert worst == sorted(worst)


def test_adding_a_constant_to_all_losses_changes_nothing() -> None:
    told = reports([0.5, 1.0, 2.0])
    shifted = reports([100.5, 101.0, 102.0])
    rule = TERM(relative=False)
    torch.testing.assert_close(weigh(rule, told), weigh(rule, shifted), rtol=1e-12, atol=0)


def test_relative_losses_have_no_unit() -> None:
    """Losses of 1 and 3 in any unit: exp(0.5 t) and exp(1.5 t)."""
    for unit in (1e-9, 1.0, 1e6):
        got = weigh(TERM(t=2.0), reports([unit, 3 * unit], sizes=[1, 5]))
        assert got.tolist() == pytest.approx(decimals([0.5, 1.5], [1, 5], 2.0), rel=1e-9)


def test_relative_losses_of_zero_are_the_prior() -> None:
    assert weigh(TERM(), reports([0.0, 0.0], sizes=[1, 3])).tolist() == [0.25, 0.75]


def test_an_experiment_runs() -> None:
    for done in vowel({"name": "term", "t": 2.0, "relative": False}):
        # Every speaker has as many rows.
        expected = decimals(list(done.losses), [1] * 15, 2.0)
        assert list(done.weights.values()) == pytest.approx(expected, rel=1e-9)
