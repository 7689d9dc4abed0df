"""A client method's own conversation, whatever the protocol around it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from cases import cases
from commonweal.base.errors import ConfigError
from commonweal.base.tensors import Tensors, flatten
from commonweal.clients import Client
from commonweal.engines.simulator import Simulator
from commonweal.jobs.job import job_from_parts
from commonweal.jobs.rounds import Round, run
from commonweal.protocols.algorithm import Request
from commonweal.task.task import Task
from commonweal.task.uses import Uses, one_model
from commonweal.training.ask import Ask
from commonweal.training.client import Notes, Requests, ToAll
from personal_helpers import METHODS, client, federation, task
from run_helpers import Lossy, job, states_of

ROUNDS = 8
PRIVATE = {"name": "private", "noise": 1.0, "entropy": "seed"}


@dataclass(frozen=True)
class Polling(Client):
    """Every client keeps the model of the last round, and the mean of what all think of it.

    silent: whether the server does not use what clients think
    asks: the rounds after which they are asked
    """

    personalizes: ClassVar[bool] = True

    silent: bool = False
    asks: Sequence[int] = (3,)

    def init_client(self, task: Task, seed: int) -> Tensors:
        return {"own": task.initial, "mean": torch.zeros(1)}

    def uses(self, task: Task, message: Tensors, state: Tensors) -> Uses:
        return one_model(state["own"])

    def after(self, round: int, rounds: int) -> Requests:
        if round not in self.asks:
            return Notes()
        replies = yield ToAll("poll", {"twice": torch.tensor(2.0)}, silent=self.silent)
        if not replies:
            return Notes(warnings=("nobody was heard",))
        yield ToAll("tell", {"mean": replies["thinks"].mean(0)}, silent=True)
        return Notes(warnings=(f"heard {len(replies['thinks'])}",))

    def answer(self, ask: Ask) -> tuple[Tensors, Tensors]:
        if ask.purpose == "tell":
            mean = ask.message["mean"].expand(len(ask.ids), 1)
            return {}, ask.states | {"mean": mean}
        if ask.purpose == "poll":
            own = ask.message["w"].expand(len(ask.ids), -1)
            losses = ask.evaluate(one_model(own), ask.samples.train).losses[:, None]
            return {"thinks": ask.message["twice"] * losses}, ask.states | {"own": own}
        return super().answer(ask)


def last(method: Any, **settings: Any) -> Round:
    """The last round of a run."""
    options = {"rounds": ROUNDS, "cohort": 3, "seed": 4} | settings
    *_, done = run(task(), federation(), client=method, **options)
    return done


def states(done: Round) -> Tensors:
    """What all clients keep."""
    return flatten({str(k): v for k, v in states_of(done.job.engine).items()})


# Two phases


@cases("method", [name for name in METHODS if name not in ("scaffold", "semi-vred")])
@cases("settings", [{"validation": 0.25}, {}])
def test_two_phase_is_averaging_for_every_method(method: str, settings: Any) -> None:
    """Losses, weights, models, and what clients keep: best rounds, stops, mixtures, choices."""
    common = {"rule": "aaggff-s", **settings}
    one = last(client(method, lr=0.3), **common)
    two = last(client(method, lr=0.3), algorithm="two-phase", **common)
    assert two.losses == pytest.approx(one.losses, rel=1e-4)
    assert two.weights == pytest.approx(one.weights, rel=1e-4)
    torch.testing.assert_close(two.state["w"], one.state["w"], rtol=1e-3, atol=1e-5)
    kept = states(one)
    assert states(two).keys() == kept.keys()
    for name, value in states(two).items():
        if not name.endswith("linear"):  # its solver ends anywhere within a tolerance
            torch.testing.assert_close(value, kept[name], rtol=1e-2, atol=1e-4)
    assert one.evaluation is not None and two.evaluation is not None
    if one.evaluation.personal is not None:
        assert two.evaluation.personal is not None
        own, expected = two.evaluation.personal.losses, one.evaluation.personal.losses
        torch.testing.assert_close(own, expected, rtol=1e-2, atol=1e-4, equal_nan=True)


def test_the_methods_in_two_phases_stop_early_and_choose() -> None:
    """Otherwise the comparison above would not compare that."""
    settings = {"algorithm": "two-phase", "validation": 0.25}
    stops = states(last(client("alone", lr=0.3), **settings))
    assert len({float(v) for n, v in stops.items() if n.endswith("best_round")}) > 1
    mixed = states(last(client("blend", lr=0.3), **settings))
    assert len({float(v) for n, v in mixed.items() if n.endswith("/m")}) > 1


def test_two_phase_reports_the_batch_that_averaging_reports() -> None:
    for method in ("sgd", "blend", "fedper"):
        common = {"rule": "term", "rounds": 3, "validation": 0.25}
        one, two = (
            last(client(method), algorithm={"name": name, "loss": "batch"}, **common)
            for name in ("averaging", "two-phase")
        )
        assert two.losses == pytest.approx(one.losses, rel=1e-5)
        torch.testing.assert_close(two.state["w"], one.state["w"], rtol=0, atol=1e-5)


# A conversation of one's own


@cases("algorithm", ["averaging", "two-phase"])
@cases("vectorize", ["loop", "vmap", "chunked"])
def test_a_method_asks_all_clients_and_sends_them_the_mean(algorithm: str, vectorize: str) -> None:
    rounds = list(
        run(
            task(),
            federation(),
            client=Polling(batch=5, asks=(2, 4)),
            rounds=4,
            cohort=2,
            algorithm=algorithm,
            vectorize=vectorize,
        )
    )
    assert [done.warnings for done in rounds] == [(), ("heard 5",), (), ("heard 5",)]
    done = rounds[-1]
    losses = Simulator(federation()).evaluate(done.job.algorithm, done.state, "train").losses
    for state in states_of(done.job.engine).values():
        assert torch.equal(state["own"], done.state["w"])
        assert float(state["mean"]) == pytest.approx(2 * float(losses.mean()), rel=1e-5)


def test_replies_to_silent_requests_are_not_used() -> None:
    done = last(Polling(batch=5, silent=True, asks=(ROUNDS,)))
    assert done.warnings == ("nobody was heard",)
    own = states(done)
    assert all(torch.equal(v, done.state["w"]) for n, v in own.items() if n.endswith("own"))


def test_a_request_that_nobody_answers_gives_no_replies() -> None:
    everyone = dict.fromkeys(range(5), "gone")

    def lost(request: Request) -> dict[int, str]:
        return everyone if request.purpose in ("poll", "mix", "choose") else {}

    f = federation().with_validation(0.25, seed=0)
    for method in (Polling(asks=(2,)), client("blend"), client("choice")):
        built = job(task(), f, Lossy(f, lost), client=method, rounds=2)
        *_, done = run(built)
        if isinstance(method, Polling):
            assert done.warnings == ("nobody was heard",)


@dataclass(frozen=True)
class Mute(Client):
    def answer(self, ask: Ask) -> tuple[Tensors, Tensors]:
        return {}, ask.states


def test_a_reply_without_an_update_is_an_error() -> None:
    with pytest.raises(ConfigError, match="Mute answers a request to train without an 'update'"):
        last(Mute())


# Private runs


@cases("rounds", [1, 2, 3, 5, 10])
@cases("method", ["blend", "choice", "own"])
def test_private_runs_refuse_replies_without_noise_in_any_round(rounds: int, method: str) -> None:
    parts = {"own": Polling(asks=(rounds,)), "blend": {"name": "blend"}, "choice": "choice"}
    with pytest.raises(ConfigError, match=r"collects replies without noise .* after round"):
        last(parts[method], rounds=rounds, algorithm=PRIVATE, sampler="poisson")


@cases("method", ["alone", "fine-tune", "fedbabu", "ditto", "fedrep", "own"])
def test_what_private_runs_accept_sends_nothing_but_updates(method: str) -> None:
    """Nothing leaves in reply to a method's own requests, also where its answer has something."""
    own = Polling(silent=True, asks=(1, 2, 3)) if method == "own" else client(method)
    f = federation()
    parts = {"algorithm": PRIVATE, "sampler": "poisson", "cohort": 3, "rounds": 3}
    built = job_from_parts(task(), f, client=own, **parts)
    sent: list[tuple[str, set[str]]] = []

    class Listening(Simulator):
        def collect(self, algorithm: Any, request: Request) -> Any:
            replies = super().collect(algorithm, request)
            sent.append((request.purpose, set(replies.values)))
            return replies

    list(run(replace(built, engine=Listening(f))))
    names = {"update", "statistics", "weight", "loss", "score", "size"}
    assert all(values <= names for purpose, values in sent if purpose == "train")
    assert all(not values for purpose, values in sent if purpose != "train")
    assert {purpose for purpose, _ in sent} > {"train"} or method in ("ditto", "fedrep")


@dataclass(frozen=True)
class Telling(Client):
    def reply(
        self, task: Task, vectors: Tensors, message: Tensors, state: Tensors, steps: Tensor
    ) -> tuple[Tensors, Tensors]:
        return {"secret": steps.float()}, state


def test_private_runs_refuse_further_replies_in_a_round() -> None:
    with pytest.raises(ConfigError, match=r"replies with \['secret'\], which get no noise"):
        last(Telling(), algorithm=PRIVATE, sampler="poisson")


# Pooled


@cases("method", ["term", "propfair", "fedprox", "scaffold", "ditto", "blend", "own"])
def test_pooled_refuses_methods_whose_objective_it_does_not_follow(method: str) -> None:
    own = Polling() if method == "own" else client(method)
    with pytest.raises(ConfigError, match="pooled trains by plain local SGD, not by"):
        last(own, algorithm="pooled", cohort="all")
