"""fedprox: local training on a leash to the received model.

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.
"""

from dataclasses import dataclass

from torch import Tensor

from commonweal.local import Local, Tensors, at_least, distance
from commonweal.task import Batch, Task

__all__ = ["FedProx"]


@dataclass(frozen=True)
class FedProx(Local):
    """loss(w_i) + mu/2 |w_i - w|^2, w as received

    mu: the leash; 0 is plain SGD. The others are those of sgd
    """

    mu: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, mu=0)

    def loss(
        self, task: Task, v: Tensors, batch: Batch, seen: Tensors, kept: Tensors, u: Tensor
    ) -> tuple[Tensor, Tensor]:
        loss, statistics = task.loss(v["w"], batch)
        return loss + self.mu / 2 * distance(task, v["w"], seen["w"]), statistics
