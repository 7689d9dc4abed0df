"""AAggFF-S: an online Newton step towards the mixture of silos that is best for the worst off.

Hahn et al., ICML 2024, Algorithm 2 and eq. 7. Each decision minimises all past decision losses in a
second-order approximation. The authors' code solves a slightly different problem, and the paper's
tables are from that code: variant="reference". Lemma A.10 requires beta <= 1/2, which the printed
1/(4 L) = K/4 exceeds for K >= 3.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from commonweal.population import Setting
from commonweal.rules._online import (
    CDF,
    decision_gradient,
    doubly_robust,
    on_cohort,
    response,
)
from commonweal.rules._seats import by_client, empty_seats, extend, extend_mixture, take_seats
from commonweal.rules._simplex import quadratic
from commonweal.rules.rule import Decision, Kind, Reports, Rule
from commonweal.tensors import State

__all__ = ["AAggFFS"]


@dataclass(frozen=True)
class AAggFFS(Rule):
    """p = argmin <sum g, p> + alpha/2 |p|^2 + beta/2 sum <g_t, p - p_t>^2 over the simplex;
    weights = p

    cdf: maps a loss, relative to the mean, to a response
    variant: "paper" (eq. 7) or "reference" (the authors' code)
    beta: the curvature, by default K/4 as printed

    Any client id is accepted. A client that joins late begins with p = 1 / K, the others scaled
    down in proportion, and with the mean of their past gradients, as if it had been absent.
    """

    cdf: CDF = "normal"
    variant: Literal["paper", "reference"] = "paper"
    beta: float | None = None

    kind: ClassVar[Kind] = Kind(
        "online",
        "CDF(f / mean f) / K",
        "online Newton step (follow the regularised leader, quadratic)",
    )

    def init(self, setting: Setting | int) -> State:
        clients = Setting.of(setting).clients
        zeros = torch.zeros(clients, dtype=torch.float64)
        # The authors' code starts from all ones, which is not on the simplex; this affects only the
        # first gradient.
        start = 1.0 if self.variant == "reference" else 1 / clients
        return {
            "seats": empty_seats(clients),
            "p": zeros + start,
            "linear": zeros,
            "curvature": torch.zeros(clients, clients, dtype=torch.float64),
        }

    def __call__(self, reports: Reports, state: State) -> Decision:
        seats, index = take_seats(state["seats"], reports.ids, reports.clients)
        state = _extended(state, len(seats))
        clients = len(seats)
        r = self.response(reports.losses) * len(index) / clients  # in [0, 1/K] for any cohort
        g = decision_gradient(state["p"], doubly_robust(r, index, clients))
        curvature = state["curvature"] + torch.outer(g, g)
        following = self._decide(g, state["p"], state["linear"], curvature)
        return Decision(on_cohort(following["p"], index), {"seats": seats, **following})

    def _decide(self, g: Tensor, p: Tensor, linear: Tensor, curvature: Tensor) -> State:
        """Minimise eq. 7 with this round's gradient g."""
        clients = len(g)
        lipschitz = 1 / clients  # L, the largest gradient: C2 / (1 + C1) with C1 = 0, C2 = 1/K
        alpha = 4 * clients * lipschitz
        beta = 1 / (4 * lipschitz) if self.beta is None else self.beta
        identity = torch.eye(clients, dtype=torch.float64)
        if self.variant == "reference":  # the quadratic is centred at 0, the ridge counted twice
            ridge = alpha * (1 + beta)
            linear = linear + g
        else:
            ridge = alpha
            linear = linear + g - beta * (g @ p) * g
        p = quadratic(ridge * identity + beta * curvature, linear)
        return {"p": p, "linear": linear, "curvature": curvature}

    def response(self, losses: Tensor) -> Tensor:
        """Eq. 8 for a full cohort: in [0, 1/K]."""
        high = 1 / len(losses)
        r = response(losses, self.cdf, high)
        if self.variant == "reference" and self.cdf == "normal":
            # The authors' code has erfc for erf in the normal CDF: it decreases with the loss, from
            # 1.5 to 0.5.
            return 1.5 * high - r
        return r

    def bound(self, rounds: int, clients: int) -> float:
        """Theorem 5.1: regret <= 2 L K (1 + log(1 + T / (16 K))), L = 1/K."""
        return 2 * (1 + math.log1p(rounds / (16 * clients)))

    def distribution(self, state: State, clients: int) -> Tensor:
        return by_client(state["seats"], state["p"], clients)


def _extended(state: State, clients: int) -> State:
    """Return the state with newcomers, as if they had been absent so far.

    Absent clients have the mean gradient of each round (eq. 10), so newcomers have the mean of the
    accumulated ones. With zeros they would get no weight until they had caught up.
    """
    if len(state["p"]) == clients:
        return state
    rows = state["curvature"]
    wide = torch.stack([extend(row, clients, row.mean()) for row in rows])
    mean = extend(rows.mean(0), clients, rows.mean())
    newcomers = mean.expand(clients - len(rows), clients)
    return {
        "p": extend_mixture(state["p"], clients),
        "linear": extend(state["linear"], clients, state["linear"].mean()),
        "curvature": torch.cat([wide, newcomers]),
    }


ENTRIES = {"aaggff-s": AAggFFS}
