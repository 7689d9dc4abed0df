"""AAggFF-D: learns fair weights online, for many clients of which few report in a round.

Hahn et al., ICML 2024, Algorithm 3, eqs. 10-12 and 95. What is common to all clients cancels when
the decision is renormalised over the cohort, so only the entries of reporters are updated: O(S)
time per round, and memory only for clients ever seen. Eq. 87 prints the gradient's first term
without its minus sign, and Algorithm 3 min(1, ...) for max(1, ...).

With the paper's constants the weights of a small cohort are nearly uniform: on its j-th visit a
client's exponent is at most j sqrt(log K) / ((C + 2) sqrt(t + 1)). A smaller `lipschitz` makes the
rule bite.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.base.arguments import check_bounds
from commonweal.base.tensors import State
from commonweal.data.population import Setting
from commonweal.rules.online import CDF, Scale, check_range, response
from commonweal.rules.private_forms import PrivateAAggFFD
from commonweal.rules.rule import RATIOS, Decision, Grid, Kind, Reports, Rule
from commonweal.rules.sparse_table import empty_table, lookup, put_numbers


@dataclass(frozen=True)
class AAggFFD(Rule):
    """c_i += -(r_i - rbar) / (C (1 + rbar));
    weights = softmax(-sqrt(log K) c / (L sqrt(t + 1))), C = S/K, L = C + 2

    A client that joins late begins with c = 0, as if it had been absent.

    Args:
        cdf: maps a loss, relative to the mean, to a response.
        low: C1, the lowest response.
        high: C2, the highest response; by default C.
        scale: of the CDF; smaller values tell losses near the mean better apart; "spacing"
            fits it to every cohort's losses by maximum spacing.
        lipschitz: L, by default C2 / (1 + C1) + 2 (C2 - C1) / (C (1 + C1)); smaller values
            make larger steps.
    """

    cdf: CDF = "normal"
    low: float = 0.0
    high: float | None = None
    scale: Scale = 1.0
    lipschitz: float | None = None

    kind = Kind(
        "online", "S/K CDF(f / mean f), doubly robust", "follow the regularised leader, entropic"
    )
    grid = Grid(cdf=("weibull", "frechet", "gumbel", "exponential", "logistic", "normal"))

    needs = RATIOS
    logarithmic = True

    def __post_init__(self) -> None:
        check_range("aaggff-d", self.low, self.high, self.scale)
        check_bounds("aaggff-d lipschitz", self.lipschitz, above=0)

    def init(self, setting: Setting | int) -> State:
        start = {"t": torch.tensor(1), "sampled": torch.tensor(1.0, dtype=torch.float64)}
        return {**start, **empty_table()}

    def __call__(self, reports: Reports, state: State) -> Decision:
        sampled = len(reports.ids) / reports.clients  # C, the sampling probability
        cdf = response(reports.losses, self.cdf, 1.0, scale=self.scale)
        mean = self.low + (self._high(sampled) - self.low) * cdf.mean()
        # (r - rbar) / C is this many differences of the CDF: no underflow for a small C.
        spread = (self._high(sampled) - self.low) / sampled
        c = lookup(state, reports.ids) - spread * (cdf - cdf.mean()) / (1 + mean)
        t = int(state["t"])
        rate = self._rate(t, reports.clients, sampled)
        following = put_numbers(state, reports.ids, c)
        following |= {
            "t": torch.tensor(t + 1),
            "sampled": torch.tensor(sampled, dtype=torch.float64),
        }
        return Decision(torch.softmax(-rate * c, 0), following)

    def _high(self, sampled: float) -> float:
        return sampled if self.high is None else self.high

    def _rate(self, t: int, clients: int, sampled: float) -> float:
        """The step of eq. 12."""
        return math.sqrt(math.log(clients)) / (self._lipschitz(sampled) * math.sqrt(t + 1))

    def _lipschitz(self, sampled: float) -> float:
        if self.lipschitz is not None:
            return self.lipschitz
        high = self._high(sampled)
        return (high + 2 * (high - self.low) / sampled) / (1 + self.low)

    @property
    def private(self) -> PrivateAAggFFD | None:
        if self.scale == "spacing":  # fitted to the losses of the cohort
            return None
        return PrivateAAggFFD(
            cdf=self.cdf, low=self.low, high=self.high, scale=self.scale, lipschitz=self.lipschitz
        )

    def response(self, losses: Tensor) -> Tensor:
        """Eq. 8 for a full cohort: in [0, 1]."""
        return self.cohort_response(losses, len(losses))

    def cohort_response(self, losses: Tensor, clients: int) -> Tensor:
        """Eq. 8: in [0, S/K]."""
        high = self._high(len(losses) / clients)
        return response(losses, self.cdf, high, self.low, self.scale)

    def bound(self, rounds: int, clients: int) -> float:
        """Theorem 5.2 with a full cohort: regret <= (L + G^2 / L) sqrt(T log K).

        G = C2 / (1 + C1) is the largest gradient and L sets the step. The theorem is printed for
        L = G, as 2 G sqrt(T log K); the step of eq. 12 has L = 3 G by default: 3.33 G.
        """
        gradient = self._high(1.0) / (1 + self.low)
        lipschitz = self._lipschitz(1.0)
        growth = math.sqrt(rounds * math.log(clients))
        return (lipschitz + gradient**2 / lipschitz) * growth

    def distribution(self, state: State, clients: int) -> Tensor:
        """The decision over all clients, p of eq. 12."""
        t = int(state["t"])
        if t == 1:
            return torch.full((clients,), 1 / clients, dtype=torch.float64)
        c = lookup(state, torch.arange(clients))
        rate = self._rate(t - 1, clients, float(state["sampled"]))
        return torch.softmax(-rate * c, 0)


ENTRIES = {"aaggff-d": AAggFFD}
