"""FedMGDA: the common descent direction of minimum norm, along which no loss increases.

Hu et al., Federated Learning Meets Multi-objective Optimization, IEEE TNSE 2022. The direction is
the minimum-norm point of the convex hull of the updates. It is ruled by the shortest updates, those
of clients that fit already: where clients differ, plain FedMGDA serves the worst one less well than
averaging does, at any epsilon or server lr (docs/results.md). `fedmgda+` is its authors' cure.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.base.arguments import check_bounds
from commonweal.rules.rule import Grid, Kind, Prior, Reports, Stateless, prior_weights
from commonweal.rules.simplex import quadratic


@dataclass(frozen=True)
class FedMGDA(Stateless):
    """weights = argmin lam' G lam over the simplex with |lam_i - prior_i| <= epsilon

    Args:
        epsilon: 1 is plain MGDA, 0 gives the prior (averaging).
        normalise: scale updates to unit norm.
        prior: "uniform" (as in the published code) or "sizes" (n_i).
    """

    epsilon: float = 1.0
    normalise: bool = False
    prior: Prior = "uniform"

    kind = Kind("direction", "none: updates only", "minimum norm in the convex hull of updates")
    needs = frozenset({"size", "update"})

    grid = Grid(epsilon=(0.01, 0.05, 0.1, 0.5, 1.0))

    def __post_init__(self) -> None:
        check_bounds("fedmgda epsilon", self.epsilon, least=0, most=1)

    @property
    def mixing(self) -> bool:
        return not self.normalise

    def weigh(self, reports: Reports) -> Tensor:
        prior = prior_weights(reports, self.prior)
        scale = torch.ones_like(prior)
        if self.normalise:
            # A zero update has no direction: it keeps its norm, and its weight moves nothing.
            scale = torch.where(reports.norms > 0, reports.norms, 1)
        gram = reports.gram / torch.outer(scale, scale)
        lower = prior - self.epsilon
        upper = prior + self.epsilon
        return quadratic(gram, torch.zeros_like(prior), lower, upper) / scale


ENTRIES = {"fedmgda": FedMGDA}
