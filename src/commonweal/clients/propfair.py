"""propfair: proportional fairness by the objective of each client, -log(1 - loss / M).

Zhang et al., Proportional Fairness in Federated Learning, TMLR 2023, as its authors run it: every
batch's loss is transformed on the client, and the server averages by samples. The rule of the same
name is the server's form of AAggFF's Table 1.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import Tensors
from commonweal.task.task import Task
from commonweal.training.client import Client, Grid
from commonweal.training.objective import Objective, Reduction


@dataclass(frozen=True)
class PropFairClient(Client):
    """-log(1 - loss(w_i) / M) on every batch; loss(w_i) / M where the loss is above M - margin

    baseline: M, the largest acceptable loss (the authors' grid: 2, 3, 4, 5)
    margin: how far below M the logarithm ends; huber: the loss over margin, not over M, beyond it,
        so that the gradient does not jump down there
    The others are those of sgd. Gradients are 1 / (M - loss) times as large
    """

    grid: ClassVar[Grid] = {"baseline": (2.0, 3.0, 4.0, 5.0)}

    baseline: float = 2.0
    margin: float = 0.2
    huber: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.margin < self.baseline:
            raise ConfigError(
                f"propfair baseline = {self.baseline}, margin = {self.margin}: "
                "the margin must be above 0 and below the baseline"
            )

    def objective(self, task: Task, message: Tensors) -> Objective:
        return Objective(reduction=Reduction(self._value, self._derivative))

    def _value(self, losses: Tensor, weight: Tensor) -> Tensor:
        loss = (losses * weight).sum(-1)
        limit = self.baseline - self.margin
        within = -torch.log1p(-loss.clamp(max=limit) / self.baseline)
        beyond = loss / (self.margin if self.huber else self.baseline)
        return torch.where(loss > limit, beyond, within)

    def _derivative(self, losses: Tensor, weight: Tensor) -> Tensor:
        loss = (losses * weight).sum(-1, keepdim=True)
        limit = self.baseline - self.margin
        beyond = 1 / (self.margin if self.huber else self.baseline)
        within = 1 / (self.baseline - loss.clamp(max=limit))
        return weight * torch.where(loss > limit, beyond, within)


ENTRIES = {"propfair": PropFairClient}
