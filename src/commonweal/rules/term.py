"""TERM: weights that grow exponentially with the loss (a tilted mean).

Li et al., Tilted Empirical Risk Minimization, ICLR 2021. The authors' code ignores the sizes:
prior="uniform". A tilt of the losses themselves depends on their unit and fades as they fall; by
default losses are relative to their mean. FedEBA's server weights are TERM with t = 1 / tau.
"""

from dataclasses import dataclass

from torch import Tensor

from commonweal.rules.online import mixture, relative
from commonweal.rules.private_forms import PrivateTERM
from commonweal.rules.rule import RATIOS, Grid, Kind, Need, Prior, Reports, Stateless


@dataclass(frozen=True)
class TERM(Stateless):
    """weights_i ~ n_i exp(t f_i / mean f); not relative: weights_i ~ n_i exp(t f_i)

    Args:
        t: the tilt; 0 gives the prior, large values give all weight to the worst client.
        relative: divide losses by the cohort's mean; false is the published form.
        prior: "sizes" (n_i) or "uniform" (1).
    """

    t: float = 1.0
    relative: bool = True
    prior: Prior = "sizes"

    kind = Kind("mixture", "t f / mean f", "one entropic step from the prior")
    grid = Grid(t=(0.1, 0.5, 1.0, 2.0, 5.0))

    @property
    def needs(self) -> frozenset[Need]:
        return RATIOS if self.relative else super().needs

    def response(self, losses: Tensor) -> Tensor:
        return self.t * (relative(losses) if self.relative else losses)

    @property
    def private(self) -> PrivateTERM | None:
        return PrivateTERM(t=self.t) if self.relative else None

    def weigh(self, reports: Reports) -> Tensor:
        return mixture(reports, self.response(reports.losses.double()), self.prior)


ENTRIES = {"term": TERM}
