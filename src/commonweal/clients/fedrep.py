"""fedrep: first the client's head on the received body, then the body under that head.

Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021. As fedper, but in
turns: a head that fits goes first, so that the body is not bent towards a head that does not.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.clients._parts import head, under
from commonweal.errors import ConfigError
from commonweal.local import Gradient, Local, Tensors
from commonweal.task import Task

__all__ = ["FedRep"]


@dataclass(frozen=True)
class FedRep(Local):
    """loss(body, head) in the head for head_epochs passes, then in the body for epochs passes

    head_epochs: passes for the head; epochs: passes for the body; it counts in passes, so that `steps` has no meaning
    head: the names of the layers that stay with the client (none: the last linear layer)
    The others are those of sgd
    """

    head_epochs: int = 10
    head: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None or self.head_epochs < 1:
            raise ConfigError(
                f"fedrep steps = {self.steps}, head_epochs = {self.head_epochs}: its turns are passes over the rows; "
                "give epochs and head_epochs of 1 or more, and no steps"
            )

    @property
    def passes(self) -> int:
        return self.head_epochs + self.epochs

    def private(self, task: Task) -> Tensor:
        return under(task, self.head or head(task), "head")

    def step(
        self, task: Task, v: Tensors, memory: Tensors, gradient: Gradient, lr: float, passed: Tensor
    ) -> tuple[Tensors, Tensors]:
        turn = (passed < self.head_epochs)[:, None] == self.private(task)  # (S, d): what this step may move
        slope, statistics = gradient(v)
        moved, memory = self.descend(v, {"w": slope["w"] * turn}, memory, lr)
        # Momentum and weight decay would reach the part whose turn it is not.
        w = torch.where(turn, moved["w"], v["w"])
        return self.settle(task, {"w": w}, statistics), {name: value * turn for name, value in memory.items()}

    def personal(self, task: Task, seen: Tensors, kept: Tensors) -> Tensor:
        return self.start(task, seen, kept)["w"]
