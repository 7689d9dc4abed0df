"""AAggFF-D: entropic follow-the-regularised-leader for a crowd of which few report; a billion cost what a thousand do.

Hahn et al., ICML 2024, Algorithm 3, eqs. 10-12 and 95. Whatever is common to all clients cancels when the decision is
renormalised over the cohort, so only reporters' entries are ever touched: time O(S), memory for clients ever seen.
Eq. 87 prints the gradient's first term without its minus sign, and Algorithm 3 min(1, ...) for max(1, ...).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.online import CDF, empty_table, lookup, put, response
from commonweal.rule import Kind, Reports, State

__all__ = ["AAggFFD"]

KIND = Kind("online", "S/K CDF(f / mean f), doubly robust", "follow the regularised leader, entropic")


@dataclass(frozen=True)
class AAggFFD:
    """c_i += -(r_i - rbar) / (C (1 + rbar)); weights = softmax(-sqrt(log K) c / (L sqrt(t + 1))), C = S/K, L = C + 2

    cdf: how a loss, relative to the mean, becomes a response
    """

    cdf: CDF = "normal"

    def response(self, losses: Tensor) -> Tensor:
        """Eq. 8 for a full cohort: in [0, 1]."""
        return response(losses, self.cdf, 1.0)

    def bound(self, rounds: int, clients: int) -> float:
        """What the regret stays below when everyone reports, by Theorem 5.2: 2 L sqrt(T log K), L = 3."""
        return 6 * math.sqrt(rounds * math.log(clients))

    def init(self, clients: int) -> State:
        return {"t": torch.tensor(1), **empty_table("settled", "recent")}

    def __call__(self, reports: Reports, state: State) -> tuple[Tensor, State]:
        share = len(reports.ids) / reports.clients  # C, the sampling probability
        cdf = self.response(reports.losses)  # r / C, as C2 = C: nothing underflows however small C is
        mean = cdf.mean()
        c = lookup(state, reports.ids) - (cdf - mean) / (1 + share * mean)
        t = int(state["t"])
        rate = math.sqrt(math.log(reports.clients)) / ((share + 2) * math.sqrt(t + 1))
        return torch.softmax(-rate * c, 0), put(state, reports.ids, c) | {"t": torch.tensor(t + 1)}
