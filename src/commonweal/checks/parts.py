"""The promises of server optimizers, samplers and channels, as checks that run on any of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State, flatten
from commonweal.checks.rules import Problems, copy, find_problem, not_frozen, same_bits
from commonweal.data.population import Population
from commonweal.protocols.channels.channel import Channel
from commonweal.protocols.samplers.sampler import Draw, Sampler
from commonweal.protocols.servers.server import ServerOptimizer
from commonweal.task.task import Task
from commonweal.task.vectorize import vmap_clients

ROUNDS, CLIENTS, COHORT = 5, 12, 4

Part = TypeVar("Part")


@dataclass(frozen=True)
class PartChecks(Generic[Part]):
    """The checks of a kind of part, by name."""

    label: str
    interface: type[Part]
    checks: dict[str, Callable[[Part], Problems]]

    def __call__(self, part: Part) -> list[str]:
        """Check a part and return the names of the properties that hold.

        Raises:
            ConfigError: For the first property that does not hold.
        """
        if not isinstance(part, self.interface):
            raise ConfigError(
                f"{part!r} is no {self.label}: give an instance of a subclass of "
                f"{self.interface.__name__}"
            )
        for name, check in self.checks.items():
            problem = find_problem(check, part)
            if problem is not None:
                raise ConfigError(
                    f"{self.label} {type(part).__name__} fails the check {name!r}: {problem}"
                )
        return list(self.checks)


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# Server optimizers


def _steps(server: ServerOptimizer) -> Problems:
    server.check(ROUNDS)
    w = _normal(7)
    state = server.init(w)
    for number in range(ROUNDS):
        direction = _normal(7, seed=number)
        given = {"w": w, "direction": direction, **flatten(state)}
        before = copy(given)
        moved, following = server(w, direction, state)
        if not same_bits(given, before):
            yield "it changes in place what it was given: return new tensors"
        if not isinstance(moved, Tensor) or moved.shape != w.shape or moved.dtype != w.dtype:
            yield f"it returns {moved!r:.60} as the model: return a tensor like the one it got"
        if not moved.isfinite().all():
            yield f"the model after step {number + 1} is not finite"
        again, other = server(w, direction, state)
        if not torch.equal(again, moved) or not same_bits(flatten(other), flatten(following)):
            yield "it gives another step for the same model, direction and state"
        if flatten(following).keys() != flatten(state).keys():
            yield (
                f"its state has {[*flatten(following)]} after a step, but {[*flatten(state)]} "
                "before: let init give all names"
            )
        if server.output(moved, following).shape != w.shape:
            yield "its output has another shape than the model"
        w, state = moved, following


def _saved(server: ServerOptimizer) -> Problems:
    state: State = server.init(_normal(3))
    for name, value in flatten(state).items():
        if not isinstance(value, Tensor):
            yield f"its state {name!r} is a {type(value).__name__}: states are tensors, to be saved"


# Samplers


def _chooses(sampler: Sampler) -> Problems:
    sizes = torch.arange(3, 3 + CLIENTS)
    population = Population(tuple(f"c{k}" for k in range(CLIENTS)), sizes, (4,), 2)
    weights = torch.full((CLIENTS,), 1 / CLIENTS, dtype=torch.float64)
    for number in range(1, ROUNDS + 1):
        drawn = []
        for _ in range(2):
            rng = np.random.default_rng(number)
            draw = Draw(number, population, COHORT, weights.clone(), rng)
            drawn.append(sampler.choose(draw))
        ids = drawn[0]
        if not isinstance(ids, Tensor) or ids.dtype != torch.int64 or ids.ndim != 1:
            yield f"it returns {ids!r:.60}: return the clients' ids as a tensor of int64"
            return
        if not torch.equal(*drawn):
            yield "it draws others for the same random numbers: take them from draw.rng only"
        if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < CLIENTS):
            yield f"it chooses {ids.tolist()} of {CLIENTS} clients: ids are 0 to {CLIENTS - 1}"
        if not torch.equal(ids, ids.sort().values):
            yield f"it returns {ids.tolist()}: sort the ids"


# Channels


def _encodes(channel: Channel) -> Problems:
    torch.manual_seed(0)
    task = Task(nn.Linear(4, 3))
    memory = channel.init(task)
    noise = torch.rand(CLIENTS, channel.draws(task), dtype=torch.float64)
    replies = {"update": _normal(CLIENTS, task.size)}
    memories = {n: value.expand(CLIENTS, *value.shape).clone() for n, value in memory.items()}
    for _ in range(ROUNDS):
        given = {**flatten({"reply": replies, "memory": memories}), "noise": noise}
        before = copy(given)
        encoded, after = vmap_clients(channel.encode, (0, 0, 0))(replies, memories, noise)
        if not same_bits(given, before):
            yield "encode changes in place what it was given: return new tensors"
        if after.keys() != memories.keys():
            yield f"encode returns the memory {[*after]}, but init gave {[*memories]}"
        one = {name: value[0] for name, value in replies.items()}
        own = {name: value[0] for name, value in memories.items()}
        alone, _ = channel.encode(one, own, noise[0])
        for name, value in alone.items():
            if not torch.allclose(value.double(), encoded[name][0].double(), atol=1e-6):
                yield f"encode gives another {name!r} for one client than for a group of them"
        decoded = channel.decode(encoded)
        if "update" not in decoded or decoded["update"].shape != replies["update"].shape:
            yield "decode does not give back an update of each client, of the model's length"
            return
        if not decoded["update"].isfinite().all():
            yield "updates are not finite after decode"
        memories = after
    direction = _normal(task.size)
    released = channel.release(
        direction, torch.full((CLIENTS,), 1 / CLIENTS), np.random.default_rng(0)
    )
    if released.shape != direction.shape:
        yield "release gives another shape than that of the direction"


check_server = PartChecks(
    "server optimizer", ServerOptimizer, {"frozen": not_frozen, "steps": _steps, "saved": _saved}
)
check_sampler = PartChecks("sampler", Sampler, {"frozen": not_frozen, "chooses": _chooses})
check_channel = PartChecks("channel", Channel, {"frozen": not_frozen, "encodes": _encodes})
