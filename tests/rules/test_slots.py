"""Rules whose populations grow, and what they remember by client."""

import pytest
import torch

from commonweal.rules import AFL, AAggFFS, FedDGGA, FedFA, Rule
from commonweal.rules.slots import extend_mixture
from rule_helpers import play, reports, uniforms, weigh


def test_newcomers_get_an_equal_weight_and_the_others_keep_their_proportions() -> None:
    p = extend_mixture(torch.tensor([0.5, 0.3, 0.2]).double(), 5)
    assert p.tolist() == pytest.approx([0.3, 0.18, 0.12, 0.2, 0.2])


def test_afl_newcomers_begin_with_an_equal_weight() -> None:
    rule = AFL(lr=1e-9)
    _, state = play(AFL(), reports([1.0, 3.0, 2.0]), rule.init(3))
    before = state["lam"]
    weights, after = play(rule, reports([1.0] * 4, clients=4), state)
    expected = torch.cat([0.75 * before, torch.tensor([0.25])])
    torch.testing.assert_close(after["lam"], expected, rtol=0, atol=1e-8)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-8)


def test_afl_newcomers_have_no_last_gradient() -> None:
    rule = AFL(lr=0.01, optimistic=True)
    _, state = play(rule, reports([1.0, 1.0]), rule.init(2))
    _, state = play(rule, reports([1.0, 1.0, 1.0], clients=3), state)
    assert state["last"].tolist() == [1.0, 1.0, 1.0]
    assert state["lam"][2] > state["lam"][0] == state["lam"][1]


def test_aaggff_s_newcomers_are_as_if_they_had_been_absent() -> None:
    """Two clients of four never report; or they join when the game is going on."""
    rule = AAggFFS()
    state = rule.init(2)
    for t in range(50):
        _, state = play(rule, reports(0.5 + uniforms(t, 2)), state)
    told = reports([1.0, 1.0, 1.0, 1.0], clients=4)
    weights, after = play(rule, told, state)
    assert weights[2].item() == pytest.approx(weights[3].item(), abs=1e-9)
    low, high = sorted(weights[:2].tolist())
    assert low - 1e-9 <= weights[2].item() <= high + 1e-9
    linear = state["linear"].mean().item()
    assert abs(after["linear"][2].item() - linear) < 0.5  # this round's own gradient


def test_aaggff_s_gives_a_newcomer_with_a_large_loss_more_weight_at_once() -> None:
    rule = AAggFFS()
    state = rule.init(4)
    for t in range(100):
        _, state = play(rule, reports(0.5 + uniforms(t, 4)), state)
    for t in range(60):
        losses = [*(0.5 + uniforms(t + 100, 4)).tolist(), 3.0]
        told = reports(losses, clients=5)
        weights, state = play(rule, told, state)
        if t == 0:
            assert weights[4] > 0.15
    assert weights[4] > 0.5


def test_aaggff_s_state_of_absent_clients_is_what_newcomers_get() -> None:
    """The mean over clients is the entry of a client that never reports (eq. 10)."""
    rule = AAggFFS()
    state = rule.init(4)
    for t in range(20):
        told = reports(0.2 + uniforms(t, 3), ids=[0, 1, 2], clients=4)
        _, state = play(rule, told, state)
    absent = state["linear"][3]
    torch.testing.assert_close(state["linear"].mean(), absent, rtol=1e-12, atol=0)
    curvature = state["curvature"]
    torch.testing.assert_close(curvature.mean(1), curvature[:, 3], rtol=1e-12, atol=0)
    torch.testing.assert_close(curvature.mean(), curvature[3, 3], rtol=1e-12, atol=0)


def test_fedfa_newcomers_begin_with_a_count_of_zero() -> None:
    rule = FedFA()
    _, state = play(rule, reports([1.0, 1.0]), rule.init(2))
    _, state = play(rule, reports([1.0, 1.0], ids=[1, 2], clients=3), state)
    assert state["counts"].tolist() == [1.0, 2.0, 1.0]


@pytest.mark.parametrize("rule", [AAggFFS(), AAggFFS(variant="reference"), AFL()])
def test_the_distribution_is_the_mixture_by_client(rule: Rule) -> None:
    state = rule.init(3)
    start = rule.distribution(state, 3)
    assert start is not None
    assert start.tolist() == pytest.approx([1 / 3] * 3)
    told = reports([1.0, 3.0, 2.0], ids=[2, 0, 1])
    state = rule(told, state).state
    p = rule.distribution(state, 3)
    assert p is not None
    torch.testing.assert_close(weigh(rule, told, rule.init(3)), p[told.ids], rtol=1e-12, atol=0)
    grown = rule.distribution(state, 4)
    assert grown is not None
    assert grown[3].item() == pytest.approx(1 / 4)
    torch.testing.assert_close(grown[:3], 0.75 * p, rtol=1e-12, atol=0)


@pytest.mark.parametrize("rule", [AAggFFS(), AFL(absent="last"), FedDGGA(), FedFA()])
def test_fewer_clients_than_before_change_no_state_of_the_others(rule: Rule) -> None:
    """As in a run that is resumed while a client is away."""
    _, state = play(rule, reports([1.0, 3.0, 2.0], after=[0.5, 0.5, 0.5]), rule.init(3))
    weights, after = play(rule, reports([1.0, 3.0], after=[0.5, 0.5]), state)
    assert weights.sum().item() == pytest.approx(1)
    distribution = rule.distribution(after, 2)
    assert distribution is None or distribution.sum().item() == pytest.approx(1)
    assert {name: len(v) for name, v in after.items() if v.ndim} == {
        name: 3 for name, v in after.items() if v.ndim
    }
