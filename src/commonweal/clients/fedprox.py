"""fedprox: local training with a penalty on the distance to the received model.

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from commonweal.clients.client import Client, at_least, squared_distance
from commonweal.task import Batch, Task
from commonweal.tensors import Tensors

__all__ = ["FedProx"]


@dataclass(frozen=True)
class FedProx(Client):
    """loss(w_i) + mu/2 |w_i - w|^2, w as received

    mu: the penalty; 0 is plain SGD. The others are those of sgd
    """

    takes_groups: ClassVar[bool] = True
    grid: ClassVar[Mapping[str, tuple[float | str, ...]]] = {"mu": (0.001, 0.01, 0.1, 1.0)}

    mu: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, mu=0)

    def loss(
        self,
        task: Task,
        params: Tensors,
        batch: Batch,
        message: Tensors,
        state: Tensors,
        noise: Tensor,
    ) -> tuple[Tensor, Tensors]:
        loss, buffers = task.batch_loss(params["w"], batch)
        penalty = self.mu / 2 * squared_distance(task, params["w"], message["w"])
        return loss + penalty, {"w": buffers}


ENTRIES = {"fedprox": FedProx}
