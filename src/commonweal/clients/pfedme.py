"""pfedme: personalisation by Moreau envelopes.

Dinh, Tran and Nguyen, Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020. The
server's w <- (1-b) w + b mean(w_i) is the server optimizer sgd with lr = b. The paper leaves open
where theta starts; as in the authors' code it is the received model. The theta of a client's last
visit would pull w back to where it was then.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State, Tensors
from commonweal.clients._own_model import OwnModel
from commonweal.training.client import Term
from commonweal.training.task import Batch, Task

__all__ = ["PFedMe"]


@dataclass(frozen=True)
class PFedMe(OwnModel):
    """theta: inner steps on loss(theta) + lam/2 |theta - w_i|^2; then w_i -= lr lam (w_i - theta)

    lam: the penalty; lr lam above 1 overshoots
    inner: theta's steps per batch; inner_lr: their learning rate, with sgd's other parameters
    theta starts at the received model in every round. The others are those of sgd
    """

    takes_groups: ClassVar[bool] = True
    plain_steps: ClassVar[bool] = True

    lam: float = 15.0
    inner: int = 5
    inner_lr: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner < 1 or self.inner_lr <= 0 or self.lam <= 0:
            values = f"inner = {self.inner}, inner_lr = {self.inner_lr}, lam = {self.lam}"
            raise ConfigError(f"pfedme {values}: all must be above 0")

    def start(self, task: Task, message: Tensors, state: Tensors) -> Tensors:
        return {"w": message["w"], "own": message["w"]}

    @property
    def steps_per_batch(self) -> int:
        return self.inner

    def inner_rate(self, lr: float) -> float:
        return self.inner_lr

    def after_batch(self, params: Tensors, lr: float) -> Tensors:
        return {"w": params["w"].lerp(params["own"], lr * self.lam)}

    def terms(self, params: Tensors, message: Tensors, state: Tensors) -> dict[str, Term]:
        return {"own": Term(self.lam, anchor=params["w"])}

    def loss(
        self,
        task: Task,
        params: Tensors,
        batch: Batch,
        message: Tensors,
        state: Tensors,
        noise: Tensor,
    ) -> tuple[Tensor, Tensors]:
        loss, buffers = super().loss(task, params, batch, message, state, noise)
        return loss, {"w": buffers["own"], "own": buffers["own"]}

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
        own_grad = {"own": grads["own"]}
        moved, opt_state = self.descend(params, own_grad, opt_state, self.inner_rate(lr))
        return moved | (self.after_batch(params | moved, lr) if last else {}), opt_state


ENTRIES = {"pfedme": PFedMe}
