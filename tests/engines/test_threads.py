"""Clients in threads, one by one or in groups; images with their channels last in memory."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from cases import cases
from commonweal.base.tensors import Tensors, flatten
from commonweal.base.threads import in_threads, one_thread_each
from commonweal.clients.superfed import SuPerFedMM
from commonweal.config import catalog
from commonweal.data.federation import Federation
from commonweal.engines.simulator import Simulator
from commonweal.jobs.job import job_from_parts
from commonweal.jobs.rounds import run
from commonweal.models.trees import trees
from commonweal.protocols.algorithm import Request
from commonweal.rules.rule import Reports, Stateless
from commonweal.task.memory_format import ChannelsLast, channels_last
from commonweal.task.task import Task
from commonweal.task.uses import one_model
from commonweal.task.vectorize import single
from commonweal.training.client import Client
from commonweal.training.evaluation import evaluate, evaluate_models
from helpers import averaging, batches_of, close, collected, federation, planned, torch_training
from personal_helpers import METHODS
from personal_helpers import client as method
from run_helpers import states_of
from synthetic_helpers import SMALL, digits
from synthetic_helpers import task as energy_task

SIZES = {"p": 24, "q": 9, "r": 24, "s": 40, "t": 41}
SHAPES = {"one channel": (1, 8, 8), "three channels": (3, 8, 8)}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def pooled(channels: int = 1, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(channels, 4, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 5, 3, padding=1),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(20, 3),
        )


def lstm() -> nn.Module:
    torch.manual_seed(0)
    built: nn.Module = catalog.build("models", "lstm", shape=(6,), labels=(), outputs=9)
    return built


def of_tokens() -> Federation:
    """Clients whose rows are sequences of characters."""
    images = federation(SIZES, (1, 8, 8))
    parts = []
    for rows in (images.train, images.test):
        generator = torch.Generator().manual_seed(len(rows.y))
        x = torch.randint(0, 9, (len(rows.y), 6), generator=generator)
        parts.append(type(rows)(x, rows.y, rows.offsets))
    return Federation(parts[0], parts[1], images.names, outputs=9)


def equal(a: Tensors, b: Tensors) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


# Threads


@pytest.mark.parametrize("kind", ["cnn", "lstm"])
def test_the_numbers_do_not_depend_on_the_number_of_threads(kind: str) -> None:
    task = Task(pooled() if kind == "cnn" else lstm())
    data = federation(SIZES, (1, 8, 8)) if kind == "cnn" else of_tokens()
    client = Client(epochs=2, batch=8, momentum=0.5)
    results = []
    for count in (1, 2, 3, 5):
        torch.set_num_threads(count)
        results.append(collected(task, data, "auto", client))
    for other in results[1:]:
        equal(results[0], other)


def tanh() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 3))


def dense() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 3))


@pytest.mark.parametrize("build", [dense, tanh], ids=["dense", "vmap"])
@pytest.mark.parametrize("name", ["sgd", "superfed-mm", "scaffold", "blend"])
def test_groups_of_clients_have_the_same_bytes_with_any_number_of_threads(
    build: Callable[[], nn.Module], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commonweal.training.evaluation.PASS", 1000)  # several passes
    task = Task(build())
    data = federation({str(k): 5 + 7 * k % 20 for k in range(12)}, (1, 8, 8))
    algorithm = averaging(task, method(name))
    results = []
    for count in (1, 2, 3, 5):
        torch.set_num_threads(count)
        simulator = Simulator(data, chunk=2 * task.size)
        state = algorithm.init(data.population)
        with one_thread_each():
            for _ in range(2):
                request = Request(torch.arange(12), algorithm.ask(state))
                replies = simulator.collect(algorithm, request)
                state = algorithm.tell(state, replies, 12).state
            evaluation = simulator.evaluate(algorithm, state)
        own = evaluation if evaluation.personal is None else evaluation.personal
        losses = {"after": state["w"], "losses": evaluation.losses, "own": own.losses}
        results.append(replies.values | losses)
        results[-1] |= {
            f"{k}/{n}": v for k, s in states_of(simulator).items() for n, v in s.items()
        }
    for other in results[1:]:
        equal(results[0], other)


@pytest.mark.parametrize("build", [dense, tanh], ids=["dense", "vmap"])
def test_groups_of_clients_are_trained_at_the_same_time(build: Callable[[], nn.Module]) -> None:
    together = threading.Barrier(3, timeout=20)  # broken if fewer than three threads come
    original: Any = Client.reply

    def reply(*given: Any) -> object:
        together.wait()
        return original(*given)

    task = Task(build())
    torch.set_num_threads(3)
    with mock.patch.object(Client, "reply", reply), one_thread_each():
        simulator = Simulator(federation({"p": 8, "q": 8, "r": 8}, (1, 8, 8)), chunk=1)
        algorithm = averaging(task)
        request = Request(torch.arange(3), algorithm.ask(algorithm.init(simulator.population)))
        simulator.collect(algorithm, request)


def test_samples_are_evaluated_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(3, timeout=20)  # broken if fewer than three threads come
    original = Task.row_results

    def row_results(task: Task, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensors]:
        together.wait()
        return original(task, outputs, y)

    task = Task(tanh())
    rows = federation({"p": 24, "q": 24, "r": 24}, (1, 8, 8)).test
    expected = evaluate(task, task.initial, rows).losses
    own = one_model(task.initial.expand(3, -1))
    at_once = len(rows.y) // 3 * task.width(rows.inputs)
    monkeypatch.setattr("commonweal.training.evaluation.PASS", at_once)
    monkeypatch.setattr(Task, "row_results", row_results)
    torch.set_num_threads(3)
    with one_thread_each():
        close(evaluate(task, task.initial, rows).losses, expected)
    monkeypatch.setattr("commonweal.training.evaluation.PASS", 1)
    together = threading.Barrier(3, timeout=20)
    with one_thread_each():
        each = evaluate_models(task, own, rows, torch.arange(3), single)
    close(each.losses, expected)


def test_a_module_is_called_by_several_threads_at_a_time() -> None:
    """A call replaces the module's tensors: two threads that shared it would mix their models."""
    task = Task(tanh())
    x = torch.randn(3, 64)
    models = [torch.full((task.size,), float(k)) for k in range(40)]
    expected = [task.outputs(w, x) for w in models]
    torch.set_num_threads(4)
    for _ in range(5):
        outputs = in_threads(lambda w: task.outputs(w, x), models, len(models))
        assert all(map(torch.equal, outputs, expected))


def test_threads_compute_at_the_same_time_and_their_number_is_restored() -> None:
    together = threading.Barrier(3, timeout=20)  # broken if fewer than three threads come
    task = Task(pooled())

    def slow(*given: object, **named: object) -> object:
        together.wait()
        return original(*given, **named)

    def prepared(*given: Any) -> object:  # by the thread that waits for the others
        counts.append(torch.get_num_threads())
        return prepare(*given)

    counts: list[int] = []
    prepare = Simulator._group
    original = averaging(task).answer.__func__  # type: ignore[attr-defined]
    torch.set_num_threads(3)
    three = dict(list(SIZES.items())[:3])
    with (
        mock.patch("commonweal.protocols.averaging.Averaging.answer", slow),
        mock.patch.object(Simulator, "_group", prepared),
    ):
        collected(task, federation(three, (1, 8, 8)), "auto", Client())
    assert counts == [1, 1, 1]
    assert torch.get_num_threads() == 3


def test_clients_keep_their_states_in_threads_as_without() -> None:
    data = federation(SIZES, (1, 8, 8))
    task = Task(pooled())
    algorithm = averaging(task, SuPerFedMM(batch=8, begin=0.0))
    states = []
    for count in (1, 3):
        torch.set_num_threads(count)
        simulator = Simulator(data)
        state = algorithm.init(data.population)
        for _ in range(2):
            replies = simulator.collect(algorithm, Request(torch.arange(5), algorithm.ask(state)))
            state = algorithm.tell(state, replies, 5).state
        states.append(states_of(simulator))
    assert states[0].keys() == states[1].keys() == set(range(5))
    for client in range(5):
        equal(states[0][client], states[1][client])


def test_what_a_thread_raises_is_raised_and_no_thread_is_left() -> None:
    torch.set_num_threads(2)
    before = threading.active_count()
    fails = mock.patch.object(Client, "objective", side_effect=ZeroDivisionError("on purpose"))
    with fails, pytest.raises(ZeroDivisionError, match="on purpose"):
        collected(Task(pooled()), federation(SIZES, (1, 8, 8)), "auto", Client())
    assert threading.active_count() == before
    assert torch.get_num_threads() == 2


class Dropping(nn.Module):
    """Draws random numbers in its forward, which no layer shows."""

    def __init__(self) -> None:
        super().__init__()
        self.body = pooled()

    def forward(self, x: Tensor) -> Tensor:
        dropped = nn.functional.dropout(x, 0.5, self.training)
        outputs: Tensor = self.body(dropped)
        return outputs


def test_a_forward_that_draws_gives_the_same_numbers_with_any_number_of_threads() -> None:
    task = Task(Dropping())
    data = federation(SIZES, (1, 8, 8))
    assert not task.has_dropout
    assert task.draws_inside(data.train.x)
    results = []
    for count in (1, 3):
        torch.set_num_threads(count)
        torch.manual_seed(count)  # must not matter
        results.append(collected(task, data, "auto", Client(batch=8)))
        assert torch.initial_seed() == count
    for name, value in results[0].items():  # torch's own threads round in another way
        close(value, results[1][name])


def test_a_model_is_initialised_as_without_threads_that_use_torchs_generator() -> None:
    """A thread that restored the generator in between changed the personal models of SuPerFed."""
    inside, proceed = threading.Event(), threading.Event()

    class Waiting(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside.set()
            proceed.wait(0.5)
            return super().forward(x)

    class Interrupted(nn.Linear):
        def reset_parameters(self) -> None:
            if other.is_alive():
                proceed.set()
                other.join(0.5)
            super().reset_parameters()

    expected = Task(nn.Linear(3, 2)).reinitialised(7).initial
    waiting = Task(Waiting(3, 2))
    other = threading.Thread(target=lambda: waiting.draws_inside(torch.zeros(2, 3)))
    task = Task(Interrupted(3, 2))
    proceed.clear()
    other.start()
    inside.wait(5)
    assert torch.equal(task.reinitialised(7).initial, expected)
    other.join()


def test_to_ask_whether_a_module_draws_does_not_draw() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    assert Task(Dropping()).draws_inside(torch.zeros(1, 1, 8, 8))
    assert not Task(pooled()).draws_inside(torch.zeros(1, 1, 8, 8))
    assert torch.equal(torch.rand(1), expected)


# Everything in the catalog, with two threads as computers have them: elsewhere the suite has one

FEW = {"p": 10, "q": 6, "r": 10}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "fedcorr": {"iterations": 1, "beta": 0.0},
    "fedcgan": SMALL["fedcgan"],
    "fedcvae": SMALL["fedcvae"],
    "fedevg": SMALL["fedevg"],
    "private": {"entropy": "seed", "noise": 1.0},
}


def same_with_two_threads(task: Task, data: Federation, **parts: Any) -> None:
    """Check that a run of two rounds gives the same numbers with one thread and with two."""
    results = []
    for count in (1, 2):
        torch.set_num_threads(count)
        *_, last = run(job_from_parts(task, data, **{"rounds": 2} | parts))
        assert last.dropped == {} and last.evaluation is not None
        own = last.evaluation.personal
        scored = last.evaluation.losses if own is None else own.losses
        results.append(flatten(last.state) | {"losses": scored})
    assert results[0].keys() == results[1].keys()
    for name, value in results[0].items():
        close(value.double(), results[1][name].double())


@cases("name", list(catalog.entries("algorithms")))
def test_every_algorithm_runs_with_two_threads(name: str) -> None:
    task, data = Task(pooled()), federation(FEW, (1, 8, 8))
    if name in SMALL:
        task, data = energy_task(), digits(rows=30)
    if name == "boosting":
        data = federation(FEW, (6,))
        task = Task(trees((6,), data.outputs, rounds=2))
    if name == "glm":
        x = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
        label = (x[:, 0] + torch.arange(60) % 3 > 1).long()
        data = Federation.from_arrays(x, label, client=[f"c{k % 4}" for k in range(60)])
        task = Task(torch.nn.Linear(6, 2))
    sampler = {"sampler": "poisson"} if name == "private" else {}
    algorithm = {"name": name} | ALGORITHMS.get(name, {})
    same_with_two_threads(task, data, algorithm=algorithm, **sampler)


@cases("name", METHODS)
def test_every_client_method_runs_with_two_threads(name: str) -> None:
    data = federation(FEW, (1, 8, 8))
    same_with_two_threads(Task(pooled()), data, client=method(name))


# Channels last


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_images_reach_the_layers_with_their_channels_last(shape: tuple[int, ...]) -> None:
    task = Task(pooled(shape[0]))
    x = torch.randn(4, *shape)
    faster = channels_last(task, x)
    assert isinstance(faster, ChannelsLast)
    seen = []
    pooling = faster._inference[2]  # type: ignore[index]
    pooling.register_forward_hook(lambda _m, given, _out: seen.append(given[0]))
    outputs = faster.outputs(task.initial, x)
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    close(outputs, task.outputs(task.initial, x))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_training_is_that_of_torch_optim(shape: tuple[int, ...]) -> None:
    task = Task(pooled(shape[0]))
    data = federation(SIZES, shape)
    client = Client(epochs=2, batch=8, momentum=0.5)
    updates = collected(task, data, "auto", client)["update"]
    for k in range(data.clients):
        batches = batches_of(planned(client, task, data, [k]))
        w = torch_training(task, client, task.initial, data.train, batches)
        close(updates[k], task.initial - w)


def test_evaluation_is_that_of_the_plain_module() -> None:
    task = Task(pooled())
    rows = federation(SIZES, (1, 8, 8)).test
    given = evaluate(task, task.initial, rows)
    losses = nn.functional.cross_entropy(task.module(rows.x), rows.y, reduction="none")
    close(given.losses, losses.detach().view(5, -1).mean(1))


class Viewing(nn.Module):
    """Needs channels first: `view` refuses other layouts."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(2))
        self.head = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.body(x).view(len(x), -1))
        return outputs


def test_a_module_that_needs_channels_first_gets_them() -> None:
    task = Task(Viewing())
    x = torch.randn(4, 3, 8, 8)
    with pytest.raises(RuntimeError, match="view"):  # the reason for the trial
        task.module(x.to(memory_format=torch.channels_last))
    assert channels_last(task, x) is task
    collected(task, federation(SIZES, (3, 8, 8)), "auto", Client())


@pytest.mark.parametrize(
    ("module", "shape"),
    [(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), (1, 8, 8)), (nn.Linear(4, 3), (4,))],
)
def test_other_models_are_left_as_they_are(module: nn.Module, shape: tuple[int, ...]) -> None:
    task = Task(module)
    assert channels_last(task, torch.zeros(2, *shape)) is task


@dataclass(frozen=True)
class Counting(Stateless):
    """Equal weights; notes how many threads torch has while a round runs."""

    seen: list[int] = field(default_factory=list)

    def weigh(self, reports: Reports) -> Tensor:
        self.seen.append(torch.get_num_threads())
        return torch.full((len(reports.ids),), 1 / len(reports.ids), dtype=torch.float64)


@pytest.mark.parametrize(("module", "expected"), [(nn.Flatten, 1), (pooled, 2)])
def test_only_models_with_large_operations_share_them_among_threads(
    module: Callable[[], nn.Module], expected: int
) -> None:
    models = {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        model = nn.Sequential(module(), nn.LazyLinear(3))
        model(torch.zeros(2, 1, 8, 8))
        rule = Counting()
        *_, last = run(Task(model), federation(SIZES, (1, 8, 8)), rule=rule, rounds=2)
        assert rule.seen == [min(threads, expected)] * 2
        assert torch.get_num_threads() == threads
        models[threads] = last.state["w"]
    assert torch.equal(models[1], models[2])
