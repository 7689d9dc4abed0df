"""superfed-mm: a personal model joined to the shared one by a line of low loss, a random point of it a batch.

Hahn, Jeong and Lee, Connecting Low-Loss Subspace for Personalized Federated Learning, KDD 2022; Hahn's thesis, ch. II.
"""

from dataclasses import dataclass

from torch import Tensor

from commonweal.clients._superfed import SuPerFed
from commonweal.task import Task

__all__ = ["SuPerFedMM"]


@dataclass(frozen=True)
class SuPerFedMM(SuPerFed):
    """loss((1-m) w_i + m v) + mu/2 |w_i - w|^2 + nu cos^2(w_i, v) in w_i and v, m ~ U(0, 1) a batch

    begin: the rounds before v joins (m = 0 and only w_i is trained), as a share below 1 of all or as a number
    mu: the leash to the received model; nu: how orthogonal the two are held
    m: the point of the segment that the client is served with. The others are those of sgd
    """

    def draws(self, task: Task) -> int:
        return 1

    def mix(self, task: Task, u: Tensor) -> Tensor:
        return u[0]
