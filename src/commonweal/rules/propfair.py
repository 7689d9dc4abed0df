"""PropFair: proportional fairness, where a loss counts by how near it comes to what is still bearable.

Zhang et al., Proportional Fairness in Federated Learning, TMLR 2023, in the server's form of AAggFF's Table 1 (the
authors transform the loss on the client, batch by batch).
"""

from dataclasses import dataclass

from torch import Tensor

from commonweal.errors import ConfigError
from commonweal.online import mixture
from commonweal.rule import Kind, Prior, Reports, State, Stateless

__all__ = ["PropFair"]

KIND = Kind("mixture", "-log(M - f)", "one entropic step from the prior")


@dataclass(frozen=True)
class PropFair(Stateless):
    """weights_i ~ n_i / max(M - f_i, margin)

    baseline: M, the largest loss that is bearable; margin: beyond M - margin the slope is kept, so weights stay finite
    prior: "sizes" (n_i) or "uniform" (1)
    """

    baseline: float = 5.0
    margin: float = 0.2
    prior: Prior = "sizes"

    def __post_init__(self) -> None:
        if self.baseline <= 0 or self.margin <= 0:
            raise ConfigError(f"propfair baseline = {self.baseline}, margin = {self.margin}: both must be above 0")

    def response(self, losses: Tensor) -> Tensor:
        return -(self.baseline - losses).clamp(min=self.margin).log()

    def weigh(self, reports: Reports) -> Tensor:
        return mixture(reports, self.response(reports.losses.double()), self.prior)

    def notes(self, reports: Reports, state: State) -> list[str]:
        beyond = int((reports.losses > self.baseline - self.margin).sum())
        if not beyond:
            return []
        return [f"propfair: losses beyond baseline - margin = {self.baseline - self.margin:g}; raise the baseline"]
