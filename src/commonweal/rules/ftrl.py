"""Follow the regularised leader with a regulariser of your own.

Hahn et al., ICML 2024, eqs. 3 and 6: each decision minimises all past decision losses, linearised,
and a regulariser that may change with time. aaggff-s is this rule with a quadratic regulariser.
A rule of your own is a subclass, which experiments name by its file (rule = "./mine.py:Spread"):

>>> @dataclass(frozen=True)
... class Spread(FTRL):
...     eta: float = 2.0
...
...     def regularizer(self, p: Tensor, t: int) -> Tensor:
...         return self.eta * t**0.5 * p.square().sum()
>>> losses = torch.tensor([1.0, 3.0])
>>> reports = Reports(ids=torch.arange(2), sizes=torch.ones(2), losses=losses, clients=2)
>>> rule = Spread()
>>> rule(reports, rule.init(2)).weights
tensor([0.4809, 0.5191], dtype=torch.float64)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.base.tensors import State
from commonweal.data.population import Setting
from commonweal.rules import online
from commonweal.rules.rule import RATIOS, Decision, Kind, Reports, Rule
from commonweal.rules.simplex import minimize
from commonweal.rules.slots import extend, extend_mixture, over_all

__all__ = ["FTRL"]


@dataclass(frozen=True)
class FTRL(Rule):
    """p = argmin <sum g, p> + R_t(p) over the simplex; weights = p over the cohort

    A client that joins late begins with p = 1 / K, the others scaled down in proportion, and with
    the mean of their past gradients, as if it had been absent.

    Args:
        cdf: maps a loss, relative to the mean, to a response.
        low: C1, the lowest response.
        high: C2, the highest response; by default 1/K. L = C2 / (1 + C1).
        scale: of the CDF; smaller values tell losses near the mean better apart; "spacing"
            fits it to every cohort's losses by maximum spacing.
    """

    cdf: online.CDF = "normal"
    low: float = 0.0
    high: float | None = None
    scale: online.Scale = 1.0

    kind = Kind("online", "CDF(f / mean f) / K", "follow the regularised leader")
    needs = RATIOS
    logarithmic = True

    def __post_init__(self) -> None:
        online.check_range(type(self).__name__.lower(), self.low, self.high, self.scale)

    def regularizer(self, p: Tensor, t: int) -> Tensor:
        """Return R(p) for the decision after t rounds: convex, smooth for p > 0, written in torch.

        Gradients have entries of at most L, so that R should grow as L sqrt(t).
        """
        raise NotImplementedError

    def init(self, setting: Setting | int) -> State:
        clients = Setting.of(setting).clients
        zeros = torch.zeros(clients, dtype=torch.float64)
        return {"p": zeros + 1 / clients, "linear": zeros, "t": torch.tensor(0)}

    def __call__(self, reports: Reports, state: State) -> Decision:
        if reports.clients > len(state["p"]):
            state = self._extended(state, reports.clients)
        clients = len(state["p"])
        r = self.cohort_response(reports.losses, clients)
        g = online.decision_gradient(state["p"], online.doubly_robust(r, reports.ids, clients))
        following = self._decide(g, state)
        return Decision(online.on_cohort(following["p"], reports.ids), following)

    def _decide(self, g: Tensor, state: State) -> State:
        """Minimise eq. 6 with this round's gradient g."""
        t = int(state["t"]) + 1
        linear = state["linear"] + g
        p = minimize(lambda p: linear @ p + self.regularizer(p, t), len(g))
        return {"p": p, "linear": linear, "t": torch.tensor(t)}

    def _extended(self, state: State, clients: int) -> State:
        """Return the state with newcomers, as if they had been absent so far.

        Absent clients have the mean gradient of each round (eq. 10), so newcomers have the mean of
        the accumulated ones. With zeros they would get no weight until they had caught up.
        """
        linear = state["linear"]
        return {
            **state,
            "p": extend_mixture(state["p"], clients),
            "linear": extend(linear, clients, linear.mean()),
        }

    def response(self, losses: Tensor) -> Tensor:
        """Eq. 8 for a full cohort: in [0, 1/K]."""
        return self.cohort_response(losses, len(losses))

    def cohort_response(self, losses: Tensor, clients: int) -> Tensor:
        """Eq. 8 in the range of the whole population, [0, 1/K]."""
        return online.response(losses, self.cdf, self._high(clients), self.low, self.scale)

    def _high(self, clients: int) -> float:
        return 1 / clients if self.high is None else self.high

    def _lipschitz(self, clients: int) -> float:
        """L, the largest gradient of the decision loss: C2 / (1 + C1)."""
        return self._high(clients) / (1 + self.low)

    def distribution(self, state: State, clients: int) -> Tensor:
        return over_all(state["p"], clients)
