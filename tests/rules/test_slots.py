"""Seats against a dict from id to number, and rules whose populations grow."""

import numpy as np
import pytest
import torch

from commonweal.base.errors import DataError
from commonweal.rules import AFL, AAggFFD, AAggFFS, FedFA, Rule
from commonweal.rules.slots import by_client, empty_slots, extend_mixture, take_slots
from rule_helpers import play, reports, uniforms, weigh

HASHES = [10**15, -(2**62), 2**62, -1, 7_000_000_001]
dense = pytest.mark.parametrize("rule", [AAggFFS(), AFL(), AFL(optimistic=True), FedFA()])


def test_small_ids_are_their_own_slots() -> None:
    slots = empty_slots(6)
    for ids in ([3, 1], [5, 3, 0], [2], [4, 0]):
        slots, index = take_slots(slots, torch.tensor(ids), 6)
        assert index.tolist() == ids
    assert slots.tolist() == [0, 1, 2, 3, 4, 5]


def test_other_ids_take_free_slots_in_the_order_of_their_ids() -> None:
    slots, index = take_slots(empty_slots(4), torch.tensor([10**15, 2, -5]), 4)
    assert index.tolist() == [1, 2, 0]
    assert slots.tolist()[:3] == [-5, 10**15, 2]
    again, index = take_slots(slots, torch.tensor([-5, 10**15]), 4)
    assert again is slots
    assert index.tolist() == [0, 1]


def test_a_client_whose_slot_is_taken_takes_another() -> None:
    slots, _ = take_slots(empty_slots(3), torch.tensor([-7]), 3)
    slots, index = take_slots(slots, torch.tensor([0, 2]), 3)
    assert index.tolist() == [1, 2]
    assert slots.tolist() == [-7, 0, 2]


def test_slots_grow_with_clients_and_with_the_population() -> None:
    slots, _ = take_slots(empty_slots(2), torch.tensor([0, 1]), 2)
    more, index = take_slots(slots, torch.tensor([1, 9]), 2)
    assert index.tolist() == [1, 2]
    assert more.tolist() == [0, 1, 9]
    more, index = take_slots(slots, torch.tensor([4]), 5)
    assert index.tolist() == [4]
    assert len(more) == 5
    assert slots.tolist() == [0, 1]  # the slots before are as they were


def test_slots_are_a_dict() -> None:
    rng = np.random.default_rng(0)
    ids = np.unique(rng.integers(-(2**63) + 1, 2**63 - 1, 300))
    known: dict[int, int] = {}
    slots = empty_slots(40)
    for _ in range(60):
        cohort = rng.choice(ids, rng.integers(1, 12), replace=False).tolist()
        slots, index = take_slots(slots, torch.tensor(cohort), 40)
        for client, place in zip(cohort, index.tolist(), strict=True):
            assert known.setdefault(client, place) == place
    assert len(set(known.values())) == len(known) == len(slots)


def test_the_mark_of_a_free_slot_is_not_an_id() -> None:
    with pytest.raises(DataError, match="-9223372036854775808 cannot be a client's id"):
        take_slots(empty_slots(2), torch.tensor([-(2**63)]), 2)


def test_newcomers_get_an_equal_weight_and_the_others_keep_their_proportions() -> None:
    p = extend_mixture(torch.tensor([0.5, 0.3, 0.2]).double(), 5)
    assert p.tolist() == pytest.approx([0.3, 0.18, 0.12, 0.2, 0.2])


def test_the_mixture_by_client_follows_ids() -> None:
    slots = torch.tensor([2, 0])
    p = torch.tensor([0.25, 0.75]).double()
    assert by_client(slots, p, 1).tolist() == [1.0]
    # Clients 1 and 3 have not reported: they count as newcomers.
    assert by_client(slots, p, 4).tolist() == pytest.approx([0.375, 0.25, 0.125, 0.25])


@dense
def test_a_relabelled_population_plays_the_same_game(rule: Rule) -> None:
    state = rule.init(5)
    other = rule.init(5)
    for t in range(12):
        size = 1 + t % 5
        who = torch.randperm(5, generator=torch.Generator().manual_seed(t))[:size].tolist()
        losses = uniforms(t, size)
        scores = uniforms(t + 50, size)
        told = reports(losses, ids=who, clients=5, scores=scores)
        named = reports(losses, ids=[HASHES[i] for i in who], clients=5, scores=scores)
        weights, state = play(rule, told, state)
        again, other = play(rule, named, other)
        torch.testing.assert_close(again, weights, rtol=1e-8, atol=1e-10)


@dense
def test_a_population_that_is_known_late_is_the_same_population(rule: Rule) -> None:
    """Clients that are counted from the start and report late are not newcomers."""
    _, state = play(rule, reports([1.0, 2.0], clients=4), rule.init(4))
    assert len(state["slots"]) == 4
    _, state = play(rule, reports([1.0, 2.0], ids=[2, 3], clients=4), state)
    assert state["slots"].tolist() == [0, 1, 2, 3]


def test_afl_newcomers_begin_with_an_equal_weight() -> None:
    rule = AFL(lr=1e-9)
    _, state = play(AFL(), reports([1.0, 3.0, 2.0]), rule.init(3))
    before = state["lam"]
    weights, after = play(rule, reports([1.0] * 4, ids=[0, 1, 2, 10**15], clients=4), state)
    expected = torch.cat([0.75 * before, torch.tensor([0.25])])
    torch.testing.assert_close(after["lam"], expected, rtol=0, atol=1e-8)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-8)


def test_afl_newcomers_have_no_last_gradient() -> None:
    rule = AFL(lr=0.01, optimistic=True)
    _, state = play(rule, reports([1.0, 1.0]), rule.init(2))
    _, state = play(rule, reports([1.0, 1.0, 1.0], ids=[0, 1, -8], clients=3), state)
    assert state["last"].tolist() == [1.0, 1.0, 1.0]
    assert state["lam"][2] > state["lam"][0] == state["lam"][1]


def test_aaggff_s_newcomers_are_as_if_they_had_been_absent() -> None:
    """Two clients of four never report; or they join when the game is going on."""
    rule = AAggFFS()
    state = rule.init(2)
    for t in range(50):
        _, state = play(rule, reports(0.5 + uniforms(t, 2)), state)
    told = reports([1.0, 1.0, 1.0, 1.0], ids=[0, 1, 10**15, -3], clients=4)
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
        told = reports(losses, ids=[0, 1, 2, 3, 10**15], clients=5)
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
    _, state = play(rule, reports([1.0, 1.0], ids=[1, 10**15], clients=3), state)
    assert dict(zip(state["slots"].tolist(), state["counts"].tolist(), strict=True)) == {
        0: 1.0,
        1: 2.0,
        10**15: 1.0,
    }


def test_aaggff_d_takes_any_id() -> None:
    rule = AAggFFD()
    state = rule.init(5)
    other = rule.init(5)
    for t in range(20):
        losses = uniforms(t, 3)
        who = [t % 5, (t + 1) % 5, (t + 3) % 5]
        weights, state = play(rule, reports(losses, ids=who, clients=5), state)
        named = reports(losses, ids=[HASHES[i] for i in who], clients=5)
        again, other = play(rule, named, other)
        assert torch.equal(weights, again)


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


def test_a_client_whose_id_is_free_gets_that_slot_before_others() -> None:
    slots, index = take_slots(empty_slots(3), torch.tensor([-5, 0]), 3)
    assert index.tolist() == [1, 0] and slots.tolist()[:2] == [0, -5]
