"""AAggFF-D: entropic follow-the-regularised-leader for large populations of which few report.

Hahn et al., ICML 2024, Algorithm 3, eqs. 10-12 and 95. What is common to all clients cancels when
the decision is renormalised over the cohort, so only the entries of reporters are updated: O(S)
time per round, and memory only for clients ever seen. Eq. 87 prints the gradient's first term
without its minus sign, and Algorithm 3 min(1, ...) for max(1, ...).
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from commonweal.population import Setting
from commonweal.rules._online import CDF, response
from commonweal.rules._table import empty_table, lookup, put
from commonweal.rules.rule import Decision, Kind, Reports, Rule
from commonweal.tensors import State

__all__ = ["AAggFFD"]


@dataclass(frozen=True)
class AAggFFD(Rule):
    """c_i += -(r_i - rbar) / (C (1 + rbar));
    weights = softmax(-sqrt(log K) c / (L sqrt(t + 1))), C = S/K, L = C + 2

    cdf: maps a loss, relative to the mean, to a response

    Any client id is accepted. A client that joins late begins with c = 0, as if it had been absent.
    """

    cdf: CDF = "normal"

    kind: ClassVar[Kind] = Kind(
        "online",
        "S/K CDF(f / mean f), doubly robust",
        "follow the regularised leader, entropic",
    )

    def init(self, setting: Setting | int) -> State:
        return {"t": torch.tensor(1), **empty_table("settled", "recent")}

    def __call__(self, reports: Reports, state: State) -> Decision:
        sampled = len(reports.ids) / reports.clients  # C, the sampling probability
        r = self.response(reports.losses)  # r / C, as C2 = C: no underflow for a small C
        mean = r.mean()
        c = lookup(state, reports.ids) - (r - mean) / (1 + sampled * mean)
        t = int(state["t"])
        lipschitz = sampled + 2
        diameter = math.sqrt(math.log(reports.clients))
        rate = diameter / (lipschitz * math.sqrt(t + 1))
        following = put(state, reports.ids, c)
        following["t"] = torch.tensor(t + 1)
        return Decision(torch.softmax(-rate * c, 0), following)

    def response(self, losses: Tensor) -> Tensor:
        """Eq. 8 for a full cohort: in [0, 1]."""
        return response(losses, self.cdf, 1.0)

    def bound(self, rounds: int, clients: int) -> float:
        """Theorem 5.2 with a full cohort: regret <= 2 L sqrt(T log K), L = 3."""
        return 6 * math.sqrt(rounds * math.log(clients))


ENTRIES = {"aaggff-d": AAggFFD}
