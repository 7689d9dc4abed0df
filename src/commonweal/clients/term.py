"""term: a tilt of the rows of a batch, so that the client's hardest rows count more.

Li et al., Tilted Empirical Risk Minimization, ICLR 2021: the sample-level tilt of its hierarchical
objective. The rule of the same name is the tilt of clients; together they are both levels.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from commonweal.base.tensors import Tensors
from commonweal.training.client import Client
from commonweal.training.task import Batch, Task

__all__ = ["TERMClient"]


@dataclass(frozen=True)
class TERMClient(Client):
    """1/t log mean_j exp(t loss_j(w_i)) over the rows j of a batch

    t: the tilt; above 0 hard rows count more, below 0 less (outliers, wrong labels), 0 is sgd
    The others are those of sgd
    """

    plain_steps: ClassVar[bool] = True

    t: float = 1.0

    def row_factors(self, losses: Tensor, weight: Tensor) -> Tensor:
        if self.t == 0:
            return weight
        return (self.t * losses + weight.log()).softmax(-1)

    def loss(
        self,
        task: Task,
        params: Tensors,
        batch: Batch,
        message: Tensors,
        state: Tensors,
        noise: Tensor,
    ) -> tuple[Tensor, Tensors]:
        losses, buffers = task.row_losses(params["w"], batch)
        if self.t == 0:
            return (losses * batch.weight).sum(), {"w": buffers}
        tilted = (self.t * losses + batch.weight.log()).logsumexp(-1) / self.t
        return tilted, {"w": buffers}


ENTRIES = {"term": TERMClient}
