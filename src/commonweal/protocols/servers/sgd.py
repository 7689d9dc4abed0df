"""sgd: a step along the direction, with momentum.

McMahan et al., AISTATS 2017; with momentum, Hsu et al. 2019 (FedAvgM).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.base.arguments import check_bounds
from commonweal.base.tensors import State
from commonweal.protocols.servers.server import ServerOptimizer
from commonweal.training.optimizers import step_decay
from commonweal.training.schedules import check_schedule, factor


@dataclass(frozen=True)
class SGD(ServerOptimizer):
    """w - lr * direction; lr 1 without momentum gives the weighted average of the clients' models

    Args:
        lr: the learning rate.
        momentum: the fraction of the last step that is added to the next.
        growth: lr is multiplied by it every `growth_every` rounds (the AAggFF authors' code
            divides the server's lr by the clients' decay; papers keep it constant).
        growth_every: see `growth`.
        schedule: what lr is multiplied by in round t, a formula such as "1/t" or
            "0.99^(t-1)".
    """

    lr: float = 1.0
    momentum: float = 0.0
    growth: float = 1.0
    growth_every: int = 1
    schedule: str | None = None

    def __post_init__(self) -> None:
        check_bounds("server lr", self.lr, above=0)
        check_bounds("server momentum", self.momentum, least=0, below=1)
        check_bounds("server growth", self.growth, above=0)
        check_bounds("server growth_every", self.growth_every, least=1)

    def check(self, rounds: int) -> None:
        check_schedule(self.schedule, rounds)

    def init(self, w: Tensor) -> State:
        state = {"t": torch.tensor(1)}
        if self.momentum:
            state["velocity"] = torch.zeros_like(w)
        return state

    def __call__(self, w: Tensor, direction: Tensor, state: State) -> tuple[Tensor, State]:
        t = int(state["t"])
        new_state = {"t": torch.tensor(t + 1)}
        if self.momentum:
            direction = self.momentum * state["velocity"] + direction
            new_state["velocity"] = direction
        lr = step_decay(self.lr, self.growth, self.growth_every, t) * factor(self.schedule, t)
        return w - lr * direction, new_state


ENTRIES = {"sgd": SGD}
