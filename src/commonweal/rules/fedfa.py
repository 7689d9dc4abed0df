"""FedFA: clients that are served badly and those that take part often count more.

Huang et al., Fairness and Accuracy in Federated Learning, 2020. Its double momentum is the server's (0.5) and the
clients' (0.9) own momentum.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.errors import ConfigError
from commonweal.rule import Kind, Reports, State

__all__ = ["FedFA"]

KIND = Kind("reweighting", "-log2 score, frequency", "convex combination")

TINY = 1e-6  # scores of 0 and 1 stay finite


@dataclass(frozen=True)
class FedFA:
    """weights_i = alpha a_i + beta b_i (normalised), a_i ~ -log2(score_i), b_i ~ -log2(1 - c_i / sum c)

    alpha: what the score counts; beta: what taking part counts (c_i: how often client i did)
    """

    alpha: float = 0.5
    beta: float = 0.5

    def __post_init__(self) -> None:
        if self.alpha < 0 or self.beta < 0 or self.alpha + self.beta == 0:
            raise ConfigError(f"fedfa alpha = {self.alpha}, beta = {self.beta}: both at least 0, and not both 0")

    def init(self, clients: int) -> State:
        return {"taken": torch.zeros(clients, dtype=torch.float64)}

    def __call__(self, reports: Reports, state: State) -> tuple[Tensor, State]:
        taken = state["taken"].index_add(0, reports.ids, torch.ones(len(reports.ids), dtype=torch.float64))
        score = reports.scores.double()
        score = score.nan_to_num(nan=float(score.nanmean().nan_to_num(nan=0.5)))  # undefined: as the others
        accuracy = _normalised(-score.clamp(TINY, 1 - TINY).log2())
        frequency = _normalised(-(1 - taken[reports.ids] / taken.sum()).clamp(min=TINY).log2())
        return _normalised(self.alpha * accuracy + self.beta * frequency), {"taken": taken}


def _normalised(values: Tensor) -> Tensor:
    return values / values.sum()
