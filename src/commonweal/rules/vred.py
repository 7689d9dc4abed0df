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

    entry = "vred"  # its name in messages
    kind = Kind("reweighting", "f - mean f", "penalty on the variance")
    grid = Grid(beta=(0.01, 0.05, 0.1, 0.2, 0.5, 1.0))
    mixing = False

    def __post_init__(self) -> None:
        check_bounds(f"{self.entry} beta", self.beta, least=0)

    def deviations(self, reports: Reports) -> Tensor:
        """The deviation (S,) of each loss, with a mean of 0."""
        p = prior_weights(reports, "sizes")
        f = reports.losses.double()
        return f - p @ f

    def weigh(self, reports: Reports) -> Tensor:
        return prior_weights(reports, "sizes") * (1 + 2 * self.beta * self.deviations(reports))

    def warnings(self, reports: Reports) -> tuple[str, ...]:
        below = -float(self.deviations(reports).min())
        if 2 * self.beta * below <= 1:
            return ()
        return (
            f"{self.entry}: beta = {self.beta:g} makes weights negative; "
            f"with these losses it must stay below {1 / (2 * below):.3g}",
        )


ENTRIES = {"vred": VRed}
