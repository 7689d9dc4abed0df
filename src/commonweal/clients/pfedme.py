"""pfedme: the shared model is what everyone's personal model is near to.

Dinh, Tran and Nguyen, Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020. The server's
w <- (1-b) w + b mean(w_i) is the server step sgd with lr = b.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.clients._own import Own
from commonweal.errors import ConfigError
from commonweal.local import Gradient, Tensors, distance
from commonweal.task import Batch, Task

__all__ = ["PFedMe"]


@dataclass(frozen=True)
class PFedMe(Own):
    """on each batch theta takes inner steps on loss(theta) + lam/2 |theta - w_i|^2, then w_i -= lr lam (w_i - theta)

    lam: how near; inner: theta's steps on a batch; inner_lr: their length, with momentum and weight decay as in sgd
    theta is kept and goes on from where it was. The others are those of sgd; lr lam above 1 overshoots
    """

    lam: float = 15.0
    inner: int = 5
    inner_lr: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner < 1 or self.inner_lr <= 0 or self.lam <= 0:
            raise ConfigError(
                f"pfedme inner = {self.inner}, inner_lr = {self.inner_lr}, lam = {self.lam}: all must be above 0"
            )

    def loss(
        self, task: Task, v: Tensors, batch: Batch, seen: Tensors, kept: Tensors, u: Tensor
    ) -> tuple[Tensor, Tensor]:
        own, statistics = task.loss(v["own"], batch)
        return own + self.lam / 2 * distance(task, v["own"], v["w"]), torch.stack([statistics, statistics])

    def step(
        self, task: Task, v: Tensors, memory: Tensors, gradient: Gradient, lr: float, passed: Tensor
    ) -> tuple[Tensors, Tensors]:
        for _ in range(self.inner):
            slope, statistics = gradient(v)
            own, memory = self.descend({"own": v["own"]}, {"own": slope["own"]}, memory, self.inner_lr)
            v = self.settle(task, v | own, statistics)
        return v | {"w": v["w"].lerp(v["own"], lr * self.lam)}, memory
