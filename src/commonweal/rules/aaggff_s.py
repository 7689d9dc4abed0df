"""AAggFF-S: an online Newton step towards the mixture of silos that would have served the worst off best.

Hahn et al., ICML 2024, Algorithm 2 and eq. 7. Each round's decision minimises all past decision losses, linearised with
curvature. The authors' code solves a slightly different problem, and the paper's tables are from that code:
variant="reference" is it. Lemma A.10 asks for beta <= 1/2, which the printed 1/(4 L) = K/4 exceeds from K = 3 on.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from commonweal.online import CDF, decision_gradient, doubly_robust, on_cohort, response
from commonweal.rule import Kind, Reports, State
from commonweal.simplex import quadratic

__all__ = ["AAggFFS"]

KIND = Kind("online", "CDF(f / mean f) / K", "online Newton step (follow the regularised leader, quadratic)")


@dataclass(frozen=True)
class AAggFFS:
    """p = argmin <sum g, p> + alpha/2 |p|^2 + beta/2 sum <g_t, p - p_t>^2 over the simplex; weights = p

    cdf: how a loss, relative to the mean, becomes a response
    variant: "paper" (eq. 7) or "reference" (the authors' code); beta: curvature, by default K/4 as printed
    """

    cdf: CDF = "normal"
    variant: Literal["paper", "reference"] = "paper"
    beta: float | None = None

    def init(self, clients: int) -> State:
        zeros = torch.zeros(clients, dtype=torch.float64)
        # The authors' code starts from all ones, which is not on the simplex; only the first gradient notices.
        start = 1.0 if self.variant == "reference" else 1 / clients
        return {"p": zeros + start, "linear": zeros, "curvature": torch.zeros(clients, clients, dtype=torch.float64)}

    def __call__(self, reports: Reports, state: State) -> tuple[Tensor, State]:
        clients, p = reports.clients, state["p"]
        steepest = 1 / clients  # L, the largest gradient entry: C2 / (1 + C1) with C1 = 0, C2 = 1/K
        alpha = 4 * clients * steepest
        beta = 1 / (4 * steepest) if self.beta is None else self.beta
        r = self.response(reports.losses) * len(reports.ids) / clients  # in [0, 1/K], whoever reports
        g = decision_gradient(p, doubly_robust(r, reports.ids, clients))
        curvature = state["curvature"] + torch.outer(g, g)
        identity = torch.eye(clients, dtype=torch.float64)
        if self.variant == "reference":  # quadratic centred at 0, ridge counted twice
            linear = state["linear"] + g
            p = quadratic(alpha * (1 + beta) * identity + beta * curvature, linear)
        else:
            linear = state["linear"] + g - beta * (g @ p) * g
            p = quadratic(alpha * identity + beta * curvature, linear)
        return on_cohort(p, reports), {"p": p, "linear": linear, "curvature": curvature}

    def response(self, losses: Tensor) -> Tensor:
        """Eq. 8 for a full cohort: in [0, 1/K]."""
        r = response(losses, self.cdf, high := 1 / len(losses))
        # The authors' code has erfc for erf in the normal CDF: it falls with the loss, from 1.5 to 0.5.
        return 1.5 * high - r if (self.variant, self.cdf) == ("reference", "normal") else r

    def bound(self, rounds: int, clients: int) -> float:
        """What the regret stays below, by Theorem 5.1: 2 L K (1 + log(1 + T / (16 K))), L = 1/K."""
        return 2 * (1 + math.log1p(rounds / (16 * clients)))
