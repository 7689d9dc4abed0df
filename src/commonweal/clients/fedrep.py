"""fedrep: in every round first the private head is trained, then the shared body under it.

Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021. As
fedper, but in turns, so that the body is not trained under a head that does not fit yet.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State, Tensors
from commonweal.training.client import Client
from commonweal.training.masks import head_layer, layer_mask
from commonweal.training.task import Task

__all__ = ["FedRep"]


@dataclass(frozen=True)
class FedRep(Client):
    """loss(body, head), trained in the head for head_epochs, then in the body for epochs

    head_epochs: epochs of the head; epochs: epochs of the body; `steps` cannot be set
    head: the names of the layers that stay with the client (none: the last linear layer)
    The others are those of sgd
    """

    personalizes: ClassVar[bool] = True
    plain_steps: ClassVar[bool] = True

    head_epochs: int = 10
    head: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None or self.head_epochs < 1:
            raise ConfigError(
                f"fedrep steps = {self.steps}, head_epochs = {self.head_epochs}: it counts in "
                "epochs; give a head_epochs of 1 or more, and no steps"
            )

    @property
    def total_epochs(self) -> float:
        return self.head_epochs + self.epochs

    def private_mask(self, task: Task) -> Tensor:
        return layer_mask(task, self.head or head_layer(task), "head")

    def active(self, task: Task, epoch: Tensor) -> Tensor:
        active: Tensor = (epoch < self.head_epochs) == self.private_mask(task).to(epoch.device)
        return active

    def step(
        self,
        task: Task,
        params: Tensors,
        grads: Tensors,
        opt_state: State,
        lr: float,
        epoch: Tensor,
        last: bool,
    ) -> tuple[Tensors, State]:
        head_turn = epoch < self.head_epochs
        if opt_state:
            # The body starts with an optimizer of its own.
            opt_state = _scaled(opt_state["inner"], opt_state["head_turn"] == head_turn)
        moved, opt_state = super().step(task, params, grads, opt_state, lr, epoch, last)
        return moved, {"inner": opt_state, "head_turn": head_turn}


def _scaled(state: State, factor: Tensor) -> State:
    """Multiply every tensor of an optimizer's state."""
    scaled: State = {}
    for name, value in state.items():
        scaled[name] = _scaled(value, factor) if isinstance(value, dict) else value * factor
    return scaled


ENTRIES = {"fedrep": FedRep}
