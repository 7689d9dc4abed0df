"""AAggFF-S: learns fair weights online by Newton steps, for few clients that all report.

Hahn et al., ICML 2024, Algorithm 2 and eq. 7. Each decision minimises all past decision losses in a
second-order approximation. The authors' code solves a slightly different problem, and the paper's
tables are from that code: variant="reference". Lemma A.10 requires beta <= 1/2, which the printed
1/(4 L) = K/4 exceeds for K >= 3.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from commonweal.base.arguments import check_bounds
from commonweal.base.tensors import State
from commonweal.data.population import Setting
from commonweal.rules.ftrl import FTRL
from commonweal.rules.rule import Grid, Kind
from commonweal.rules.simplex import quadratic
from commonweal.rules.slots import extend


@dataclass(frozen=True)
class AAggFFS(FTRL):
    """p = argmin <sum g, p> + alpha/2 |p|^2 + beta/2 sum <g_t, p - p_t>^2 over the simplex;
    weights = p

    A client that joins late begins with p = 1 / K, the others scaled down in proportion, and with
    the mean of their past gradients, as if it had been absent.

    Args:
        cdf: maps a loss, relative to the mean, to a response.
        variant: "paper" (eq. 7) or "reference" (the authors' code).
        low: C1, the lowest response.
        high: C2, the highest response; by default 1/K. L = C2 / (1 + C1).
        scale: of the CDF; smaller values tell losses near the mean better apart; "spacing"
            fits it to every cohort's losses by maximum spacing.
        alpha: the ridge, by default 4 K L as printed.
        beta: the curvature, by default 1/(4 L) as printed.
    """

    variant: Literal["paper", "reference"] = "paper"
    beta: float | None = None
    alpha: float | None = None

    kind = Kind(
        "online",
        "CDF(f / mean f) / K",
        "online Newton step (follow the regularised leader, quadratic)",
    )
    grid = Grid(cdf=("weibull", "frechet", "gumbel", "exponential", "logistic", "normal"))

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bounds("aaggff-s alpha", self.alpha, above=0)

    def init(self, setting: Setting | int) -> State:
        clients = Setting.of(setting).clients
        zeros = torch.zeros(clients, dtype=torch.float64)
        # The authors' code starts from all ones, which is not on the simplex; this affects only the
        # first gradient.
        start = 1.0 if self.variant == "reference" else 1 / clients
        return {
            "p": zeros + start,
            "linear": zeros,
            "curvature": torch.zeros(clients, clients, dtype=torch.float64),
        }

    def _decide(self, g: Tensor, state: State) -> State:
        """Minimise eq. 7 with this round's gradient g."""
        curvature = state["curvature"] + torch.outer(g, g)
        linear = state["linear"]
        clients = len(g)
        lipschitz = self._lipschitz(clients)
        alpha = 4 * clients * lipschitz if self.alpha is None else self.alpha
        beta = 1 / (4 * lipschitz) if self.beta is None else self.beta
        identity = torch.eye(clients, dtype=torch.float64)
        if self.variant == "reference":  # the quadratic is centred at 0, the ridge counted twice
            ridge = alpha * (1 + beta)
            linear = linear + g
        else:
            ridge = alpha
            linear = linear + g - beta * (g @ state["p"]) * g
        p = quadratic(ridge * identity + beta * curvature, linear)
        return {"p": p, "linear": linear, "curvature": curvature}

    def cohort_response(self, losses: Tensor, clients: int) -> Tensor:
        """Eq. 8 in the range of the whole population, [0, 1/K]."""
        r = super().cohort_response(losses, clients)
        if self.variant == "reference" and self.cdf == "normal":
            # The authors' code has erfc for erf in the normal CDF: it decreases with the loss, from
            # 1.5 to 0.5.
            return 1.5 * self._high(clients) - r
        return r

    def bound(self, rounds: int, clients: int) -> float | None:
        """Theorem 5.1: regret <= 2 L K (1 + log(1 + T / (16 K))); none for other constants."""
        if self.variant != "paper" or self.alpha is not None or self.beta is not None:
            return None
        growth = 1 + math.log1p(rounds / (16 * clients))
        return 2 * self._lipschitz(clients) * clients * growth

    def _extended(self, state: State, clients: int) -> State:
        """Newcomers have the mean of the others' curvature, too."""
        rows = state["curvature"]
        wide = torch.stack([extend(row, clients, row.mean()) for row in rows])
        mean = extend(rows.mean(0), clients, rows.mean())
        newcomers = mean.expand(clients - len(rows), clients)
        return super()._extended(state, clients) | {"curvature": torch.cat([wide, newcomers])}


ENTRIES = {"aaggff-s": AAggFFS}
