"""fine-tune: local SGD for one model for all, which every client trains on in the end.

Wang et al., Federated Evaluation of On-device Personalization, 2019; Cheng et al., Fine-tuning is
Fine in Federated Learning, 2021. After the last round the server sends its model to all clients,
each trains it on its own samples and keeps it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import Tensors
from commonweal.task.task import Task
from commonweal.task.uses import Uses, one_model
from commonweal.training.ask import Ask
from commonweal.training.client import Client, Notes, Requests, ToAll, sgd_parameters


@dataclass(frozen=True)
class FineTune(Client):
    """loss(w_i) in every round, as sgd; after the last one w_i is trained from w and kept

    tune_epochs: epochs of fine-tuning, or a part of one
    tune_lr: their learning rate (none: that of the last round)
    Before the last round, and after an early stop, clients use the global model. The others are
    those of sgd
    """

    personalizes = True
    plans_rounds = True

    tune_epochs: int | float = 5
    tune_lr: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.tune_epochs > 0 or not (self.tune_lr is None or self.tune_lr > 0):
            values = f"tune_epochs = {self.tune_epochs}, tune_lr = {self.tune_lr}"
            raise ConfigError(f"client {values}: both must be above 0")

    def after(self, round: int, rounds: int) -> Requests:
        if round == rounds:
            yield ToAll("tune", silent=True)
        return Notes()

    def answer(self, ask: Ask) -> tuple[Tensors, Tensors]:
        if ask.purpose == "tune":
            return {"size": ask.sizes}, ask.train_at_home(self.tuner)
        return super().answer(ask)

    @property
    def tuner(self) -> Client:
        """The training of the final model by its clients."""
        parameters = tuning_parameters(self, self.tune_epochs, self.tune_lr)
        return Tuned(**parameters, model="own", flag="tuned")

    def init_client(self, task: Task, seed: int) -> Tensors:
        return {"own": task.initial, "tuned": torch.zeros(1)}

    def uses(self, task: Task, message: Tensors, state: Tensors) -> Uses:
        return one_model(torch.where(state["tuned"] > 0, state["own"], message["w"]))


@dataclass(frozen=True)
class Tuned(Client):
    """Local SGD from the received model, which the client keeps.

    Args:
        model: The name under which the client's state has the model.
        flag: The name under which it has a 1 once there is one.
    """

    model: str = "tuned"
    flag: str = "is_tuned"

    def reply(
        self, task: Task, vectors: Tensors, message: Tensors, state: Tensors, steps: Tensor
    ) -> tuple[Tensors, Tensors]:
        return {}, state | {self.model: vectors["w"], self.flag: torch.ones_like(state[self.flag])}


def tuning_parameters(client: Client, epochs: float, lr: float | None) -> dict[str, Any]:
    """The parameters of local SGD for fine-tuning after a method's rounds.

    lr: constant; None: that of the round, with decay and schedule
    """
    parameters = sgd_parameters(client) | {"epochs": epochs, "steps": None}
    if lr is not None:
        parameters |= {"lr": lr, "decay": 1.0, "schedule": None}
    return parameters


ENTRIES = {"fine-tune": FineTune}
