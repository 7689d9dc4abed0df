"""superfed-lm: a personal model joined to the shared one by a line of low loss, a random mixture a layer and batch.

Hahn, Jeong and Lee, Connecting Low-Loss Subspace for Personalized Federated Learning, KDD 2022; Hahn's thesis, ch. II.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.clients._superfed import SuPerFed
from commonweal.task import Task

__all__ = ["SuPerFedLM"]


@dataclass(frozen=True)
class SuPerFedLM(SuPerFed):
    """loss((1-m) w_i + m v) + mu/2 |w_i - w|^2 + nu cos^2(w_i, v) in w_i and v, m ~ U(0, 1) for each layer and batch

    begin: the rounds before v joins (m = 0 and only w_i is trained), as a share below 1 of all or as a number
    mu: the leash to the received model; nu: how orthogonal the two are held
    m: the point of the segment that the client is served with. The others are those of sgd
    """

    def draws(self, task: Task) -> int:
        return max(task.layers) + 1

    def mix(self, task: Task, u: Tensor) -> Tensor:
        # One value after the other: to pick u by coordinate takes many times as long under vmap.
        return torch.cat([u[i].expand(n) for i, n in zip(task.layers, task.sizes, strict=True)])
