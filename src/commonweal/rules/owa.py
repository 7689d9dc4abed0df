"""OWA: a client's weight depends on the rank of its loss (ordered weights, Gini welfare).

Donaldson, Weymark, A Single-Parameter Generalization of the Gini Indices of Inequality, Journal of
Economic Theory 1980. With delta = 2 the objective is the mean loss times 1 + its Gini coefficient.
CVaR, the k worst clients and GIFAIR's ranks are ordered weights too. (The public code of FedGini
weighs by `argsort` where a rank is meant, and so favours the wrong clients.)
"""

from dataclasses import dataclass

from torch import Tensor

from commonweal.base.arguments import check_bounds
from commonweal.rules._levels import levels
from commonweal.rules.rule import Kind, Prior, Reports, Stateless, prior_weights


@dataclass(frozen=True)
class OWA(Stateless):
    """weights_i = (r_i^delta - (r_i - 1)^delta) / S^delta, r_i the rank of f_i from below;
    with sizes, the rank is the mass of clients with smaller losses

    Args:
        delta: 1 gives the prior, 2 prices the mean by the Gini coefficient, large values
            give all weight to the worst client.
        prior: "uniform" (1) or "sizes" (n_i).
    """

    delta: float = 2.0
    prior: Prior = "uniform"

    kind = Kind("mixture", "rank of f", "ordered weights")

    def __post_init__(self) -> None:
        check_bounds("owa delta", self.delta, least=1)

    def weigh(self, reports: Reports) -> Tensor:
        p = prior_weights(reports, self.prior)
        below, level = levels(reports.losses.double(), p)
        # Clients with equal losses share the weight of their places.
        weights = ((below + level) ** self.delta - below**self.delta) * p / level
        return weights / weights.sum()


ENTRIES = {"owa": OWA}
