"""Semi-VRed: weights are the gradient of the mean plus beta times the upper semi-variance."""

import pytest
import torch

from commonweal.base.errors import ConfigError
from commonweal.rules import FedAvg, SemiVRed, VRed
from rule_helpers import normals, reports, uniforms, vowel, warnings, weigh

SIZES = [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("beta", [0.0, 0.1, 1.0, 7.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_direction_is_the_objectives_gradient(beta: float, seed: int) -> None:
    """[V] eq. 10 on four quadratics in three parameters, by central differences."""
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
        return float(
            mean + beta * sum(q * (x - mean) ** 2 for q, x in zip(p, f, strict=True) if x > mean)
        )

    steps = h * torch.eye(3, dtype=torch.float64)
    numerical = [(objective(w + s) - objective(w - s)) / (2 * h) for s in steps]
    gradients = curves * (w - centres)
    got = weigh(SemiVRed(beta), reports(losses(w), sizes=SIZES)) @ gradients
    assert got.tolist() == pytest.approx(numerical, rel=1e-6, abs=1e-7)


def test_by_hand() -> None:
    """Mean 1.5, above it (0, 1.5), their mean 0.375."""
    got = weigh(SemiVRed(0.5), reports([1.0, 3.0], sizes=[3, 1]))
    assert got.tolist() == pytest.approx([0.75 * (1 - 0.375), 0.25 * (1 + 1.5 - 0.375)])


def test_clients_below_the_mean_keep_their_proportions() -> None:
    """[V] lemma 2: small losses are not distinguished, while VRed lowers the smallest most."""
    told = reports([0.1, 0.8, 0.9, 5.0])
    semi = weigh(SemiVRed(0.1), told)
    full = weigh(VRed(0.1), told)
    torch.testing.assert_close(semi[:3], semi[:1].repeat(3), rtol=1e-12, atol=0)
    assert full[0] < full[1] < full[2]
    assert semi[0] > full[0]


@pytest.mark.parametrize("beta", [0.0, 0.1, 10.0, 1e4])
def test_weights_sum_to_one(beta: float) -> None:
    got = weigh(SemiVRed(beta), reports(3 * uniforms(1, 4), sizes=SIZES))
    assert got.sum().item() == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("losses", [[1.0, 1.0, 1.0, 1.0], [0.0] * 4])
def test_equal_losses_are_fedavg(losses: list[float]) -> None:
    told = reports(losses, sizes=SIZES)
    torch.testing.assert_close(
        weigh(SemiVRed(5.0), told), weigh(FedAvg(), told), rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize(("part", "negative"), [(0.999, False), (1.001, True)])
def test_weights_are_negative_beyond_the_bound_and_a_warning_states_it(
    part: float, negative: bool
) -> None:
    """Losses 1 and 3 with mean 1.5: beta < 1 / (2 * 0.375) = 1.33."""
    rule = SemiVRed(part * 4 / 3)
    told = reports([1.0, 3.0], sizes=[3, 1])
    assert bool((weigh(rule, told) < 0).any()) is negative
    given = warnings(rule, told)
    assert len(given) == negative
    assert all(warning.startswith("semi-vred: ") for warning in given)
    assert all("below 1.33" in warning and "negative" in warning for warning in given)


def test_the_bound_in_the_warning_is_the_bound() -> None:
    told = reports([0.2, 0.9, 1.7, 0.4], sizes=SIZES)
    (warning,) = warnings(SemiVRed(100.0), told)
    bound = float(warning.rsplit(" ", 1)[1])
    assert (weigh(SemiVRed(0.99 * bound), told) > 0).all()
    assert (weigh(SemiVRed(1.01 * bound), told) < 0).any()


def test_the_warning_is_in_the_rounds_that_need_it_once() -> None:
    rounds = vowel({"name": "semi-vred", "beta": 60.0}, rounds=4, client={"name": "sgd", "lr": 0.3})
    for done in rounds:
        assert len(done.warnings) == (min(done.weights.values()) < 0)
        assert all("makes weights negative" in warning for warning in done.warnings)
    assert {len(done.warnings) for done in rounds} == {0, 1}


def test_beta_below_zero_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"^semi-vred beta = -0\.1"):
        SemiVRed(-0.1)


def test_weights_of_exactly_zero_are_no_reason_to_warn() -> None:
    told = reports([0.0, 2.0])
    assert weigh(SemiVRed(beta=1.0), told).tolist() == [0.0, 1.0]
    assert SemiVRed(beta=1.0).warnings(told) == ()
    assert "below 1" in SemiVRed(beta=1.01).warnings(told)[0]
