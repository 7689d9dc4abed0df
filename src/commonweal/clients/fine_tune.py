"""fine-tune: local SGD for one model for all, which every client trains on in the end.

Wang et al., Federated Evaluation of On-device Personalization, 2019; Cheng et al., Fine-tuning is
Fine in Federated Learning, 2021. After the last round the server sends its model to all clients,
each trains it on its own rows and keeps it.
"""

from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import Tensors
from commonweal.base.values import Values
from commonweal.training.client import Client
from commonweal.training.task import Task
from commonweal.training.uses import Uses, one_model

__all__ = ["FineTune"]


@dataclass(frozen=True)
class FineTune(Client):
    """loss(w_i) in every round, as sgd; after the last one w_i is trained from w and kept

    tune_epochs: epochs of fine-tuning, or a part of one
    tune_lr: their learning rate (none: that of the last round)
    Before the last round, and after an early stop, clients use the shared model. The others are
    those of sgd
    """

    personalizes: ClassVar[bool] = True

    tune_epochs: int | float = 5
    tune_lr: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.tune_epochs > 0 or not (self.tune_lr is None or self.tune_lr > 0):
            values = f"tune_epochs = {self.tune_epochs}, tune_lr = {self.tune_lr}"
            raise ConfigError(f"client {values}: both must be above 0")

    @property
    def tuner(self) -> Client:
        return Client(**self.tuning())

    def tuning(self) -> Values:
        """The parameters of plain SGD for fine-tuning."""
        values = {each.name: vars(self)[each.name] for each in fields(Client)}
        values |= {"epochs": self.tune_epochs, "steps": None}
        if self.tune_lr is not None:
            values |= {"lr": self.tune_lr, "decay": 1.0}
        return values

    def init_client(self, task: Task, seed: int) -> Tensors:
        return {"own": task.initial, "tuned": torch.zeros(1)}

    def keep_tuned(self, state: Tensors, w: Tensor) -> Tensors:
        return {"own": w, "tuned": torch.ones_like(state["tuned"])}

    def uses(self, task: Task, message: Tensors, state: Tensors) -> Uses:
        return one_model(torch.where(state["tuned"] > 0, state["own"], message["w"]))


ENTRIES = {"fine-tune": FineTune}
