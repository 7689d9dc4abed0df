"""fedprox: local training with a penalty on the distance to the received model.

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.
"""

from dataclasses import dataclass
from typing import ClassVar

from commonweal.base.tensors import Tensors
from commonweal.task.task import Task
from commonweal.training.client import Client, Grid, at_least
from commonweal.training.objective import Objective, Proximal


@dataclass(frozen=True)
class FedProx(Client):
    """loss(w_i) + mu/2 |w_i - w|^2, w as received

    mu: the penalty; 0 is plain SGD. The others are those of sgd
    """

    grid: ClassVar[Grid] = {"mu": (0.001, 0.01, 0.1, 1.0)}

    mu: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, mu=0)

    def objective(self, task: Task, message: Tensors) -> Objective:
        return Objective(proximal=(Proximal("w", self.mu, anchor="received"),))


ENTRIES = {"fedprox": FedProx}
