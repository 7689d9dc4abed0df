"""semi-vred: a penalty on the loss above the clients' mean, in the objective of each client.

Semi-Variance Reduction for Fair Federated Learning (anonymous, under review), eq. 25: the form of
which Theorem 1 proves convergence, with the mean fixed during a round. The rule of the same name
weighs clients at the server; it also counts that the mean moves with the model, so that it steps
less along the mean update, by 2 beta sum_j p_j (f_j - mean)_+.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from commonweal.base.tensors import Tensors
from commonweal.task.task import Task
from commonweal.training.client import Client, Grid, at_least
from commonweal.training.objective import Objective, Reduction


@dataclass(frozen=True)
class SemiVRedClient(Client):
    """loss(w_i) + beta (loss(w_i) - mean)_+^2 on every batch

    The mean is that of the last cohort's losses by samples, which the server sends; in the first
    round there is none, and clients train as with sgd. Use the rule fedavg.

    beta: the penalty; the others are those of sgd
    """

    grid: ClassVar[Grid] = {"beta": (0.01, 0.05, 0.1, 0.2, 0.5, 1.0)}

    beta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, beta=0)

    def init_shared(self, task: Task) -> Tensors:
        return {"mean": torch.tensor(torch.inf)}

    def update_shared(self, shared: Tensors, replies: Tensors, clients: int) -> Tensors:
        losses = replies["loss"] if "loss" in replies else replies["train_loss"]
        sizes = replies["size"].double()
        return {"mean": (sizes @ losses.double() / sizes.sum()).float()}

    def objective(self, task: Task, message: Tensors) -> Objective:
        mean = message["mean"]

        def value(losses: Tensor, weight: Tensor) -> Tensor:
            loss = (losses * weight).sum(-1)
            return loss + self.beta * (loss - mean).clamp(min=0).square()

        def derivative(losses: Tensor, weight: Tensor) -> Tensor:
            loss = (losses * weight).sum(-1, keepdim=True)
            return weight * (1 + 2 * self.beta * (loss - mean).clamp(min=0))

        return Objective(reduction=Reduction(value, derivative))


ENTRIES = {"semi-vred": SemiVRedClient}
