"""fedbabu: rounds train the body under a head that stays as it began; clients tune the head last.

Oh, Kim and Yun, FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR
2022. All clients share the random head, so that their bodies fit each other.
"""

from dataclasses import dataclass
from typing import Literal

from commonweal.clients.fine_tune import FineTune, Tuned, tuning_parameters
from commonweal.task.masks import body_mask, head_mask
from commonweal.task.task import Task
from commonweal.training.client import Client
from commonweal.training.objective import Phase


@dataclass(frozen=True)
class FedBABU(FineTune):
    """loss(body, head) in the body in every round; after the last one in the head, which is kept

    head: the names of the head's layers (none: the last linear layer)
    tune: what clients train after the last round, "head" or "all"
    The others are those of fine-tune (tune_epochs, tune_lr, ...)
    """

    head: tuple[str, ...] = ()
    tune: Literal["head", "all"] = "head"

    def check(self, task: Task, rounds: int) -> None:
        head_mask(task, self.head)

    def phases(self, task: Task) -> tuple[Phase, ...]:
        return (Phase(self.epochs, body_mask(task, self.head)),)

    @property
    def tuner(self) -> Client:
        if self.tune == "all":
            return super().tuner
        parameters = tuning_parameters(self, self.tune_epochs, self.tune_lr)
        return _HeadOnly(**parameters, model="own", flag="tuned", head=self.head)


@dataclass(frozen=True)
class _HeadOnly(Tuned):
    """Local SGD in the head."""

    head: tuple[str, ...] = ()

    def phases(self, task: Task) -> tuple[Phase, ...]:
        return (Phase(self.epochs, head_mask(task, self.head)),)


ENTRIES = {"fedbabu": FedBABU}
