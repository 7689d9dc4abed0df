"""The private protocol: what a round releases, and what would break the promise."""

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from commonweal.base import randomness
from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State, Tensors
from commonweal.clients import Client
from commonweal.data.federation import Federation
from commonweal.data.population import Population
from commonweal.jobs.job import job_from_parts
from commonweal.jobs.rounds import Round, run
from commonweal.protocols import private as module
from commonweal.protocols.algorithm import Outcome, Replies, Sample
from commonweal.protocols.privacy.entropy import Bytes, source
from commonweal.protocols.privacy.release import Sensitivity, release
from commonweal.protocols.privacy.weighing import CLIP
from commonweal.protocols.private import Private
from commonweal.protocols.samplers import Poisson
from commonweal.protocols.servers import SGD
from commonweal.rules import CVaR, FedAvg, Rule
from commonweal.rules.aaggff_d import AAggFFD
from commonweal.rules.private_form import Weighed
from commonweal.rules.private_forms import PrivateTERM
from commonweal.rules.term import TERM
from commonweal.task.task import Task
from helpers import federation

RELEASES = 40_000
CLIENTS = 50


def private(rule: Rule, clients: int = CLIENTS, **numbers: Any) -> Private:
    given: dict[str, Any] = {"noise": 1.0, "entropy": "seed", **numbers}
    population = Population(tuple(map(str, range(clients))), torch.ones(clients), (1,), 2)
    task = Task(nn.Linear(1, 2, bias=False))
    return Private(
        task,
        rule,
        Client(),
        SGD(),
        population=population,
        cohort_size=clients // 5,
        sampler=Poisson(),
        **given,
    )


def start(algorithm: Private) -> State:
    assert algorithm.population is not None
    return algorithm.init(algorithm.population)


def replies(
    algorithm: Private,
    state: State,
    losses: list[float],
    lengths: list[float],
    remembered: float = 0.0,
) -> Replies:
    """What clients 0, 1, ... send for these losses and lengths of updates."""
    updates = torch.tensor(lengths)[:, None] * torch.tensor([[0.6, -0.8]])
    clients = torch.arange(len(losses))
    own = algorithm.form.init_client()
    memory = {n: (v + remembered).expand(len(losses)) for n, v in own.items()}
    loss = torch.tensor(losses)
    sent, _ = algorithm.weigh(updates, loss, memory, algorithm.ask(state))
    return Replies(clients, {"loss": loss, **sent})


# The release audit


def distance(algorithm: Private) -> float:
    """How many deviations the worst client moves the release, from releases alone."""
    state = start(algorithm)
    cohort = replies(algorithm, state, [0.1, 0.4, 99.0], [0.5, 0.2, 99.0], remembered=99.0)
    without = Replies(cohort.clients[:2], {n: v[:2] for n, v in cohort.values.items()})
    samples = []
    for world, answered in enumerate((cohort, without)):
        draw = randomness.stream(world, 1, 0, randomness.RELEASE).bytes
        update, statistics = (part.repeat(RELEASES) for part in algorithm._sums(answered))
        parts = release(update, statistics, algorithm.sensitivity(state), draw)
        samples.append(torch.cat([part.view(RELEASES, -1) for part in parts], 1))
    present, absent = samples
    shift = present.mean(0) - absent.mean(0)
    variance = (present.var(0) + absent.var(0)) / 2
    return float((shift.square() / variance).sum().sqrt())


def contradicts(claim: float, measured: float) -> bool:
    return measured > claim + 4 * math.sqrt((2 + claim**2 / 4) / RELEASES)


def test_releases_keep_the_promise_and_waste_nothing() -> None:
    for rule in (TERM(2.0), AAggFFD(scale=0.3)):
        measured = distance(private(rule))
        assert not contradicts(1.0, measured)
        assert measured > 0.95


def equal_weights(self: Private, state: State) -> Sensitivity:
    clip = float(state[CLIP])
    return Sensitivity(clip, self.statistics, self.chosen_noise, self.share)


def five_percent_short(self: Private, state: State) -> Sensitivity:
    right = Sensitivity(4.0, self.statistics, self.chosen_noise, self.share)
    return right._replace(noise=0.95 * right.noise)


def whole_promise_twice(self: Private, state: State) -> Sensitivity:
    right = Sensitivity(4.0, self.statistics, self.chosen_noise, self.share)
    return right._replace(update=right.update * math.sqrt(1 - self.share) / 1.2)


@pytest.mark.parametrize("fault", [equal_weights, five_percent_short, whole_promise_twice])
def test_the_audit_finds_noise_that_is_too_small(
    fault: Callable[[Private, State], Sensitivity], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Private, "sensitivity", fault)
    assert contradicts(1.0, distance(private(TERM(2.0))))


def test_a_statistic_that_is_not_clamped_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A form that exceeds its box is clamped by the algorithm, whatever it returns."""
    weigh = PrivateTERM.weigh

    def wild(self: PrivateTERM, losses: Tensor, memory: Tensors, public: Tensors) -> Weighed:
        right = weigh(self, losses, memory, public)
        return right._replace(weights=9 * right.weights, statistics=9 * right.statistics)

    monkeypatch.setattr(PrivateTERM, "weigh", wild)
    assert not contradicts(1.0, distance(private(TERM(2.0))))


# Coins


def cohorts(algorithm: Private, rounds: int) -> Tensor:
    """Who is drawn (rounds, K)."""
    assert algorithm.population is not None
    drawn = torch.zeros(rounds, CLIENTS)
    for number in range(rounds):
        rng = randomness.stream(0, number, 0, randomness.COHORT)
        sample = Sample(algorithm.population, 1, number, Poisson(), rng)
        drawn[number, algorithm.cohort({}, sample)] = 1
    return drawn


@pytest.mark.parametrize("entropy", ["seed", "system"])
def test_coins_are_independent_between_rounds_and_clients(entropy: str) -> None:
    drawn = cohorts(private(FedAvg(), entropy=entropy), 400)
    assert float(drawn.mean()) == pytest.approx(0.2, abs=0.02)
    centred = drawn - 0.2
    between_rounds = (centred[1:] * centred[:-1]).mean() / 0.16
    between_clients = (centred[:, 1:] * centred[:, :-1]).mean() / 0.16
    assert abs(float(between_rounds)) < 0.04
    assert abs(float(between_clients)) < 0.04
    assert drawn.sum(1).std() > 1  # the size of a cohort varies


def test_a_coin_that_is_used_again_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def same(entropy: Any, seed: int, round: int, purpose: int) -> Bytes:
        return source("seed", seed, round // 2, purpose)

    monkeypatch.setattr(module, "source", same)
    with pytest.raises(AssertionError):
        test_coins_are_independent_between_rounds_and_clients("seed")


def test_system_entropy_ignores_the_seed() -> None:
    one, two = (cohorts(private(FedAvg(), entropy="system"), 5) for _ in range(2))
    assert not torch.equal(one, two)
    one, two = (cohorts(private(FedAvg()), 5) for _ in range(2))
    assert torch.equal(one, two)
    nobody = Replies(torch.empty(0, dtype=torch.int64), {})
    for entropy, repeated in (("system", False), ("seed", True)):
        algorithm = private(FedAvg(), entropy=entropy)
        state = start(algorithm)
        one, two = (algorithm.tell(state, nobody, CLIENTS).state["w"] for _ in range(2))
        assert torch.equal(one, two) == repeated


# What reaches the state


def flat(state: State) -> list[bytes]:
    values: list[bytes] = []
    for value in state.values():
        values += flat(value) if isinstance(value, dict) else [value.numpy().tobytes()]
    return values


def constant(update: Tensor, statistics: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return torch.full_like(update, 0.25), torch.full_like(statistics, 0.5)


def states(data: Federation, cls: type[Private] = Private, **parts: Any) -> list[list[bytes]]:
    """The server's state after each of four rounds."""
    settings: dict[str, Any] = {"cohort": 3, "sampler": "poisson", "rounds": 4, "rule": "term"}
    algorithm = {"name": "private", "noise": 1.0, "entropy": "seed", "delta": 1e-3}
    module = nn.Linear(4, 3)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    job = job_from_parts(Task(module), data, algorithm=algorithm, **settings | parts)
    if cls is not Private:
        assert isinstance(job.algorithm, Private)
        given = {field.name: vars(job.algorithm)[field.name] for field in fields(Private)}
        job = replace(job, algorithm=cls(**given))
    return [flat(done.state) for done in run(job)]


ONE = federation({str(k): 8 for k in range(6)})
OTHER = federation({f"x{k}": 5 for k in range(6)})


@pytest.mark.parametrize("rule", ["fedavg", "cvar", "term", "semi-vred", "aaggff-d"])
def test_the_state_is_a_function_of_the_releases(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Post-processing: with the same releases, other clients' data give the same bytes."""
    assert states(ONE, rule=rule) != states(OTHER, rule=rule)
    monkeypatch.setattr(module, "release", constant)
    assert states(ONE, rule=rule) == states(OTHER, rule=rule)


class Tracing(Private):
    """The server keeps the last replies, and adds them where clients are not drawn."""

    def tell(self, state: State, replies: Replies, clients: int) -> Outcome:
        outcome = super().tell(state, replies, clients)
        trace = self._sums(replies)[0]
        return replace(outcome, state=outcome.state | {"trace": trace})


def test_a_trace_that_the_server_keeps_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "release", constant)
    assert states(ONE, Tracing) != states(OTHER, Tracing)


def test_a_client_that_is_not_drawn_contributes_nothing() -> None:
    """It answers no request, so that its data cannot matter: also where it has a memory."""
    algorithm = private(AAggFFD(scale=0.3))
    state = start(algorithm)
    everyone = replies(algorithm, state, [0.3, 5.0], [1.0, 2.0])
    alone = Replies(everyone.clients[:1], {n: v[:1] for n, v in everyone.values.items()})
    failed = replace_failed(alone)
    assert flat(algorithm.tell(state, alone, CLIENTS).state) == flat(
        algorithm.tell(state, failed, CLIENTS).state
    )


def replace_failed(alone: Replies) -> Replies:
    return alone._replace(failed={1: "no reply"})


def test_nobody_answers_and_the_model_moves_by_the_noise() -> None:
    algorithm = private(CVaR(0.5), quantile="none")
    state = start(algorithm)
    nobody = Replies(torch.empty(0, dtype=torch.int64), {})
    draw = source("seed", 0, 1, randomness.RELEASE)
    noise, _ = release(torch.zeros(2), torch.zeros(1), algorithm.sensitivity(state), draw)
    moved = algorithm.tell(state, nobody, CLIENTS).state
    expected = (state["w"].double() - noise / 10).float()
    torch.testing.assert_close(moved["w"], expected)
    # Who diverges is as one that does not answer.
    diverged = replies(algorithm, state, [math.nan, 1.0], [1.0, math.inf])
    again = algorithm.tell(state, diverged, CLIENTS)
    torch.testing.assert_close(again.state["w"], moved["w"], rtol=0, atol=0)
    assert int(moved["round"]) == 2


def test_the_denominator_is_the_expected_cohort() -> None:
    algorithm = private(FedAvg(), noise=1e-9, quantile="none")
    state = start(algorithm)
    for count in (1, 3):
        moved = algorithm.tell(state, replies(algorithm, state, [1.0] * count, [0.5] * count), 50)
        step = (state["w"] - moved.state["w"]).norm()
        assert float(step) == pytest.approx(count * 0.5 / 10, rel=1e-4)


def test_engines_agree() -> None:
    def final(vectorize: str) -> Round:
        parts: dict[str, Any] = {"cohort": 4, "sampler": "poisson", "rounds": 3}
        algorithm = {"name": "private", "noise": 0.1, "entropy": "seed", "delta": 1e-3}
        torch.manual_seed(0)
        task = Task(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))
        rounds = run(task, ONE, rule="aaggff-d", algorithm=algorithm, vectorize=vectorize, **parts)
        return list(rounds)[-1]

    loop, vmap = final("loop"), final("vmap")
    torch.testing.assert_close(loop.state["w"], vmap.state["w"], rtol=1e-4, atol=1e-5)
    assert loop.clients == vmap.clients


# Refusals


def test_epsilon_and_noise_follow_from_each_other() -> None:
    by_noise = private(FedAvg(), noise=2.0)
    by_epsilon = private(FedAvg(), noise=None, epsilon=by_noise.promise.epsilon)
    assert by_epsilon.chosen_noise == pytest.approx(2.0, rel=1e-3)
    assert by_epsilon.promise.epsilon <= by_noise.promise.epsilon


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": 8.0},
        {"noise": None},
        {"noise": -1.0},
        {"noise": None, "epsilon": 0.0},
        {"delta": 0.02},
        {"share": 1.0},
        {"quantile": 1.0},
        {"clip": 0.0},
    ],
)
def test_wrong_numbers(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="private: "):
        private(FedAvg(), **wrong)


def test_the_error_of_a_wrong_quantile_names_none() -> None:
    with pytest.raises(ConfigError, match=r'quantile = 2\.0: .* or "none" for a fixed clip'):
        private(FedAvg(), quantile=2.0)
