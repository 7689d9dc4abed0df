"""What every server optimizer, sampler and channel promises, and that breaking it is noticed."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import cases
from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State, Tensors
from commonweal.checks import check_channel, check_sampler, check_server
from commonweal.config import catalog
from commonweal.protocols.channels.channel import Channel
from commonweal.protocols.samplers.sampler import Draw, Sampler
from commonweal.protocols.servers.server import ServerOptimizer


@cases(
    "part",
    [
        "sgd",
        "adam",
        "yogi",
        "adagrad",
        "amsgrad",
        {"name": "optimistic", "step": "sgd"},
        {"name": "polyak", "step": {"name": "sgd", "momentum": 0.9}},
    ],
)
def test_the_librarys_server_optimizers_keep_their_promises(part: Any) -> None:
    assert check_server(catalog.build("servers", part)) == ["frozen", "steps", "saved"]


@cases("name", ["uniform", "poisson", "size"])
def test_the_librarys_samplers_keep_their_promises(name: str) -> None:
    assert check_sampler(catalog.build("samplers", name)) == ["frozen", "chooses"]


@cases("name", ["clip"])
def test_the_librarys_channels_keep_their_promises(name: str) -> None:
    assert check_channel(catalog.build("channels", name)) == ["frozen", "encodes"]


@dataclass(frozen=True)
class InPlace(ServerOptimizer):
    def __call__(self, w: Tensor, direction: Tensor, state: State) -> tuple[Tensor, State]:
        return w.sub_(direction), state


@dataclass(frozen=True)
class Random(ServerOptimizer):
    def __call__(self, w: Tensor, direction: Tensor, state: State) -> tuple[Tensor, State]:
        return w - direction * torch.rand(1), state


@dataclass(frozen=True)
class NewNames(ServerOptimizer):
    def __call__(self, w: Tensor, direction: Tensor, state: State) -> tuple[Tensor, State]:
        return w - direction, {"m": direction}


@dataclass(frozen=True)
class Shorter(ServerOptimizer):
    def __call__(self, w: Tensor, direction: Tensor, state: State) -> tuple[Tensor, State]:
        return w[1:], state


@dataclass
class NotFrozen(ServerOptimizer):
    def __call__(self, w: Tensor, direction: Tensor, state: State) -> tuple[Tensor, State]:
        return w - direction, state


@dataclass(frozen=True)
class Unsorted(Sampler):
    def choose(self, draw: Draw) -> Tensor:
        return torch.arange(draw.size).flip(0)


@dataclass(frozen=True)
class Outside(Sampler):
    def choose(self, draw: Draw) -> Tensor:
        return torch.tensor([0, draw.population.clients])


@dataclass(frozen=True)
class OwnDraws(Sampler):
    drawn: list[int] = field(default_factory=list, hash=False)

    def choose(self, draw: Draw) -> Tensor:
        self.drawn.append(0)
        return torch.tensor([len(self.drawn)])


@dataclass(frozen=True)
class Listed(Sampler):
    def choose(self, draw: Draw) -> Any:
        return [0, 1]


@dataclass(frozen=True)
class Doubling(Channel):
    def encode(self, reply: Tensors, memory: Tensors, noise: Tensor) -> tuple[Tensors, Tensors]:
        reply["update"].mul_(2)
        return reply, memory


@dataclass(frozen=True)
class Losing(Channel):
    def encode(self, reply: Tensors, memory: Tensors, noise: Tensor) -> tuple[Tensors, Tensors]:
        return {"sent": reply["update"]}, memory


@dataclass(frozen=True)
class Forgetting(Channel):
    def encode(self, reply: Tensors, memory: Tensors, noise: Tensor) -> tuple[Tensors, Tensors]:
        return reply, {"error": reply["update"]}


@cases(
    ("check", "part", "message"),
    [
        (check_server, InPlace(), "changes in place"),
        (check_server, Random(), "another step for the same"),
        (check_server, NewNames(), "let init give all names"),
        (check_server, Shorter(), "return a tensor like the one it got"),
        (check_server, NotFrozen(), "frozen"),
        (check_server, Unsorted(), "give an instance of a subclass of ServerOptimizer"),
        (check_sampler, Unsorted(), "sort the ids"),
        (check_sampler, Outside(), "ids are 0 to 11"),
        (check_sampler, OwnDraws(), "take them from draw.rng"),
        (check_sampler, Listed(), "as a tensor of int64"),
        (check_channel, Doubling(), "changes in place"),
        (check_channel, Losing(), "decode does not give back"),
        (check_channel, Forgetting(), "but init gave"),
    ],
)
def test_broken_promises_are_named(check: Any, part: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(part)
