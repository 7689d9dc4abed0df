"""AAggFF-S: learns fair weights online by Newton steps, for few clients that all report.

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

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State
from commonweal.data.population import Setting
from commonweal.rules.online import (
    CDF,
    Scale,
    check_range,
    decision_gradient,
    doubly_robust,
    on_cohort,
    response,
)
from commonweal.rules.rule import Decision, Grid, Kind, Reports, Rule
from commonweal.rules.simplex import quadratic
from commonweal.rules.slots import by_client, empty_slots, extend, extend_mixture, take_slots

__all__ = ["AAggFFS"]


@dataclass(frozen=True)
class AAggFFS(Rule):
    """p = argmin <sum g, p> + alpha/2 |p|^2 + beta/2 sum <g_t, p - p_t>^2 over the simplex;
    weights = p

    Any client id is accepted. A client that joins late begins with p = 1 / K, the others scaled
    down in proportion, and with the mean of their past gradients, as if it had been absent.

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

    cdf: CDF = "normal"
    variant: Literal["paper", "reference"] = "paper"
    beta: float | None = None
    alpha: float | None = None
    low: float = 0.0
    high: float | None = None
    scale: Scale = 1.0

    kind: ClassVar[Kind] = Kind(
        "online",
        "CDF(f / mean f) / K",
        "online Newton step (follow the regularised leader, quadratic)",
    )
    grid: ClassVar[Grid] = {
        "cdf": ("weibull", "frechet", "gumbel", "exponential", "logistic", "normal")
    }

    logarithmic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_range("aaggff-s", self.low, self.high, self.scale)
        if self.alpha is not None and self.alpha <= 0:
            raise ConfigError(f"aaggff-s alpha = {self.alpha}: it must be above 0")

    def init(self, setting: Setting | int) -> State:
        clients = Setting.of(setting).clients
        zeros = torch.zeros(clients, dtype=torch.float64)
        # The authors' code starts from all ones, which is not on the simplex; this affects only the
        # first gradient.
        start = 1.0 if self.variant == "reference" else 1 / clients
        return {
            "slots": empty_slots(clients),
            "p": zeros + start,
            "linear": zeros,
            "curvature": torch.zeros(clients, clients, dtype=torch.float64),
        }

    def __call__(self, reports: Reports, state: State) -> Decision:
        slots, index = take_slots(state["slots"], reports.ids, reports.clients)
        state = _extended(state, len(slots))
        clients = len(slots)
        r = self.cohort_response(reports.losses, clients)
        g = decision_gradient(state["p"], doubly_robust(r, index, clients))
        curvature = state["curvature"] + torch.outer(g, g)
        following = self._decide(g, state["p"], state["linear"], curvature)
        return Decision(on_cohort(following["p"], index), {"slots": slots, **following})

    def _decide(self, g: Tensor, p: Tensor, linear: Tensor, curvature: Tensor) -> State:
        """Minimise eq. 7 with this round's gradient g."""
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
            linear = linear + g - beta * (g @ p) * g
        p = quadratic(ridge * identity + beta * curvature, linear)
        return {"p": p, "linear": linear, "curvature": curvature}

    def response(self, losses: Tensor) -> Tensor:
        """Eq. 8 for a full cohort: in [0, 1/K]."""
        return self.cohort_response(losses, len(losses))

    def cohort_response(self, losses: Tensor, clients: int) -> Tensor:
        """Eq. 8 in the range of the whole population, [0, 1/K]."""
        high = self._high(clients)
        r = response(losses, self.cdf, high, self.low, self.scale)
        if self.variant == "reference" and self.cdf == "normal":
            # The authors' code has erfc for erf in the normal CDF: it decreases with the loss, from
            # 1.5 to 0.5.
            return 1.5 * high - r
        return r

    def _high(self, clients: int) -> float:
        return 1 / clients if self.high is None else self.high

    def _lipschitz(self, clients: int) -> float:
        """L, the largest gradient of the decision loss: C2 / (1 + C1)."""
        return self._high(clients) / (1 + self.low)

    def bound(self, rounds: int, clients: int) -> float | None:
        """Theorem 5.1: regret <= 2 L K (1 + log(1 + T / (16 K))); none for other constants."""
        if self.variant != "paper" or self.alpha is not None or self.beta is not None:
            return None
        growth = 1 + math.log1p(rounds / (16 * clients))
        return 2 * self._lipschitz(clients) * clients * growth

    def distribution(self, state: State, clients: int) -> Tensor:
        return by_client(state["slots"], state["p"], clients)


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
