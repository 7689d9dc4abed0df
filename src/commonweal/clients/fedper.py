"""fedper: a body for everyone, a head for each.

Arivazhagan et al., Federated Learning with Personalization Layers, 2019. The head never leaves the client: the reply
has the body's coordinates only. What a client reports (loss and score) is of the received body under its own head.
"""

from dataclasses import dataclass

from torch import Tensor

from commonweal.clients._parts import head, under
from commonweal.local import Local, Tensors
from commonweal.task import Task

__all__ = ["FedPer"]


@dataclass(frozen=True)
class FedPer(Local):
    """loss(body, head) in both at once; the update of the body travels, the head is kept

    head: the names of the layers that stay with the client (none: the last linear layer)
    A client that never took part has the server's head, which nobody trains. The others are those of sgd
    """

    head: tuple[str, ...] = ()

    def private(self, task: Task) -> Tensor:
        return under(task, self.head or head(task), "head")

    def personal(self, task: Task, seen: Tensors, kept: Tensors) -> Tensor:
        return self.start(task, seen, kept)["w"]
