"""scaffold: every client corrects its steps by how its gradients differ from everyone's.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020 (option II).
The paper's local steps are plain SGD. With momentum rho a gradient moves the model (1 - rho^j) / (1 - rho) times, j the
steps that are left, so that u / lr is divided by the sum of these instead of by the number of steps: the variates stay
averages of gradients (dividing by the steps would make them 1 / (1 - rho) times too large, and the run diverge).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.local import Local, Tensors
from commonweal.task import Batch, Task

__all__ = ["Scaffold"]


@dataclass(frozen=True)
class Scaffold(Local):
    """loss(w_i) + <c - c_i, w_i>; then c_i <- c_i - c + u / (steps lr), and the server's c moves by the mean change

    It keeps c_i, as long as the model, and sends twice as much as sgd. Its parameters are those of sgd
    """

    def share(self, task: Task) -> Tensors:
        return {"c": torch.zeros(task.trained)}

    def keep(self, task: Task, seed: int) -> Tensors:
        return {"c": torch.zeros(task.trained)}

    def loss(
        self, task: Task, v: Tensors, batch: Batch, seen: Tensors, kept: Tensors, u: Tensor
    ) -> tuple[Tensor, Tensor]:
        loss, statistics = task.loss(v["w"], batch)
        return loss + ((seen["c"] - kept["c"]) * task.moving(v["w"])).sum(), statistics

    def reply(self, task: Task, v: Tensors, seen: Tensors, kept: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        update = seen["w"] - v["w"]
        rho = self.momentum
        moves = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)  # sum over j of (1 - rho^j) / (1 - rho)
        change = update[: task.trained] / (moves * self.rate(int(seen["round"]))) - seen["c"]
        return {"update": update, "change": change}, {"c": kept["c"] + change}

    def absorb(self, shared: Tensors, replies: Tensors, clients: int) -> Tensors:
        return {"c": shared["c"] + replies["change"].sum(0) / clients}  # S/K of the cohort's mean
