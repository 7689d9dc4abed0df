"""FedMDFG: a common descent direction that also reduces differences between losses.

Pan et al., FedMDFG: Federated Learning with Multi-Gradient Descent and Fair Guidance, AAAI 2023.
Where the losses are too unequal, the gradient of their angle to equal losses joins the updates.
The paper's line search over step lengths needs further exchanges, and is left out.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from commonweal.base.arguments import check_bounds
from commonweal.rules._lengths import as_long_as_the_mean
from commonweal.rules.rule import RATIOS, Kind, Reports, Stateless
from commonweal.rules.simplex import quadratic


@dataclass(frozen=True)
class FedMDFG(Stateless):
    """weights = lam_1..S + lam_(S+1) h, the minimum norm in the convex hull of the u_i and h @ u
    (u_i scaled to their mean length),
    h the gradient of the angle between f and equal losses; may be negative, and do not sum to 1

    Args:
        theta: the angle in degrees above which h joins.
        scale: "mean" takes the norm of the mean update, "none" leaves the length of the
            direction.
    """

    theta: float = 11.25
    scale: Literal["mean", "none"] = "mean"

    kind = Kind(
        "direction", "angle of f to equal losses", "minimum norm in the convex hull of updates"
    )
    needs = RATIOS | {"update"}
    mixing = False

    def __post_init__(self) -> None:
        check_bounds("fedmdfg theta", self.theta, least=0, most=90)

    def weigh(self, reports: Reports) -> Tensor:
        # Updates are scaled to their mean length. A zero update has no direction: it stays 0.
        lengths = torch.where(reports.norms > 0, reports.norms / reports.norms.mean(), 1.0)
        gram = reports.gram / torch.outer(lengths, lengths)
        vectors = torch.eye(len(gram), dtype=torch.float64)  # rows: combinations of updates
        guidance = self.guidance(reports.losses.double())
        if guidance is not None:
            vectors = torch.cat([vectors, guidance[None]])
        lam = quadratic(vectors @ gram @ vectors.T, torch.zeros(len(vectors), dtype=torch.float64))
        weights = lam @ vectors / lengths
        if self.scale == "none":
            return weights
        return as_long_as_the_mean(weights, reports.gram)

    def guidance(self, losses: Tensor) -> Tensor | None:
        """The unit gradient (S,) of the angle to equal losses, where it exceeds theta."""
        norm = losses.norm()
        if norm == 0:
            return None
        equal = torch.full_like(losses, 1 / math.sqrt(len(losses)))
        unit = losses / norm
        gradient: Tensor = (equal @ unit) * unit - equal
        sine = float(gradient.norm())  # losses are at least 0, so that the angle is below 90
        if sine <= max(math.sin(math.radians(self.theta)), 1e-9):
            return None
        return gradient / sine


ENTRIES = {"fedmdfg": FedMDFG}
