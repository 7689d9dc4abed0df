"""The promises of client methods, as checks that run on any method."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import safetensors.torch
import torch
from torch import nn

from commonweal.base import randomness
from commonweal.base.errors import ConfigError
from commonweal.base.randomness import Streams
from commonweal.base.tensors import Tensors, flatten, stack
from commonweal.checks.rules import Problems, copy, find_problem, not_frozen, same_bits
from commonweal.data.rows import Rows, joined_rows
from commonweal.task.task import Task
from commonweal.task.vectorize import Vectorize, single, vmap_clients
from commonweal.training.ask import Ask, Samples
from commonweal.training.client import Client, Notes, ToAll

SIZES = (17, 9, 9)  # training samples of the simulated clients, the largest first
HELD = 4  # of them, the samples of each client that a method may take for validation
VALIDATION = 5  # samples of each client
EVERYONE = list(range(len(SIZES)))
ROUNDS = 10
MOST_REQUESTS = 100  # of a method after one round


TRAIN = ToAll("train")


@dataclass(frozen=True, eq=False)
class Bench:
    """A method with a small task and the samples of three clients."""

    client: Client
    task: Task
    round: int = ROUNDS  # the last one, in which everything has begun

    @cached_property
    def samples(self) -> Samples:
        train = _rows(SIZES, seed=0)
        validation = _rows((VALIDATION,) * len(SIZES), seed=1)
        everything = joined_rows(train, validation, torch.tensor(EVERYONE))
        held = torch.cat([torch.arange(size) < HELD for size in SIZES])
        parts = {}
        for name, mask in (("held", held), ("kept", ~held)):
            counts = [int(own.sum()) for own in torch.split(mask, list(SIZES))]
            offsets = torch.tensor([0, *counts]).cumsum(0)
            parts[name] = train.take(mask.nonzero().flatten(), offsets)
        return Samples.of(train, validation=validation, everything=everything, **parts)

    @cached_property
    def message(self) -> Tensors:
        message = {"round": torch.tensor(self.round), "rounds": torch.tensor(ROUNDS)}
        return message | {"w": self.task.initial, **self.client.init_shared(self.task)}

    @cached_property
    def states(self) -> list[Tensors]:
        return [self.client.init_client(self.task, seed) for seed in range(len(SIZES))]

    def ask(self, ids: list[int], vectorize: Vectorize, request: ToAll = TRAIN) -> Ask:
        """A request to some clients."""
        purpose = randomness.purpose(request.purpose)
        return Ask(
            task=self.task,
            purpose=request.purpose,
            message=self.message | request.message,
            states=stack([self.states[i] for i in ids]),
            samples=self.samples,
            ids=torch.tensor(ids),
            streams=Streams(0, self.round, ids, purpose),
            vectorize=vectorize,
        )

    def train(self, ids: list[int], vectorize: Vectorize) -> tuple[Tensors, Tensors]:
        """The replies and the next states (S, ...) of some clients in a round."""
        return self.client.answer(self.ask(ids, vectorize))

    def train_alone(self, client: int) -> tuple[Tensors, Tensors]:
        """A client's reply and its next state."""
        replies, states = self.train([client], single)
        return _without_axis(replies), _without_axis(states)


def _rows(sizes: tuple[int, ...], seed: int) -> Rows:
    """Samples of clients with so many of them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(sizes), 4, generator=generator)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.2)
    return Rows(x, y, torch.tensor([0, *sizes]).cumsum(0))


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
    replies, states = bench.train(EVERYONE, vmap_clients)
    for client in EVERYONE:
        reply, state = bench.train_alone(client)
        for name, value in (reply | state).items():
            other = (replies | states)[name][client]
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
    if len(uses.weights) != len(uses.models) + len(uses.others):
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


def _conversation(bench: Bench) -> Problems:
    """The method's own requests after every round, where all clients answer or none does."""
    if type(bench.client).after is Client.after:
        return
    for round in range(1, ROUNDS + 1):
        at_round = replace(bench, round=round)
        for has_replies in (True, False):
            yield from _requests(at_round, has_replies)


def _requests(bench: Bench, has_replies: bool) -> Problems:
    """A method's requests after one round, and the clients' answers."""
    conversation = bench.client.after(bench.round, ROUNDS)
    states = stack(bench.states)
    replies: Tensors = {}
    for number in range(MOST_REQUESTS):
        try:
            request = conversation.send(replies) if number else next(conversation)
        except StopIteration as stop:
            if not isinstance(stop.value, Notes):
                yield f"`after` returns {stop.value!r}: return Notes()"
            return
        if not isinstance(request, ToAll):
            yield f"`after` yields {request!r}: yield ToAll(purpose)"
        ask = replace(bench.ask(EVERYONE, vmap_clients, request), states=states)
        given = flatten({"message": ask.message, "states": ask.states})
        copies = copy(given)
        answers, following = bench.client.answer(ask)
        again, _ = bench.client.answer(ask)
        what = f"its answer to {request.purpose!r}"
        changed = [name for name in given if not torch.equal(given[name], copies[name])]
        if changed:
            yield f"{what} changes {changed}, which it was given"
        for name, value in answers.items():
            if value.ndim == 0 or len(value) != len(SIZES):
                yield f"{what} has {name!r} of shape {tuple(value.shape)} for {len(SIZES)} clients"
        if not same_bits(answers, again):
            yield f"{what} differs for the same message, states and random numbers"
        if following.keys() != states.keys():
            yield f"{what} changes the names of states from {[*states]} to {[*following]}"
        states = following
        replies = answers if has_replies and not request.silent else {}
    yield f"`after` makes more than {MOST_REQUESTS} requests after round {bench.round}"


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
    "conversation": _conversation,
}
