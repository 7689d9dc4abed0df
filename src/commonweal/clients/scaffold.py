"""scaffold: clients correct their steps by the difference of their gradients from everyone's.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020
(option II). The paper's local steps are plain SGD. With momentum rho a gradient moves the model
(1 - rho^j) / (1 - rho) times, where j is the number of steps left, so u / lr is divided by the sum
of these instead of the number of steps. The control variates then stay averages of gradients:
divided by the steps they would be 1 / (1 - rho) times too large, and training would diverge.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import Tensors
from commonweal.task.task import Task
from commonweal.training.client import Client, learning_rate
from commonweal.training.objective import Objective, Proximal


@dataclass(frozen=True)
class Scaffold(Client):
    """loss(w_i) + <c - c_i, w_i>; then c_i <- c_i - c + u / (steps lr), c <- c + mean change

    The client keeps c_i, as long as the model, and sends twice as much as sgd.
    Its parameters are those of sgd; the optimizer must be sgd
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer != "sgd":
            raise ConfigError(
                f"scaffold optimizer = {self.optimizer!r}: its control variates are averages of "
                "gradients, which only sgd's steps reveal; take 'sgd'"
            )

    def init_shared(self, task: Task) -> Tensors:
        return {"c": torch.zeros(task.num_trainable)}

    def update_shared(self, shared: Tensors, replies: Tensors, clients: int) -> Tensors:
        # S/K times the cohort's mean change.
        return {"c": shared["c"] + replies["change"].sum(0) / clients}

    def init_client(self, task: Task, seed: int) -> Tensors:
        return {"c": torch.zeros(task.num_trainable)}

    def start(self, task: Task, message: Tensors, state: Tensors) -> Tensors:
        return {"w": message["w"], "correction": message["c"] - state["c"]}

    def objective(self, task: Task, message: Tensors) -> Objective:
        return Objective(proximal=(Proximal("w", linear="correction"),))

    def reply(
        self, task: Task, vectors: Tensors, message: Tensors, state: Tensors, steps: Tensor
    ) -> tuple[Tensors, Tensors]:
        n = task.num_trainable
        update = message["w"][:n] - vectors["w"][:n]
        rho = self.momentum
        # The sum over j = 1, ..., steps of (1 - rho^j) / (1 - rho).
        moves = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
        lr = learning_rate(self, int(message["round"]))
        # u / (moves lr) - c, without a vector in between.
        change = torch.addcmul(-message["c"], update, 1 / (moves * lr))
        return {"change": change}, {"c": state["c"] + change}


ENTRIES = {"scaffold": Scaffold}
