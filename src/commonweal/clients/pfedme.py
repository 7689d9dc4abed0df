"""pfedme: personalisation by Moreau envelopes.

Dinh, Tran and Nguyen, Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020. The
server's w <- (1-b) w + b mean(w_i) is the server optimizer sgd with lr = b. The paper leaves open
where theta starts; as in the authors' code it is the received model. The theta of a client's last
visit would pull w back to where it was then.
"""

from dataclasses import dataclass

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import Tensors
from commonweal.clients._own_model import OwnModel
from commonweal.task.task import Task
from commonweal.training.objective import At, Objective, Proximal


@dataclass(frozen=True)
class PFedMe(OwnModel):
    """theta: inner steps on loss(theta) + lam/2 |theta - w_i|^2; then w_i -= lr lam (w_i - theta)

    lam: the penalty; lr lam above 1 overshoots
    inner: theta's steps per batch; inner_lr: their learning rate, with sgd's other parameters
    theta starts at the received model in every round. The others are those of sgd
    """

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

    def objective(self, task: Task, message: Tensors) -> Objective:
        return Objective(
            at=(At("own"),),
            proximal=(Proximal("own", self.lam, anchor="w"),),
            statistics=(("w", At("own")),),
            steps=self.inner,
            lr=self.inner_lr,
            after=self._outer_step,
        )

    def _outer_step(self, vectors: Tensors, lr: float) -> Tensors:
        return {"w": vectors["w"].lerp(vectors["own"], lr * self.lam)}


ENTRIES = {"pfedme": PFedMe}
