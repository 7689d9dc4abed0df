"""VRed: the mean loss plus a price on its variance over clients.

Semi-Variance Reduction for Fair Federated Learning (anonymous, under review), eq. 5.
"""

from dataclasses import dataclass

from torch import Tensor

from commonweal.errors import ConfigError
from commonweal.rule import Kind, Reports, State, Stateless, shares

__all__ = ["VRed"]

KIND = Kind("reweighting", "f - mean f", "price on the variance")


@dataclass(frozen=True)
class VRed(Stateless):
    """weights_i = p_i (1 + 2 beta (f_i - fbar)), p_i = n_i / sum n; sum to 1, negative beyond a bound on beta

    beta: the price of variance; positive weights need beta < 1 / (2 (fbar - min f))
    """

    beta: float = 0.1

    def __post_init__(self) -> None:
        if self.beta < 0:
            raise ConfigError(f"vred beta = {self.beta}: it must be at least 0")

    def weigh(self, reports: Reports) -> Tensor:
        p, f = shares(reports, "sizes"), reports.losses.double()
        return p * (1 + 2 * self.beta * (f - p @ f))

    def notes(self, reports: Reports, state: State) -> list[str]:
        p, f = shares(reports, "sizes"), reports.losses.double()
        reach = float(p @ f - f.min())
        if 2 * self.beta * reach <= 1:
            return []
        bound = f"{1 / (2 * reach):.3g}"
        return [f"vred: beta = {self.beta:g} makes weights negative; with these losses it must stay below {bound}"]
