"""apfl: the shared model and a model of one's own, mixed in a proportion that each client learns.

Deng, Kamani and Mahdavi, Adaptive Personalized Federated Learning, 2020.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.errors import ConfigError
from commonweal.local import Gradient, Local, Tensors
from commonweal.task import Batch, Task

__all__ = ["APFL"]


@dataclass(frozen=True)
class APFL(Local):
    """loss(w_i) as sgd; v by the gradient of loss(a v + (1-a) w_i), and a by one such step a round, held in [0, 1]

    alpha: the a that clients start with; adaptive: whether they learn it. The others are those of sgd
    """

    alpha: float = 0.5
    adaptive: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.alpha <= 1:
            raise ConfigError(f"apfl alpha = {self.alpha}: the share of the client's own model must be from 0 to 1")

    def keep(self, task: Task, seed: int) -> Tensors:
        return {"own": task.initial, "a": torch.tensor([self.alpha])}

    def start(self, task: Task, seen: Tensors, kept: Tensors) -> Tensors:
        return {"w": seen["w"], "own": kept["own"], "a": kept["a"]}

    def loss(
        self, task: Task, v: Tensors, batch: Batch, seen: Tensors, kept: Tensors, u: Tensor
    ) -> tuple[Tensor, Tensor]:
        shared, of_shared = task.loss(v["w"], batch)
        # The mixture teaches v and a only: w_i is trained as if there were no v.
        mixed, of_mixed = task.loss(v["a"] * v["own"] + (1 - v["a"]) * v["w"].detach(), batch)
        return shared + mixed, torch.stack([of_shared, of_mixed])

    def step(
        self, task: Task, v: Tensors, memory: Tensors, gradient: Gradient, lr: float, passed: Tensor
    ) -> tuple[Tensors, Tensors]:
        slope, statistics = gradient(v)
        a, slope_a = v["a"], slope.pop("a")
        if self.adaptive and not memory:  # a visit's first step
            a = (a - lr * slope_a).clamp(0, 1)
        moved, memory = self.descend({"w": v["w"], "own": v["own"]}, slope, memory, lr)
        return self.settle(task, moved, statistics) | {"a": a}, memory | {"a": a}

    def reply(self, task: Task, v: Tensors, seen: Tensors, kept: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        return {"update": seen["w"] - v["w"]}, {"own": v["own"], "a": v["a"]}

    def personal(self, task: Task, seen: Tensors, kept: Tensors) -> Tensor:
        return kept["a"] * kept["own"] + (1 - kept["a"]) * seen["w"]

    def ends(self, task: Task, seen: Tensors, kept: Tensors) -> tuple[Tensor, Tensor]:
        return seen["w"], kept["own"]
