"""apfl: the global model and the client's own, mixed in a proportion that each client learns.

Deng, Kamani and Mahdavi, Adaptive Personalized Federated Learning, 2020.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import Tensors
from commonweal.task.task import Task
from commonweal.task.uses import Uses, one_model
from commonweal.training.client import Client
from commonweal.training.objective import At, Between, Objective


@dataclass(frozen=True)
class APFL(Client):
    """loss(w_i) as in sgd; loss(a v + (1-a) w_i) in v, and in a within [0, 1], once per round

    alpha: the a that clients start with; adaptive: whether they learn it
    The others are those of sgd
    """

    personalizes = True

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

    def objective(self, task: Task, message: Tensors) -> Objective:
        # The mixture trains v and a only: w_i is trained as if there were no v.
        mixed = Between("w", "own", "a", learns=self.adaptive, first_trains=False)
        return Objective((At("w"), mixed))

    def reply(
        self, task: Task, vectors: Tensors, message: Tensors, state: Tensors, steps: Tensor
    ) -> tuple[Tensors, Tensors]:
        return {}, {"own": vectors["own"], "a": vectors["a"]}

    def uses(self, task: Task, message: Tensors, state: Tensors) -> Uses:
        a = state["a"]
        return one_model(a * state["own"] + (1 - a) * message["w"])

    def endpoints(self, task: Task, message: Tensors, state: Tensors) -> tuple[Tensor, Tensor]:
        return message["w"], state["own"]


ENTRIES = {"apfl": APFL}
