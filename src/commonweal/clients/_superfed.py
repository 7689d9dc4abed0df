"""What superfed-mm and superfed-lm share: a personal model joined to the shared one by a line of low loss."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from commonweal.errors import ConfigError
from commonweal.local import Local, Tensors, at_least, distance
from commonweal.task import Batch, Task

__all__ = ["SuPerFed"]


@dataclass(frozen=True)
class SuPerFed(Local):
    """The segment from w_i to the client's own v, trained at random points of it (thesis, Algorithms 2.3 and 2.4)."""

    mu: float = 0.01
    nu: float = 2.0
    begin: float = 0.4
    m: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, mu=0, nu=0)
        if not self.begin >= 0 or not 0 <= self.m <= 1:
            raise ConfigError(
                f"superfed begin = {self.begin}, m = {self.m}: begin is a share of the rounds below 1 or a number of "
                "rounds, m a point from 0 (the shared model) to 1 (the client's own)"
            )

    def bind(self, rounds: int) -> "SuPerFed":
        """With `begin` in rounds."""
        if self.begin >= max(rounds, 1):
            raise ConfigError(f"superfed begin = {self.begin:g} of {rounds} rounds: the clients' own models never join")
        return replace(self, begin=float(int(self.begin * rounds))) if self.begin < 1 else self

    def mix(self, task: Task, u: Tensor) -> Tensor:
        """m, from this batch's random numbers: one for the model, or one a coordinate (d,)."""
        raise NotImplementedError

    def keep(self, task: Task, seed: int) -> Tensors:
        if task.normalises:
            # A mixture's variance is not the mixture of variances: served at any m, its statistics would be wrong.
            raise ConfigError(
                f"superfed cannot mix models with BatchNorm, which {type(task.module).__name__} has: take one with "
                "GroupNorm, such as 'resnet18-gn'"
            )
        own = task.fresh(seed)  # another start for every client
        if torch.equal(own, task.initial):
            raise ConfigError(
                f"superfed needs another start for every client, but no layer of {type(task.module).__name__} has "
                "reset_parameters: add it"
            )
        return {"own": own, "joined": torch.zeros(1)}

    def start(self, task: Task, seen: Tensors, kept: Tensors) -> Tensors:
        if 0 < self.begin < 1:
            raise ConfigError(f"superfed begin = {self.begin} is a share of the rounds: call bind(rounds) first")
        joined = int(seen["round"]) > self.begin
        return {"w": seen["w"]} | ({"own": kept["own"]} if joined else {})

    def loss(
        self, task: Task, v: Tensors, batch: Batch, seen: Tensors, kept: Tensors, u: Tensor
    ) -> tuple[Tensor, Tensor]:
        near = self.mu / 2 * distance(task, v["w"], seen["w"])  # eq. 2.4
        if "own" not in v:
            loss, statistics = task.loss(v["w"], batch)
            return loss + near, statistics
        m = self.mix(task, u)
        loss, statistics = task.loss(v["w"].lerp(v["own"], m), batch)  # its gradients are those of eq. 2.3
        w, own = task.moving(v["w"]), task.moving(v["own"])
        # As sums of products: under vmap a product of two vectors is one of matrices, and its gradient slow.
        # A model of zeros, such as logistic at its start, has no angle.
        lengths = ((w * w).sum() * (own * own).sum()).clamp(min=1e-12)
        apart = self.nu * (w * own).sum().square() / lengths  # nu cos^2, eq. 2.5
        return loss + near + apart, torch.stack([statistics, statistics])

    def reply(self, task: Task, v: Tensors, seen: Tensors, kept: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        update = {"update": seen["w"] - v["w"]}
        return update, {"own": v["own"], "joined": torch.ones_like(kept["joined"])} if "own" in v else kept

    def personal(self, task: Task, seen: Tensors, kept: Tensors) -> Tensor:
        w, own = self.ends(task, seen, kept)
        return (1 - self.m) * w + self.m * own

    def ends(self, task: Task, seen: Tensors, kept: Tensors) -> tuple[Tensor, Tensor]:
        """Both are the received model as long as the client's own was never trained."""
        return seen["w"], torch.where(kept["joined"] > 0, kept["own"], seen["w"])
