"""The stage in which blend trains a model that never leaves the client."""

from dataclasses import dataclass

from torch import Tensor

from commonweal.base.tensors import Tensors
from commonweal.training.client import Client
from commonweal.training.objective import At, Objective
from commonweal.training.task import Task

__all__ = ["LocalModel"]


@dataclass(frozen=True)
class LocalModel(Client):
    """Local SGD of a model that the client keeps."""

    vector: str = "local"

    def start(self, task: Task, message: Tensors, state: Tensors) -> Tensors:
        return {"w": message["w"], self.vector: state[self.vector]}

    def objective(self, task: Task, message: Tensors) -> Objective:
        return Objective((At(self.vector),))

    def reply(
        self, task: Task, vectors: Tensors, message: Tensors, state: Tensors, steps: Tensor
    ) -> tuple[Tensors, Tensors]:
        return {}, state | {self.vector: vectors[self.vector]}
