"""FedFV: removes conflicts between updates by projections before averaging them.

Wang et al., Federated Learning with Fair Averaging, IJCAI 2021, within a round (tau = 0). Conflicts
with clients of earlier rounds (tau > 0) would need their updates, and are left out.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.base.arguments import check_bounds
from commonweal.base.shares import product
from commonweal.rules._lengths import as_long_as_the_mean
from commonweal.rules.rule import Grid, Kind, Reports, Stateless

TWINS = 1e-13  # relative squared distance of two updates that are equal up to rounding


@dataclass(frozen=True)
class FedFV(Stateless):
    """v_i = u_i, less its components against every u_j with <v_i, u_j> < 0, by rising loss;
    direction = mean v with the length of mean u

    Args:
        alpha: about this part of the clients, those with the largest losses, keeps its
            update.
    """

    alpha: float = 0.1

    kind = Kind("direction", "rank of f", "projection of conflicting updates")
    needs = frozenset({"size", "loss", "update"})
    grid = Grid(alpha=(0.0, 0.1, 0.2, 1 / 3, 0.5, 2 / 3))
    mixing = False

    def __post_init__(self) -> None:
        check_bounds("fedfv alpha", self.alpha, least=0, most=1)

    def weigh(self, reports: Reports) -> Tensor:
        gram = reports.gram
        size = len(gram)
        by_id = reports.ids.argsort()  # decides between equal losses
        order = by_id[reports.losses[by_id].argsort(stable=True)]
        projected = order[: math.ceil(product(1 - self.alpha, size - 1))]
        # Rows are the v_i as combinations of updates, so that the Gram matrix is all it takes.
        v = torch.eye(size, dtype=torch.float64)
        for j in order.tolist():
            v[projected] = _projected(v[projected], gram, j, projected)
        # Clients with equal updates get equal weights: the direction stays the same.
        lengths = gram.diagonal()
        distance = lengths[:, None] + lengths - 2 * gram
        same = (distance <= TWINS * torch.maximum(lengths[:, None], lengths)).double()
        return as_long_as_the_mean(same @ v.mean(0) / same.sum(1), gram)


def _projected(v: Tensor, gram: Tensor, j: int, clients: Tensor) -> Tensor:
    """Remove from each combination (R, S) its component against u_j, except from u_j's own."""
    if gram[j, j] == 0:
        return v
    along = v @ gram[:, j]
    conflict = (along < 0) & (clients != j)
    v = v.clone()
    v[:, j] -= torch.where(conflict, along / gram[j, j], 0.0)
    return v


ENTRIES = {"fedfv": FedFV}
