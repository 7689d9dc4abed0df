"""TERM: a tilted mean, in which large losses weigh exponentially more.

Li et al., Tilted Empirical Risk Minimization, ICLR 2021. The authors' code leaves the sizes out: prior="uniform".
"""

from dataclasses import dataclass

from torch import Tensor

from commonweal.online import mixture
from commonweal.rule import Kind, Prior, Reports, Stateless

__all__ = ["TERM"]

KIND = Kind("mixture", "t f", "one entropic step from the prior")


@dataclass(frozen=True)
class TERM(Stateless):
    """weights_i ~ n_i exp(t f_i)

    t: the tilt; 0 is the prior alone, large values see the worst client only
    prior: "sizes" (n_i) or "uniform" (1)
    """

    t: float = 1.0
    prior: Prior = "sizes"

    def response(self, losses: Tensor) -> Tensor:
        return self.t * losses

    def weigh(self, reports: Reports) -> Tensor:
        return mixture(reports, self.response(reports.losses.double()), self.prior)
