"""alone: local training. Every client trains models on its own samples, and shares nothing.

The baseline that every client has without a federation: Yu et al., Salvaging Federated Learning by
Local Adaptation, 2020, ask who gains against it. It is a good one: a client chooses when to stop,
and mixes its network with a linear model (`clients/local_model.py`). The global model stays the
initial one: what counts is the clients' local models.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from commonweal.base.tensors import Tensors
from commonweal.clients.local_model import LocalTraining
from commonweal.training.client import HoldsOut, Stage
from commonweal.training.task import Task
from commonweal.training.uses import Uses


@dataclass(frozen=True)
class Alone(LocalTraining):
    """(1-a) p_network + a p_linear, both trained on the client's own samples

    A fifth of the training samples is held out for 60 % of the rounds, to choose the round at which
    the network stops, the weight decay of the linear model and a; then both are trained on all
    training samples. Costs little more than sgd's training, and at most six fits of the linear
    model. A client that was not in every cohort trains the missing rounds at home.

    select: choose as described; otherwise the network is trained for all rounds, and nothing else
    The others are those of sgd
    """

    select: bool = True

    local = "private"

    @property
    def holds_out(self) -> HoldsOut:
        return "training" if self.select else "nothing"

    def private(self, task: Task) -> Tensor:
        return _whole(task)

    def exchanges(self, round: int, rounds: int) -> tuple[str, ...]:
        return super().exchanges(round, rounds) if self.select else ()

    def stages(
        self, task: Task, purpose: str, message: Tensors, validates: bool
    ) -> tuple[Stage, ...]:
        (local,) = self.local_stages(purpose, message)
        return (local._replace(unless="") if purpose == "train" else local,)

    def init_client(self, task: Task, seed: int) -> Tensors:
        return self.init_local(task)

    def uses(self, task: Task, message: Tensors, state: Tensors) -> Uses:
        return self.local_uses(state)


@lru_cache(maxsize=16)
def _whole(task: Task) -> Tensor:
    return torch.ones(task.size, dtype=torch.bool)


ENTRIES = {"alone": Alone}
