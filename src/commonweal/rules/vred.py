"""VRed: a penalty on the variance of losses over clients.

Semi-Variance Reduction for Fair Federated Learning (anonymous, under review), eq. 5.
"""

from dataclasses import dataclass

from torch import Tensor

from commonweal.base.arguments import check_bounds
from commonweal.rules.rule import Grid, Kind, Reports, Stateless, prior_weights


@dataclass(frozen=True)
class VRed(Stateless):
    """weights_i = p_i (1 + 2 beta (f_i - fbar)), p_i = n_i / sum n;
    sum to 1, negative beyond a bound on beta

    Args:
        beta: the penalty on variance; weights are positive while beta < 1 / (2 (fbar - min
            f)).
    """

    beta: float = 0.5

    kind = Kind("reweighting", "f - mean f", "penalty on the variance")
    grid = Grid(beta=(0.01, 0.05, 0.1, 0.2, 0.5, 1.0))
    mixing = False

    def __post_init__(self) -> None:
        check_bounds("vred beta", self.beta, least=0)

    def weigh(self, reports: Reports) -> Tensor:
        p = prior_weights(reports, "sizes")
        f = reports.losses.double()
        return p * (1 + 2 * self.beta * (f - p @ f))

    def warnings(self, reports: Reports) -> tuple[str, ...]:
        p = prior_weights(reports, "sizes")
        f = reports.losses.double()
        below = float(p @ f - f.min())
        if 2 * self.beta * below <= 1:
            return ()
        return (
            f"vred: beta = {self.beta:g} makes weights negative; "
            f"with these losses it must stay below {1 / (2 * below):.3g}",
        )


ENTRIES = {"vred": VRed}
