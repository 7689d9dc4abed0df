"""CVaR: only the largest losses count, down to a quantile (superquantile, Delta-FL).

Laguel, Pillutla, Malick, Harchaoui, A Superquantile Approach to Federated Learning with
Heterogeneous Devices, CISS 2021; Federated Learning with Superquantile Aggregation for
Heterogeneous Data, Machine Learning 2023.
"""

from dataclasses import dataclass

from torch import Tensor

from commonweal.base.arguments import check_bounds
from commonweal.rules._levels import levels
from commonweal.rules.private_forms import PrivateCVaR
from commonweal.rules.rule import Grid, Kind, Prior, Reports, Stateless, prior_weights


@dataclass(frozen=True)
class CVaR(Stateless):
    """weights_i = min(p_i, mass left) / (1 - theta), by falling loss, p_i = n_i / sum n

    Args:
        theta: the part of all samples, those of the clients with the smallest losses, that gets
            no weight; 0 is FedAvg.
        share: clients at the threshold share the mass that is left; if false they are kept
            whole, as the authors' code does.
        prior: "sizes" (n_i) or "uniform" (1).
    """

    theta: float = 0.5
    share: bool = True
    prior: Prior = "sizes"

    kind = Kind("mixture", "largest f first", "the worst 1 - theta of the samples")
    grid = Grid(theta=(0.2, 0.5, 0.8))

    def __post_init__(self) -> None:
        check_bounds("cvar theta", self.theta, least=0, below=1)

    @property
    def private(self) -> PrivateCVaR:
        return PrivateCVaR(theta=self.theta)

    def weigh(self, reports: Reports) -> Tensor:
        p = prior_weights(reports, self.prior)
        above, level = levels(-reports.losses.double(), p)
        left = 1 - self.theta - above
        part = (left / level).clamp(0, 1)
        if not self.share:
            part = (left > 0).double()
        weights = p * part
        return weights / weights.sum()


ENTRIES = {"cvar": CVaR}
