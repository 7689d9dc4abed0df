"""PropFair: proportional fairness, with weights 1 / (M - loss).

Zhang et al., Proportional Fairness in Federated Learning, TMLR 2023, in the server-side form of
AAggFF's Table 1. The authors transform the loss on the client, batch by batch. A baseline for the
losses themselves depends on their unit; by default it is one for losses relative to their mean.
"""

from dataclasses import dataclass

from torch import Tensor

from commonweal.base.arguments import check_bounds
from commonweal.rules.online import mixture, relative
from commonweal.rules.rule import RATIOS, Grid, Kind, Need, Prior, Reports, Stateless


@dataclass(frozen=True)
class PropFair(Stateless):
    """weights_i ~ n_i / max(M - f_i / mean f, margin);
    not relative: weights_i ~ n_i / max(M - f_i, margin)

    Args:
        baseline: M, the largest acceptable loss.
        margin: above M - margin the gradient is held constant, so that weights stay finite.
        relative: divide losses by the cohort's mean; false is the published form.
        prior: "sizes" (n_i) or "uniform" (1).
    """

    baseline: float = 3.0
    margin: float = 0.2
    relative: bool = True
    prior: Prior = "sizes"

    kind = Kind("mixture", "-log(M - f / mean f)", "one entropic step from the prior")
    grid = Grid(baseline=(2.0, 3.0, 4.0, 5.0))

    def __post_init__(self) -> None:
        check_bounds("propfair baseline", self.baseline, above=0)
        check_bounds("propfair margin", self.margin, above=0)

    @property
    def needs(self) -> frozenset[Need]:
        return RATIOS if self.relative else super().needs

    def response(self, losses: Tensor) -> Tensor:
        losses = relative(losses) if self.relative else losses
        return -(self.baseline - losses).clamp(min=self.margin).log()

    def weigh(self, reports: Reports) -> Tensor:
        return mixture(reports, self.response(reports.losses.double()), self.prior)

    def warnings(self, reports: Reports) -> tuple[str, ...]:
        limit = self.baseline - self.margin
        if self.relative or not (reports.losses > limit).any():
            return ()
        return (f"propfair: losses above baseline - margin = {limit:g}; raise the baseline",)


ENTRIES = {"propfair": PropFair}
