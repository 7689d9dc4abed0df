"""FedDG-GA against its formula in plain Python, over rounds and for cohorts."""

import pytest

from commonweal.base.errors import ConfigError
from commonweal.data.population import Setting
from commonweal.rules import FedDGGA
from rule_helpers import play, reports, uniforms, vowel


def adjusted(a: list[float], gaps: list[float], step: float) -> list[float]:
    mean = sum(gaps) / len(gaps)
    largest = max(abs(g - mean) for g in gaps)
    moved = [min(1, max(0, w + step * (g - mean) / largest)) for w, g in zip(a, gaps, strict=True)]
    return [w / sum(moved) for w in moved]


def test_weights_follow_the_formula_over_rounds() -> None:
    rule = FedDGGA(0.2)
    state = rule.init(Setting(clients=4, rounds=10))
    expected = [0.25] * 4
    trained: list[float] = []
    for t in range(1, 11):
        f = uniforms(t, 4).tolist()
        after = [0.5 * x for x in f]
        if trained:
            gaps = [x - y for x, y in zip(f, trained, strict=True)]
            expected = adjusted(expected, gaps, 0.2 * (1 - (t - 1) / 10))
        trained = after
        weights, state = play(rule, reports(f, after=after), state)
        assert weights.tolist() == pytest.approx(expected, rel=1e-10)


def test_the_first_round_and_equal_gaps_change_nothing() -> None:
    rule = FedDGGA()
    state = rule.init(3)
    for f in ([1.0, 5.0, 2.0], [2.0, 6.0, 3.0]):
        weights, state = play(rule, reports(f, after=[0.5, 4.5, 1.5]), state)
        assert weights.tolist() == pytest.approx([1 / 3] * 3, rel=1e-12)


def test_who_loses_most_by_averaging_counts_more() -> None:
    rule = FedDGGA()
    _, state = play(rule, reports([1.0, 1.0, 1.0], after=[0.5, 0.5, 0.5]), rule.init(3))
    weights, _ = play(rule, reports([0.6, 2.0, 0.6], after=[0.5, 0.5, 0.5]), state)
    assert weights[1] > 0.5 > weights[0]


def test_a_cohort_moves_its_own_weight_only() -> None:
    rule = FedDGGA()
    _, state = play(rule, reports([1.0] * 4, after=[0.5] * 4), rule.init(4))
    told = reports([3.0, 1.0], ids=[2, 0], clients=4, after=[0.5, 0.5])
    weights, state = play(rule, told, state)
    assert weights.tolist() == pytest.approx(adjusted([0.5, 0.5], [2.5, 0.5], 0.2 * 0.99))
    assert state["a"].sum().item() == pytest.approx(1, rel=1e-12)
    assert state["a"][[1, 3]].tolist() == pytest.approx([0.25, 0.25])


def test_an_experiment_runs_and_asks_for_the_loss_after() -> None:
    assert "loss_after" in FedDGGA().needs
    for done in vowel("feddg-ga", cohort=6, rounds=4):
        assert sum(done.weights.values()) == pytest.approx(1)


def test_a_step_out_of_range_is_an_error() -> None:
    with pytest.raises(ConfigError, match="d = 0"):
        FedDGGA(0.0)
