"""What ditto and pfedme share: a whole model of the client's own, kept beside the shared one and served."""

from dataclasses import dataclass

from torch import Tensor

from commonweal.local import Local, Tensors
from commonweal.task import Task

__all__ = ["Own"]


@dataclass(frozen=True)
class Own(Local):
    """Trains w and `own`, tells of w only, and keeps `own`, which starts as the initial model."""

    def keep(self, task: Task, seed: int) -> Tensors:
        return {"own": task.initial}

    def start(self, task: Task, seen: Tensors, kept: Tensors) -> Tensors:
        return {"w": seen["w"], "own": kept["own"]}

    def reply(self, task: Task, v: Tensors, seen: Tensors, kept: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        return {"update": seen["w"] - v["w"]}, {"own": v["own"]}

    def personal(self, task: Task, seen: Tensors, kept: Tensors) -> Tensor:
        return kept["own"]
