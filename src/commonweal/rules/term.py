"""TERM: a tilted mean, in which large losses count exponentially more.

Li et al., Tilted Empirical Risk Minimization, ICLR 2021. The authors' code ignores the sizes:
prior="uniform".
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from commonweal.rules._online import mixture
from commonweal.rules.rule import Kind, Prior, Reports, Stateless

__all__ = ["TERM"]


@dataclass(frozen=True)
class TERM(Stateless):
    """weights_i ~ n_i exp(t f_i)

    t: the tilt; 0 gives the prior, large values give all weight to the worst client
    prior: "sizes" (n_i) or "uniform" (1)
    """

    t: float = 1.0
    prior: Prior = "sizes"

    kind: ClassVar[Kind] = Kind("mixture", "t f", "one entropic step from the prior")

    def response(self, losses: Tensor) -> Tensor:
        return self.t * losses

    def weigh(self, reports: Reports) -> Tensor:
        return mixture(reports, self.response(reports.losses.double()), self.prior)


ENTRIES = {"term": TERM}
