"""ditto: a personal model, kept near the global one by a penalty.

Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021. Both models
take each batch. Their losses have no variable in common, so one joint step is the authors' two.
"""

from dataclasses import dataclass
from typing import ClassVar

from commonweal.base.tensors import Tensors
from commonweal.clients._own_model import OwnModel
from commonweal.task.task import Task
from commonweal.training.client import Grid, at_least
from commonweal.training.objective import At, Objective, Proximal


@dataclass(frozen=True)
class Ditto(OwnModel):
    """loss(w_i) as in sgd, and loss(v) + lam/2 |v - w|^2 with w as received; the client keeps v

    lam: the penalty; 0 trains v on the client's samples alone, a large lam gives the global model
    v starts as the initial model. The others are those of sgd, for both models
    """

    # The authors let clients choose among 0.1, 1 and 2; under strong attacks 0.05, 0.1 and 0.2.
    grid: ClassVar[Grid] = {"lam": (0.05, 0.1, 0.2, 1.0, 2.0)}

    lam: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, lam=0)

    def objective(self, task: Task, message: Tensors) -> Objective:
        near = Proximal("own", self.lam, anchor="received")
        return Objective((At("w"), At("own")), proximal=(near,))


ENTRIES = {"ditto": Ditto}
