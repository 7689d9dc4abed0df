"""The base of ditto and pfedme: clients keep and use a whole model of their own."""

from dataclasses import dataclass

from torch import Tensor

from commonweal.base.tensors import Tensors
from commonweal.task.task import Task
from commonweal.task.uses import Uses, one_model
from commonweal.training.client import Client


@dataclass(frozen=True)
class OwnModel(Client):
    """Trains w and `own`, and replies with the update of w. `own` starts as the initial model."""

    personalizes = True

    def init_client(self, task: Task, seed: int) -> Tensors:
        return {"own": task.initial}

    def start(self, task: Task, message: Tensors, state: Tensors) -> Tensors:
        return {"w": message["w"], "own": state["own"]}

    def reply(
        self, task: Task, vectors: Tensors, message: Tensors, state: Tensors, steps: Tensor
    ) -> tuple[Tensors, Tensors]:
        return {}, {"own": vectors["own"]}

    def uses(self, task: Task, message: Tensors, state: Tensors) -> Uses:
        return one_model(state["own"])
