"""term: a tilt of the samples of a batch, so that the client's hardest samples count more.

Li et al., Tilted Empirical Risk Minimization, ICLR 2021: the sample-level tilt of its hierarchical
objective. The rule of the same name is the tilt of clients; together they are both levels.
"""

from dataclasses import dataclass

from torch import Tensor

from commonweal.base.tensors import Tensors
from commonweal.task.task import Task
from commonweal.training.client import Client
from commonweal.training.objective import MEAN, Objective, Reduction


@dataclass(frozen=True)
class TERMClient(Client):
    """1/t log mean_j exp(t loss_j(w_i)) over the samples j of a batch

    t: the tilt; above 0 hard samples count more, below 0 less (outliers, wrong labels), 0 is sgd
    The others are those of sgd
    """

    t: float = 1.0

    def objective(self, task: Task, message: Tensors) -> Objective:
        return Objective(reduction=MEAN if self.t == 0 else Reduction(self._tilted, self._softmax))

    def _tilted(self, losses: Tensor, weight: Tensor) -> Tensor:
        return (self.t * losses + weight.log()).logsumexp(-1) / self.t

    def _softmax(self, losses: Tensor, weight: Tensor) -> Tensor:
        return (self.t * losses + weight.log()).softmax(-1)


ENTRIES = {"term": TERMClient}
