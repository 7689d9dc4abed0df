"""AAggFF-D against the paper's O(K) recursion, its table against a dict, and Theorem 5.2."""

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

import commonweal
from cases import cases
from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State, flatten, unflatten
from commonweal.rules import AAggFFD, Rule, Uniform, simplex
from commonweal.rules.online import response
from commonweal.rules.sparse_table import empty_table, lookup, put_numbers
from rule_helpers import ORACLE_CDFS, build, play, reports, uniforms, vowel, weigh

Array = npt.NDArray[np.float64]


def textbook(clients: int, cohorts: list[list[int]], losses: list[Array], cdf: str) -> list[Array]:
    """Eqs. 10-12 and 95 as they are printed, with an entry for every client."""
    p = np.full(clients, 1 / clients)
    total = np.zeros(clients)
    weights = []
    for t, (ids, f) in enumerate(zip(cohorts, losses, strict=True), start=1):
        C = len(ids) / clients
        r = C * np.array([ORACLE_CDFS[cdf](x) for x in f / f.mean()])
        mean = r.mean()
        robust = np.full(clients, mean)
        robust[ids] = (1 - 1 / C) * mean + r / C  # eq. 10
        g = -robust / (1 + mean) + mean * (p @ (robust - mean)) / (1 + mean) ** 2  # eq. 11
        total += g
        L = C + 2 * C / C
        exponent = -math.sqrt(math.log(clients)) * total / (L * math.sqrt(t + 1))  # eq. 12
        p = np.exp(exponent - exponent.max())
        p /= p.sum()
        weights.append(p[ids] / p[ids].sum())  # eq. 95
    return weights


def rounds_of(
    seed: int, clients: int, size: int, count: int
) -> tuple[list[list[int]], list[Array]]:
    rng = np.random.default_rng(seed)
    cohorts = [rng.choice(clients, size, replace=False).tolist() for _ in range(count)]
    return cohorts, [0.05 + 3 * rng.random(size) for _ in range(count)]


def played(rule: Rule, clients: int, cohorts: list[list[int]], losses: list[Array]) -> list[Tensor]:
    state = rule.init(clients)
    weights = []
    for ids, f in zip(cohorts, losses, strict=True):
        told = reports(torch.from_numpy(f), ids=ids, clients=clients)
        w, state = play(rule, told, state)
        weights.append(w)
    return weights


@pytest.mark.parametrize("cdf", ORACLE_CDFS)
@pytest.mark.parametrize("size", [4, 12])
def test_it_is_the_papers_recursion(cdf: str, size: int) -> None:
    cohorts, losses = rounds_of(size, 12, size, 50)
    for got, expected in zip(
        played(build("aaggff-d", cdf=cdf), 12, cohorts, losses),
        textbook(12, cohorts, losses, cdf),
        strict=True,
    ):
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12, atol=1e-12)


def test_it_is_the_papers_recursion_when_the_cohorts_size_changes() -> None:
    rng = np.random.default_rng(3)
    cohorts = [rng.choice(12, 1 + t % 12, replace=False).tolist() for t in range(60)]
    losses = [rng.exponential(size=len(ids)) for ids in cohorts]
    got = played(AAggFFD(), 12, cohorts, losses)
    expected = textbook(12, cohorts, losses, "normal")
    assert max(np.abs(a.numpy() - b).max() for a, b in zip(got, expected, strict=True)) < 1e-12


def test_first_round_by_hand() -> None:
    """K = 4, S = 2: the softmax of sqrt(log 4) (r - rbar) / (C (1 + rbar)) / (2.5 sqrt 2)."""
    a = 1 - math.exp(-0.5)
    b = 1 - math.exp(-1.5)
    gap = math.sqrt(math.log(4)) * (b - a) / (1 + (a + b) / 4) / (2.5 * math.sqrt(2))
    got = weigh(AAggFFD(cdf="exponential"), reports([1.0, 3.0], ids=[2, 0], clients=4))
    assert got.tolist() == pytest.approx(
        [1 / (1 + math.exp(gap)), 1 / (1 + math.exp(-gap))], rel=1e-13
    )


def test_clients_never_seen_are_at_zero() -> None:
    """A newcomer with the mean loss, beside a client with large losses so far."""
    rule = AAggFFD()
    state = rule.init(100)
    for _ in range(20):
        _, state = play(rule, reports([3.0, 1.0], ids=[5, 6], clients=100), state)
    assert lookup(state, torch.tensor([99, 0, 50])).tolist() == [0.0, 0.0, 0.0]
    weights, after = play(rule, reports([1.0, 1.0, 1.0], ids=[99, 5, 6], clients=100), state)
    assert weights[1] > weights[0] > weights[2]
    assert lookup(after, torch.tensor([99])).item() == 0.0  # its loss was the cohort's mean


def test_a_billion_clients_cost_what_they_report() -> None:
    rule = AAggFFD()
    clients = 10**9
    state = rule.init(clients)
    for t in range(30):
        ids = [(t * 33_554_467 + 7 * k) % clients for k in range(5)] + [clients - 1]
        weights, state = play(rule, reports(uniforms(t, 6), ids=ids, clients=clients), state)
        assert weights.sum().item() == pytest.approx(1, abs=1e-12)
        assert (weights > 0).all()
    assert sum(value.numel() for value in state.values()) <= 2 * 2 * 30 * 6 + 2
    assert lookup(state, torch.tensor([clients - 1])).item() != 0


def test_a_billion_clients_agree_with_the_recursion_in_its_limit() -> None:
    """For small C, only sqrt(log K) and L = 2 + C depend on the population."""
    cohorts, losses = rounds_of(0, 4, 4, 10)
    got = played(AAggFFD(), 10**9, cohorts, losses)
    c = np.zeros(4)
    for t, (ids, f, weights) in enumerate(zip(cohorts, losses, got, strict=True), start=1):
        cdf = np.array([ORACLE_CDFS["normal"](x) for x in f / f.mean()])
        c[ids] -= (cdf - cdf.mean()) / (1 + 4e-9 * cdf.mean())
        e = np.exp(-math.sqrt(math.log(1e9)) * c[ids] / ((2 + 4e-9) * math.sqrt(t + 1)))
        np.testing.assert_allclose(weights.numpy(), e / e.sum(), rtol=1e-12)


def test_the_table_is_a_dict() -> None:
    """Over hundreds of rounds, through every merge of recent into settled entries."""
    rng = np.random.default_rng(1)
    plain = dict[int, float]()
    merges = 0
    state: State = empty_table()
    for _ in range(400):
        ids = rng.choice(3000, rng.integers(1, 20), replace=False)
        values = rng.normal(size=len(ids))
        before = len(state["settled_ids"])
        state = put_numbers(state, torch.from_numpy(ids), torch.from_numpy(values))
        plain |= dict(zip(ids.tolist(), values.tolist(), strict=True))
        merges += len(state["settled_ids"]) > before
        asked = rng.choice(3000, 30, replace=False)
        assert lookup(state, torch.from_numpy(asked)).tolist() == [
            plain.get(i, 0.0) for i in asked.tolist()
        ]
    assert 5 < merges < 300
    known = set(state["settled_ids"].tolist()) | set(state["recent_ids"].tolist())
    assert known == set(plain)


def test_the_cost_of_a_round_does_not_grow_with_the_clients_seen() -> None:
    """A small cohort shares the settled table: the same memory, not a copy."""
    rule = AAggFFD()
    _, state = play(rule, reports(uniforms(0, 1000), clients=10**6), rule.init(10**6))
    told = reports(uniforms(1, 5), ids=[1, 5000, 3, 900, 70000], clients=10**6)
    _, after = play(rule, told, state)
    assert after["settled"] is state["settled"]
    assert after["recent_ids"].tolist() == [1, 3, 900, 5000, 70000]


def test_the_last_number_of_a_client_counts() -> None:
    state = put_numbers(empty_table(), torch.tensor([4, 2]), torch.tensor([1.0, 2.0]).double())
    state = put_numbers(state, torch.tensor([2, 9]), torch.tensor([5.0, 6.0]).double())
    assert lookup(state, torch.tensor([9, 2, 4, 3])).tolist() == [6.0, 5.0, 1.0, 0.0]


def sequence(kind: str, rounds: int, clients: int) -> Tensor:
    """Losses (T, K) that are hard for a learner."""
    if kind == "static":  # one client is always worst: not learning costs in every round
        return torch.full((rounds, clients), 0.01).index_fill(1, torch.tensor([0]), 5.0).double()
    if kind == "random":
        return uniforms(0, rounds, clients)
    if kind == "alternating":
        two = torch.full((2, clients), 0.01)
        two[0, 0] = two[1, 1] = 5.0
        return two.repeat(rounds // 2, 1).double()
    if kind == "switching":  # the worst client changes once, after the learner has converged
        first = sequence("static", rounds, clients)
        return torch.cat([first[: rounds // 2], first[rounds // 2 :].roll(1, dims=1)])
    drift = torch.linspace(0, 6, rounds).double()[:, None] + torch.arange(clients)
    return 1.01 + drift.sin()


def regret(rule: AAggFFD | Uniform, losses: Tensor) -> float:
    """The regret against the best fixed decision (eq. 5), with decisions made before the losses."""
    clients = losses.shape[1]
    p = torch.full((clients,), 1 / clients).double()
    state = rule.init(clients)
    paid = 0.0
    seen = []
    for f in losses:
        r = response(f, "normal", 1.0)
        seen.append(r)
        paid -= math.log1p(float(p @ r))
        p, state = play(rule, reports(f), state)
    return paid + simplex.best_fixed(torch.stack(seen))[1]


@pytest.mark.parametrize("kind", ["random", "alternating", "switching", "drifting"])
def test_regret_is_within_theorem_5_2(kind: str) -> None:
    rounds = 500
    clients = 8
    L = 3.0  # L = C2 / (1 + C1) + 2 (C2 - C1) / (C (1 + C1)) at C = 1
    bound = (L + 1 / L) * math.sqrt(rounds * math.log(clients))  # gradients are at most 1
    assert AAggFFD().bound(rounds, clients) == pytest.approx(bound)
    assert regret(AAggFFD(), sequence(kind, rounds, clients)) <= bound


def test_adversarial_regret_is_within_theorem_5_2() -> None:
    """The client with the smallest weight has the largest loss in the next round."""
    rule = AAggFFD()
    clients = 6
    rounds = 500
    p = torch.full((clients,), 1 / clients).double()
    state = rule.init(clients)
    paid = 0.0
    seen = []
    for _ in range(rounds):
        f = torch.full((clients,), 0.01).double()
        f[p.argmin()] = 5.0
        r = response(f, "normal", 1.0)
        seen.append(r)
        paid -= math.log1p(float(p @ r))
        p, state = play(rule, reports(f), state)
    bound = (3 + 1 / 3) * math.sqrt(rounds * math.log(clients))
    assert paid + simplex.best_fixed(torch.stack(seen))[1] <= bound


def test_not_learning_breaks_the_bound_that_learning_keeps() -> None:
    losses = sequence("static", 900, 8)
    bound = (3 + 1 / 3) * math.sqrt(900 * math.log(8))
    assert regret(AAggFFD(), losses) < bound < regret(Uniform(), losses)


def test_the_theorem_as_printed_is_for_a_lipschitz_constant_of_one() -> None:
    """2 G sqrt(T log K), and the step that goes with it keeps it."""
    rule = AAggFFD(lipschitz=1.0)
    assert rule.bound(500, 8) == pytest.approx(2 * math.sqrt(500 * math.log(8)))
    assert regret(rule, sequence("drifting", 500, 8)) <= 2 * math.sqrt(500 * math.log(8))


def test_a_range_and_a_scale_follow_the_paper() -> None:
    """Eqs. 8, 10, 11 for C1 = 0.1, C2 = 0.5, K = 4, S = 2, with the CDF twice as steep."""
    f = np.array([1.0, 3.0])
    cdf = np.array([ORACLE_CDFS["normal"](1 + (x - 1) / 0.5) for x in f / f.mean()])
    r = 0.1 + 0.4 * cdf
    C = 0.5
    L = 0.5 / 1.1 + 2 * 0.4 / (C * 1.1)
    c = -(r - r.mean()) / (C * (1 + r.mean()))
    e = np.exp(-math.sqrt(math.log(4)) * c / (L * math.sqrt(2)))
    rule = AAggFFD(low=0.1, high=0.5, scale=0.5)
    got = weigh(rule, reports(f.tolist(), ids=[2, 0], clients=4))
    np.testing.assert_allclose(got.numpy(), e / e.sum(), rtol=1e-12)


def test_the_bound_and_the_responses_of_a_range() -> None:
    """By hand, for C1 = 0.1 and C2 = 0.5: G = 0.5 / 1.1 and L = (0.5 + 2 * 0.4) / 1.1."""
    rule = AAggFFD(low=0.1, high=0.5, cdf="exponential")
    growth = math.sqrt(90 * math.log(6))
    expected = (1.3 / 1.1 + (0.5 / 1.1) ** 2 / (1.3 / 1.1)) * growth
    assert rule.bound(90, 6) == pytest.approx(expected)
    losses = torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64)
    tails = torch.exp(-losses / 3)
    torch.testing.assert_close(rule.cohort_response(losses, 10), 0.1 + 0.4 * (1 - tails))
    default = AAggFFD(cdf="exponential")
    torch.testing.assert_close(default.cohort_response(losses, 10), 0.3 * (1 - tails))
    assert default.distribution(default.init(5), 5).tolist() == [0.2] * 5


def test_a_smaller_lipschitz_constant_makes_it_bite() -> None:
    told = reports([1.0, 3.0], ids=[2, 0], clients=1000)
    worst = [float(weigh(AAggFFD(lipschitz=x), told)[1]) for x in (2.0, 0.5, 0.1)]
    assert worst == sorted(worst)
    assert worst[2] > 0.99 > worst[0]


def test_the_distribution_over_all_clients_is_the_papers_decision() -> None:
    rule = AAggFFD()
    state = rule.init(12)
    cohorts, losses = rounds_of(1, 12, 4, 20)
    for ids, f in zip(cohorts, losses, strict=True):
        weights, state = play(rule, reports(torch.from_numpy(f), ids=ids, clients=12), state)
        p = rule.distribution(state, 12)
        assert p.sum().item() == pytest.approx(1, rel=1e-12)
        torch.testing.assert_close(p[ids] / p[ids].sum(), weights, rtol=1e-10, atol=0)


@pytest.mark.parametrize("wrong", [{"low": -1.0}, {"high": 0.0}, {"scale": 0.0}, {"low": 0.1}])
def test_ranges_that_are_none_are_errors(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="low must be at least 0"):
        build("aaggff-d", **wrong)


@cases("clients", [1, 2, 3, 1000, 10**6, 10**12, 10**18])
@cases("losses", [[1.0], [0.0], [1e-30], [1e4]])
def test_any_sampling_probability_is_finite(clients: int, losses: list[float]) -> None:
    rule = AAggFFD()
    for cohort in (losses, [*losses, 1.0, 0.0][: min(3, clients)]):
        state = rule.init(clients)
        for _ in range(3):
            weights, state = play(rule, reports(cohort, clients=clients), state)
            assert torch.isfinite(weights).all()
            assert weights.sum().item() == pytest.approx(1, abs=1e-12)


def test_a_lipschitz_constant_of_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="it must be above 0"):
        AAggFFD(lipschitz=0.0)


def test_equal_losses_give_equal_weights() -> None:
    assert weigh(AAggFFD(), reports([0.0] * 4)).tolist() == [0.25] * 4
    assert weigh(AAggFFD(), reports([7.0] * 3, clients=1000)).tolist() == pytest.approx(
        [1 / 3] * 3, rel=1e-15
    )


def test_the_state_given_is_not_changed() -> None:
    rule = AAggFFD()
    _, state = play(rule, reports([1.0, 2.0], ids=[3, 1], clients=9), rule.init(9))
    before = {name: value.clone() for name, value in state.items()}
    rule(reports([5.0, 2.0, 1.0], ids=[1, 8, 0], clients=9), state)
    assert all(torch.equal(state[name], before[name]) for name in state)


def test_the_state_survives_being_flattened() -> None:
    rule = AAggFFD()
    state = rule.init(50)
    back = unflatten(flatten({"rule": state}))["rule"]
    for t in range(40):
        told = reports(uniforms(t, 3), ids=[t, (t + 7) % 50, (t + 20) % 50], clients=50)
        w, state = play(rule, told, state)
        v, back = play(rule, told, back)
        assert torch.equal(w, v)
        back = unflatten(flatten({"rule": back}))["rule"]


def test_rounds_count_from_one() -> None:
    rule = AAggFFD()
    assert int(rule.init(5)["t"]) == 1
    _, state = play(rule, reports([1.0], clients=5), rule.init(5))
    assert int(state["t"]) == 2


def test_a_run_goes_on_from_a_file_as_if_never_stopped(tmp_path: Path) -> None:
    whole = vowel("aaggff-d", rounds=6, cohort=4)
    experiment = commonweal.Experiment(dataset="vowel", rule="aaggff-d", rounds=6, cohort=4)
    some = commonweal.run(experiment, out=tmp_path / "run")
    for _ in range(3):
        next(some)
    some.close()
    rest = list(commonweal.run(experiment, out=tmp_path / "run", resume=True))
    assert [done.weights for done in rest] == [done.weights for done in whole[3:]]
