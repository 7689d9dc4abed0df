"""Averaging at the server, replies that cannot be used, and two-phase, which computes the same."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cases import cases
from commonweal.base.errors import CommonwealWarning, ConfigError
from commonweal.base.tensors import State, Tensors
from commonweal.clients.scaffold import Scaffold
from commonweal.config import catalog
from commonweal.data.federation import Federation
from commonweal.data.population import Setting
from commonweal.engines.simulator import Simulator
from commonweal.jobs.rounds import converse, run
from commonweal.protocols import Averaging, Outcome, Replies, Request, TwoPhase
from commonweal.protocols.algorithm import Sample
from commonweal.protocols.averaging import buffer_weights
from commonweal.protocols.samplers.uniform import Uniform
from commonweal.protocols.servers.sgd import SGD
from commonweal.rules import AAggFFS, Decision, FedAvg, Reports, Rule
from commonweal.rules.rule import Kind, Stateless
from commonweal.task.task import Task
from commonweal.training.client import Client
from commonweal.training.client_state import keep_finite
from helpers import (
    SHAPES,
    averaging,
    batches_of,
    close,
    collected,
    federation,
    group_of,
    loaded,
    module,
    planned,
)
from run_helpers import Lossy, job

UNEQUAL = {"five": 5, "twenty": 20, "fifty-seven": 57, "three hundred": 300}
SHARE = torch.tensor([5, 20, 57, 300]) / 382
IDS = torch.arange(4)


@dataclass(frozen=True)
class Fixed(Rule):
    """A rule with given weights that counts its rounds."""

    kind = Kind("reweighting", "", "")
    weights: tuple[float, ...]

    def init(self, setting: Setting | int) -> State:
        return {"rounds": torch.tensor(0)}

    def __call__(self, reports: Reports, state: State) -> Decision:
        assert reports.clients == 4
        weights = torch.tensor(self.weights, dtype=torch.float64)
        return Decision(weights, {"rounds": state["rounds"] + 1})


def a_round(kind: str = "mlp") -> tuple[Task, Tensors]:
    task = Task(module(kind))
    return task, collected(task, federation(UNEQUAL), "loop", Client())


def told(algorithm: Averaging, values: Tensors, ids: Tensor = IDS) -> tuple[State, Outcome]:
    """The state before, and the outcome of a round with these replies."""
    state = algorithm.init(federation(UNEQUAL).population)
    return state, algorithm.tell(state, Replies(ids, values), 4)


# The server


def test_the_average_of_models_by_rows() -> None:
    task, values = a_round()
    state, outcome = told(averaging(task), values)
    close(outcome.state["w"], SHARE @ (task.initial - values["update"]))
    close(outcome.weights, SHARE)
    assert outcome.weights.dtype == torch.float64
    assert outcome.clients.tolist() == [0, 1, 2, 3]
    assert outcome.dropped == outcome.capped == {} and outcome.warnings == ()
    assert int(outcome.state["round"]) == 2 and int(state["round"]) == 1


def test_telling_changes_nothing_that_it_was_given() -> None:
    task, values = a_round("norm")
    copies = {name: value.clone() for name, value in values.items()}
    state, outcome = told(averaging(task, server=SGD(momentum=0.9)), values)
    assert torch.equal(state["w"], task.initial) and int(state["round"]) == 1
    assert not torch.equal(outcome.state["w"], task.initial)
    assert all(torch.equal(copies[name], values[name]) for name in copies)


def test_the_server_starts_from_a_copy_of_the_model() -> None:
    task = Task(module("mlp"))
    state = averaging(task).init(federation(UNEQUAL).population)
    state["w"].zero_()
    assert task.initial.abs().max() > 0


def test_a_round_asks_a_cohort_and_uses_its_replies() -> None:
    task, f = Task(module("mlp")), federation(UNEQUAL)
    algorithm = averaging(task)
    state = algorithm.init(f.population)
    sample = Sample(f.population, 4, 1, Uniform(), np.random.default_rng(0))
    conversation = algorithm.round(state, sample)
    request = next(conversation)
    assert (request.purpose, request.clients.tolist(), request.each) == ("train", [0, 1, 2, 3], {})
    assert set(request.message) == {"w", "round", "rounds"}
    replies = Simulator(f).collect(algorithm, request)
    with pytest.raises(StopIteration) as stop:
        conversation.send(replies)
    outcome = stop.value.value
    assert torch.equal(outcome.state["w"], algorithm.tell(state, replies, 4).state["w"])


def test_buffers_are_averaged_with_normalised_weights() -> None:
    task, values = a_round("norm")
    rule = Fixed((2.0, 1.0, 0.5, 0.5))
    _, outcome = told(averaging(task, rule=rule, server=SGD(lr=0.1)), values)
    n, update, w = task.num_trainable, values["update"], task.initial
    weights = torch.tensor([2.0, 1.0, 0.5, 0.5])
    close(outcome.state["w"][:n], w[:n] - 0.1 * weights @ update[:, :n])
    close(outcome.state["w"][n:], weights / 4 @ (w - update)[:, n:])
    assert outcome.state["w"][n:].sub(w[n:]).abs().max() > 1e-3
    assert outcome.weights.tolist() == [2, 1, 0.5, 0.5]


@cases(
    ("weights", "expected"),
    [
        ([1.0, 3.0], [0.25, 0.75]),
        ([-1.0, 2.0], [0.0, 1.0]),
        ([0.0, 0.0], [0.5, 0.5]),
        ([-1.0, -2.0], [0.5, 0.5]),
    ],
)
def test_weights_of_buffers_are_a_mixture(weights: list[float], expected: list[float]) -> None:
    assert buffer_weights(torch.tensor(weights)).tolist() == expected


def test_the_servers_momentum_leaves_buffers_alone() -> None:
    task, values = a_round("norm")
    algorithm = averaging(task, server=SGD(momentum=0.9))
    state, outcome = told(algorithm, values)
    n = task.num_trainable
    assert state["server"]["velocity"].shape == (n,)
    once = outcome.state
    again = algorithm.tell(once, Replies(IDS, values), 4).state
    first = SHARE @ values["update"]
    close(again["w"][:n], once["w"][:n] - 1.9 * first[:n])
    close(again["w"][n:], once["w"][n:] - first[n:])


def test_rules_see_trainable_coordinates_only() -> None:
    seen: list[Reports] = []

    @dataclass(frozen=True)
    class Looking(FedAvg):
        def __call__(self, reports: Reports, state: State) -> Decision:
            seen.append(reports)
            return super().__call__(reports, state)

    task, values = a_round("norm")
    _, outcome = told(averaging(task, rule=Looking()), values)
    (reports,) = seen
    assert reports.updates is not None and reports.scores is not None
    assert torch.equal(reports.updates, values["update"][:, : task.num_trainable])
    assert torch.equal(reports.losses, values["loss"])
    assert torch.equal(reports.scores, values["score"])
    assert reports.sizes.tolist() == [5, 20, 57, 300] and reports.ids.tolist() == [0, 1, 2, 3]
    assert reports.clients == 4 and len(outcome.weights) == 4


def test_a_rule_that_needs_losses_after_training_gets_them() -> None:
    f = federation(UNEQUAL)
    task = Task(module("mlp"))

    @dataclass(frozen=True)
    class After(FedAvg):
        needs = frozenset({"size", "loss_after"})

        def __call__(self, reports: Reports, state: State) -> Decision:
            assert reports.losses_after is not None
            assert (reports.losses_after < reports.losses).all()
            return super().__call__(reports, state)

    algorithm = averaging(task, rule=After())
    state = algorithm.init(f.population)
    replies = Simulator(f).collect(algorithm, Request(IDS, algorithm.ask(state)))
    assert len(algorithm.tell(state, replies, 4).clients) == 4
    assert "loss_after" not in collected(task, f, "loop", Client())


def test_a_request_that_averaging_does_not_know_is_an_error() -> None:
    f = federation(UNEQUAL)
    algorithm = averaging(Task(module("mlp")))
    message = algorithm.ask(algorithm.init(f.population))
    with pytest.raises(ConfigError, match="Client has no answer to a request for 'dance'"):
        Simulator(f).collect(algorithm, Request(IDS, message, "dance"))


# Replies that cannot be used


def changed(values: Tensors, name: str, position: int, value: float) -> Tensors:
    tensor = values[name].clone()
    tensor[position] = value
    return values | {name: tensor}


@cases("value", [math.nan, math.inf, -math.inf])
@cases(("name", "why"), [("loss", "its loss is not a finite"), ("update", "training diverged")])
def test_what_is_not_finite_is_dropped_and_named(name: str, why: str, value: float) -> None:
    task, values = a_round()
    algorithm = averaging(task)
    ids = torch.tensor([1, 0, 3, 2])
    _, outcome = told(algorithm, changed(values, name, 2, value), ids)
    assert list(outcome.dropped) == [3] and why in outcome.dropped[3]
    assert outcome.clients.tolist() == [1, 0, 2]
    rest = torch.tensor([0, 1, 3])
    _, without = told(algorithm, {n: v[rest] for n, v in values.items()}, ids[rest])
    assert torch.equal(outcome.state["w"], without.state["w"])
    assert torch.equal(outcome.weights, without.weights)


def test_dropping_a_client_is_as_if_it_had_not_been_in_the_cohort() -> None:
    """For a rule with a state, and a server with momentum."""
    task, values = a_round()
    algorithm = averaging(task, rule=AAggFFS(), server=SGD(momentum=0.5))
    bad = changed(values, "update", 1, math.inf)
    some = torch.tensor([0, 2, 3])
    state = algorithm.init(federation(UNEQUAL).population)
    for _ in range(2):
        dropped = algorithm.tell(state, Replies(IDS, bad), 4)
        present = {n: v[some] for n, v in values.items()}
        absent = algorithm.tell(state, Replies(some, present), 4)
        assert torch.equal(dropped.weights, absent.weights)
        assert torch.equal(dropped.state["w"], absent.state["w"])
        assert list(dropped.dropped) == [1] and absent.dropped == {}
        state = dropped.state


def test_several_reasons_are_listed_and_the_loss_comes_first() -> None:
    task, values = a_round()
    bad = changed(changed(values, "loss", 1, math.nan), "update", 1, math.nan)
    _, outcome = told(averaging(task), changed(bad, "update", 3, math.inf))
    assert outcome.dropped == {
        1: "its loss is not a finite number",
        3: "its update is not finite: local training diverged",
    }


def test_replies_that_failed_on_the_way_stay_failed() -> None:
    task, values = a_round()
    some = torch.tensor([0, 2, 3])
    replies = Replies(some, {n: v[some] for n, v in values.items()}, {1: "no reply in 5 s"})
    algorithm = averaging(task)
    outcome = algorithm.tell(algorithm.init(federation(UNEQUAL).population), replies, 4)
    assert outcome.dropped == {1: "no reply in 5 s"}
    assert outcome.clients.tolist() == [0, 2, 3]


def test_an_undefined_score_drops_nobody() -> None:
    task, values = a_round()
    _, outcome = told(averaging(task), changed(values, "score", 1, math.nan))
    assert outcome.dropped == {} and len(outcome.clients) == 4


@cases("number", [2e38, 3e38])
def test_a_finite_update_whose_sum_overflows_is_kept(number: float) -> None:
    task, values = a_round()
    update = values["update"].clone()
    update[1, :2] = number
    algorithm = averaging(task, rule=Fixed((0.25,) * 4))
    _, outcome = told(algorithm, values | {"update": update})
    assert outcome.dropped == {} and outcome.state["w"].isfinite().all()


@cases("replies", ["not finite", "none", "lost"])
def test_with_nothing_left_the_model_stays_and_the_round_advances(replies: str) -> None:
    task, values = a_round("norm")
    algorithm = averaging(task, rule=Fixed((0.25,) * 4), server=SGD(momentum=0.5))
    nobody = torch.empty(0, dtype=torch.int64)
    given = {
        "not finite": Replies(IDS, values | {"loss": torch.full((4,), math.nan)}),
        "none": Replies(nobody, {}),
        "lost": Replies(nobody, {n: v[:0] for n, v in values.items()}, {2: "gone"}),
    }[replies]
    state = algorithm.init(federation(UNEQUAL).population)
    outcome = algorithm.tell(state, given, 4)
    assert torch.equal(outcome.state["w"], state["w"]) and int(outcome.state["round"]) == 2
    assert outcome.clients.tolist() == outcome.weights.tolist() == []
    dropped = {"not finite": {0, 1, 2, 3}, "none": set(), "lost": {2}}[replies]
    assert set(outcome.dropped) == dropped
    assert outcome.state["rule"] is state["rule"] and outcome.state["server"] is state["server"]


def wild_federation() -> Federation:
    f = federation({"calm": 20, "wild": 20, "quiet": 20})
    scale = torch.ones(3, 1).index_fill(0, torch.tensor([1]), 1e12).repeat_interleave(20, 0)
    train = replace(f.train, inputs=f.train.x * scale, y=f.train.x[:, 0])
    test = replace(f.test, y=f.test.x[:, 0])
    return Federation(train, test, f.names, 1, "values", "r2")


@cases("mode", ["loop", "vmap"])
def test_a_client_that_diverges_is_left_out_and_the_others_go_on(mode: str) -> None:
    f, task = wild_federation(), Task(module("logistic", 1), "squared", "r2")
    algorithm = averaging(task, Client(batch=4))
    state, simulator = algorithm.init(f.population), Simulator(f, vectorize=mode)
    before = simulator.evaluate(algorithm, state).losses
    for _ in range(5):
        replies = simulator.collect(algorithm, Request(torch.arange(3), algorithm.ask(state)))
        assert replies.values["loss"].isfinite().all()
        outcome = algorithm.tell(state, replies, 3)
        assert list(outcome.dropped) == [1] and "diverged" in outcome.dropped[1]
        assert outcome.weights.tolist() == [0.5, 0.5]
        state = outcome.state
    after = simulator.evaluate(algorithm, state).losses
    assert (after[[0, 2]] < 0.1 * before[[0, 2]]).all() and int(state["round"]) == 6


def test_a_model_of_nan_stays_and_every_client_is_dropped() -> None:
    task, f = Task(module("mlp")), federation(UNEQUAL)
    algorithm = averaging(task)
    state = algorithm.init(f.population) | {"w": torch.full_like(task.initial, math.nan)}
    replies = Simulator(f).collect(algorithm, Request(IDS, algorithm.ask(state)))
    outcome = algorithm.tell(state, replies, 4)
    assert set(outcome.dropped) == {0, 1, 2, 3} and int(outcome.state["round"]) == 2


def test_a_client_that_diverges_keeps_its_state() -> None:
    before = {"a": torch.zeros(3, 2), "n": torch.tensor([1, 2, 3])}
    after = {"a": torch.ones(3, 2), "n": torch.tensor([4, 5, 6])}
    update = torch.ones(3, 5)
    assert keep_finite(before, after, update) is after
    update[1, 4] = math.nan
    kept = keep_finite(before, after, update)
    assert kept["a"].tolist() == [[1, 1], [0, 0], [1, 1]] and kept["n"].tolist() == [4, 2, 6]
    after["a"][2, 0] = math.inf
    with pytest.warns(CommonwealWarning, match="not finite after training: they keep those of"):
        assert keep_finite(before, after, update)["n"].tolist() == [4, 2, 3]
    assert keep_finite({}, {}, update) == {}


# What a rule says about the reports


@dataclass(frozen=True)
class Opinionated(Rule):
    """Drops client 1, caps client 3, and warns."""

    def __call__(self, reports: Reports, state: State) -> Decision:
        weights = torch.full((len(reports.ids),), 1 / 3, dtype=torch.float64)
        weights[reports.ids == 1] = 0
        return Decision(weights, state, ("careful",), {1: "implausible"}, {3: "too long"})


def test_a_mixture_must_sum_to_1() -> None:
    """A sum of 6 takes six steps in one, which a rule may want but must say."""
    task, values = a_round()

    @dataclass(frozen=True)
    class Twice(Stateless):
        def weigh(self, reports: Reports) -> Tensor:
            return torch.full((len(reports.ids),), 2 / len(reports.ids), dtype=torch.float64)

    @dataclass(frozen=True)
    class Meant(Twice):
        kind = Kind("reweighting", "", "")

    with pytest.raises(ConfigError, match="rule Twice: its weights sum to 2, not to 1"):
        told(averaging(task, rule=Twice()), values)
    _, outcome = told(averaging(task, rule=Meant()), values)
    assert outcome.weights.tolist() == [0.5] * 4


def test_dropped_and_capped_reports_are_listed_apart() -> None:
    task, values = a_round()
    _, outcome = told(averaging(task, rule=Opinionated()), values)
    assert outcome.dropped == {1: "implausible"} and outcome.capped == {3: "too long"}
    assert outcome.warnings == ("careful",)
    assert outcome.clients.tolist() == [0, 2, 3]
    assert outcome.weights.tolist() == [1 / 3] * 3


def test_scaffold_hears_capped_reports_but_not_dropped_ones() -> None:
    f, task = federation(UNEQUAL), Task(module("mlp"))
    client = Scaffold(steps=3)
    algorithm = averaging(task, client, Opinionated())
    state = algorithm.init(f.population)
    replies = Simulator(f).collect(algorithm, Request(IDS, algorithm.ask(state)))
    outcome = algorithm.tell(state, replies, 4)
    used = torch.tensor([0, 2, 3])
    heard = {n: v[used] for n, v in replies.values.items()}
    expected = client.update_shared(state["shared"], heard, 4)
    assert expected and set(expected) == set(outcome.state["shared"])
    for name, value in expected.items():
        assert torch.equal(outcome.state["shared"][name], value)
        everyone = client.update_shared(state["shared"], replies.values, 4)
        assert not torch.equal(everyone[name], value)


def test_a_run_records_capped_clients_apart_from_dropped_ones() -> None:
    f = federation({"a": 20, "b": 20, "c": 20, "d": 20, "wild": 20})
    scale = torch.ones(5, 1).index_fill(0, torch.tensor([4]), 40.0).repeat_interleave(20, 0)
    f = replace(f, train=replace(f.train, inputs=f.train.x * scale))
    task = Task(module("mlp"))
    for action in ("drop", "cap"):
        rule = catalog.build("rules", f"guarded(rule=fedavg, limit=3, action={action})")
        (done,) = run(task, f, rule=rule, rounds=1)
        assert set(done.dropped) == ({"wild"} if action == "drop" else set())
        assert set(done.capped) == ({"wild"} if action == "cap" else set())
        assert ("wild" in done.weights) == (action == "cap")


# Two-phase

RULES = ["fedavg", "aaggff-s", "afl", "term"]
SIZES = {"p": 24, "q": 9, "r": 24, "s": 9, "t": 41}


def final(kind: str, f: Federation | None = None, **parts: Any) -> Any:
    given = federation(SIZES, SHAPES[kind]) if f is None else f
    defaults: dict[str, Any] = {"client": Client(batch=8, lr=0.2), "rounds": 4}
    *_, last = run(Task(module(kind)), given, **(defaults | parts))
    return last


@cases("rule", RULES)
@cases("kind", ["logistic", "mlp", "norm", "cnn-norm"])
def test_two_phase_equals_averaging(kind: str, rule: str) -> None:
    one = final(kind, rule=rule, algorithm={"name": "averaging", "loss": "always"})
    two = final(kind, rule=rule, algorithm="two-phase")
    torch.testing.assert_close(two.state["w"], one.state["w"], rtol=0, atol=1e-6)
    assert two.weights == pytest.approx(one.weights, abs=1e-6)
    assert two.losses == pytest.approx(one.losses, abs=1e-5)
    assert two.metrics["mean"] == pytest.approx(one.metrics["mean"], abs=1e-6)


@cases(
    "parts",
    [
        {"cohort": 3},
        {"server": "sgd(momentum=0.5)"},
        {"server": "adam"},
        {"client": "ditto(batch=8)"},
        {"client": "fedper(batch=8)"},
        {"rule": {"name": "grouped", "rule": "afl", "domains": 2}},
        {"sampler": "weight", "rule": "afl", "cohort": 2},
        {"channels": ["clip(norm=0.05)"]},
        {"channels": ["clip(norm=0.05)"], "client": "fedper(batch=8)"},
    ],
)
def test_two_phase_equals_averaging_with_other_parts(parts: dict[str, Any]) -> None:
    one = final("mlp", algorithm="averaging", **({"rule": "aaggff-s"} | parts))
    two = final("mlp", algorithm="two-phase", **({"rule": "aaggff-s"} | parts))
    torch.testing.assert_close(two.state["w"], one.state["w"], rtol=0, atol=1e-6)
    assert two.clients == one.clients
    if one.evaluation.personal is not None:
        close(two.evaluation.personal.losses, one.evaluation.personal.losses)


@cases("mode", ["loop", "vmap", "chunked"])
def test_two_phase_computes_the_same_in_all_modes(mode: str) -> None:
    expected = final("norm", rule="aaggff-s", algorithm="averaging", vectorize="loop")
    got = final("norm", rule="aaggff-s", algorithm="two-phase", vectorize=mode)
    torch.testing.assert_close(got.state["w"], expected.state["w"], rtol=1e-4, atol=1e-5)


def needs(name: str) -> frozenset[str]:
    more = {"rule": "fedavg"} if name in ("excess", "guarded", "grouped") else {}
    rule: Rule = catalog.build("rules", {"name": name, **more})
    return rule.needs


UPDATES = [name for name in catalog.entries("rules") if needs(name) & {"update", "loss_after"}]


def test_some_rules_need_updates_and_some_do_not() -> None:
    assert {"adafed", "fedmgda", "guarded"} <= set(UPDATES)
    assert not set(RULES) & set(UPDATES)


@cases("name", UPDATES)
def test_two_phase_refuses_rules_that_need_updates(name: str) -> None:
    rule = {"name": name, "rule": "fedavg"} if name in ("excess", "guarded", "grouped") else name
    with pytest.raises(ConfigError, match="two-phase decides before clients train, but the rule"):
        final("mlp", rule=rule, algorithm="two-phase")


@cases("name", sorted(set(catalog.entries("rules")) - set(UPDATES)))
def test_two_phase_takes_all_other_rules(name: str) -> None:
    rule: dict[str, object] = {"name": name}
    if name in ("excess", "grouped"):
        rule["rule"] = "fedavg"
    if name == "grouped":
        rule["domains"] = 2
    one = final("logistic", rule=rule, rounds=2)
    two = final("logistic", rule=rule, rounds=2, algorithm="two-phase")
    torch.testing.assert_close(two.state["w"], one.state["w"], rtol=0, atol=1e-6)


def test_two_phase_refuses_a_combinator_of_a_rule_that_needs_updates() -> None:
    rule = {"name": "grouped", "rule": "fedmgda", "domains": 2}
    with pytest.raises(ConfigError, match=r"needs \['update'\]"):
        final("mlp", rule=rule, algorithm="two-phase")


def test_two_phase_refuses_clients_whose_every_reply_is_needed() -> None:
    with pytest.raises(ConfigError, match="this client method needs each reply"):
        final("mlp", client="scaffold", algorithm="two-phase")


def two_phase(f: Federation, engine: Simulator, rule: str = "aaggff-s", **parts: Any) -> Any:
    task = Task(module("norm"))
    given = {"client": Client(batch=8), "rule": rule, "algorithm": "two-phase", "rounds": 3}
    return job(task, f, engine, **(given | parts))


def test_the_server_uses_the_sum_only() -> None:
    """Were the weighted updates masked by numbers that cancel, the model would be the same."""
    f = federation(SIZES)

    class Masked(Simulator):
        def collect(self, algorithm: Any, request: Request) -> Replies:
            replies = super().collect(algorithm, request)
            if request.purpose != "train":
                return replies
            update = replies.values["update"]
            mask = torch.randn(update.shape, generator=torch.Generator().manual_seed(0))
            masked = update + mask - mask.mean(0)
            return replies._replace(values={"update": masked})

    *_, plain = run(two_phase(f, Simulator(f)))
    *_, masked = run(two_phase(f, Masked(f)))
    torch.testing.assert_close(masked.state["w"], plain.state["w"], rtol=0, atol=1e-5)


def test_updates_are_weighted_by_the_clients_and_nothing_else_is_sent() -> None:
    f = federation(SIZES)
    built = two_phase(f, Simulator(f))
    state = built.initial_state()
    outcome, exchanges = converse(built.algorithm, built.engine, state, built.sample(1))
    (asked, told), (again, sent) = exchanges
    assert (asked.purpose, again.purpose) == ("loss", "train")
    assert set(told.values) == {"loss", "score", "size"} and set(sent.values) == {"update"}
    assert again.clients.tolist() == told.clients.tolist() == [0, 1, 2, 3, 4]
    plain = collected(built.task, f, "loop", Client(batch=8))["update"]
    n = built.task.num_trainable
    weights = outcome.weights.float()[:, None]
    close(sent.values["update"][:, :n], weights * plain[:, :n])
    close(sent.values["update"][:, n:], weights * plain[:, n:])


def test_a_client_that_fails_in_the_second_phase_is_left_out() -> None:
    """The others' weights are scaled up, as if the weights had been theirs from the start."""
    f = federation(SIZES)
    lost = {3: "no reply in 5 s"}
    engine = Lossy(f, lambda request: lost if request.purpose == "train" else {})
    built = two_phase(f, engine, rule="fedavg", rounds=1)
    (done,) = run(built)
    rest = {"p": 24, "q": 9, "r": 24, "t": 41}
    assert done.dropped == {"s": "no reply in 5 s"}
    assert done.weights == pytest.approx({name: n / 98 for name, n in rest.items()})
    assert not math.isnan(done.losses[3])  # it answered the first request
    (expected,) = run(job(built.task, federation(rest), client=Client(batch=8), rounds=1))
    torch.testing.assert_close(done.state["w"], expected.state["w"], rtol=0, atol=1e-6)


def test_a_client_that_fails_in_the_first_phase_is_not_asked_again() -> None:
    f = federation(SIZES)
    asked: list[list[int]] = []

    def lost(request: Request) -> dict[int, str]:
        asked.append(request.clients.tolist())
        return {3: "gone"} if request.purpose == "loss" else {}

    (done,) = run(two_phase(f, Lossy(f, lost), rounds=1))
    assert asked == [[0, 1, 2, 3, 4], [0, 1, 2, 4]]
    assert done.dropped == {"s": "gone"} and math.isnan(done.losses[3])


def test_a_second_phase_without_replies_moves_nothing() -> None:
    f = federation(SIZES)
    everyone = dict.fromkeys(range(5), "gone")
    engine = Lossy(f, lambda request: everyone if request.purpose == "train" else {})
    for done in run(two_phase(f, engine)):
        assert torch.equal(done.state["w"], done.job.task.initial)
        assert done.weights == {} and set(done.dropped) == set(SIZES)
        assert int(done.state["round"]) == done.number + 1


def test_a_second_phase_with_replies_of_weight_0_only_moves_nothing() -> None:
    """AFL may give all weight to one client; where that one fails, the sum is of zeros."""
    f = federation(SIZES)
    worst: dict[int, str] = {}

    def lost(request: Request) -> dict[int, str]:
        weights = request.each.get("weight", torch.zeros(0)).tolist()
        zero = {i for i, w in zip(request.clients.tolist(), weights, strict=False) if w == 0}
        worst.update({i: "gone" for i in request.clients.tolist() if zero and i not in zero})
        return worst if request.purpose == "train" else {}

    done = list(run(two_phase(f, Lossy(f, lost), rule="afl(lr=100)")))
    assert worst
    for each in done:
        assert torch.isfinite(each.state["w"]).all()
        assert torch.equal(each.state["w"], each.job.task.initial)
        assert each.weights == {} and set(each.dropped) == {f.names[i] for i in worst}


def test_a_client_that_diverges_in_the_second_phase_is_left_out() -> None:
    f = wild_federation()
    task = Task(module("logistic", 1), "squared", "r2")
    parts: dict[str, Any] = {"client": Client(batch=4), "rounds": 2}
    for done in run(task, f, algorithm="two-phase", **parts):
        assert list(done.dropped) == ["wild"] and "diverged" in done.dropped["wild"]
        assert done.weights == pytest.approx({"calm": 0.5, "quiet": 0.5})
    *_, one = run(task, f, algorithm="averaging", **parts)
    torch.testing.assert_close(done.state["w"], one.state["w"], rtol=0, atol=1e-6)


def test_groups_are_what_an_engine_makes_of_them() -> None:
    """`answer` needs the group only: other clients' rows, numbers and engine do not matter."""
    f, task = federation(SIZES), Task(module("mlp"))
    algorithm: Averaging = TwoPhase(task, FedAvg(), Client(batch=8), SGD())
    message = algorithm.ask(algorithm.init(f.population))
    request = Request(torch.tensor([1]), message, "loss")
    group = group_of(f.train.client(1), f.names[1])
    replies, states = algorithm.answer(request, group)
    whole = Simulator(f).collect(algorithm, request).values
    assert not states and all(torch.equal(replies[n], whole[n]) for n in whole)


# Losses of the first batch


@cases("mode", ["loop", "vmap", "chunked"])
@cases("method", ["sgd", "fedper", "superfed-mm"])
def test_the_loss_of_the_first_batch_by_torch(method: str, mode: str) -> None:
    """The received model on the rows of each client's first step, before that step."""
    f, t = federation(SIZES), Task(module("mlp"))
    client: Client = catalog.build("clients", {"name": method, "batch": 8, "lr": 0.2})
    values = reported(f, averaging(t, client, AAggFFS(), loss="batch"), mode)
    for k in range(len(SIZES)):
        rows = batches_of(planned(client, t, f, [k]))[0]
        outputs = loaded(t, t.initial)(f.train.x[rows])
        expected = torch.nn.functional.cross_entropy(outputs, f.train.y[rows])
        right = (outputs.argmax(1) == f.train.y[rows]).double().mean()
        close(values["loss"][k], expected)
        close(values["score"][k], right)
    full = reported(f, averaging(t, client), mode)
    assert torch.equal(values["update"], full["update"])  # the batches are the same
    assert torch.equal(values["size"], full["size"])
    assert not torch.allclose(values["loss"], full["loss"])


def reported(f: Federation, algorithm: Averaging, mode: str = "loop", number: int = 1) -> Tensors:
    state = algorithm.init(f.population) | {"round": torch.tensor(number)}
    everyone = Request(torch.arange(f.clients), algorithm.ask(state))
    return Simulator(f, vectorize=mode).collect(algorithm, everyone).values


def test_the_loss_of_a_batch_is_unbiased() -> None:
    """Every row is as likely in the first batch: AFL's Lemma 6."""
    f, t = federation({"a": 13, "b": 40}), Task(module("mlp"))
    client = Client(batch=4, steps=1)
    sampled = averaging(t, client, AAggFFS(), loss="batch")
    drawn = [reported(f, sampled, "vmap", n) for n in range(1, 601)]
    losses = torch.stack([values["loss"] for values in drawn])
    full = reported(f, averaging(t, client))["loss"]
    error = losses.std(0) / math.sqrt(len(losses))
    assert ((losses.mean(0) - full).abs() < 4 * error).all() and (error > 0).all()


@cases("algorithm", ["averaging", "two-phase"])
def test_a_batch_of_all_rows_is_the_full_loss(algorithm: str) -> None:
    parts: dict[str, Any] = {"client": Client(batch=0), "rule": "afl"}
    full = final("mlp", algorithm=algorithm, **parts)
    batch = final("mlp", algorithm={"name": algorithm, "loss": "batch"}, **parts)
    torch.testing.assert_close(batch.state["w"], full.state["w"], rtol=0, atol=1e-6)
    assert batch.losses == pytest.approx(full.losses, abs=1e-5)


def test_the_loss_after_training_is_of_the_same_batch() -> None:
    f, t = federation(SIZES), Task(module("mlp"))
    rule = catalog.build("rules", {"name": "adafed", "loss": "after"})
    values = reported(f, averaging(t, Client(batch=8, steps=1), rule, loss="batch"))
    assert (values["loss_after"] < values["loss"]).all()  # one step down on these rows
