"""AdaFed: the direction along which clients that suffer more descend faster.

Hamidi, Yang, AdaFed: Fair Federated Learning via Adaptive Common Descent Direction, TMLR 2024. Client k's loss falls at
the rate <u_k, D>, made proportional to f_k^gamma. The paper reaches D by Gram-Schmidt (eqs. 5, 6, 14); the rates
determine it, so one linear solve gives the same D in any order of clients.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from commonweal.errors import ConfigError
from commonweal.rule import Kind, Reports, State
from commonweal.simplex import solve

__all__ = ["AdaFed"]

KIND = Kind("direction", "f^gamma, the rate of descent", "minimum norm for given rates")


@dataclass(frozen=True)
class AdaFed:
    """weights = scale * v / <f^gamma, v>, G v = f^gamma; may be negative, and do not sum to 1

    gamma: how much faster the suffering descend; 0 gives all the same rate
    scale: "theorem" multiplies by min f^gamma (as Theorem 5.1 bounds the step), "mean" takes the length of the mean
    update, "none" is as printed (a step that grows as 1 / f^gamma)
    loss: "before" local training, as for all rules, or "after" it, as the paper's Algorithm 1 has it
    """

    gamma: float = 1.0
    scale: Literal["theorem", "mean", "none"] = "theorem"
    loss: Literal["before", "after"] = "before"

    def __post_init__(self) -> None:
        if self.gamma < 0:
            raise ConfigError(f"adafed gamma = {self.gamma}: it must be at least 0")

    @property
    def needs_after(self) -> bool:
        return self.loss == "after"

    def init(self, clients: int) -> State:
        return {"singular": torch.tensor(False)}

    def __call__(self, reports: Reports, state: State) -> tuple[Tensor, State]:
        losses = reports.after if self.loss == "after" else reports.losses
        if losses is None:
            raise ConfigError("adafed with loss = 'after' needs the losses after local training in its reports")
        rate = losses.double() ** self.gamma
        v, singular = solve(reports.gram, rate)
        total = rate @ v
        # Nothing moves, or nothing needs to: all weights give the same step.
        weights = v / total if total > 0 else torch.full_like(v, 1 / len(v))
        return self._scaled(weights, rate, reports), {"singular": torch.tensor(bool(singular))}

    def _scaled(self, weights: Tensor, rate: Tensor, reports: Reports) -> Tensor:
        if self.scale == "theorem":
            return weights * (rate[rate > 0].min() if (rate > 0).any() else 1.0)
        length = (weights @ reports.gram @ weights).clamp(min=0).sqrt()
        if self.scale == "none" or length == 0:
            return weights
        return weights * (reports.gram.mean().clamp(min=0).sqrt() / length)

    def notes(self, reports: Reports, state: State) -> list[str]:
        if not state["singular"]:
            return []
        return [
            "adafed: the updates' Gram matrix is singular (equal or zero updates): rates hold in least squares only"
        ]
