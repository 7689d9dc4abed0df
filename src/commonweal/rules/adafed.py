"""AdaFed: the direction along which larger losses decrease faster.

Hamidi, Yang, AdaFed: Fair Federated Learning via Adaptive Common Descent Direction, TMLR 2024.
Client k's loss decreases at the rate <u_k, D>, which is made proportional to f_k^gamma. The paper
finds D by Gram-Schmidt (eqs. 5, 6, 14); since the rates determine it, one linear solve gives the
same D in any order of clients. At a Pareto-stationary point no direction serves everyone: the
linear system is singular because the answer is 0, and the rule returns a direction of length 0.

Where the updates of many clients conflict, exact rates need large weights of both signs: what is
left of the updates is mostly noise, or too short to move the model (docs/results.md). The default
therefore adds a ridge to the linear system, so that rates hold approximately; every scale but
"bounded" is the published direction.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State
from commonweal.rules._lengths import as_long_as_the_mean
from commonweal.rules.rule import Decision, Kind, Need, Reports, Rule, required
from commonweal.rules.simplex import quadratic, solve

__all__ = ["AdaFed"]

STATIONARY = 1e-8  # squared length of the shortest mean of unit updates that counts as 0
MOST = 3.0  # the largest sum of absolute weights of the scale "bounded"
SINGULAR = (
    "adafed: the updates' Gram matrix is singular (equal or zero updates, or more clients than "
    "parameters): the rates hold in least squares only"
)


@dataclass(frozen=True)
class AdaFed(Rule):
    """weights ~ v, (G + ridge diag G) v = f^gamma, with the length of the mean update;
    other scales: weights = scale * v / <f^gamma, v>; may be negative, and do not sum to 1

    Args:
        gamma: how much faster larger losses decrease; 0 gives all clients the same rate.
        ridge: 0 makes the rates exact, larger values make the weights smaller and less
            often negative; by default 1 for the scale "bounded" and 0 for all others.
        scale: "bounded" takes the norm of the mean update, as far as the absolute weights
            sum to at most 3 (those of an average sum to 1); "mean" takes it always (and
            amplifies noise when gamma is below 1); "theorem" multiplies by min f^gamma (as
            Theorem 5.1 bounds the step), "largest" by max f^gamma (both vanish with the
            direction, and hardly move where the updates of many clients conflict); "none"
            is as printed (a step that grows as 1 / f^gamma).
        loss: "before" local training, as for all rules, or "after" it, as in the paper's
            Algorithm 1.
    """

    gamma: float = 5.0
    scale: Literal["bounded", "mean", "largest", "theorem", "none"] = "bounded"
    loss: Literal["before", "after"] = "before"
    ridge: float | None = None

    kind: ClassVar[Kind] = Kind(
        "direction", "f^gamma, the rate of descent", "minimum norm for given rates"
    )
    grid: ClassVar[Mapping[str, tuple[float | str, ...]]] = {
        "gamma": (0.0, 0.01, 0.1, 1.0, 5.0, 10.0)
    }
    mixing: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.gamma < 0:
            raise ConfigError(f"adafed gamma = {self.gamma}: it must be at least 0")
        if self.ridge is not None and self.ridge < 0:
            raise ConfigError(f"adafed ridge = {self.ridge}: it must be at least 0")

    @property
    def needs(self) -> frozenset[Need]:
        if self.loss == "after":
            return super().needs | {"update", "loss_after"}
        return super().needs | {"update"}

    def __call__(self, reports: Reports, state: State) -> Decision:
        stationary = _stationary(reports)
        if stationary is not None:
            return Decision(stationary, state)
        losses = reports.losses
        if self.loss == "after":
            losses = required(reports.losses_after, "losses after local training")
        rate = losses.double().clamp(min=0) ** self.gamma
        ridge = (1.0 if self.scale == "bounded" else 0.0) if self.ridge is None else self.ridge
        v, singular = solve(reports.gram + ridge * reports.gram.diagonal().diag(), rate)
        total = rate @ v
        # If all updates or all losses are zero, any weights give the same step.
        weights = v / total if total > 0 else torch.full_like(v, 1 / len(v))
        warnings = (SINGULAR,) if singular else ()
        return Decision(self._scaled(weights, rate, reports.gram), state, warnings)

    def _scaled(self, weights: Tensor, rate: Tensor, gram: Tensor) -> Tensor:
        if self.scale == "none":
            return weights
        if self.scale == "largest":
            return weights * rate.max() if rate.max() > 0 else weights
        if self.scale == "theorem":
            positive = rate[rate > 0]
            return weights * positive.min() if len(positive) else weights
        weights = as_long_as_the_mean(weights, gram)
        if self.scale == "mean":
            return weights
        return weights / max(1.0, float(weights.abs().sum()) / MOST)


def _stationary(reports: Reports) -> Tensor | None:
    """Return the weights (S,) of a convex combination of unit updates of length 0, if there is one.

    A client with an update of 0 is no part of it: the others can still descend. Weights are in
    units of the shortest update, so that what rounding leaves of the direction is short as well.
    """
    moving = reports.norms > 0
    norms = reports.norms[moving]
    cosines = reports.gram[moving][:, moving] / torch.outer(norms, norms)
    # |lam|^2 >= 1 / S: a short combination has a small eigenvalue.
    if len(norms) < 2 or torch.linalg.eigvalsh(cosines)[0] > STATIONARY * len(norms):
        return None
    lam = quadratic(cosines, torch.zeros_like(norms))
    if lam @ cosines @ lam > STATIONARY:
        return None
    weights = torch.zeros_like(reports.norms)
    weights[moving] = lam * norms.min() / norms
    return weights


ENTRIES = {"adafed": AdaFed}
