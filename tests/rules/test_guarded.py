"""guarded: liars do not take over, honest reports are left as they are, and no honest run is touched."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import commonweal
from commonweal import catalog
from commonweal.errors import ConfigError
from commonweal.local import Local
from commonweal.rule import Reports
from commonweal.rules.adafed import AdaFed
from commonweal.rules.afl import AFL
from commonweal.rules.fedavg import FedAvg
from commonweal.rules.guarded import Guarded
from commonweal.rules.propfair import PropFair
from commonweal.rules.qfedavg import QFedAvg
from commonweal.rules.term import TERM
from commonweal.run import prepare
from helpers import data
from reporting import normals, reports, uniforms, vowel, weigh

# Every rule whose weights are a point of the simplex; q-FedAvg is in its normalised form.
NOT_MIXING = {"adafed", "vred", "semi-vred", "fedmgda+"}
SIMPLEX = [n for n in catalog.entries("rules") if n not in NOT_MIXING | {"grouped", "guarded"}]
EVERY = [n for n in catalog.entries("rules") if n not in ("grouped", "guarded")]
simplex = pytest.mark.parametrize("name", SIMPLEX)


def inner(name: str) -> Any:
    return commonweal.rule(name, scaled=False) if name == "qfedavg" else commonweal.rule(name)


def honest(seed: int, size: int = 10) -> Reports:
    losses, scores = 0.8 + 0.4 * uniforms(seed, size), 0.3 + 0.4 * uniforms(seed + 1, size)
    sizes = (20 + 10 * uniforms(seed + 2, size)).round()
    return reports(losses, sizes, normals(seed, size, 12) + 0.5, scores=scores, after=0.8 * losses)


def lying(told: Reports, liars: list[int], factor: float = 1e6) -> Reports:
    losses = told.losses.clone()
    losses[liars] *= factor
    return replace(told, losses=losses)


def kept(told: Reports, who: list[int]) -> Reports:
    names = ("ids", "sizes", "losses", "scores", "updates", "after")
    return replace(told, **{name: getattr(told, name)[who] for name in names})


@simplex
@pytest.mark.parametrize("liars", [[3], [3, 8]])
def test_dropped_liars_count_nothing_and_the_others_as_if_alone(name: str, liars: list[int]) -> None:
    rule, plain = Guarded(inner(name)), inner(name)
    state, other = rule.init(10), plain.init(10)
    rest = [k for k in range(10) if k not in liars]
    for t in range(5):
        told = honest(10 * t)
        weights, state = rule(lying(told, liars), state)
        expected, other = plain(kept(told, rest), other)
        assert weights[liars].tolist() == [0.0] * len(liars)
        torch.testing.assert_close(weights[rest], expected, rtol=1e-12, atol=1e-12)
        assert weights.sum().item() == pytest.approx(1, abs=1e-9)


@simplex
@pytest.mark.parametrize("liars", [[3], [3, 8]])
def test_capped_liars_count_as_the_worst_believed_client_and_stay_a_minority(name: str, liars: list[int]) -> None:
    told, rule = honest(0), Guarded(inner(name), limit=2.0, action="cap")
    weights, _ = rule(lying(told, liars), rule.init(10))
    believed = [k for k in range(10) if k not in liars and told.losses[k] <= 2 * lying(told, liars).losses.median()]
    as_worst = told.losses.clone()
    as_worst[[k for k in range(10) if k not in believed]] = told.losses[believed].max()
    expected, _ = inner(name)(replace(told, losses=as_worst), inner(name).init(10))
    torch.testing.assert_close(weights, expected, rtol=1e-9, atol=1e-12)
    assert weights[liars].sum() < 0.5


def test_without_the_guard_a_liar_takes_over() -> None:
    told = lying(honest(0), [3])
    for rule in (TERM(), AFL(), QFedAvg(scaled=False)):
        assert weigh(rule, told)[3] > 0.99
        assert weigh(Guarded(rule), told)[3] == 0


@pytest.mark.parametrize("rule", [TERM(), AFL(), QFedAvg(scaled=False), PropFair()])
def test_a_capped_liar_cannot_take_over_at_the_default_limit(rule: Any) -> None:
    assert weigh(Guarded(rule, action="cap"), lying(honest(0), [3]))[3] < 0.5


@pytest.mark.parametrize("action", ["drop", "cap"])
@pytest.mark.parametrize("name", EVERY)
def test_honest_reports_are_untouched(name: str, action: Any) -> None:
    inside = commonweal.rule(name, lipschitz=10.0) if name == "qfedavg" else commonweal.rule(name)
    rule = Guarded(inside, action=action)
    state, other = rule.init(10), inside.init(10)
    for t in range(4):
        told = honest(10 * t)
        (weights, state), (expected, other) = rule(told, state), inside(told, other)
        assert torch.equal(weights, expected)
        assert all(torch.equal(state[n], other[n]) for n in other)
        assert rule.rejected(told) == {}


@pytest.mark.parametrize("action", ["drop", "cap"])
def test_losses_and_updates_within_the_limit_are_believed(action: Any) -> None:
    told = reports([1.0, 1.0, 99.0, 1.0], updates=torch.tensor([[1.0], [1.0], [1.0], [99.0]]))
    rule = Guarded(TERM(0.01), action=action)
    assert torch.equal(weigh(rule, told), weigh(TERM(0.01), told))
    assert rule.rejected(told) == {}


@pytest.mark.parametrize(("action", "most"), [("drop", 2.0), ("cap", 100.0)])
def test_an_absurd_update_does_not_move_the_model_far(action: Any, most: float) -> None:
    U = normals(1, 9, 6)
    U[4] *= 1e6
    told, middle = reports([1.0] * 9, updates=U), U.norm(dim=1).median()
    assert (weigh(Guarded(FedAvg(), action=action), told) @ U).norm() < most * middle
    assert (weigh(FedAvg(), told) @ U).norm() > 1000 * middle


def test_a_capped_update_has_the_longest_believed_length() -> None:
    U = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 500.0]]).double()
    got = weigh(Guarded(FedAvg(), limit=10.0, action="cap"), reports([1.0] * 3, updates=U))
    assert got.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3 / 500], rel=1e-12)


def test_a_single_liar_of_two_is_caught() -> None:
    told = reports([1.0, 1e6])
    assert weigh(Guarded(TERM()), told).tolist() == [1.0, 0.0]


def test_where_most_losses_are_zero_nothing_can_be_compared() -> None:
    told = reports([0.0, 0.0, 0.0, 2.0])
    assert torch.equal(weigh(Guarded(TERM()), told), weigh(TERM(), told))
    assert Guarded(TERM()).rejected(told) == {}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_dropped(bad: float) -> None:
    told = reports([1.0, bad, 2.0], ids=[4, 7, 9], clients=10)
    rule = Guarded(TERM())
    weights, _ = rule(told, rule.init(10))
    expected = weigh(TERM(), reports([1.0, 2.0], ids=[4, 9], clients=10))
    assert weights.tolist() == pytest.approx([expected[0].item(), 0.0, expected[1].item()], rel=1e-12)
    assert list(rule.rejected(told)) == [7]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_update_that_is_no_number_is_dropped(bad: float) -> None:
    U = normals(2, 3, 4)
    U[1, 2] = bad
    told, rule = reports([1.0] * 3, updates=U), Guarded(commonweal.rule("fedmgda"))
    weights = weigh(rule, told)
    assert weights[1] == 0
    assert weights.sum().item() == pytest.approx(1, abs=1e-9)
    assert list(rule.rejected(told)) == [1]


def test_a_loss_of_nan_is_capped() -> None:
    told = reports([1.0, math.nan, 2.0])
    got = weigh(Guarded(QFedAvg(scaled=False), limit=3.0, action="cap"), told)
    assert got.tolist() == pytest.approx([0.2, 0.4, 0.4], rel=1e-12)


def test_a_loss_of_infinity_is_capped() -> None:
    told = reports([1.0, math.inf, 2.0])
    got = weigh(Guarded(QFedAvg(scaled=False), limit=3.0, action="cap"), told)
    assert got.tolist() == pytest.approx([0.2, 0.4, 0.4], rel=1e-12)


def test_an_update_of_nan_is_capped_to_nothing() -> None:
    U = normals(2, 3, 4)
    U[1, 2] = math.nan
    weights = weigh(Guarded(commonweal.rule("fedmgda"), action="cap"), reports([1.0] * 3, updates=U))
    assert torch.isfinite(weights).all() and weights[1] == 0


@pytest.mark.parametrize(("action", "word"), [("drop", "dropped"), ("cap", "capped")])
def test_rejected_names_the_clients_and_why(action: Any, word: str) -> None:
    U = torch.ones(5, 2)
    U[4] *= 300
    told = reports([1.0, 1.0, 250.0, 1.0, 1.0], updates=U, ids=[12, 5, 40, 3, 7], clients=50)
    why = Guarded(FedAvg(), action=action).rejected(told)
    assert set(why) == {40, 7}
    assert why[40] == f"{word}: its loss is 250 times the cohort's median"
    assert why[7] == f"{word}: its update is 300 times the cohort's median"


def test_notes_are_the_inner_rules_on_what_is_believed() -> None:
    rule = Guarded(PropFair())
    assert rule.notes(lying(honest(0), [3]), {}) == []
    assert len(rule.notes(reports([6.0, 6.0, 1e9]), {})) == 1
    assert Guarded(TERM()).notes(honest(0), {}) == []


def test_bind_and_after_reach_the_inner_rule() -> None:
    bound = Guarded(QFedAvg()).bind(commonweal.dataset("vowel"), Local(lr=0.5))
    assert bound.rule.lipschitz == 2.0  # type: ignore[attr-defined]
    assert Guarded(AdaFed(loss="after")).needs_after and not Guarded(TERM()).needs_after


def test_after_goes_with_the_report() -> None:
    told = lying(honest(3), [0])
    rule = Guarded(AdaFed(loss="after"))
    rest = list(range(1, 10))
    expected = weigh(AdaFed(loss="after"), kept(told, rest))
    torch.testing.assert_close(weigh(rule, told)[rest], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["fedavg", "term", "afl", "aaggff-s", "fedmgda"])
def test_it_never_fires_on_honest_vowel_runs(name: str) -> None:
    guarded = vowel({"name": "guarded", "rule": {"name": name}}, rounds=8)
    plain = vowel(name, rounds=8)
    assert all(done.dropped == {} for done in guarded)
    assert [done.weights for done in guarded] == [done.weights for done in plain]


@pytest.mark.parametrize("name", ["fedavg", "term", "aaggff-s"])
def test_it_never_fires_on_honest_heart_runs(name: str) -> None:
    heart = {"name": "heart", "dir": str(data("heart"))}
    rule = {"name": "guarded", "rule": {"name": name}}
    experiment = commonweal.Experiment(dataset=heart, rule=rule, rounds=20, client={"name": "sgd", "lr": 0.01})
    assert all(done.dropped == {} and sum(done.weights.values()) > 0.999 for done in commonweal.run(experiment))


@pytest.mark.parametrize("action", ["drop", "cap"])
def test_a_liar_in_a_run_is_named_and_the_model_is_as_without_it(action: str) -> None:
    rule = {"name": "guarded", "rule": {"name": "term"}, "action": action, "limit": 20.0}
    job = prepare(commonweal.Experiment(dataset="vowel", rule=rule))
    server = job.algorithm.init(job.task, 15)
    ids = torch.arange(15)
    replies = job.simulator.collect(job.algorithm, job.algorithm.ask(server), ids, 0)
    lied = replies | {"loss": replies["loss"].index_fill(0, torch.tensor([6]), 1e6)}
    told = job.algorithm.tell(job.task, server, ids, lied, 15)
    assert list(told.dropped) == [6]
    assert action in told.dropped[6]
    if action == "drop":
        others = torch.tensor([k for k in range(15) if k != 6])
        without = job.algorithm.tell(job.task, server, others, {n: v[others] for n, v in replies.items()}, 15)
        torch.testing.assert_close(told.server["w"], without.server["w"], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("what", ["loss", "update"])
def test_what_is_no_number_is_dropped_before_any_rule_sees_it(what: str) -> None:
    job = prepare(commonweal.Experiment(dataset="vowel", rule={"name": "guarded", "rule": {"name": "fedmgda"}}))
    server = job.algorithm.init(job.task, 15)
    ids = torch.arange(15)
    replies = job.simulator.collect(job.algorithm, job.algorithm.ask(server), ids, 0)
    broken = replies | {what: replies[what].index_fill(0, torch.tensor([2]), math.nan)}
    told = job.algorithm.tell(job.task, server, ids, broken, 15)
    assert list(told.dropped) == [2]
    assert 2 not in told.ids.tolist()
    assert torch.isfinite(told.server["w"]).all()


@pytest.mark.parametrize("limit", [1.0, 0.0, -5.0])
def test_a_limit_at_or_below_the_median_is_an_error(limit: float) -> None:
    with pytest.raises(ConfigError, match=f"limit = {limit}"):
        Guarded(FedAvg(), limit)
