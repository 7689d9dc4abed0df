"""apfl: the shared model and the client's own, mixed in a proportion that each client learns.

Deng, Kamani and Mahdavi, Adaptive Personalized Federated Learning, 2020.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State, Tensors
from commonweal.training.client import Client, Line
from commonweal.training.task import Batch, Task

__all__ = ["APFL"]


@dataclass(frozen=True)
class APFL(Client):
    """loss(w_i) as in sgd; loss(a v + (1-a) w_i) in v, and in a within [0, 1], once per round

    alpha: the a that clients start with; adaptive: whether they learn it
    The others are those of sgd
    """

    personalizes: ClassVar[bool] = True
    takes_groups: ClassVar[bool] = True
    plain_steps: ClassVar[bool] = True

    alpha: float = 0.5
    adaptive: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.alpha <= 1:
            raise ConfigError(
                f"apfl alpha = {self.alpha}: the weight of the client's own model must be "
                "from 0 to 1"
            )

    def init_client(self, task: Task, seed: int) -> Tensors:
        return {"own": task.initial, "a": torch.tensor([self.alpha])}

    def start(self, task: Task, message: Tensors, state: Tensors) -> Tensors:
        return {"w": message["w"], "own": state["own"], "a": state["a"]}

    def line(self, task: Task, params: Tensors, message: Tensors, noise: Tensor) -> Line:
        return Line(params["a"], both=False, learns=self.adaptive)

    def move_point(self, params: Tensors, grad: Tensor, lr: float) -> Tensors:
        return {"a": (params["a"] - lr * grad).clamp(0, 1)}

    def loss(
        self,
        task: Task,
        params: Tensors,
        batch: Batch,
        message: Tensors,
        state: Tensors,
        noise: Tensor,
    ) -> tuple[Tensor, Tensors]:
        shared, buffers = task.batch_loss(params["w"], batch)
        # The mixture trains v and a only: w_i is trained as if there were no v.
        mixture = _mix(params["w"].detach(), params["own"], params["a"])
        mixed, own_buffers = task.batch_loss(mixture, batch)
        return shared + mixed, {"w": buffers, "own": own_buffers}

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
        a = params["a"]
        if self.adaptive and not opt_state:  # the first step of the round
            a = self.move_point(params, grads["a"], lr)["a"]
        model_grads = {"w": grads["w"], "own": grads["own"]}
        moved, opt_state = self.descend(params, model_grads, opt_state, lr)
        return moved | {"a": a}, opt_state | {"a": a}

    def reply(
        self, task: Task, params: Tensors, message: Tensors, state: Tensors, steps: Tensor
    ) -> tuple[Tensors, Tensors]:
        update = message["w"] - params["w"]
        return {"update": update}, {"own": params["own"], "a": params["a"]}

    def personal(self, task: Task, message: Tensors, state: Tensors) -> Tensor:
        return _mix(message["w"], state["own"], state["a"])

    def endpoints(self, task: Task, message: Tensors, state: Tensors) -> tuple[Tensor, Tensor]:
        return message["w"], state["own"]


def _mix(w: Tensor, own: Tensor, a: Tensor) -> Tensor:
    return a * own + (1 - a) * w


ENTRIES = {"apfl": APFL}
