"""guarded: malicious clients do not take over, and honest reports and runs are unchanged."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import commonweal
from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State, Tensors, flatten, select
from commonweal.config import catalog
from commonweal.data.population import Setting
from commonweal.jobs.job import Job, job_from_experiment
from commonweal.protocols.algorithm import Replies, Request
from commonweal.protocols.averaging import Averaging
from commonweal.rules import (
    AFL,
    TERM,
    AAggFFS,
    AdaFed,
    Decision,
    FedAvg,
    FedMGDA,
    Guarded,
    PropFair,
    QFedAvg,
    Reports,
    Rule,
)
from helpers import data
from rule_helpers import (
    build,
    decide,
    normals,
    play,
    reports,
    uniforms,
    vowel,
    vowel_experiment,
    warnings,
    weigh,
)

EVERY = [n for n in catalog.entries("rules") if n not in ("grouped", "guarded")]
# GIFAIR's weights sum to 1 and are below 0 only by rounding.
SIMPLEX = [n for n in EVERY if build(n).mixing or n in ("qfedavg", "gifair")]
simplex = pytest.mark.parametrize("name", SIMPLEX)
actions = pytest.mark.parametrize("action", ["drop", "cap"])


def inner(name: str) -> Rule:
    """A rule with weights on the simplex: q-FedAvg in its normalised form."""
    return build(name, scaled=False) if name == "qfedavg" else build(name)


def guarded(rule: Rule, action: str, limit: float = 20.0) -> Guarded:
    return Guarded(rule, limit, "drop" if action == "drop" else "cap")


def honest(seed: int, size: int = 10) -> Reports:
    losses = 0.8 + 0.4 * uniforms(seed, size)
    scores = 0.3 + 0.4 * uniforms(seed + 1, size)
    sizes = (20 + 10 * uniforms(seed + 2, size)).round()
    return reports(losses, sizes, normals(seed, size, 12) + 0.5, scores=scores, after=0.8 * losses)


def lying(told: Reports, malicious: list[int], factor: float = 1e6) -> Reports:
    losses = told.losses.clone()
    losses[malicious] *= factor
    return replace(told, losses=losses)


@simplex
def test_dropped_clients_count_nothing_and_the_others_as_if_alone(name: str) -> None:
    malicious = [3, 8]
    rule = Guarded(inner(name), budget=1.0)
    plain = inner(name)
    state = rule.init(10)
    other = plain.init(10)
    rest = [k for k in range(10) if k not in malicious]
    for t in range(5):
        told = honest(10 * t)
        weights, state = play(rule, lying(told, malicious), state)
        expected, other = play(plain, told.subset(torch.tensor(rest)), other)
        assert weights[malicious].tolist() == [0.0] * len(malicious)
        torch.testing.assert_close(weights[rest], expected, rtol=1e-12, atol=1e-12)
        assert weights.sum().item() == pytest.approx(1, abs=1e-9)


@simplex
def test_capped_clients_count_as_the_worst_plausible_one_and_stay_a_minority(name: str) -> None:
    malicious = [3, 8]
    told = honest(0)
    false = lying(told, malicious)
    weights = weigh(Guarded(inner(name), limit=2.0, action="cap", budget=1.0), false)
    plausible = false.losses <= 2 * false.losses.median()
    as_worst = torch.where(plausible, told.losses, told.losses[plausible].max())
    expected = weigh(inner(name), replace(told, losses=as_worst))
    torch.testing.assert_close(weights, expected, rtol=1e-9, atol=1e-12)
    assert weights[malicious].sum() < 0.5


def test_without_the_guard_a_malicious_client_takes_over() -> None:
    told = lying(honest(0), [3])
    rules: list[Rule] = [TERM(), AFL(), QFedAvg(scaled=False)]
    for rule in rules:
        assert weigh(rule, told)[3] > 0.99
        assert weigh(Guarded(rule), told)[3] == 0


@pytest.mark.parametrize("rule", [TERM(), AFL(), QFedAvg(scaled=False), PropFair()])
def test_a_capped_client_cannot_take_over_at_the_default_limit(rule: Rule) -> None:
    assert weigh(Guarded(rule, action="cap"), lying(honest(0), [3]))[3] < 0.5


def rejected(rule: Rule, told: Reports) -> dict[int, str]:
    """Who is dropped or capped, and why."""
    decision = decide(rule, told)
    return decision.dropped | decision.capped


@pytest.mark.parametrize("name", EVERY)
def test_honest_reports_are_untouched(name: str) -> None:
    inside = build(name)
    for action in ("drop", "cap"):
        rule = replace(guarded(inside, action), budget=1.0)  # weights as the rule gives them
        state = rule.init(10)
        other = inside.init(10)
        for t in range(4):
            told = honest(10 * t)
            assert rejected(rule, told) == {}
            weights, state = play(rule, told, state)
            expected, other = play(inside, told, other)
            assert torch.equal(weights, expected)
            inner_state = flatten(state["rule"])
            assert all(torch.equal(inner_state[n], value) for n, value in flatten(other).items())


@actions
def test_losses_and_updates_within_the_limit_are_plausible(action: str) -> None:
    updates = torch.tensor([[1.0], [1.0], [1.0], [3.9], [1.0]])
    told = reports([1.0, 1.0, 3.9, 1.0, 1.0], updates=updates)
    rule = replace(guarded(TERM(0.01), action), budget=1.0)
    assert torch.equal(weigh(rule, told), weigh(TERM(0.01), told))
    assert rejected(rule, told) == {}


@pytest.mark.parametrize(("action", "most"), [("drop", 2.0), ("cap", 100.0)])
def test_an_absurd_update_does_not_move_the_model_far(action: str, most: float) -> None:
    U = normals(1, 9, 6)
    U[4] *= 1e6
    told = reports([1.0] * 9, updates=U)
    middle = U.norm(dim=1).median()
    assert (weigh(guarded(FedAvg(), action), told) @ U).norm() < most * middle
    assert (weigh(FedAvg(), told) @ U).norm() > 1000 * middle


def test_a_capped_update_has_the_largest_plausible_norm() -> None:
    U = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 500.0]]).double()
    got = weigh(Guarded(FedAvg(), limit=10.0, action="cap"), reports([1.0] * 3, updates=U))
    assert got.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3 / 500], rel=1e-12)


RATIOS = [0.7, 0.8, 0.9, 1.0, 1.0, 1.1, 1.2, 1.3, 1.4]


def bound_of(values: list[float]) -> float:
    """4 robust standard deviations of the logarithms above the median, between 4 and 20 times."""
    logs = sorted(math.log(v) for v in values)
    middle = logs[(len(logs) - 1) // 2]
    deviations = sorted(abs(x - middle) for x in logs)
    return min(max(math.exp(4 * 1.4826 * deviations[(len(logs) - 1) // 2]), 4), 20)


@pytest.mark.parametrize("width", [1.0, 3.0, 8.0])
@pytest.mark.parametrize("what", ["loss", "update"])
def test_the_bound_follows_the_spread_of_the_others(width: float, what: str) -> None:
    honest_ones = [r**width for r in RATIOS]
    for factor, fires in ((0.98, False), (1.02, True)):
        values = [*honest_ones, 2.0]
        for _ in range(50):  # the bound depends on its own value, if only a little
            middle = sorted(values)[4]
            values[-1] = factor * middle * bound_of(values)
        told = reports(values)
        if what == "update":  # an update that is too long is shortened
            U = torch.tensor(values, dtype=torch.float64)[:, None] * torch.ones(1, 30)
            told = reports([1.0] * 10, updates=U)
        assert (9 in rejected(Guarded(FedAvg()), told)) == fires


def test_an_update_that_is_somewhat_long_is_shortened_to_the_longest_plausible_one() -> None:
    U = torch.ones(10, 30, dtype=torch.float64)
    U[2] *= 2
    U[3] *= 8
    decision = decide(Guarded(FedAvg()), reports([1.0] * 10, updates=U))
    assert list(decision.capped) == [3]
    assert decision.dropped == {}
    assert decision.weights.tolist() == pytest.approx([0.1, 0.1, 0.1, 0.025] + [0.1] * 6)


def test_clients_with_more_rows_may_send_longer_updates() -> None:
    sizes = torch.tensor([10.0 * 2**k for k in range(10)])
    U = sizes[:, None] * (1 + 0.1 * normals(3, 10, 40))
    told = reports([1.0] * 10, sizes, U)
    assert rejected(Guarded(FedAvg()), told) == {}
    swapped = replace(told, updates=U.flip(0))  # long updates of small clients
    assert rejected(Guarded(FedAvg()), swapped) != {}


def test_a_size_of_1e12_is_a_lie_and_a_large_client_counts_as_the_median() -> None:
    for size, dropped, weight in ((1e12, [9], 0.0), (900.0, [], 0.1), (500.0, [], 500 / 770)):
        told = reports([1.0] * 10, [30.0] * 9 + [size])
        decision = decide(Guarded(FedAvg()), told)
        assert list(decision.dropped) == dropped
        assert decision.weights[9].item() == pytest.approx(weight)


def test_a_size_that_grows_tenfold_counts_as_the_first_one() -> None:
    rule = Guarded(FedAvg())
    first = rule(reports([1.0] * 10, [30.0] * 10), rule.init(10))
    second = rule(reports([1.0] * 10, [30.0] * 9 + [310.0]), first.state)
    assert second.weights.tolist() == pytest.approx([0.1] * 10)
    assert list(second.capped) == [9]
    third = rule(reports([1.0] * 10, [30.0] * 9 + [290.0]), first.state)
    assert third.weights[9].item() == pytest.approx(290 / 560)


@pytest.mark.parametrize("malicious", [[3], [3, 8]])
def test_updates_with_the_sign_reversed_are_dropped(malicious: list[int]) -> None:
    U = normals(5, 10, 400) + 1
    U[malicious] *= -1
    decision = decide(Guarded(FedAvg()), reports([1.0] * 10, updates=U))
    assert sorted(decision.dropped) == malicious
    assert "do not follow its updates" in decision.dropped[3]


def test_clients_with_the_same_update_share_less_than_one_fair_share() -> None:
    U = normals(6, 20, 400)
    U[[2, 5, 7, 11]] = normals(7, 1, 400)
    decision = decide(Guarded(TERM(20.0)), reports([1.0] * 20, updates=U))
    assert sorted(decision.capped) == [2, 5, 7, 11]
    assert decision.capped[2] == "its update is that of 3 others"
    assert float(decision.weights[[2, 5, 7, 11]].sum()) < 1 / 20


def test_a_client_whose_losses_follow_its_updates_may_point_against_the_others() -> None:
    """One target is apart from the others', and the model ends between them."""
    rule = Guarded(TERM())
    state = rule.init(8)
    optima = normals(11, 8, 40)
    optima[0] += 1.5
    w = 2 * torch.ones(40, dtype=torch.float64)
    limited = []
    for _ in range(60):
        gaps = w - optima
        decision = rule(reports(gaps.square().sum(1) / 40, updates=0.05 * gaps), state)
        w = w - decision.weights @ (0.05 * gaps)
        state = decision.state
        limited.append(0 in decision.capped or 0 in decision.dropped)
    assert (w - optima)[0] @ (w - optima)[1:].mean(0) < 0
    assert not any(limited[20:])
    assert decision.weights[0] > 1.3 / 8


@pytest.mark.parametrize("malicious", [[0], [0, 3, 6, 9]])
def test_an_update_that_cancels_all_others_does_not_stop_the_training(malicious: list[int]) -> None:
    """AdaFed alone stands still, as no direction serves the malicious clients as well."""
    ends = []
    for rule in (AdaFed(), Guarded(AdaFed())):
        state = rule.init(20)
        optima = normals(15, 20, 40)
        w = 2 * torch.ones(40, dtype=torch.float64)
        honest = [k for k in range(20) if k not in malicious]
        for t in range(40):
            gaps = w - optima
            U = 0.05 * gaps
            losses = gaps.square().sum(1) / 40
            if t > 5:
                U[malicious] = -3 * U[honest].mean(0)
                losses[malicious] = 2 * losses.median()
            decision = rule(reports(losses, updates=U), state)
            w = w - decision.weights @ U
            state = decision.state
        ends.append(float((w - optima[honest].mean(0)).norm()))
    assert ends[1] < ends[0] / 2
    assert sorted(decision.dropped) == malicious


def test_a_client_that_balances_the_others_is_recognised() -> None:
    """Neither its loss nor its promise changes on average; how they change together shows it."""
    rule = Guarded(AFL(lr=1.0))
    state = rule.init(12)
    optima = normals(16, 12, 40)
    w = 2 * torch.ones(40, dtype=torch.float64)
    dropped = []
    for t in range(60):
        U = 0.05 * (w - optima + 2 * normals(100 + t, 12, 40))
        U[[2, 5]] *= -1
        losses = (w - optima).square().sum(1) / 40
        decision = rule(reports(losses, updates=U), state)
        w = w - decision.weights @ U
        state = decision.state
        dropped.append(sorted(decision.dropped))
    assert dropped[20:].count([2, 5]) > 30


def test_a_constant_loss_does_not_hide_the_others() -> None:
    """A client whose loss never changes has no correlation, and must not undo the comparison."""
    rule = Guarded(TERM())
    state = rule.init(10)
    optima = normals(17, 10, 40)
    w = 2 * torch.ones(40, dtype=torch.float64)
    for _ in range(25):
        U = 0.05 * (w - optima)
        losses = (w - optima).square().sum(1) / 40
        U[1] *= -1
        losses[0] = 2.0
        decision = rule(reports(losses, updates=U), state)
        w = w - decision.weights @ U
        state = decision.state
    assert sorted(decision.dropped) == [0, 1]


def test_clients_that_share_no_direction_are_not_called_malicious() -> None:
    for seed in range(20):
        told = reports([1.0] * 12, updates=normals(seed, 12, 50))
        assert rejected(Guarded(FedAvg()), told) == {}


def descent(attacked: bool, rounds: int = 25) -> list[Decision]:
    """Clients with quadratics around different points, of whom the first may flip its update."""
    rule = Guarded(TERM())
    state = rule.init(8)
    optima = normals(11, 8, 40)
    w = 2 * torch.ones(40, dtype=torch.float64)
    decisions = []
    for _ in range(rounds):
        gaps = w - optima
        U = 0.05 * gaps
        if attacked:
            U[0] *= -1
        decision = rule(reports(gaps.square().sum(1) / 40, updates=U), state)
        w = w - decision.weights @ U
        state = decision.state
        decisions.append(decision)
    return decisions


def test_a_client_whose_losses_rise_where_its_updates_promise_a_fall_is_dropped() -> None:
    assert all(decision.dropped == {} for decision in descent(attacked=False))
    later = descent(attacked=True)[10:]
    assert all(list(decision.dropped) == [0] for decision in later)


def test_a_client_that_invents_its_loss_does_not_keep_its_weight() -> None:
    """It pulls to a place of its own and claims a loss that only follows the others'."""
    rule = Guarded(TERM(5.0))
    state = rule.init(10)
    optima = normals(12, 10, 40)
    w = 0.5 * torch.ones(40, dtype=torch.float64)
    dropped = []
    for _ in range(60):
        gaps = w - optima
        U = 0.05 * gaps
        losses = gaps.square().sum(1) / 40
        U[0] = 2 * U.norm(dim=1).median() * normals(13, 40) / normals(13, 40).norm()
        losses[0] = 2 * losses.median()
        decision = rule(reports(losses, updates=U), state)
        w = w - decision.weights @ U
        state = decision.state
        dropped.append(list(decision.dropped))
    assert dropped[30:].count([0]) > 20
    assert all(each in ([], [0]) for each in dropped)


def test_clients_with_more_samples_take_more_steps_and_stay() -> None:
    """The promise of an update is compared with those of clients of the same size."""
    rule = Guarded(AFL())
    state = rule.init(12)
    optima = normals(14, 12, 40)
    sizes = torch.tensor([10.0] * 10 + [150.0] * 2)
    w = 2 * torch.ones(40, dtype=torch.float64)
    for _ in range(40):
        gaps = w - optima
        U = 0.002 * sizes[:, None] * gaps
        decision = rule(reports(gaps.square().sum(1) / 40, sizes, updates=U), state)
        assert decision.dropped == {}
        w = w - decision.weights @ U
        state = decision.state


def test_after_implausible_reports_a_client_is_not_believed_at_once() -> None:
    rule = Guarded(FedAvg())
    state = rule.init(10)
    for _ in range(2):
        _, state = play(rule, lying(honest(0), [3], 50), state)
    believed = []
    for _ in range(8):
        decision = rule(honest(0), state)
        believed.append(3 not in decision.dropped)
        state = decision.state
    assert believed == [False] * 5 + [True] * 3  # suspicion 2 falls by a fifth each time, below 1


@pytest.mark.parametrize("most", [1.5, 2.5])
def test_no_client_has_more_than_most_fair_shares_in_any_round(most: float) -> None:
    told = reports([2.0] + [1.0] * 9)
    assert weigh(TERM(20.0), told)[0] > 0.99
    weights = weigh(Guarded(TERM(20.0), most=most), told)
    assert weights[0].item() == pytest.approx(most / 10)
    assert weights[1:].tolist() == pytest.approx([(1 - most / 10) / 9] * 9)
    assert rejected(Guarded(TERM(20.0), most=most), told) == {}  # it says nothing of the client


@given(
    st.lists(st.floats(1.0, 3.9), min_size=8, max_size=8),
    st.integers(0, 1000),
    st.sampled_from([TERM(20.0), AFL(lr=1.0), AdaFed(), FedMGDA(), QFedAvg(q=5.0)]),
)
@settings(max_examples=60, deadline=None)
def test_any_quarter_moves_the_model_by_a_quarter_and_the_budget(
    losses: list[float], seed: int, inside: Rule
) -> None:
    U = normals(seed, 8, 30) + 1
    U /= U.norm(dim=1, keepdim=True)
    weights = weigh(Guarded(inside, budget=0.3), reports(losses, updates=U))
    assert weights.isfinite().all()
    moved = weights.clamp(min=0).sort(descending=True).values / weights.sum()
    assert moved[0] <= 1 / 8 + 0.3 + 0.01
    assert moved[:2].sum() <= 2 / 8 + 0.3 + 0.02


def test_the_fair_share_of_a_large_client_is_its_part_of_the_samples() -> None:
    told = reports([1.0] * 10, [150.0] + [10.0] * 9, normals(0, 10, 40))
    torch.testing.assert_close(
        weigh(Guarded(FedAvg()), told), weigh(FedAvg(), told), rtol=0.05, atol=0
    )


def test_an_update_of_nearly_zero_is_dropped_unless_the_loss_is_small_too() -> None:
    U = normals(0, 10, 40) + 1
    U[3] *= 0.001
    decision = decide(Guarded(FedAvg()), reports([1.0] * 10, updates=U))
    assert list(decision.dropped) == [3]
    assert "too short for its loss" in decision.dropped[3]
    fitting = reports([1.0] * 3 + [0.001] + [1.0] * 6, updates=U)
    assert decide(Guarded(FedAvg()), fitting).dropped == {}


def test_noise_is_recognised_by_what_it_shares_with_its_own_past() -> None:
    rule = Guarded(FedAvg())
    state = rule.init(10)
    own = normals(1, 10, 500)  # every client has a direction of its own, and no two agree
    for t in range(8):
        U = own + 0.5 * normals(50 + t, 10, 500)
        U[4] = 1.1 * normals(90 + t, 1, 500)[0]
        decision = rule(reports([1.0] * 10, updates=U), state)
        state = decision.state
    assert list(decision.dropped) == [4]
    assert "like noise" in decision.dropped[4]


def test_honest_rounds_buy_no_credit() -> None:
    """Twenty honest rounds, then its update backwards: dropped after few rounds."""
    rule = Guarded(FedAvg())
    state = rule.init(10)
    suspects = []
    for t in range(30):
        U = normals(t, 10, 400) + 1
        if t >= 20:
            U[3] *= -1
        decision = rule(reports([1.0] * 10, updates=U), state)
        state = decision.state
        suspects.append(list(decision.dropped))
    assert suspects[:20] == [[]] * 20
    assert suspects[27:] == [[3]] * 3


@pytest.mark.parametrize("most", [0.5, 0.0, -1.0])
def test_most_is_at_least_a_fair_share(most: float) -> None:
    with pytest.raises(ConfigError, match=f"most = {most}"):
        Guarded(FedAvg(), most=most)


@pytest.mark.parametrize("factor", [5.0, 20.0])
def test_a_false_loss_is_not_believed_when_the_others_have_fallen(factor: float) -> None:
    """Losses fall as 0.97^t; a client that always reports so many times its own."""
    rule = Guarded(AFL())
    state = rule.init(7)
    for t in range(120):
        told = honest(t, 7)
        told = replace(told, losses=told.losses * 0.97**t)
        decision = rule(lying(told, [2], factor), state)
        assert decision.weights[2] <= 3 / 7 * (1 + 1e-9)
        state = decision.state
    assert decision.weights[2] == 0


@pytest.mark.parametrize("factor", [5.0, 20.0, 99.0])
def test_an_inflated_loss_never_takes_over(factor: float) -> None:
    """The audit's case: seven clients, a hundred rounds, plain rules give one client everything."""
    for inside in (AAggFFS(), AFL(), TERM()):
        rule = Guarded(inside)
        state = rule.init(7)
        for t in range(100):
            decision = rule(lying(honest(t, 7), [2], factor), state)
            assert decision.weights[2] == 0
            state = decision.state


def test_a_single_malicious_client_of_two_is_caught() -> None:
    told = reports([1.0, 1e6])
    assert weigh(Guarded(TERM()), told).tolist() == [1.0, 0.0]


def test_where_most_losses_are_zero_nothing_can_be_compared() -> None:
    told = reports([0.0, 0.0, 0.0, 2.0])
    assert torch.equal(weigh(Guarded(TERM()), told), weigh(TERM(), told))
    assert rejected(Guarded(TERM()), told) == {}


REASONS = {
    40: "its loss is 250 times the cohort's median",
    7: "its update is 300 times the cohort's median",
}


def two_implausible() -> Reports:
    U = torch.ones(5, 2)
    U[4] *= 300
    losses = [1.0, 1.0, 250.0, 1.0, 1.0]
    return reports(losses, updates=U, ids=[12, 5, 40, 3, 7], clients=50)


def test_dropped_names_the_clients_and_why() -> None:
    decision = decide(Guarded(FedAvg()), two_implausible())
    assert decision.dropped == REASONS
    assert decision.capped == {}
    assert decision.weights.tolist() == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3, 0])


def test_a_capped_report_is_used() -> None:
    decision = decide(Guarded(FedAvg(), action="cap"), two_implausible())
    assert decision.capped == REASONS
    assert decision.dropped == {}
    assert decision.weights.tolist() == pytest.approx([0.2, 0.2, 0.2, 0.2, 0.2 / 300])


def test_what_an_inner_guard_drops_is_dropped_too() -> None:
    """At first the loss of 5000, then, among the others, that of 50."""
    told = reports([1.0, 1.0, 1.0, 50.0, 5000.0])
    rule = Guarded(Guarded(FedAvg(), limit=10.0))
    decision = rule(told, rule.init(5))
    assert sorted(decision.dropped) == [3, 4]
    assert decision.weights.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0, 0])


def test_no_plausible_report_moves_nothing() -> None:
    told = reports([1.0, 1e6], updates=[[1e6], [1.0]])
    decision = decide(Guarded(TERM()), told)
    assert decision.weights.tolist() == [0.0, 0.0]
    assert sorted(decision.dropped) == [0, 1]


def test_warnings_are_the_inner_rules_on_plausible_reports() -> None:
    assert warnings(Guarded(PropFair()), lying(honest(0), [3])) == ()
    assert len(warnings(Guarded(PropFair(relative=False)), reports([6.0, 6.0, 1e9]))) == 1
    assert warnings(Guarded(TERM()), honest(0)) == ()


def test_regret_is_the_inner_rules() -> None:
    losses = uniforms(0, 5)
    rule = Guarded(AAggFFS())
    inside = AAggFFS()
    response = rule.response(losses)
    assert response is not None
    assert torch.equal(response, inside.response(losses))
    assert rule.bound(30, 5) == inside.bound(30, 5)
    assert Guarded(FedMGDA()).response(losses) is None
    assert Guarded(TERM()).bound(30, 5) is None


def test_the_distribution_is_the_inner_rules() -> None:
    rule = Guarded(AFL())
    told = reports([1.0, 3.0, 2.0])
    state = rule(told, rule.init(3)).state
    p = rule.distribution(state, 3)
    assert p is not None
    assert torch.equal(p, AFL().distribution(state["rule"], 3))


def test_the_setting_and_the_needs_reach_the_inner_rule() -> None:
    state = Guarded(QFedAvg(scaled=True)).init(Setting(clients=2, lr=0.5))
    assert state["rule"]["lipschitz"].item() == 2.0
    assert Guarded(AdaFed(loss="after")).needs == AdaFed(loss="after").needs
    assert Guarded(TERM()).needs == TERM().needs | {"update"}


def test_after_goes_with_the_report() -> None:
    told = lying(honest(3), [0])
    rule = Guarded(AdaFed(loss="after"), budget=1.0)
    rest = list(range(1, 10))
    expected = weigh(AdaFed(loss="after"), told.subset(torch.tensor(rest)))
    torch.testing.assert_close(weigh(rule, told)[rest], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["fedavg", "term", "afl", "aaggff-s", "fedmgda"])
def test_it_never_fires_on_honest_vowel_runs(name: str) -> None:
    rounds = vowel({"name": "guarded", "rule": {"name": name}}, rounds=8)
    assert all(done.dropped == {} and done.capped == {} for done in rounds)


@pytest.mark.parametrize("name", ["fedavg", "term", "aaggff-s"])
def test_it_never_fires_on_honest_heart_runs(name: str) -> None:
    heart = {"name": "heart", "dir": str(data("heart"))}
    rule = {"name": "guarded", "rule": {"name": name}}
    client = {"name": "sgd", "lr": 0.01}
    experiment = commonweal.Experiment(dataset=heart, rule=rule, rounds=20, client=client)
    for done in commonweal.run(experiment):
        assert done.dropped == {}
        assert sum(done.weights.values()) > 0.999


def first_round(rule: dict[str, object]) -> tuple[Averaging, State, Tensors]:
    """All vowel clients' replies in the first round."""
    job: Job = job_from_experiment(vowel_experiment(rule))
    assert isinstance(job.algorithm, Averaging)
    state = job.initial_state()
    request = Request(torch.arange(15), job.algorithm.ask(state))
    return job.algorithm, state, job.engine.collect(job.algorithm, request).values


@actions
def test_a_malicious_client_in_a_run_is_named(action: str) -> None:
    rule = {"name": "guarded", "rule": {"name": "term"}, "action": action, "limit": 20.0}
    algorithm, state, values = first_round(rule)
    ids = torch.arange(15)
    lied = values | {"loss": values["loss"].index_fill(0, torch.tensor([6]), 1e6)}
    outcome = algorithm.tell(state, Replies(ids, lied), 15)
    named = outcome.dropped
    other = outcome.capped
    if action == "cap":
        named, other = other, named
    assert list(named) == [6]
    assert other == {}
    assert (6 in outcome.clients.tolist()) == (action == "cap")


def test_the_model_is_as_without_a_dropped_malicious_client() -> None:
    rule = {"name": "guarded", "rule": {"name": "term"}, "limit": 20.0}
    algorithm, state, values = first_round(rule)
    ids = torch.arange(15)
    lied = values | {"loss": values["loss"].index_fill(0, torch.tensor([6]), 1e6)}
    outcome = algorithm.tell(state, Replies(ids, lied), 15)
    others = ids[ids != 6]
    without = algorithm.tell(state, Replies(others, select(values, others)), 15)
    torch.testing.assert_close(outcome.state["w"], without.state["w"], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("what", ["loss", "update"])
def test_what_is_not_a_number_is_dropped_before_any_rule_gets_it(what: str) -> None:
    algorithm, state, values = first_round({"name": "guarded", "rule": {"name": "fedmgda"}})
    broken = values | {what: values[what].index_fill(0, torch.tensor([2]), math.nan)}
    outcome = algorithm.tell(state, Replies(torch.arange(15), broken), 15)
    assert list(outcome.dropped) == [2]
    assert 2 not in outcome.clients.tolist()
    assert torch.isfinite(outcome.state["w"]).all()


@pytest.mark.parametrize("limit", [1.0, 0.0, -5.0])
def test_a_limit_at_or_below_the_median_is_an_error(limit: float) -> None:
    with pytest.raises(ConfigError, match=f"limit = {limit}"):
        Guarded(FedAvg(), limit)
