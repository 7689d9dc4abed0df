"""eg: weights that accumulate the response to losses by exponentiated gradient steps.

Hahn et al., ICML 2024, eq. 3 (Helmbold et al. 1998). FedAvg, q-FedAvg, TERM and PropFair take this
step from the sizes in every round (Table 1), so that they forget; here it begins at the last
decision. A decision p costs -<p, r>, which is linear.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.base.arguments import check_bounds
from commonweal.base.tensors import State
from commonweal.data.population import Setting
from commonweal.rules.online import CDF, Scale, check_range, response
from commonweal.rules.rule import RATIOS, Decision, Kind, Reports, Rule
from commonweal.rules.sparse_table import empty_table, lookup, put_numbers


@dataclass(frozen=True)
class EG(Rule):
    """p_i <- p_i exp(lr r_i) / sum_j p_j exp(lr r_j), at first 1 / K; weights = p over the cohort

    Clients that do not report have the cohort's mean response, and so do clients that join late for
    the rounds before.

    Args:
        lr: the step, 1 / eta; sqrt(8 log K / T) has the lowest bound on the regret of T rounds.
        cdf: maps a loss, relative to the mean, to a response in [0, 1].
        scale: of the CDF; smaller values tell losses near the mean better apart; "spacing"
            fits it to every cohort's losses by maximum spacing.
    """

    lr: float = 0.1
    cdf: CDF = "normal"
    scale: Scale = 1.0

    kind = Kind("online", "CDF(f / mean f)", "one entropic step from the last decision")
    needs = RATIOS

    def __post_init__(self) -> None:
        check_range("eg", 0.0, 1.0, self.scale)
        check_bounds("eg lr", self.lr, above=0)

    def init(self, setting: Setting | int) -> State:
        return empty_table()

    def __call__(self, reports: Reports, state: State) -> Decision:
        r = self.response(reports.losses)
        # log p, up to what is common to all clients: absent ones, at the mean, keep theirs.
        exponent = lookup(state, reports.ids) + self.lr * (r - r.mean())
        return Decision(torch.softmax(exponent, 0), put_numbers(state, reports.ids, exponent))

    def response(self, losses: Tensor) -> Tensor:
        return response(losses, self.cdf, 1.0, scale=self.scale)

    def cohort_response(self, losses: Tensor, clients: int) -> Tensor:
        """In [0, S/K]: the doubly robust response (eq. 10) then differs by at most 1."""
        return len(losses) / clients * self.response(losses)

    def bound(self, rounds: int, clients: int) -> float:
        """Regret <= log K / lr + lr T / 8 with a full cohort, as responses are in [0, 1]."""
        return math.log(clients) / self.lr + self.lr * rounds / 8

    def distribution(self, state: State, clients: int) -> Tensor:
        return torch.softmax(lookup(state, torch.arange(clients)), 0)


ENTRIES = {"eg": EG}
