"""How the server moves the model along the cohort's direction: an optimiser's step with the direction as gradient."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from commonweal.errors import ConfigError

__all__ = ["SGD"]

State = dict[str, Tensor]


class ServerStep(Protocol):
    """A step of the server. Pure: hyper-parameters are fields, what is remembered is a value."""

    def init(self, w: Tensor) -> State: ...

    def __call__(self, w: Tensor, direction: Tensor, state: State) -> tuple[Tensor, State]: ...


@dataclass(frozen=True)
class SGD:
    """w - lr * direction; with lr 1 and no momentum the server takes the weighted average of the clients' models.

    McMahan et al., AISTATS 2017; with momentum, Hsu et al. 2019 (FedAvgM).
    lr: the step; momentum: the share of the last step that is kept
    growth, growth_every: lr is multiplied by `growth` every `growth_every` rounds (the AAggFF authors' code divides
    the server's lr by what it multiplies the clients' with; papers keep it constant)
    """

    lr: float = 1.0
    momentum: float = 0.0
    growth: float = 1.0
    growth_every: int = 1

    def __post_init__(self) -> None:
        if self.lr <= 0 or self.growth <= 0 or self.growth_every < 1:
            raise ConfigError(f"server {self}: lr and growth must be above 0, growth_every at least 1")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"server momentum = {self.momentum}: it must be at least 0 and below 1")

    def init(self, w: Tensor) -> State:
        state = {"t": torch.tensor(1)}
        return state | {"velocity": torch.zeros_like(w)} if self.momentum else state

    def __call__(self, w: Tensor, direction: Tensor, state: State) -> tuple[Tensor, State]:
        t = int(state["t"])
        new = {"t": torch.tensor(t + 1)}
        if self.momentum:
            direction = self.momentum * state["velocity"] + direction
            new["velocity"] = direction
        return w - self.lr * self.growth ** ((t - 1) // self.growth_every) * direction, new
