"""FedMGDA: the common direction of descent, along which no reporter's loss rises.

Hu et al., Federated Learning Meets Multi-objective Optimization, IEEE TNSE 2022. The minimum-norm point of the
updates' convex hull. FedMGDA+ first gives every update unit length and stays near the prior; the server's lr is then
the step's length.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.errors import ConfigError
from commonweal.rule import Kind, Prior, Reports, Stateless, shares
from commonweal.simplex import quadratic

__all__ = ["fedmgda", "fedmgda_plus"]

KIND = Kind("direction", "none: updates only", "minimum norm in the convex hull of updates")


@dataclass(frozen=True)
class FedMGDA(Stateless):
    epsilon: float
    normalise: bool
    prior: Prior

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon <= 1:
            raise ConfigError(f"fedmgda epsilon = {self.epsilon}: it must lie between 0 (the prior) and 1 (free)")

    def weigh(self, reports: Reports) -> Tensor:
        prior, lengths = shares(reports, self.prior), reports.lengths
        # A zero update has no direction: it keeps its length, and whatever weight it gets moves nothing.
        unit = torch.where(lengths > 0, lengths, 1) if self.normalise else torch.ones_like(lengths)
        gram = reports.gram / torch.outer(unit, unit)
        lam = quadratic(gram, torch.zeros_like(prior), prior - self.epsilon, prior + self.epsilon)
        return lam / unit


def fedmgda(epsilon: float = 1.0, normalise: bool = False, prior: Prior = "uniform") -> FedMGDA:
    """weights = argmin lam' G lam over the simplex with |lam_i - prior_i| <= epsilon

    epsilon: 1 is free (plain MGDA), 0 is the prior (averaging); normalise: updates of unit length
    prior: "uniform" (as published code) or "sizes" (n_i)
    """
    return FedMGDA(epsilon, normalise, prior)


def fedmgda_plus(epsilon: float = 0.1, normalise: bool = True, prior: Prior = "uniform") -> FedMGDA:
    """weights_i = lam_i / |u_i|, lam = argmin lam' G lam of unit updates, |lam_i - prior_i| <= epsilon; sum is not 1

    epsilon: 1 is free (plain MGDA), 0 is the prior (averaging); normalise: updates of unit length
    prior: "uniform" (as published code) or "sizes" (n_i)
    """
    return FedMGDA(epsilon, normalise, prior)
