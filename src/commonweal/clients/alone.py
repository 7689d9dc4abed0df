"""alone: every client trains its personal model on its own samples, and shares nothing.

The baseline that every client has without a federation, with the same budget of rounds, epochs
and batches: Yu et al., Salvaging Federated Learning by Local Adaptation, 2020, ask who gains
against it. The global model stays the initial one: what counts is the clients' personal models.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from commonweal.training.client import Client
from commonweal.training.task import Task

__all__ = ["Alone"]


@dataclass(frozen=True)
class Alone(Client):
    """loss(w_i) on the client's own samples; all coordinates of w_i are private

    The parameters are those of sgd
    """

    personalizes: ClassVar[bool] = True

    def private(self, task: Task) -> Tensor:
        return _whole(task)


@lru_cache(maxsize=16)
def _whole(task: Task) -> Tensor:
    return torch.ones(task.size, dtype=torch.bool)


ENTRIES = {"alone": Alone}
