"""Semi-VRed: a penalty on the variance of the losses that are above the mean.

Semi-Variance Reduction for Fair Federated Learning (anonymous, under review), eq. 10.
"""

from dataclasses import dataclass

from torch import Tensor

from commonweal.base.arguments import check_bounds
from commonweal.rules._private import PrivateSemiVRed
from commonweal.rules.rule import Grid, Kind, Reports, Stateless, prior_weights


@dataclass(frozen=True)
class SemiVRed(Stateless):
    """weights_i = p_i (1 + 2 beta ((f_i - fbar)_+ - sum_j p_j (f_j - fbar)_+)),
    p_i = n_i / sum n; sum to 1

    Args:
        beta: the penalty on variance; weights are positive while beta < 1 / (2 sum_j p_j
            (f_j - fbar)_+).
    """

    beta: float = 1.0

    kind = Kind("reweighting", "(f - mean f)_+", "penalty on the upper semi-variance")
    grid = Grid(beta=(0.01, 0.05, 0.1, 0.2, 0.5, 1.0))
    mixing = False

    def __post_init__(self) -> None:
        check_bounds("semi-vred beta", self.beta, least=0)

    @property
    def private(self) -> PrivateSemiVRed:
        return PrivateSemiVRed(beta=self.beta)

    def weigh(self, reports: Reports) -> Tensor:
        p = prior_weights(reports, "sizes")
        above = _above_mean(p, reports.losses.double())
        return p * (1 + 2 * self.beta * (above - p @ above))

    def warnings(self, reports: Reports) -> tuple[str, ...]:
        p = prior_weights(reports, "sizes")
        mean = float(p @ _above_mean(p, reports.losses.double()))
        if 2 * self.beta * mean <= 1:
            return ()
        return (
            f"semi-vred: beta = {self.beta:g} makes weights negative; "
            f"with these losses it must stay below {1 / (2 * mean):.3g}",
        )


def _above_mean(p: Tensor, losses: Tensor) -> Tensor:
    """How far each loss is above the mean, 0 for those below it."""
    return (losses - p @ losses).clamp(min=0)


ENTRIES = {"semi-vred": SemiVRed}
