"""FedMGDA against two-client closed forms and every active set, and descent for every reporter."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.rules import FedMGDA, FedMGDAPlus
from rule_helpers import build, normals, reports, vowel, weigh


def by_enumeration(U: Tensor, prior: Tensor, epsilon: float) -> Tensor:
    """The least lam' G lam over every guess of which weights are at a bound."""
    G = (U @ U.T).numpy()
    low = (prior - epsilon).clamp(min=0).numpy()
    high = (prior + epsilon).clamp(max=1).numpy()
    best = low
    value = np.inf
    for guess in product((low, None, high), repeat=len(low)):
        free = [i for i, bound in enumerate(guess) if bound is None]
        lam = np.array([0.0 if bound is None else bound[i] for i, bound in enumerate(guess)])
        if free:  # stationary: G lam equal on the free ones, and the sum is 1
            system = np.ones((len(free) + 1, len(free) + 1))
            system[:-1, :-1] = G[np.ix_(free, free)]
            system[-1, -1] = 0
            lam[free] = np.linalg.solve(system, np.append(-(G @ lam)[free], 1 - lam.sum()))[:-1]
        inside = (
            (lam >= low - 1e-12).all()
            and (lam <= high + 1e-12).all()
            and abs(lam.sum() - 1) < 1e-12
        )
        if inside and lam @ G @ lam < value:
            best = lam
            value = lam @ G @ lam
    return torch.from_numpy(best)


def two_clients(a: Tensor, b: Tensor) -> float:
    """The share of a in the point of the segment from a to b that is nearest to 0."""
    return min(1.0, max(0.0, float(b @ (b - a) / (a - b).square().sum())))


def test_two_clients_in_closed_form() -> None:
    for seed in range(12):
        U = normals(seed, 2, 3) * torch.tensor([[1.0], [0.2 + seed / 4]])
        first = two_clients(U[0], U[1])
        assert weigh(FedMGDA(), reports([1.0, 1.0], updates=U)).tolist() == pytest.approx(
            [first, 1 - first], abs=1e-8
        )


def test_two_clients_by_hand() -> None:
    right = reports([1.0, 1.0], updates=[[1.0, 0.0], [0.0, 2.0]])
    assert weigh(FedMGDA(), right).tolist() == pytest.approx([0.8, 0.2], abs=1e-9)
    longer = reports(
        [1.0, 1.0], updates=[[1.0, 0.0], [3.0, 0.5]]
    )  # the nearest point is the short one itself
    assert weigh(FedMGDA(), longer).tolist() == pytest.approx([1.0, 0.0], abs=1e-9)


@pytest.mark.parametrize("epsilon", [0.05, 0.2, 1.0])
@pytest.mark.parametrize("prior", ["uniform", "sizes"])
def test_the_minimum_norm_point_within_the_box(epsilon: float, prior: str) -> None:
    for seed in range(4):
        U = normals(seed, 5, 8) + 0.3
        sizes = torch.tensor([1.0, 2.0, 3.0, 2.0, 2.0]).double()
        shares = sizes / 10 if prior == "sizes" else torch.full((5,), 0.2, dtype=torch.float64)
        rule = build("fedmgda", epsilon=epsilon, prior=prior)
        got = weigh(rule, reports([1.0] * 5, sizes=sizes, updates=U))
        torch.testing.assert_close(got, by_enumeration(U, shares, epsilon), rtol=0, atol=1e-6)
        assert ((got - shares).abs() <= epsilon + 1e-9).all()


@pytest.mark.parametrize("shape", [(2, 2), (5, 8), (10, 3), (30, 200), (40, 10)])
@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_no_reporters_loss_rises(shape: tuple[int, int], shift: float) -> None:
    """<u_i, D> >= |D|^2: to first order, every loss decreases at least at the rate |D|^2."""
    U = normals(sum(shape), *shape) + shift
    D = weigh(FedMGDA(), reports([1.0] * len(U), updates=U)) @ U
    assert (U @ D >= D @ D - 1e-7).all()


def test_no_corner_and_no_mean_is_shorter() -> None:
    U = normals(4, 6, 9) + 0.4
    D = weigh(FedMGDA(), reports([1.0] * 6, updates=U)) @ U
    assert D.norm() <= min(U.norm(dim=1).min(), U.mean(0).norm()) + 1e-9


def test_losses_and_sizes_do_not_matter() -> None:
    U = normals(5, 4, 6)
    plain = weigh(FedMGDA(), reports([1.0] * 4, updates=U))
    assert torch.equal(
        weigh(FedMGDA(), reports([0.0, 1e4, 1e-30, 2.0], sizes=[1, 10**9, 5, 5], updates=U)), plain
    )


@pytest.mark.parametrize("kind", [FedMGDA, FedMGDAPlus])
def test_epsilon_zero_is_the_prior(kind: type[FedMGDA]) -> None:
    U = torch.nn.functional.normalize(
        normals(6, 3, 4), dim=1
    )  # of length 1, so that both rules' weights are lam
    told = reports([1.0] * 3, sizes=[1, 2, 5], updates=U)
    got = weigh(kind(epsilon=0.0), told)
    assert got.tolist() == pytest.approx([1 / 3] * 3, rel=1e-12)
    by_size = weigh(kind(epsilon=0.0, prior="sizes"), told)
    assert by_size.tolist() == pytest.approx([1 / 8, 2 / 8, 5 / 8], rel=1e-12)


def test_opposite_updates_cancel() -> None:
    U = torch.tensor([[3.0, 0.0], [-1.0, 0.0]]).double()
    got = weigh(FedMGDA(), reports([1.0, 1.0], updates=U))
    assert got.tolist() == pytest.approx([0.25, 0.75], abs=1e-8)
    assert (got @ U).norm() < 1e-7


@pytest.mark.parametrize("kind", [FedMGDA, FedMGDAPlus])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_zero_updates_get_equal_weights(kind: type[FedMGDA], size: int) -> None:
    got = weigh(kind(), reports([1.0] * size, updates=torch.zeros(size, 3)))
    assert got.tolist() == pytest.approx([1 / size] * size, abs=1e-9)


def test_equal_updates_get_equal_weights() -> None:
    got = weigh(FedMGDA(), reports([1.0] * 4, updates=torch.ones(4, 3)))
    assert got.tolist() == pytest.approx([0.25] * 4, abs=1e-9)


def test_a_converged_client_stops_plain_mgda() -> None:
    """0 is in the hull, and is its shortest point."""
    U = torch.tensor([[1.0, 1.0], [2.0, 0.5], [0.0, 0.0]]).double()
    assert (weigh(FedMGDA(), reports([1.0] * 3, updates=U)) @ U).norm() < 1e-6


def test_plus_is_mgda_of_unit_updates() -> None:
    for seed in range(3):
        U = normals(seed, 4, 6) * torch.tensor([[0.01], [1.0], [5.0], [300.0]])
        unit = U / U.norm(dim=1, keepdim=True)
        lam = by_enumeration(unit, torch.full((4,), 0.25, dtype=torch.float64), 0.01)
        got = weigh(FedMGDAPlus(), reports([1.0] * 4, updates=U))
        torch.testing.assert_close(got, lam / U.norm(dim=1), rtol=1e-5, atol=1e-9)
        torch.testing.assert_close(got @ U, lam @ unit, rtol=0, atol=1e-5)


def test_plus_does_not_care_how_long_an_update_is() -> None:
    U = normals(8, 3, 5)
    longer = U * torch.tensor([[1.0], [1000.0], [1e-3]])
    a, b = (weigh(FedMGDAPlus(), reports([1.0] * 3, updates=V)) @ V for V in (U, longer))
    torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8)
    assert a.norm() <= 1 + 1e-9


def test_plus_leaves_a_zero_update_its_weight() -> None:
    U = torch.tensor([[2.0, 0.0], [0.0, 4.0], [0.0, 0.0]]).double()
    got = weigh(FedMGDAPlus(), reports([1.0] * 3, updates=U))
    lam = got * torch.tensor([2.0, 4.0, 1.0])
    assert lam.sum().item() == pytest.approx(1, abs=1e-9)
    assert ((lam - 1 / 3).abs() <= 0.01 + 1e-9).all()


def test_plus_by_name_and_plain_with_its_settings_are_the_same() -> None:
    told = reports([1.0] * 4, updates=normals(9, 4, 6))
    plain = build("fedmgda", epsilon=0.01, normalise=True)
    assert torch.equal(weigh(build("fedmgda+"), told), weigh(plain, told))
    assert build("fedmgda") == FedMGDA(1.0, False, "uniform")
    assert build("fedmgda+") == FedMGDAPlus(0.01, True, "uniform")


def test_only_weights_of_updates_as_they_are_sum_to_one() -> None:
    assert FedMGDA().mixing
    assert not FedMGDAPlus().mixing
    assert not FedMGDA(normalise=True).mixing


@pytest.mark.parametrize("name", ["fedmgda", "fedmgda+"])
def test_an_experiment_runs(name: str) -> None:
    for done in vowel(name, cohort=6):
        assert all(w >= -1e-12 for w in done.weights.values())
        assert sum(done.weights.values()) > 0


@pytest.mark.parametrize("epsilon", [-0.1, 1.5])
def test_epsilon_out_of_range_is_an_error(epsilon: float) -> None:
    with pytest.raises(ConfigError, match=f"epsilon = {epsilon}"):
        FedMGDA(epsilon)
