"""What every client method of the catalog promises, and methods that break it.

A new file in `clients/` is tested here without being named: with any rule and server optimizer, any
way to vectorize, any interruption.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from cases import cases
from commonweal.base.errors import CommonwealWarning, ConfigError
from commonweal.base.tensors import Tensors, flatten
from commonweal.checks.clients import CLIENT_CHECKS, check_client
from commonweal.clients import Client
from commonweal.config import catalog
from commonweal.engines.simulator import Simulator
from commonweal.jobs.job import Job
from commonweal.jobs.rounds import run
from commonweal.protocols.algorithm import Algorithm, Replies, Request
from commonweal.task.task import Batch, Task
from commonweal.task.uses import Uses, one_model
from commonweal.training.ask import Ask
from commonweal.training.client import Notes, Requests, ToAll
from commonweal.training.client_state import ClientState
from commonweal.training.objective import Custom, Objective
from helpers import averaging, group_of
from personal_helpers import METHODS, ROUNDS, client, federation, sent, task
from run_helpers import contents, states_of, stop_after
from run_helpers import job as job_with

PARTS = [("aaggff-s", "sgd", "all"), ("aaggff-d", "sgd", 3), ("term", "yogi", 3)]

every = pytest.mark.parametrize("name", METHODS)


def job(
    name: str,
    rule: str = "fedavg",
    server: str = "sgd",
    cohort: Any = 3,
    norm: bool = False,
    engine: Simulator | None = None,
) -> Job:
    settings = {"rounds": ROUNDS, "cohort": cohort, "evaluate_every": 2}
    parts = {"rule": rule, "client": client(name), "server": server}
    return job_with(task(norm), federation(), engine, **parts, **settings)


@every
def test_the_shipped_checks_pass(name: str) -> None:
    assert check_client(client(name)) == list(CLIENT_CHECKS)
    assert check_client(catalog.build("clients", name)) == list(CLIENT_CHECKS)


@every
def test_any_rule_and_server_optimizer_runs_and_resumes_to_the_same_bytes(
    name: str, tmp_path: Path
) -> None:
    for number, parts in enumerate(PARTS):
        whole = tmp_path / f"whole {number}"
        part = tmp_path / f"part {number}"
        last = list(run(job(name, *parts), out=whole))[-1]
        assert last.dropped == {}
        assert torch.equal(last.state["w"], task().initial) == (name == "alone")  # shares nothing
        for stop in (1, 3):
            stop_after(stop, run(job(name, *parts), out=part, resume=True))
        assert len(list(run(job(name, *parts), out=part, resume=True))) == 1
        assert contents(part) == contents(whole)


def results(name: str, norm: bool, **options: Any) -> list[Tensor]:
    """Everything that a run computes."""
    simulator = Simulator(federation(), **options)
    last = list(run(job(name, norm=norm, engine=simulator)))[-1]
    assert last.evaluation is not None
    own = last.evaluation.personal
    states = {str(k): state for k, state in states_of(simulator).items()}
    return [
        last.state["w"],
        last.evaluation.losses,
        torch.empty(0) if own is None else own.losses,
        *(value.double() for value in flatten(states).values()),
    ]


@every
def test_all_ways_to_vectorize_agree(name: str) -> None:
    for norm in (False, True):
        loop = results(name, norm, vectorize="loop")
        vmap = results(name, norm, vectorize="vmap")
        chunked = results(name, norm, vectorize="chunked", budget=3000)
        for other in (vmap, chunked):
            for a, b in zip(loop, other, strict=True):
                torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-5)


@every
def test_a_job_that_is_run_again_begins_again(name: str, tmp_path: Path) -> None:
    j = job(name)
    for folder in ("first", "second"):
        list(run(j, out=tmp_path / folder))
    last = list(run(j))[-1]
    assert contents(tmp_path / "first") == contents(tmp_path / "second")
    assert torch.equal(last.state["w"], list(run(job(name)))[-1].state["w"])


@every
def test_an_interrupted_round_leaves_no_trace(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients have states of the third round, then the server dies: the second round is saved."""
    list(run(job(name), out=tmp_path / "whole"))
    rounds = run(job(name), out=tmp_path / "part")
    next(rounds), next(rounds)
    collect = Simulator.collect

    def dies(self: Simulator, algorithm: Algorithm, request: Request) -> Replies:
        collect(self, algorithm, request)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Simulator, "collect", dies)
        with pytest.raises(KeyboardInterrupt):
            next(rounds)
    list(run(job(name), out=tmp_path / "part", resume=True))
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")


@every
def test_a_client_that_diverges_keeps_its_state(name: str) -> None:
    t, f, method = task(), federation(), client(name, lr=1e30)
    algorithm = averaging(t, method)
    simulator = Simulator(f, vectorize="loop")
    state = algorithm.init(f.population)
    request = Request(torch.tensor([0, 1]), algorithm.ask(state))
    warned: AbstractContextManager[object] = nullcontext()
    if name in ("alone", "blend", "choice"):  # a local model diverges, and the update does not
        warned = pytest.warns(CommonwealWarning, match="not finite after training")
    with warned:
        replies = simulator.collect(algorithm, request)
    # alone sends nothing that could be dropped; the units of fedbabu die before they overflow.
    if name not in ("alone", "fedbabu"):
        assert not replies.values["update"].isfinite().all()
        outcome = algorithm.tell(state, replies, 5)
        assert sorted(outcome.dropped) == [0, 1] and "diverged" in outcome.dropped[0]
    for own in states_of(simulator).values():
        assert all(v.isfinite().all() for v in own.values() if v.is_floating_point())


@every
def test_the_loss_reported_is_of_the_model_before_training(name: str) -> None:
    """By the received model, with the client's private part where it has one."""
    t, f, method = task(), federation(), client(name)
    algorithm = averaging(t, method)
    simulator, state = Simulator(f), algorithm.init(f.population)
    private = method.private(t)
    for _ in range(2):
        message, before = algorithm.ask(state), states_of(simulator)
        replies = simulator.collect(algorithm, Request(torch.arange(5), message))
        for k in range(5):
            own = before.get(k, method.init_client(t, 0))
            w = message["w"].clone()
            if private is not None:
                w[private] = own["private"]
            rows = f.train.client(k)
            expected = torch.nn.functional.cross_entropy(t.outputs(w, rows.x), rows.y)
            assert float(replies.values["loss"][k]) == pytest.approx(float(expected), rel=1e-5)
        state = algorithm.tell(state, replies, 5).state


@cases("name", METHODS)
def test_the_catalog_explains_the_method_and_its_parameters(name: str) -> None:
    entry = catalog.find_entry("clients", name)
    assert isinstance(entry.factory, type) and issubclass(entry.factory, Client)
    assert entry.paper
    for parameter in set(entry.parameters) - set(catalog.find_entry("clients", "sgd").parameters):
        assert f"{parameter}:" in entry.details or f"{parameter}," in entry.details


@every
def test_training_changes_nothing_it_was_given(name: str) -> None:
    t, f, method = task(), federation(), client(name)
    algorithm = averaging(t, method)
    message = algorithm.ask(algorithm.init(f.population) | {"round": torch.tensor(3)})
    before = {n: v.clone() for n, v in message.items()}
    states = {n: v[None] for n, v in method.init_client(t, 7).items()}
    copies = {n: v.clone() for n, v in states.items()}
    group = group_of(f.train, "c", 2, ClientState(states), round=3)
    algorithm.answer(Request(group.ids, message), group)
    assert all(torch.equal(message[n], before[n]) for n in before)
    assert all(torch.equal(states[n], copies[n]) for n in copies)
    assert set(sent(t)) <= set(message)


# Methods that break the contract


@dataclass(frozen=True)
class Short(Client):
    def reply(
        self, task: Task, vectors: Tensors, message: Tensors, state: Tensors, steps: Tensor
    ) -> tuple[Tensors, Tensors]:
        return {"update": vectors["w"][:3]}, state


@dataclass(frozen=True)
class Overwriting(Client):
    def start(self, task: Task, message: Tensors, state: Tensors) -> Tensors:
        return {"w": message["w"].add_(1)}


@dataclass(frozen=True)
class Growing(Client):
    def reply(
        self, task: Task, vectors: Tensors, message: Tensors, state: Tensors, steps: Tensor
    ) -> tuple[Tensors, Tensors]:
        reply, _ = super().reply(task, vectors, message, state, steps)
        return reply, {"last": vectors["w"]}


@dataclass(frozen=True)
class Drawing(Client):
    def objective(self, task: Task, message: Tensors) -> Objective:
        return Objective(at=(), custom=Custom(self.random))

    def random(self, task: Task, vectors: Tensors, batch: Batch) -> Tensor:
        return task.batch_loss(vectors["w"], batch)[0] * torch.rand(())

    def reply(
        self, task: Task, vectors: Tensors, message: Tensors, state: Tensors, steps: Tensor
    ) -> tuple[Tensors, Tensors]:
        return {"update": message["w"] - vectors["w"] + torch.rand(())}, state

    def init_client(self, task: Task, seed: int) -> Tensors:
        torch.seed()
        return {}


@dataclass(frozen=True)
class Mixing(Client):
    """Looks at the group's size: wrong numbers when clients run together."""

    def objective(self, task: Task, message: Tensors) -> Objective:
        return Objective(at=(), custom=Custom(self.halved))

    def halved(self, task: Task, vectors: Tensors, batch: Batch) -> Tensor:
        loss = task.batch_loss(vectors["w"], batch)[0]
        return loss / 2 if torch._C._functorch.is_batchedtensor(batch.x) else loss


@dataclass(frozen=True)
class Idle(Client):
    def objective(self, task: Task, message: Tensors) -> Objective:
        return Objective(at=(), custom=Custom(self.nothing))

    def nothing(self, task: Task, vectors: Tensors, batch: Batch) -> Tensor:
        return 0 * vectors["w"].sum()


@dataclass(frozen=True)
class Secret(Client):
    def uses(self, task: Task, message: Tensors, state: Tensors) -> Uses:
        return one_model(message["w"] + 1)


@dataclass(frozen=True)
class Heavy(Client):
    personalizes: ClassVar[bool] = True

    def uses(self, task: Task, message: Tensors, state: Tensors) -> Uses:
        return Uses(torch.stack([message["w"], message["w"]]), torch.tensor([0.7, 0.7]))


@dataclass(frozen=True)
class Masked(Client):
    def private(self, task: Task) -> Tensor:
        return torch.arange(task.size) < 3

    def init_client(self, task: Task, seed: int) -> Tensors:
        return {}

    def start(self, task: Task, message: Tensors, state: Tensors) -> Tensors:
        return {"w": message["w"]}

    def reply(
        self, task: Task, vectors: Tensors, message: Tensors, state: Tensors, steps: Tensor
    ) -> tuple[Tensors, Tensors]:
        return {}, {}


@dataclass(frozen=True)
class Asking(Client):
    """Asks all clients for something after every round, in one of several wrong ways."""

    wrong: str = ""

    def after(self, round: int, rounds: int) -> Requests:
        request: Any = "sum" if self.wrong == "request" else ToAll("sum")
        replies = yield request
        while self.wrong == "endless":
            yield ToAll("sum")
        if self.wrong == "nobody":
            return Notes(replies["sum"])
        notes: Any = None if self.wrong == "notes" else Notes()
        return notes  # type: ignore[no-any-return]

    def answer(self, ask: Ask) -> tuple[Tensors, Tensors]:
        if ask.purpose == "train" or self.wrong == "unanswered":
            return super().answer(ask)
        if self.wrong == "axis":
            return {"sum": ask.sizes.sum()}, ask.states
        if self.wrong == "changes":
            ask.message["w"].add_(1)
        if self.wrong == "names":
            return {"sum": ask.sizes}, {"other": ask.sizes}
        value = torch.rand(len(ask.ids)) if self.wrong == "random" else ask.sizes
        return {"sum": value}, ask.states


def test_a_method_with_its_own_requests_passes() -> None:
    assert "conversation" in check_client(Asking())


@pytest.mark.parametrize(
    ("method", "check", "words"),
    [
        (Short(), "reply", "no 'update'"),
        (Overwriting(), "inputs", "it changes"),
        (Growing(), "state", "its state changes"),
        (Drawing(), "pure", "different replies"),
        (Mixing(), "together", "'update' differs between"),
        (Idle(), "trains", "changes neither"),
        (Secret(), "uses", "set personalizes = True"),
        (Heavy(), "uses", "must be a convex mixture"),
        (Masked(), "private", "has no 'private'"),
        (Asking(wrong="request"), "conversation", "yields 'sum': yield ToAll"),
        (Asking(wrong="endless"), "conversation", "more than 100 requests after round 1"),
        (Asking(wrong="nobody"), "conversation", "KeyError"),
        (Asking(wrong="notes"), "conversation", r"returns None: return Notes\(\)"),
        (Asking(wrong="unanswered"), "conversation", "no answer to a request for 'sum'"),
        (Asking(wrong="axis"), "conversation", r"has 'sum' of shape \(\) for 3 clients"),
        (Asking(wrong="changes"), "conversation", "answer to 'sum' changes"),
        (Asking(wrong="names"), "conversation", "changes the names of states"),
        (Asking(wrong="random"), "conversation", "differs for the same message"),
        (client("superfed-mm", begin=20.0), "fits", "it raises ConfigError: superfed begin = 20"),
    ],
)
def test_a_method_that_breaks_the_contract_is_reported(
    method: Client, check: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=rf"fails the check '{check}': .*{words}"):
        check_client(method)


def test_only_clients_are_checked() -> None:
    with pytest.raises(ConfigError, match="is not a client"):
        check_client("sgd")  # type: ignore[arg-type]
