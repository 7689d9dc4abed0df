"""q-FedAvg against Li et al.'s Algorithm 2 written out, and against exact fractions."""

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from cases import cases
from commonweal.base.errors import ConfigError
from commonweal.data.population import Setting
from commonweal.jobs.job import job_from_experiment
from commonweal.rules import FedAvg, Guarded, QFedAvg, Uniform
from rule_helpers import build, normals, reports, uniforms, vowel, vowel_experiment, weigh

TWO = reports([1.0, 2.0], updates=torch.eye(2))


def algorithm_2(losses: list[float], updates: Tensor, q: float, L: float) -> Tensor:
    """w(t) - w(t+1) = sum Delta_k / sum h_k, with Delta-w, Delta and h as Li et al. print them."""
    top = torch.zeros(updates.shape[1], dtype=torch.float64)
    bottom = 0.0
    for f, u in zip(losses, updates, strict=True):
        delta_w = L * u
        top = top + f**q * delta_w
        bottom += q * f ** (q - 1) * float(delta_w @ delta_w) + L * f**q
    return top / bottom


@cases("q", [0.0, 0.1, 0.5, 1.0, 2.0, 5.0])
@cases("seed", range(3))
def test_scaled_is_algorithm_2(q: float, seed: int) -> None:
    losses = (0.05 + 3 * uniforms(seed, 5)).tolist()
    updates = normals(seed, 5, 7)
    rule = QFedAvg(q=q, scaled=True, lipschitz=4.0)
    direction = weigh(rule, reports(losses, updates=updates)) @ updates
    torch.testing.assert_close(
        direction, algorithm_2(losses, updates, q, 4.0), rtol=1e-12, atol=1e-15
    )


def test_scaled_by_hand() -> None:
    """f = (1, 2), |u| = 1, q = 1, L = 1: h = 1 * 1 + 1 and 1 * 1 + 2."""
    assert weigh(QFedAvg(scaled=True, lipschitz=1.0), TWO).tolist() == pytest.approx(
        [1 / 5, 2 / 5], rel=1e-15
    )


def test_scaled_steps_shrink_with_the_updates_length() -> None:
    sums = []
    for length in (0.01, 0.1, 1.0, 10.0):
        told = reports([1.0, 2.0], updates=length * torch.eye(2))
        sums.append(float(weigh(QFedAvg(scaled=True, lipschitz=1.0), told).sum()))
    assert sums == sorted(sums, reverse=True)
    assert sums[0] == pytest.approx(1, abs=1e-4)


@cases("seed", range(10))
@cases("q", [0.5, 1.0, 3.0])
def test_a_step_lowers_the_objective(seed: int, q: float) -> None:
    """Lemma 3 of Li et al.: h bounds the curvature, so a step of 1 / sum h lowers sum f^(q+1)."""
    centres = normals(seed, 4, 3)
    w = normals(seed + 50, 3)
    L = 2.0

    def losses(at: Tensor) -> Tensor:
        return L / 2 * (at - centres).square().sum(1)

    updates = w - centres  # one gradient step with lr 1 / L
    told = reports(losses(w), updates=updates)
    after = w - weigh(QFedAvg(q=q, scaled=True, lipschitz=L), told) @ updates
    assert (losses(after) ** (q + 1)).sum() < (losses(w) ** (q + 1)).sum()


def test_a_larger_q_ends_with_more_even_losses() -> None:
    spreads = []
    for q in (0.0, 1.0, 4.0):
        rule = QFedAvg(q=q, scaled=False)
        w = torch.zeros(1, dtype=torch.float64)
        targets = torch.tensor([[0.0], [1.0]])
        curves = torch.tensor([1.0, 9.0])
        for _ in range(1000):
            updates = 0.05 * curves[:, None] * (w - targets)
            losses = curves / 2 * (w - targets)[:, 0] ** 2
            w = w - weigh(rule, reports(losses, updates=updates)) @ updates.double()
        spreads.append(float(losses.max() - losses.min()))
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[2] < 0.5 * spreads[0]


@cases("prior", ["sizes", "uniform"])
@cases("q", [1, 2, 3])
def test_normalised_is_exact_from_1e_30_to_1e4(prior: str, q: int) -> None:
    losses = [1e-30, 0.5, 1e4, 1e-5]
    sizes = [3, 1, 7, 10**9]
    parts = [
        Fraction(f) ** q * (n if prior == "sizes" else 1)
        for f, n in zip(losses, sizes, strict=True)
    ]
    expected = [float(part / sum(parts)) for part in parts]
    rule = build("qfedavg", q=float(q), scaled=False, prior=prior)
    got = weigh(rule, reports(losses, sizes=sizes))
    assert got.tolist() == pytest.approx(expected, rel=1e-12)
    assert 0 < float(got[0]) < 1e-30


def test_normalised_is_exact_among_tiny_losses() -> None:
    got = weigh(QFedAvg(q=3.0, scaled=False), reports([1e-30, 2e-30]))
    assert got.tolist() == pytest.approx([1 / 9, 8 / 9], rel=1e-12)


def test_normalised_gives_nothing_to_a_loss_of_zero() -> None:
    got = weigh(QFedAvg(q=0.5, scaled=False), reports([0.0, 1.0, 4.0]))
    assert got.tolist() == pytest.approx([0, 1 / 3, 2 / 3], rel=1e-12)
    assert got[0] == 0


def test_normalised_with_zero_losses_only_is_the_prior() -> None:
    got = weigh(QFedAvg(scaled=False, prior="sizes"), reports([0.0, 0.0], sizes=[1, 3]))
    assert got.tolist() == pytest.approx([0.25, 0.75], rel=1e-15)


@cases("losses", [[1e-30, 1e4], [0.0, 3.0], [2.0, 2.0]])
def test_q_zero_is_the_prior_exactly(losses: list[float]) -> None:
    told = reports(losses, sizes=[1, 3])
    assert torch.equal(
        weigh(QFedAvg(q=0.0, scaled=False, prior="sizes"), told), weigh(FedAvg(), told)
    )
    assert torch.equal(weigh(QFedAvg(q=0.0, scaled=False), told), weigh(Uniform(), told))


@cases("losses", [[1e-30, 1e4], [0.0, 3.0], [2.0, 2.0]])
def test_q_zero_scaled_is_plain_averaging(losses: list[float]) -> None:
    told = reports(losses, updates=5 * torch.eye(2))
    assert weigh(QFedAvg(q=0.0, scaled=True, lipschitz=3.0), told).tolist() == pytest.approx(
        [0.5, 0.5], rel=1e-12
    )


@cases("q", [0.1, 0.5, 1.0, 2.0])
@cases("losses", [[0.0, 0.0], [0.0, 1.0], [1e-30, 1.0], [1e4, 1.0], [1e-30, 1e4]])
def test_scaled_is_finite_at_the_ends(q: float, losses: list[float]) -> None:
    got = weigh(QFedAvg(q=q, scaled=True, lipschitz=10.0), reports(losses, updates=torch.eye(2)))
    assert torch.isfinite(got).all()
    assert (got >= 0).all()
    assert got.sum() <= 1 + 1e-12


def test_scaled_at_1e4_is_algorithm_2() -> None:
    losses = [1e4, 1e-3]
    updates = normals(3, 2, 4)
    got = (
        weigh(QFedAvg(q=2.0, scaled=True, lipschitz=10.0), reports(losses, updates=updates))
        @ updates
    )
    torch.testing.assert_close(got, algorithm_2(losses, updates, 2.0, 10.0), rtol=1e-12, atol=0)


@cases(("q", "losses"), [(100.0, [1e4, 1e3]), (200.0, [0.01, 0.02]), (40.0, [0.0, 0.0])])
def test_scaled_with_a_large_q_stays_finite(q: float, losses: list[float]) -> None:
    got = weigh(QFedAvg(q=q, scaled=True, lipschitz=10.0), reports(losses, updates=torch.eye(2)))
    assert torch.isfinite(got).all()


def test_scaled_with_sizes_as_prior_weighs_both_sums() -> None:
    """[A] eq. 18: n_i L f_i^q / sum_j n_j (q f_j^(q-1) L^2 |u_j|^2 + L f_j^q)."""
    told = reports([1.0, 2.0], sizes=[1, 3], updates=torch.eye(2))
    assert weigh(
        QFedAvg(scaled=True, lipschitz=1.0, prior="sizes"), told
    ).tolist() == pytest.approx([1 / 11, 6 / 11], rel=1e-14)


def test_lipschitz_is_one_over_the_clients_lr() -> None:
    setting = Setting(clients=2, lr=0.05)
    rule = QFedAvg(scaled=True)
    given = QFedAvg(scaled=True, lipschitz=1 / 0.05)
    assert rule.init(setting)["lipschitz"].item() == pytest.approx(20)
    assert torch.equal(weigh(rule, TWO, rule.init(setting)), weigh(given, TWO))
    assert not torch.equal(weigh(rule, TWO, rule.init(setting)), weigh(rule, TWO))


def test_lipschitz_that_is_given_is_not_replaced() -> None:
    rule = QFedAvg(scaled=True, lipschitz=3.0)
    assert rule.init(Setting(clients=2, lr=0.05)) == {}
    assert torch.equal(weigh(rule, TWO, rule.init(Setting(clients=2, lr=0.05))), weigh(rule, TWO))


def test_without_an_experiment_the_default_lr_counts() -> None:
    default = QFedAvg(scaled=True, lipschitz=1 / Setting(clients=2).lr)
    assert torch.equal(weigh(QFedAvg(scaled=True), TWO), weigh(default, TWO))


def test_normalised_weights_need_neither_lipschitz_nor_updates() -> None:
    rule = QFedAvg(scaled=False)
    assert rule.init(2) == {}
    assert "update" not in rule.needs
    assert "update" in QFedAvg(scaled=True).needs
    assert rule.mixing
    assert not QFedAvg(scaled=True).mixing


def test_an_experiment_sets_lipschitz_and_runs() -> None:
    experiment = vowel_experiment(
        {"name": "qfedavg", "scaled": True}, client={"name": "sgd", "lr": 0.25}
    )
    assert job_from_experiment(experiment).initial_state()["rule"]["lipschitz"].item() == 4.0
    rounds = vowel({"name": "qfedavg", "q": 2.0, "scaled": True}, cohort=5)
    assert all(0 < sum(done.weights.values()) <= 1 for done in rounds)


def test_inside_a_combinator_lipschitz_is_set_too() -> None:
    state = Guarded(QFedAvg(scaled=True)).init(Setting(clients=2, lr=0.5))
    assert state["rule"]["lipschitz"].item() == 2.0


@cases("wrong", [{"q": -1.0}, {"lipschitz": 0.0}, {"lipschitz": -2.0}])
def test_parameters_out_of_range_are_errors(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=str(next(iter(wrong.values())))):
        build("qfedavg", **wrong)
