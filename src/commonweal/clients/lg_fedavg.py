"""lg-fedavg: each client sees in its own way, and all decide alike.

Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations, 2020. The mirror
image of fedper: the lower layers never leave the client, the upper ones are averaged.
"""

from dataclasses import dataclass

from torch import Tensor

from commonweal.clients._parts import head, under
from commonweal.local import Local, Tensors
from commonweal.task import Task

__all__ = ["LGFedAvg"]


@dataclass(frozen=True)
class LGFedAvg(Local):
    """loss(lower, upper) in both at once; the update of the upper layers travels, the lower ones are kept

    lower: the names of the layers that stay with the client (none: all but the last linear layer)
    The others are those of sgd
    """

    lower: tuple[str, ...] = ()

    def private(self, task: Task) -> Tensor:
        return under(task, self.lower, "lower") if self.lower else ~under(task, head(task), "lower")

    def personal(self, task: Task, seen: Tensors, kept: Tensors) -> Tensor:
        return self.start(task, seen, kept)["w"]
