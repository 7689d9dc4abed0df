"""An engine whose clients are processes of their own gives the numbers of the simulator.

Only messages as bytes, a client's own rows and its name reach a client. This is what makes a
network an engine like any other: nothing that a client does depends on sharing a process with the
server, with other clients, or with what was computed before. A process that has imported the
package and done nothing else forks the clients, so that each costs milliseconds, not an import.
"""

import json
import multiprocessing
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pytest
import torch
from safetensors.torch import load, save

from commonweal.base import randomness
from commonweal.base.randomness import Streams
from commonweal.base.tensors import State, Tensors, flatten, unflatten
from commonweal.config import catalog
from commonweal.config.experiment import RunSettings
from commonweal.data.federation import Federation
from commonweal.data.rows import Rows
from commonweal.engines.engine import Engine
from commonweal.engines.simulator import Simulator
from commonweal.jobs.job import Job
from commonweal.jobs.rounds import Exchange, converse, run
from commonweal.protocols.algorithm import Algorithm, Group, Replies, Request
from commonweal.protocols.averaging import Averaging
from commonweal.protocols.samplers.uniform import Uniform
from commonweal.record.record import Record
from commonweal.task.task import Task
from commonweal.task.vectorize import single
from commonweal.training.ask import Samples
from commonweal.training.client import Client
from commonweal.training.client_state import stack_states
from commonweal.training.evaluation import Evaluation, evaluate
from helpers import SHAPES, Visitor, averaging, close, federation, group_of, module
from run_helpers import states_of

SIZES = {"p": 23, "q": 9, "r": 23}
TRAINING: dict[str, Any] = {
    "epochs": 2,
    "batch": 8,
    "lr": 0.05,
    "momentum": 0.8,
    "clip": 1.0,
    "decay": 0.9,
}
SEED = 7
PATIENCE = 60.0  # seconds until a client that says nothing is given up
FORKS = multiprocessing.get_context("forkserver")


def protocol(
    kind: str = "norm",
    algorithm: str = "averaging",
    rule: object = "aaggff-s",
    client: str = "visitor",
) -> Averaging:
    """What server and clients agree on before they talk: the model and the way of training."""
    method: Client = Visitor(**TRAINING)
    if client != "visitor":
        method = catalog.build("clients", {"name": client, **TRAINING})
    built = catalog.build(
        "algorithms",
        algorithm,
        task=Task(module(kind)),
        rule=catalog.build("rules", rule),
        client=method,
        server=catalog.build("servers", "sgd(lr=0.9, momentum=0.5)"),
        rounds=10,
        seed=SEED,
    )
    assert isinstance(built, Averaging)
    return built


# Messages as bytes


class Frame(NamedTuple):
    """A message, with the number of the request that it belongs to."""

    number: int
    purpose: str
    tensors: State


def to_bytes(frame: Frame) -> bytes:
    head = json.dumps([frame.number, frame.purpose]).encode()
    flat = {name: value.contiguous() for name, value in flatten(frame.tensors).items()}
    body = save(flat)
    return struct.pack("<QQ", len(head), len(body)) + head + body


def from_bytes(head: bytes, body: bytes) -> Frame:
    number, purpose = json.loads(head)
    return Frame(number, purpose, unflatten(load(body)))


# The client's process


def serve(connection: socket.socket, name: str, spec: dict[str, Any], threads: int) -> None:
    """Answer requests until the connection is closed."""
    torch.set_num_threads(threads)
    algorithm = protocol(**spec)
    with connection, connection.makefile("rb") as requests:
        own = read(requests)
        assert own is not None
        node = Node(name, algorithm, own.tensors)
        while (frame := read(requests)) is not None:
            values = node.answer(frame)
            connection.sendall(to_bytes(Frame(frame.number, frame.purpose, values)))


def read(file: BinaryIO) -> Frame | None:
    sizes = file.read(16)
    if not sizes:
        return None
    head, body = struct.unpack("<QQ", sizes)
    return from_bytes(file.read(head), file.read(body))


class Node:
    """A client: its name, its rows and its state."""

    def __init__(self, name: str, algorithm: Algorithm, rows: State) -> None:
        self.key = randomness.key(name)
        self.algorithm = algorithm
        self.train, self.test = (self.rows(rows[part]) for part in ("train", "test"))
        start = randomness.stream(SEED, 0, self.key, randomness.INIT_CLIENT)
        self.state = stack_states([algorithm.init_client(int(start.integers(1 << 62)))])
        self.took_part = False

    def rows(self, part: Tensors) -> Rows:
        return Rows(part["x"], part["y"], torch.tensor([0, len(part["y"])]))

    def answer(self, frame: Frame) -> State:
        message = frame.tensors["message"]
        if frame.purpose == "evaluate":
            return self.evaluate(message)
        purpose = randomness.purpose(frame.purpose)
        streams = Streams(SEED, int(message["round"]), [self.key], purpose)
        me = torch.tensor([0])
        each = frame.tensors.get("each", {})
        group = Group(me, Samples.of(self.train), self.state, streams, single, each)
        replies, state = self.algorithm.answer(Request(me, message, frame.purpose, each), group)
        self.took_part |= state is not self.state
        self.state = state
        return replies

    def evaluate(self, message: Tensors) -> State:
        task = self.algorithm.task
        shared = evaluate(task, message["w"], self.test)
        values: State = {"loss": shared.losses, "scores": shared.scores, "size": shared.sizes}
        if self.algorithm.personalizes:
            own_w = self.algorithm.uses(message, self.state.row(0)).models[0]
            w = own_w if self.took_part else message["w"]
            own = evaluate(task, w, self.test)
            values |= {"own_loss": own.losses, "own_scores": own.scores}
        return values


# The server's side


@pytest.fixture(scope="module", autouse=True)
def fork_server() -> None:
    """Start the process that imports this file once and forks the clients."""
    here = Path(__file__).resolve().parent
    root = here.parents[1]
    path = os.pathsep.join(map(str, (here, root / "tests", root / "src")))
    FORKS.set_forkserver_preload(["test_seam"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        forkserver.ensure_running()


class Remote:
    """A client's process, as the server sees it."""

    def __init__(self, name: str, spec: dict[str, Any]) -> None:
        self.connection, theirs = socket.socketpair()
        # As many threads as here, so that sums are taken in the same order.
        given = (theirs, name, spec, torch.get_num_threads())
        self.process = FORKS.Process(target=serve, args=given)
        self.process.start()
        theirs.close()
        assert self.process.pid is not None
        self.pid = self.process.pid
        self.received = b""

    def send(self, frame: Frame) -> None:
        self.connection.sendall(to_bytes(frame))

    def receive(self, number: int, deadline: float) -> State:
        """The answer to request `number`. Answers to earlier ones come too late and are ignored."""
        while True:
            frame = self.next_frame()
            if frame is not None and frame.number == number:
                return frame.tensors
            if frame is None:
                self.wait(deadline)

    def next_frame(self) -> Frame | None:
        """A message that has arrived as a whole."""
        if len(self.received) < 16:
            return None
        head, body = struct.unpack("<QQ", self.received[:16])
        end = 16 + head + body
        if len(self.received) < end:
            return None
        frame = from_bytes(self.received[16 : 16 + head], self.received[16 + head : end])
        self.received = self.received[end:]
        return frame

    def wait(self, deadline: float) -> None:
        left = max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([self.connection], [], [], left)
        if not ready:
            raise TimeoutError("no reply in time")
        try:
            data = self.connection.recv(1 << 16)
        except ConnectionResetError:  # it was killed before it read the request
            data = b""
        if not data:
            raise EOFError(self.ended())
        self.received += data

    def ended(self) -> str:
        self.process.join()
        return f"its process ended (exit code {self.process.exitcode})"

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def close(self) -> None:
        self.connection.close()
        self.process.join(timeout=60)


class ProcessEngine(Engine):
    """Carries requests to processes as bytes. What a client keeps stays with it."""

    def __init__(self, f: Federation, patience: float = PATIENCE, **spec: Any) -> None:
        self.population = f.population
        self.patience = patience
        self.number = 0
        self.remotes = [Remote(name, spec) for name in f.names]
        for k, remote in enumerate(self.remotes):
            parts = {"train": f.train.client(k), "test": f.test.client(k)}
            rows = {name: {"x": part.x, "y": part.y} for name, part in parts.items()}
            remote.send(Frame(0, "rows", rows))

    def collect(self, algorithm: Algorithm, request: Request) -> Replies:
        asked = request.clients.tolist()
        frames = {}
        for k, client in enumerate(asked):
            each = {name: value[k : k + 1] for name, value in request.each.items()}
            frames[client] = (request.purpose, {"message": request.message, "each": each})
        arrived, failed = self.exchange(frames)
        answered = torch.tensor(list(arrived), dtype=torch.int64)
        names = next(iter(arrived.values()), {})
        values = {n: torch.cat([reply[n] for reply in arrived.values()]) for n in names}
        return Replies(answered, values, failed)

    def exchange(
        self, frames: dict[int, tuple[str, State]]
    ) -> tuple[dict[int, State], dict[int, str]]:
        """Send to several clients at once: the replies that arrive, and why others do not."""
        self.number += 1
        failed: dict[int, str] = {}
        for client, (purpose, tensors) in frames.items():
            try:
                self.remotes[client].send(Frame(self.number, purpose, tensors))
            except BrokenPipeError:
                failed[client] = self.remotes[client].ended()
        deadline = time.monotonic() + self.patience
        arrived: dict[int, State] = {}
        for client in frames:
            if client in failed:
                continue
            try:
                arrived[client] = self.remotes[client].receive(self.number, deadline)
            except (EOFError, TimeoutError) as error:
                failed[client] = str(error)
        return arrived, failed

    def evaluate(self, algorithm: Algorithm, state: State, part: str = "test") -> Evaluation:
        message = algorithm.message(state)
        everyone = range(self.population.clients)
        arrived, _ = self.exchange({k: ("evaluate", {"message": message}) for k in everyone})
        shared = self.gathered(algorithm.task, arrived)
        sizes = torch.tensor([int(arrived[k]["size"]) if k in arrived else 0 for k in everyone])
        shared = replace(shared, sizes=sizes)
        if not algorithm.personalizes:
            return shared
        own = self.gathered(algorithm.task, arrived, "own_")
        return replace(shared, personal=replace(own, sizes=sizes))

    def gathered(self, task: Task, arrived: dict[int, State], prefix: str = "") -> Evaluation:
        """Every client's loss and scores, NaN where none arrived."""
        nothing = torch.full((self.population.clients,), torch.nan, dtype=torch.float64)
        losses = nothing.clone()
        scores = {name: nothing.clone() for name in task.scores}
        for client, values in arrived.items():
            losses[client] = values[f"{prefix}loss"].item()
            for name, column in scores.items():
                column[client] = values[f"{prefix}scores"][name].item()
        return Evaluation(losses, scores, nothing)

    def close(self) -> None:
        for remote in self.remotes:
            remote.close()


@contextmanager
def processes(f: Federation, **options: Any) -> Iterator[ProcessEngine]:
    engine = ProcessEngine(f, **options)
    try:
        yield engine
    finally:
        engine.close()


def job(f: Federation, engine: Engine, rounds: int = 3, **spec: Any) -> Job:
    settings = RunSettings(rounds=rounds, seed=SEED)
    return Job(protocol(**spec), engine, settings, Uniform(), text=f"rounds = {rounds}\n")


def conversations(built: Job, rounds: int) -> list[tuple[State, list[Exchange]]]:
    """Each round's state and exchanges."""
    state = built.initial_state()
    done = []
    for number in range(1, rounds + 1):
        outcome, exchanges = converse(built.algorithm, built.engine, state, built.sample(number))
        state = outcome.state
        done.append((state, exchanges))
    return done


def same(a: Tensors, b: Tensors, exact: bool) -> None:
    assert set(a) == set(b)
    for name in a:
        if exact:
            assert torch.equal(a[name], b[name]), name
        else:
            close(a[name], b[name], rtol=1e-3, atol=1e-5)


# The same numbers


@pytest.mark.parametrize(
    ("algorithm", "replies"),
    [
        ("averaging", [{"update", "visited", "far", "loss", "score", "size"}]),
        ("two-phase", [{"loss", "score", "size"}, {"update"}]),
    ],
)
def test_clients_in_processes_of_their_own_give_the_simulators_numbers(
    algorithm: str, replies: list[set[str]]
) -> None:
    f = federation(SIZES)
    with processes(f, algorithm=algorithm) as engine:
        apart = conversations(job(f, engine, algorithm=algorithm), 3)
        assert all(remote.process.is_alive() for remote in engine.remotes)
        assert engine.states.save(3) == {}  # clients keep them
    assert [remote.process.exitcode for remote in engine.remotes] == [0, 0, 0]
    for mode in ("loop", "vmap", "chunked"):
        simulator = Simulator(f, SEED, mode)
        together = conversations(job(f, simulator, algorithm=algorithm), 3)
        assert [int(state["visits"]) for state in states_of(simulator).values()] == [3] * 3
        for (state, exchanges), (expected, others) in zip(apart, together, strict=True):
            same(flatten(state), flatten(expected), exact=mode == "loop")
            assert [set(answers.values) for _, answers in exchanges] == replies
            for (_, answers), (_, reference) in zip(exchanges, others, strict=True):
                assert torch.equal(answers.clients, reference.clients)
                same(answers.values, reference.values, exact=mode == "loop")


def test_a_run_over_processes_writes_the_simulators_record(tmp_path: Path) -> None:
    f = federation(SIZES)
    with processes(f, client="ditto") as engine:
        list(run(job(f, engine, client="ditto"), out=tmp_path / "apart"))
    list(run(job(f, Simulator(f, SEED, "loop"), client="ditto"), out=tmp_path / "together"))
    apart, together = (Record.read(tmp_path / name) for name in ("apart", "together"))
    assert len(apart.rounds) == 3
    for a, b in zip(apart.rounds, together.rounds, strict=True):
        for name in ("clients", "losses", "scores", "weights", "dropped", "bytes"):
            assert getattr(a, name) == getattr(b, name), name
        assert a.metrics == pytest.approx(b.metrics, nan_ok=True)
        assert a.personal and a.personal == pytest.approx(b.personal, nan_ok=True)
    model = "model.safetensors"
    assert (apart.folder / model).read_bytes() == (together.folder / model).read_bytes()


def test_label_counts_come_from_the_clients() -> None:
    """Each has seen other classes, and none knows how many there are."""
    f = federation({"a": 20, "b": 20, "c": 20, "d": 20}, classes=3)
    owner = torch.repeat_interleave(torch.arange(4), 20)
    labels = torch.where(owner % 2 == 0, 0, torch.arange(80) % 2)
    f = replace(f, train=replace(f.train, y=labels))
    rule = {"name": "grouped", "rule": "afl", "domains": 2}
    with processes(f, rule=rule) as engine:
        apart = job(f, engine, rule=rule).initial_state()
    together = job(f, Simulator(f, SEED), rule=rule).initial_state()
    same(flatten(apart), flatten(together), exact=True)
    group = apart["rule"]["group"].tolist()
    assert group[0] == group[2] != group[1] == group[3]


# Clients that die, and clients that say nothing


def test_a_client_whose_process_is_killed_is_dropped_and_the_run_goes_on(tmp_path: Path) -> None:
    f = federation(SIZES)
    with processes(f, client="ditto") as engine:
        for done in run(job(f, engine, 4, client="ditto"), out=tmp_path / "run"):
            if done.number == 2:
                engine.remotes[1].kill()
    record = Record.read(tmp_path / "run")
    assert record.finished
    gone = {"q": "its process ended (exit code -9)"}
    assert [each.dropped for each in record.rounds] == [{}, {}, gone, gone]
    assert [tuple(each.clients) for each in record.rounds] == [("p", "q", "r")] * 4
    weights = [set(each.weights) for each in record.rounds]
    assert weights == [{"p", "q", "r"}] * 2 + [{"p", "r"}] * 2
    assert all(sum(each.weights.values()) == pytest.approx(1) for each in record.rounds)
    assert record.clients(2).evaluation.scored.tolist() == [0, 1, 2]
    assert record.clients(4).evaluation.scored.tolist() == [0, 2]


def test_a_client_that_is_killed_at_work_is_as_if_it_had_not_been_asked() -> None:
    """Its reply never comes; the others' numbers are those of a simulator without it."""
    f = federation(SIZES)
    reason = "its process ended (exit code -9)"
    with processes(f) as engine:
        built = job(f, engine)
        state = built.initial_state()
        pid = engine.remotes[1].pid
        os.kill(pid, signal.SIGSTOP)  # the request still reaches it
        # Only this thread may wait for the process: its exit code can be read once.
        killer = threading.Timer(0.5, os.kill, (pid, signal.SIGKILL))
        killer.start()
        outcome, ((_, replies),) = converse(built.algorithm, engine, state, built.sample(1))
        killer.join()
    assert replies.failed == outcome.dropped == {1: reason}
    assert outcome.clients.tolist() == [0, 2]
    algorithm = protocol()
    request = Request(torch.tensor([0, 2]), algorithm.ask(state))
    expected = algorithm.tell(state, Simulator(f, SEED, "loop").collect(algorithm, request), 3)
    assert torch.equal(outcome.state["w"], expected.state["w"])
    assert torch.equal(outcome.weights, expected.weights)


def test_a_silent_client_is_given_up_and_asked_again_later() -> None:
    """Its late reply is not taken for the answer to another request."""
    f = federation(SIZES)
    with processes(f) as engine:
        built = job(f, engine)
        state = built.initial_state()
        dropped, visited = [], []
        for number in range(1, 5):
            pid = engine.remotes[2].pid
            engine.patience = PATIENCE
            if number == 2:
                os.kill(pid, signal.SIGSTOP)
                engine.patience = 3.0
            elif number == 3:
                os.kill(pid, signal.SIGCONT)
            outcome, exchanges = converse(built.algorithm, engine, state, built.sample(number))
            ((_, replies),) = exchanges
            state = outcome.state
            dropped.append(outcome.dropped)
            times = replies.values["visited"].tolist()
            visited.append(dict(zip(replies.clients.tolist(), times, strict=True)))
    assert dropped == [{}, {2: "no reply in time"}, {}, {}]
    assert [set(each) for each in visited] == [{0, 1, 2}, {0, 1}, {0, 1, 2}, {0, 1, 2}]
    assert visited[3] == {0: 3, 1: 3, 2: 3}  # it worked in the second round too, but too late


def test_when_all_processes_are_gone_nothing_moves() -> None:
    f = federation(SIZES)
    with processes(f) as engine:
        built = job(f, engine)
        first, second = built.initial_state(), built.initial_state()
        for remote in engine.remotes:
            remote.kill()
        outcome, _ = converse(built.algorithm, engine, first, built.sample(1))
    assert set(outcome.dropped) == {0, 1, 2}
    assert torch.equal(outcome.state["w"], second["w"]) and int(outcome.state["round"]) == 2


@pytest.mark.parametrize("kind", ["mlp", "cnn-norm", "dropout"])
def test_an_answer_needs_nothing_but_its_arguments(kind: str) -> None:
    """One client after another by hand, from its own rows alone and under number 0."""
    task, f = Task(module(kind)), federation(SIZES, SHAPES[kind])
    algorithm = averaging(task, Client(**TRAINING))
    message = algorithm.ask(algorithm.init(f.population))
    request = Request(torch.arange(3), message)
    whole = Simulator(f, SEED, "loop").collect(algorithm, request).values
    for k, name in enumerate(f.names):
        torch.manual_seed(k)  # whatever torch's own generator holds in another process
        group = group_of(f.train.client(k), name, seed=SEED)
        replies, states = algorithm.answer(request, group)
        assert not states and all(torch.equal(replies[n][0], whole[n][k]) for n in whole)
