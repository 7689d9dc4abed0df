"""VRed: weights are the gradient of the mean plus beta times the variance."""

import pytest
import torch

from commonweal.base.errors import ConfigError
from commonweal.rules import FedAvg, VRed
from rule_helpers import normals, reports, uniforms, vowel, warnings, weigh

SIZES = [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("beta", [0.0, 0.1, 1.0, 7.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_direction_is_the_objectives_gradient(beta: float, seed: int) -> None:
    """[V] eq. 5 on four quadratics in three parameters, by central differences."""
    centres = normals(seed, 4, 3)
    curves = 0.5 + uniforms(seed, 4, 3)
    w = normals(seed + 30, 3)
    h = 1e-5
    p = torch.tensor(SIZES).double() / 10

    def losses(at: torch.Tensor) -> torch.Tensor:
        return (curves * (at - centres).square()).sum(1) / 2

    def objective(at: torch.Tensor) -> float:
        f = losses(at)
        mean = p @ f
        return float(mean + beta * (p @ (f - mean).square()))

    steps = h * torch.eye(3, dtype=torch.float64)
    numerical = [(objective(w + s) - objective(w - s)) / (2 * h) for s in steps]
    gradients = curves * (w - centres)
    got = weigh(VRed(beta), reports(losses(w), sizes=SIZES)) @ gradients
    assert got.tolist() == pytest.approx(numerical, rel=1e-6, abs=1e-7)


def test_by_hand() -> None:
    assert weigh(VRed(0.5), reports([1.0, 3.0], sizes=[3, 1])).tolist() == pytest.approx(
        [0.75 * 0.5, 0.25 * 2.5]
    )


@pytest.mark.parametrize("beta", [0.0, 0.1, 10.0, 1e4])
def test_weights_sum_to_one(beta: float) -> None:
    got = weigh(VRed(beta), reports(3 * uniforms(1, 4), sizes=SIZES))
    assert got.sum().item() == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("losses", [[1.0, 1.0, 1.0, 1.0], [0.0] * 4])
def test_equal_losses_are_fedavg(losses: list[float]) -> None:
    told = reports(losses, sizes=SIZES)
    torch.testing.assert_close(weigh(VRed(5.0), told), weigh(FedAvg(), told), rtol=1e-12, atol=0)


def test_no_price_is_fedavg() -> None:
    told = reports([0.1, 5.0, 1e4, 0.0], sizes=SIZES)
    torch.testing.assert_close(weigh(VRed(0.0), told), weigh(FedAvg(), told), rtol=1e-15, atol=0)


@pytest.mark.parametrize(("part", "negative"), [(0.999, False), (1.001, True)])
def test_weights_are_negative_beyond_the_bound_and_a_warning_states_it(
    part: float, negative: bool
) -> None:
    """Losses 1 and 3 with mean 1.5: beta < 1 / (2 * 0.5) = 1."""
    rule = VRed(part * 1.0)
    told = reports([1.0, 3.0], sizes=[3, 1])
    assert bool((weigh(rule, told) < 0).any()) is negative
    given = warnings(rule, told)
    assert len(given) == negative
    assert all(warning.startswith("vred: ") for warning in given)
    assert all("below 1" in warning and "negative" in warning for warning in given)


def test_the_bound_in_the_warning_is_the_bound() -> None:
    told = reports([0.2, 0.9, 1.7, 0.4], sizes=SIZES)
    (warning,) = warnings(VRed(100.0), told)
    bound = float(warning.rsplit(" ", 1)[1])
    assert (weigh(VRed(0.99 * bound), told) > 0).all()
    assert (weigh(VRed(1.01 * bound), told) < 0).any()


def test_the_warning_is_in_the_rounds_that_need_it_once() -> None:
    rounds = vowel({"name": "vred", "beta": 30.0}, rounds=4, client={"name": "sgd", "lr": 0.3})
    for done in rounds:
        negative = min(done.weights.values()) < 0
        assert len(done.warnings) == negative
        assert all("makes weights negative" in warning for warning in done.warnings)
    assert {len(done.warnings) for done in rounds} == {0, 1}


def test_beta_below_zero_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"^vred beta = -0\.1"):
        VRed(-0.1)
