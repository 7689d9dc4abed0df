"""ditto: a personal model on a leash to the shared one, trained beside it.

Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021. Both models take each batch;
their losses share no variable, so that one joint step is the authors' two steps.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.clients._own import Own
from commonweal.local import Tensors, at_least, distance
from commonweal.task import Batch, Task

__all__ = ["Ditto"]


@dataclass(frozen=True)
class Ditto(Own):
    """loss(w_i) as sgd, and loss(v) + lam/2 |v - w|^2 with w as received; v starts as the initial model and is kept

    lam: the leash; 0 is training alone, large is the shared model. The others are those of sgd, for both models
    """

    lam: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, lam=0)

    def loss(
        self, task: Task, v: Tensors, batch: Batch, seen: Tensors, kept: Tensors, u: Tensor
    ) -> tuple[Tensor, Tensor]:
        shared, of_shared = task.loss(v["w"], batch)
        own, of_own = task.loss(v["own"], batch)
        leash = self.lam / 2 * distance(task, v["own"], seen["w"])
        return shared + own + leash, torch.stack([of_shared, of_own])
