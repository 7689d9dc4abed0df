"""AAggFF-S against eq. 7 computed naively, the authors' code, and Theorem 5.1."""

import math
from collections.abc import Callable
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.rules import AAggFFS, Rule, simplex
from commonweal.rules.online import response
from rule_helpers import ORACLE_CDFS, build, decision_loss, play, reports, weigh

Array = npt.NDArray[np.float64]
Adversary = Callable[[int, Tensor], Tensor]  # the losses of a round, given the decision


def losses_of(seed: int, rounds: int, clients: int) -> Tensor:
    return 0.05 + 3 * torch.rand(
        rounds, clients, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def minimiser(A: Array, b: Array) -> Array:
    """The least 1/2 p'Ap + b'p on the simplex, over every guess of which weights are above zero."""
    k = len(b)
    best = None
    value = math.inf
    for size in range(1, k + 1):
        for support in map(list, combinations(range(k), size)):
            system = np.ones((size + 1, size + 1))
            system[:size, :size] = A[np.ix_(support, support)]
            system[size, size] = 0
            p = np.zeros(k)
            p[support] = np.linalg.solve(system, np.append(-b[support], 1))[:size]
            cost = float(p @ A @ p / 2 + b @ p)
            if (p >= 0).all() and cost < value:
                best = p
                value = cost
    assert best is not None
    return best


def equation_7(losses: Array, cdf: str, beta: float | None = None) -> list[Array]:
    """The decisions after each round, from the list of all past gradients and decisions."""
    k = losses.shape[1]
    alpha = 4.0
    beta = k / 4 if beta is None else beta
    p = np.full(k, 1 / k)
    past = []
    decisions = []
    for f in losses:
        r = np.array([ORACLE_CDFS[cdf](x) / k for x in f / f.mean()])
        past.append((-r / (1 + p @ r), p))
        # <sum g, p> + alpha/2 |p|^2 + beta/2 sum <g_t, p - p_t>^2: Hessian, and gradient at 0
        hessian = alpha * np.eye(k) + beta * sum(np.outer(g, g) for g, _ in past)
        gradient = sum(g - beta * g * (g @ then) for g, then in past)
        p = minimiser(hessian, gradient)
        decisions.append(p)
    return decisions


def authors_code(losses: Array, cdf: str) -> list[Array]:
    """As the published code runs: facts/reference.md 1.2-1.3."""
    k = losses.shape[1]
    p = np.ones(k)
    total = np.zeros(k)
    matrix = 4.0 * np.eye(k)
    decisions = []
    for f in losses:
        x = f / f.mean()
        inverted = [0.5 * (1 + math.erfc((v - 1) / math.sqrt(2))) for v in x]
        r = np.array(inverted if cdf == "normal" else [ORACLE_CDFS[cdf](v) for v in x]) / k
        g = -r / (1 + p @ r)
        total = total + g
        matrix = matrix + np.outer(g, g)
        p = minimiser(4.0 * np.eye(k) + k / 4 * matrix, total)
        decisions.append(p)
    return decisions


def played(rule: Rule, losses: Tensor) -> list[Tensor]:
    state = rule.init(losses.shape[1])
    decisions = []
    for f in losses:
        weights, state = play(rule, reports(f), state)
        decisions.append(weights)
    return decisions


@pytest.mark.parametrize("cdf", ORACLE_CDFS)
@pytest.mark.parametrize("clients", [2, 4])
def test_paper_variant_is_equation_7(cdf: str, clients: int) -> None:
    losses = losses_of(clients, 10, clients)
    for got, expected in zip(
        played(build("aaggff-s", cdf=cdf), losses),
        equation_7(losses.numpy(), cdf),
        strict=True,
    ):
        assert got.numpy() == pytest.approx(expected, abs=1e-7)


def test_paper_variant_at_a_corner_of_the_simplex() -> None:
    """One client is always worst: after many rounds the others get exactly nothing."""
    losses = torch.tensor([[9.0, 0.1, 0.1, 0.1]], dtype=torch.float64).repeat(120, 1)
    expected = equation_7(losses.numpy(), "weibull")
    assert expected[-1][1] == 0
    assert played(AAggFFS(cdf="weibull"), losses)[-1].numpy() == pytest.approx(
        expected[-1], abs=1e-7
    )


def test_beta_is_the_curvature() -> None:
    losses = losses_of(9, 10, 4)
    by_beta = {beta: played(AAggFFS(beta=beta), losses)[-1].numpy() for beta in (0.5, 1.0, 4.0)}
    for beta, got in by_beta.items():
        assert got == pytest.approx(equation_7(losses.numpy(), "normal", beta)[-1], abs=1e-7)
    assert by_beta[1.0] == pytest.approx(
        played(AAggFFS(), losses)[-1].numpy(), abs=1e-12
    )  # K/4 by default
    assert np.abs(by_beta[0.5] - by_beta[4.0]).max() > 1e-4


@pytest.mark.parametrize("cdf", ORACLE_CDFS)
def test_reference_variant_is_the_authors_code(cdf: str) -> None:
    losses = losses_of(5, 10, 4)
    for got, expected in zip(
        played(build("aaggff-s", cdf=cdf, variant="reference"), losses),
        authors_code(losses.numpy(), cdf),
        strict=True,
    ):
        assert got.numpy() == pytest.approx(expected, abs=1e-7)


def test_the_reference_variant_stays_nearer_to_uniform() -> None:
    """facts/reference.md 1.3: its ridge is larger and its quadratic pulls to 0."""
    losses = torch.tensor([[0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 1.5]], dtype=torch.float64).repeat(100, 1)
    paper = played(AAggFFS(cdf="weibull", variant="paper"), losses)
    reference = played(AAggFFS(cdf="weibull", variant="reference"), losses)
    for t in (10, 50, 100):
        assert 1 / 7 < float(reference[t - 1].max()) < float(paper[t - 1].max())


def test_the_inverted_normal_of_the_reference_falls_with_the_loss() -> None:
    losses = torch.tensor([1.0, 2.0, 3.0])
    inverted = weigh(AAggFFS(variant="reference"), reports(losses))
    right = weigh(AAggFFS(), reports(losses))
    assert (inverted.diff() < 0).all()
    assert (right.diff() > 0).all()


def test_first_decision_weighs_by_this_rounds_losses() -> None:
    """Algorithm 2: the new decision weighs this round's updates already."""
    weights, state = play(AAggFFS(), reports([1.0, 2.0]), AAggFFS().init(2))
    assert weights[1] > 0.5 > weights[0]
    assert torch.equal(weights, state["p"])


def test_the_state_starts_uniform_or_as_the_authors_code_does() -> None:
    assert AAggFFS().init(4)["p"].tolist() == [0.25] * 4
    assert AAggFFS(variant="reference").init(4)["p"].tolist() == [1.0] * 4
    assert {name: tuple(value.shape) for name, value in AAggFFS().init(3).items()} == {
        "p": (3,),
        "linear": (3,),
        "curvature": (3, 3),
    }


@pytest.mark.parametrize("variant", ["paper", "reference"])
def test_all_zero_losses_leave_the_decision_uniform(variant: str) -> None:
    losses = torch.zeros(5, 3, dtype=torch.float64)
    for weights in played(build("aaggff-s", variant=variant), losses):
        assert weights.tolist() == pytest.approx([1 / 3] * 3, abs=1e-9)


def test_a_single_silo_has_all_the_weight() -> None:
    for weights in played(AAggFFS(), losses_of(0, 4, 1)):
        assert weights.tolist() == [1.0]


def test_a_missing_silo_is_out_of_the_weights_and_the_others_sum_to_one() -> None:
    rule = AAggFFS()
    losses = losses_of(1, 6, 4)
    state = rule.init(4)
    for t, f in enumerate(losses):
        ids = [k for k in range(4) if k != t % 4]
        weights, state = play(rule, reports(f[ids], ids=ids, clients=4), state)
        assert weights.shape == (3,)
        assert weights.sum().item() == pytest.approx(1, abs=1e-12)
        assert state["p"].sum().item() == pytest.approx(1, abs=1e-12)
        torch.testing.assert_close(
            weights, state["p"][ids] / state["p"][ids].sum(), rtol=1e-12, atol=0
        )


def test_a_missing_silo_is_treated_as_average() -> None:
    """Eq. 10: the mean response in its place, deviations divided by C, and the result in eq. 7."""
    rule = AAggFFS(cdf="logistic")
    k = 4
    f = torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64)
    _, state = play(rule, reports(f, ids=[0, 2, 3], clients=k), rule.init(k))
    r = np.array([ORACLE_CDFS["logistic"](x) / k for x in (f / f.mean()).tolist()])
    full = np.full(k, r.mean())
    full[[0, 2, 3]] = r.mean() + (r - r.mean()) * k / 3
    p = np.full(k, 1 / k)
    g = -full / (1 + p @ full)
    expected = minimiser(4 * np.eye(k) + np.outer(g, g), g - (g @ p) * g)
    assert state["p"].numpy() == pytest.approx(expected, abs=1e-8)


def test_only_ever_the_same_two_of_four_report() -> None:
    rule = AAggFFS()
    state = rule.init(4)
    for _ in range(300):
        weights, state = play(rule, reports([5.0, 0.1], ids=[3, 1], clients=4), state)
    assert torch.isfinite(weights).all()
    assert weights.sum().item() == pytest.approx(1, abs=1e-12)
    assert weights[0] > weights[1]


def test_wrong_parameters_are_errors() -> None:
    with pytest.raises(ConfigError, match="cdf = 'norml': did you mean 'normal'"):
        build("aaggff-s", cdf="norml")
    with pytest.raises(ConfigError, match="variant = 'code'"):
        build("aaggff-s", variant="code")


def bound(clients: int, rounds: int) -> float:
    """Theorem 5.1, with L = 1/K."""
    return 2 * (1 + math.log(1 + rounds / (16 * clients)))


def regret(rule: Rule, cdf: str, clients: int, rounds: int, adversary: Adversary) -> float:
    state = rule.init(clients)
    paid = 0.0
    responses = []
    for t in range(rounds):
        p = state["p"]
        f = adversary(t, p)
        r = response(f, cdf, 1 / clients)
        paid += float(decision_loss(p, r))
        responses.append(r)
        _, state = play(rule, reports(f), state)
    return paid + simplex.best_fixed(torch.stack(responses))[1]


def random_losses(clients: int, rounds: int) -> Adversary:
    table = losses_of(clients, rounds, clients) ** 3
    return lambda t, p: table[t]


def against_the_least_weighted(clients: int, rounds: int) -> Adversary:
    return lambda t, p: torch.full_like(p, 0.01).index_fill(0, p.argmin(), 10.0)


def drifting(clients: int, rounds: int) -> Adversary:
    k = torch.arange(clients, dtype=torch.float64)
    return lambda t, p: 1.05 + torch.sin(2 * math.pi * (k / clients + 2 * t / rounds))


@pytest.mark.parametrize("cdf", ORACLE_CDFS)
@pytest.mark.parametrize("kind", [random_losses, against_the_least_weighted, drifting])
def test_regret_stays_under_the_bound_of_theorem_5_1(
    kind: Callable[[int, int], Adversary], cdf: str
) -> None:
    clients, rounds = 5, 150
    rule = build("aaggff-s", cdf=cdf)
    paid = regret(rule, cdf, clients, rounds, kind(clients, rounds))
    assert paid <= bound(clients, rounds)
    assert rule.bound(rounds, clients) == pytest.approx(bound(clients, rounds))


def test_regret_against_an_always_worst_client_stops_growing() -> None:
    def constant(t: int, p: Tensor) -> Tensor:
        return torch.tensor([5.0, 0.1, 0.1, 0.1], dtype=torch.float64)

    early = regret(AAggFFS(), "normal", 4, 150, constant)
    late = regret(AAggFFS(), "normal", 4, 300, constant)
    assert early > 0
    assert late == pytest.approx(early, abs=1e-6)


def test_regret_of_a_decision_that_never_moves_grows_past_the_bound() -> None:
    """The bound means something: staying uniform against an always worst client breaks it."""
    clients = 4
    rounds = 300
    r = response(torch.tensor([5.0, 0.1, 0.1, 0.1]), "normal", 1 / clients)
    stayed = rounds * float(
        decision_loss(torch.full((clients,), 1 / clients, dtype=torch.float64), r)
    )
    assert stayed + simplex.best_fixed(r.repeat(rounds, 1))[1] > bound(clients, rounds)


def test_alpha_may_be_any_number_above_0() -> None:
    assert AAggFFS(alpha=0.5).alpha == 0.5
    with pytest.raises(ConfigError, match="alpha = 0"):
        AAggFFS(alpha=0.0)


def test_the_curvature_is_square_after_clients_joined() -> None:
    rule = AAggFFS()
    _, state = play(rule, reports([1.0, 2.0]), rule.init(2))
    _, state = play(rule, reports([1.0, 2.0, 3.0]), state)
    assert state["curvature"].shape == (3, 3)
