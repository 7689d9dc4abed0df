"""FedFA: more weight for low scores and for frequent participation.

Huang et al., Fairness and Accuracy in Federated Learning, 2020. Its double momentum is the momentum
of the server (0.5) and of the clients (0.9). Both parts are relative to the cohort, as in public
implementations.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.base.arguments import check_bounds
from commonweal.base.tensors import State
from commonweal.data.population import Setting
from commonweal.rules.rule import Decision, Kind, Reports, Rule, required
from commonweal.rules.slots import extend

TINY = 1e-6  # keeps the logarithms of scores of 0 and 1 finite


@dataclass(frozen=True)
class FedFA(Rule):
    """weights_i = alpha a_i + beta b_i (normalised), a_i ~ -log2(score_i / sum of scores),
    b_i ~ -log2(1 - c_i / sum c), over the cohort

    A client that joins late begins with a count of 0.

    Args:
        alpha: the weight of the score.
        beta: the weight of participation (c_i: the rounds of client i).
    """

    alpha: float = 0.5
    beta: float = 0.5

    kind = Kind("reweighting", "-log2 (score / sum of scores), frequency", "convex combination")
    needs = frozenset({"size", "score"})

    def __post_init__(self) -> None:
        check_bounds("fedfa alpha", self.alpha, least=0)
        check_bounds("fedfa beta", self.beta, least=0)
        check_bounds("fedfa alpha + beta", self.alpha + self.beta, above=0)

    def init(self, setting: Setting | int) -> State:
        clients = Setting.of(setting).clients
        counts = torch.zeros(clients, dtype=torch.float64)
        return {"counts": counts}

    def __call__(self, reports: Reports, state: State) -> Decision:
        ids = reports.ids
        counts = extend(state["counts"], reports.clients, 0.0)
        counts = counts.index_add(0, ids, torch.ones(len(ids), dtype=torch.float64))
        scores = required(reports.scores, "scores").double()
        mean = scores.nanmean().nan_to_num(nan=0.5)  # an undefined score counts as the others' mean
        a = _normalized(-_fraction(scores.nan_to_num(nan=float(mean))).log2())
        b = _normalized(-(1 - _fraction(counts[ids])).log2())
        weights = _normalized(self.alpha * a + self.beta * b)
        return Decision(weights, {"counts": counts})


def _fraction(values: Tensor) -> Tensor:
    """Divide by the sum; the result is never 0 or 1."""
    return _normalized(values.clamp(min=TINY)).clamp(TINY, 1 - TINY)


def _normalized(values: Tensor) -> Tensor:
    return values / values.sum()


ENTRIES = {"fedfa": FedFA}
