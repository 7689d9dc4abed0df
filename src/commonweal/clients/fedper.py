"""fedper: a shared body, and a private head per client.

Arivazhagan et al., Federated Learning with Personalization Layers, 2019. The head never leaves the
client. Reported losses and scores are those of the received body with the client's own head.
"""

from dataclasses import dataclass

from torch import Tensor

from commonweal.task.masks import head_mask
from commonweal.task.task import Task
from commonweal.training.client import Client


@dataclass(frozen=True)
class FedPer(Client):
    """loss(body, head), both trained at once; the body's update is sent, the head is kept

    head: the names of the layers that stay with the client (none: the last linear layer)
    A client that never took part has the initial head. The others are those of sgd
    """

    personalizes = True

    head: tuple[str, ...] = ()

    def private(self, task: Task) -> Tensor:
        return head_mask(task, self.head)


ENTRIES = {"fedper": FedPer}
