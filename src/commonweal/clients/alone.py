"""alone: local training. Every client trains models on its own samples, and shares nothing.

The baseline that every client has without a federation: Yu et al., Salvaging Federated Learning by
Local Adaptation, 2020, ask who gains against it. It is a good one: a client chooses when to stop,
and mixes its network with a linear model and a forest (`clients/local_model.py`). The global model
stays the initial one: what counts is the clients' local models.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from commonweal.base.tensors import Tensors
from commonweal.clients.local_model import Divided, LocalTraining
from commonweal.task.task import Task
from commonweal.task.uses import Uses
from commonweal.training.ask import Ask, Samples
from commonweal.training.client import Notes, Requests


@dataclass(frozen=True)
class Alone(LocalTraining):
    """(1-a-b) p_network + a p_linear + b p_forest, all trained on the client's own samples

    A fifth of the training samples is for validation in 60 % of the rounds, to choose the round at
    which the network stops, the weight decay of the linear model, a and b; then all are trained on
    all training samples. Costs little more than sgd's training, at most six fits of the linear
    model, and two of the forest. A client that was not in every cohort trains the missing rounds at
    home.

    trees: whether there is a forest where samples are rows of a table, with up to 512 numbers each
    select: choose as described; otherwise the network is trained for all rounds, and nothing else
    The others are those of sgd
    """

    select: bool = True

    local = "private"

    def divided(self, samples: Samples) -> Divided:
        if self.select:
            return super().divided(samples)
        return Divided(samples.train, None, samples.train)

    def private(self, task: Task) -> Tensor:
        return _whole(task)

    def after(self, round: int, rounds: int) -> Requests:
        return (yield from super().after(round, rounds)) if self.select else Notes()

    def answer(self, ask: Ask) -> tuple[Tensors, Tensors]:
        """Train in a round, also where training has stopped: the server waits for a reply."""
        if ask.purpose != "train":
            return super().answer(ask)
        replies, states = ask.train(self.network, self.rows(ask))
        return replies, self.watched(ask, states)

    def init_client(self, task: Task, seed: int) -> Tensors:
        return self.init_local(task)

    def uses(self, task: Task, message: Tensors, state: Tensors) -> Uses:
        return self.local_uses(task, state)


@lru_cache(maxsize=16)
def _whole(task: Task) -> Tensor:
    return torch.ones(task.size, dtype=torch.bool)


ENTRIES = {"alone": Alone}
