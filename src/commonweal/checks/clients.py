"""What every client method promises, as checks that run on any method."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import safetensors.torch
import torch
from torch import nn

from commonweal.base import randomness
from commonweal.base.errors import ConfigError
from commonweal.base.tensors import Tensors, flatten, stack
from commonweal.checks.rules import Problems, copy, find_problem, not_frozen, same_bits
from commonweal.data.rows import Rows
from commonweal.training.batches import schedule
from commonweal.training.client import Client
from commonweal.training.local import Trained, train_locally
from commonweal.training.task import Task
from commonweal.training.vectorize import Vectorize, single, vmap_clients

SIZES = (17, 9, 9)  # training samples of the simulated clients, the largest first
ROUNDS = 10


@dataclass(frozen=True, eq=False)
class Bench:
    """A method with a small task and the samples of three clients."""

    client: Client
    task: Task
    round: int = ROUNDS  # the last one, in which everything has begun

    @cached_property
    def rows(self) -> Rows:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(sum(SIZES), 4, generator=generator)
        y = (x[:, 0] > 0).long() + (x[:, 1] > 0.2)
        return Rows(x, y, torch.tensor([0, *SIZES]).cumsum(0))

    @cached_property
    def message(self) -> Tensors:
        message = {"round": torch.tensor(self.round), "rounds": torch.tensor(ROUNDS)}
        return message | {"w": self.task.initial, **self.client.init_shared(self.task)}

    @cached_property
    def states(self) -> list[Tensors]:
        return [self.client.init_client(self.task, seed) for seed in range(len(SIZES))]

    def train(self, ids: list[int], vectorize: Vectorize) -> Trained:
        chosen = torch.tensor(ids)
        streams = [randomness.stream(0, self.round, i, randomness.TRAIN) for i in ids]
        states = stack([self.states[i] for i in ids])
        plan = schedule(self.client, self.task, self.rows, chosen, streams)
        return train_locally(
            self.client, self.task, self.message, states, self.rows, plan, vectorize
        )

    def train_alone(self, client: int) -> tuple[Tensors, Tensors]:
        """A client's reply and its next state."""
        trained = self.train([client], single)
        return _without_axis(trained.replies), _without_axis(trained.states)


def _without_axis(values: Tensors) -> Tensors:
    return {name: value[0] for name, value in values.items()}


ClientCheck = Callable[[Bench], Problems]


def check_client(client: Client) -> list[str]:
    """Check a client method on a small model and return the names of the properties that hold.

    Raises ConfigError for the first property that does not hold.
    """
    if not isinstance(client, Client):
        raise ConfigError(f"{client!r} is not a client: give an instance of a subclass of Client")
    for name, check in CLIENT_CHECKS.items():
        problem = find_problem(check, Bench(client, _task()))
        if problem is not None:
            kind = type(client).__name__
            raise ConfigError(f"client {kind} fails the check {name!r}: {problem}")
    return list(CLIENT_CHECKS)


def _task() -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Task(nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 3)))


def _frozen(bench: Bench) -> Problems:
    return not_frozen(bench.client)


def _fits(bench: Bench) -> Problems:
    bench.client.check(bench.task, ROUNDS)
    yield from ()


def _reply(bench: Bench) -> Problems:
    reply, _ = bench.train_alone(0)
    update = reply.get("update")
    if update is None or update.shape != bench.task.initial.shape:
        yield "its reply has no 'update' of the model's size: return {'update': ...} first"
    elif not update.isfinite().all():
        yield "its update is not finite after a round with its default parameters"


def _state(bench: Bench) -> Problems:
    before = bench.states[0]
    _, after = bench.train_alone(0)
    if _shapes(before) != _shapes(after):
        yield f"its state changes from {_shapes(before)} to {_shapes(after)}: keep names and shapes"
    if before and not same_bits(before, safetensors.torch.load(safetensors.torch.save(before))):
        yield "its state does not survive a file"


def _shapes(values: Tensors) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in sorted(values.items())}


def _inputs(bench: Bench) -> Problems:
    given = flatten({"message": bench.message, "state": bench.states[0]})
    copies = copy(given)
    bench.train_alone(0)
    changed = [name for name in given if not torch.equal(given[name], copies[name])]
    if changed:
        yield f"it changes {changed}, which it was given"


def _pure(bench: Bench) -> Problems:
    first, second = bench.train_alone(0), bench.train_alone(0)
    if not (same_bits(first[0], second[0]) and same_bits(first[1], second[1])):
        yield "the same message, state and random numbers give different replies"


def _together(bench: Bench) -> Problems:
    """Clients of different sizes, at once and one by one."""
    group = bench.train(list(range(len(SIZES))), vmap_clients)
    for client in range(len(SIZES)):
        reply, state = bench.train_alone(client)
        for name, value in (reply | state).items():
            other = (group.replies | group.states)[name][client]
            if not torch.allclose(value.double(), other.double(), rtol=2e-3, atol=2e-5):
                yield f"{name!r} differs between clients run together and one by one"


def _trains(bench: Bench) -> Problems:
    reply, state = bench.train_alone(0)
    if not reply["update"].any() and same_bits(state, bench.states[0]):
        yield "a round changes neither the model nor the client's state"


def _uses(bench: Bench) -> Problems:
    _, state = bench.train_alone(0)
    client = bench.client
    uses = client.uses(bench.task, bench.message, state)
    ends = client.endpoints(bench.task, bench.message, state)
    if any(model.shape != bench.task.initial.shape for model in (*uses.models, *ends)):
        yield "`uses` and `endpoints` must give vectors of the model's size"
    if len(uses.weights) != len(uses.models) + bool(len(uses.linear)):
        yield "`uses` must give one weight per model"
    if not (uses.weights >= 0).all() or abs(float(uses.weights.sum()) - 1) > 1e-5:
        yield f"the weights of `uses` are {uses.weights.tolist()}: they must be a convex mixture"
    is_own = any(not torch.equal(model, bench.message["w"]) for model in uses.models)
    if is_own and not client.personalizes:
        yield "clients use a model of their own: set personalizes = True"


def _private(bench: Bench) -> Problems:
    mask = bench.client.private(bench.task)
    if mask is None:
        return
    if mask.shape != bench.task.initial.shape or mask.dtype != torch.bool:
        yield "`private` must be a mask of the model's size"
    if "private" not in bench.states[0]:
        yield "it has private coordinates, but its state has no 'private'"


CLIENT_CHECKS: dict[str, ClientCheck] = {
    "frozen": _frozen,
    "fits": _fits,
    "reply": _reply,
    "state": _state,
    "inputs": _inputs,
    "pure": _pure,
    "together": _together,
    "trains": _trains,
    "uses": _uses,
    "private": _private,
}
