"""Semi-VRed: the mean loss plus a price on the variance of those above the mean only.

Semi-Variance Reduction for Fair Federated Learning (anonymous, under review), eq. 10.
"""

from dataclasses import dataclass

from torch import Tensor

from commonweal.errors import ConfigError
from commonweal.rule import Kind, Reports, State, Stateless, shares

__all__ = ["SemiVRed"]

KIND = Kind("reweighting", "(f - mean f)_+", "price on the upper semi-variance")


@dataclass(frozen=True)
class SemiVRed(Stateless):
    """weights_i = p_i (1 + 2 beta ((f_i - fbar)_+ - sum_j p_j (f_j - fbar)_+)), p_i = n_i / sum n; sum to 1

    beta: the price of variance; positive weights need beta < 1 / (2 sum_j p_j (f_j - fbar)_+)
    """

    beta: float = 0.1

    def __post_init__(self) -> None:
        if self.beta < 0:
            raise ConfigError(f"semi-vred beta = {self.beta}: it must be at least 0")

    def weigh(self, reports: Reports) -> Tensor:
        p, above = self._above(reports)
        return p * (1 + 2 * self.beta * (above - p @ above))

    def _above(self, reports: Reports) -> tuple[Tensor, Tensor]:
        p, f = shares(reports, "sizes"), reports.losses.double()
        return p, (f - p @ f).clamp(min=0)

    def notes(self, reports: Reports, state: State) -> list[str]:
        p, above = self._above(reports)
        reach = float(p @ above)
        if 2 * self.beta * reach <= 1:
            return []
        bound = f"{1 / (2 * reach):.3g}"
        return [f"semi-vred: beta = {self.beta:g} makes weights negative; with these losses it must stay below {bound}"]
