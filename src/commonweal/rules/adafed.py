"""AdaFed: the direction along which larger losses decrease faster.

Hamidi, Yang, AdaFed: Fair Federated Learning via Adaptive Common Descent Direction, TMLR 2024.
Client k's loss decreases at the rate <u_k, D>, which is made proportional to f_k^gamma. The paper
finds D by Gram-Schmidt (eqs. 5, 6, 14); since the rates determine it, one linear solve gives the
same D in any order of clients.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from commonweal.errors import ConfigError
from commonweal.rules._simplex import solve
from commonweal.rules.rule import Decision, Kind, Need, Reports, Rule, required
from commonweal.tensors import State

__all__ = ["AdaFed"]

SINGULAR = (
    "adafed: the updates' Gram matrix is singular (equal or zero updates): "
    "the rates hold in least squares only"
)


@dataclass(frozen=True)
class AdaFed(Rule):
    """weights = scale * v / <f^gamma, v>, G v = f^gamma; may be negative, and do not sum to 1

    gamma: how much faster larger losses decrease; 0 gives all clients the same rate
    scale: "theorem" multiplies by min f^gamma (as Theorem 5.1 bounds the step), "mean" takes the
    norm of the mean update, "none" is as printed (a step that grows as 1 / f^gamma)
    loss: "before" local training, as for all rules, or "after" it, as in the paper's Algorithm 1
    """

    gamma: float = 1.0
    scale: Literal["theorem", "mean", "none"] = "theorem"
    loss: Literal["before", "after"] = "before"

    kind: ClassVar[Kind] = Kind(
        "direction", "f^gamma, the rate of descent", "minimum norm for given rates"
    )
    mixing: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.gamma < 0:
            raise ConfigError(f"adafed gamma = {self.gamma}: it must be at least 0")

    @property
    def needs(self) -> frozenset[Need]:
        if self.loss == "after":
            return super().needs | {"update", "loss_after"}
        return super().needs | {"update"}

    def __call__(self, reports: Reports, state: State) -> Decision:
        losses = reports.losses
        if self.loss == "after":
            losses = required(reports.losses_after, "losses after local training")
        rate = losses.double() ** self.gamma
        v, singular = solve(reports.gram, rate)
        total = rate @ v
        # If all updates or all losses are zero, any weights give the same step.
        weights = v / total if total > 0 else torch.full_like(v, 1 / len(v))
        warnings = (SINGULAR,) if singular else ()
        return Decision(self._scaled(weights, rate, reports.gram), state, warnings)

    def _scaled(self, weights: Tensor, rate: Tensor, gram: Tensor) -> Tensor:
        if self.scale == "none":
            return weights
        if self.scale == "theorem":
            positive = rate[rate > 0]
            return weights * positive.min() if len(positive) else weights
        norm = (weights @ gram @ weights).clamp(min=0).sqrt()
        if norm == 0:
            return weights
        return weights * (gram.mean().clamp(min=0).sqrt() / norm)


ENTRIES = {"adafed": AdaFed}
