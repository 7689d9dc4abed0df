"""fedrep: in every round first the private head is trained, then the shared body under it.

Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021. As
fedper, but in turns, so that the body is not trained under a head that does not fit yet.
"""

from dataclasses import dataclass

from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.task.masks import body_mask, head_mask
from commonweal.task.task import Task
from commonweal.training.client import Client
from commonweal.training.objective import Phase


@dataclass(frozen=True)
class FedRep(Client):
    """loss(body, head), trained in the head for head_epochs, then in the body for epochs

    head_epochs: epochs of the head; epochs: epochs of the body; `steps` cannot be set
    head: the names of the layers that stay with the client (none: the last linear layer)
    The others are those of sgd
    """

    personalizes = True

    head_epochs: int = 10
    head: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None or self.head_epochs < 1:
            raise ConfigError(
                f"fedrep steps = {self.steps}, head_epochs = {self.head_epochs}: it counts in "
                "epochs; give a head_epochs of 1 or more, and no steps"
            )

    def private(self, task: Task) -> Tensor:
        return head_mask(task, self.head)

    def phases(self, task: Task) -> tuple[Phase, ...]:
        head = Phase(self.head_epochs, head_mask(task, self.head))
        return head, Phase(self.epochs, body_mask(task, self.head))


ENTRIES = {"fedrep": FedRep}
