"""lg-fedavg: private representation layers, and a shared head.

Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations,
2020. The mirror image of fedper: the lower layers never leave the client.
"""

from dataclasses import dataclass

from torch import Tensor

from commonweal.task.masks import body_mask, layer_mask
from commonweal.task.task import Task
from commonweal.training.client import Client


@dataclass(frozen=True)
class LGFedAvg(Client):
    """loss(lower, upper), trained at once; the upper layers' update is sent, the lower are kept

    lower: the names of the layers that stay with the client (none: all but the last linear layer)
    The others are those of sgd
    """

    personalizes = True

    lower: tuple[str, ...] = ()

    def private(self, task: Task) -> Tensor:
        if self.lower:
            return layer_mask(task, self.lower, "lower")
        return body_mask(task, parameter="lower")


ENTRIES = {"lg-fedavg": LGFedAvg}
