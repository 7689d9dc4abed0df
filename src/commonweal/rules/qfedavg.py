"""q-FedAvg: weights by the loss to the power q, so that larger losses count more.

Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020. The published algorithm
(`scaled`) also sets the length of the step by an estimate of the curvature of the loss,
L = 1 / (the clients' lr). That estimate is one for a single local step: with several, steps of
q >= 1 are far too short. By default weights are normalised instead, as in AAggFF's Table 1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.base.arguments import check_bounds
from commonweal.base.tensors import State
from commonweal.data.population import Setting
from commonweal.rules.online import mixture
from commonweal.rules.rule import (
    RATIOS,
    Decision,
    Grid,
    Kind,
    Need,
    Prior,
    Reports,
    Rule,
    prior_weights,
)

TINY = 1e-10  # from the authors' code: negative powers of a loss of 0 stay finite


@dataclass(frozen=True)
class QFedAvg(Rule):
    """weights_i ~ f_i^q;
    scaled: weights_i = L f_i^q / sum_j (q f_j^(q-1) L^2 |u_j|^2 + L f_j^q), not summing to 1

    Args:
        q: 0 is plain averaging, large values give all weight to the worst client.
        scaled: use the published step length.
        lipschitz: L, by default 1 / (the clients' lr).
        prior: "uniform" (as the authors run it, sampling by size) or "sizes" (n_i).
    """

    q: float = 1.0
    scaled: bool = False
    lipschitz: float | None = None
    prior: Prior = "uniform"

    kind = Kind(
        "mixture", "q log f", "one entropic step from the prior (scaled: its length by curvature)"
    )
    grid = Grid(q=(0.0, 0.001, 0.01, 0.1, 1.0, 2.0, 5.0, 10.0))

    def __post_init__(self) -> None:
        check_bounds("qfedavg q", self.q, least=0)
        check_bounds("qfedavg lipschitz", self.lipschitz, above=0)

    @property
    def mixing(self) -> bool:
        return not self.scaled

    @property
    def needs(self) -> frozenset[Need]:
        needs = RATIOS if self.q else super().needs
        return needs | {"update"} if self.scaled else needs

    def init(self, setting: Setting | int) -> State:
        if not self.scaled or self.lipschitz is not None:
            return {}
        lr = Setting.of(setting).lr
        return {"lipschitz": torch.tensor(1 / lr, dtype=torch.float64)}

    def __call__(self, reports: Reports, state: State) -> Decision:
        if not self.scaled:
            response = self.response(reports.losses.double())
            return Decision(mixture(reports, response, self.prior), state)
        lipschitz = self.lipschitz or float(state["lipschitz"])
        return Decision(self._scaled_weights(reports, lipschitz), state)

    def response(self, losses: Tensor) -> Tensor:
        return self.q * losses.clamp(min=0).log() if self.q else torch.zeros_like(losses)

    def _scaled_weights(self, reports: Reports, lipschitz: float) -> Tensor:
        losses = reports.losses.double().clamp(min=TINY)
        prior = prior_weights(reports, self.prior)
        largest = losses.max()
        # Powers of losses relative to the largest neither overflow nor underflow; its own power
        # cancels.
        relative = losses / largest
        gradient = prior * lipschitz * relative**self.q
        hessian = prior * self.q * relative ** (self.q - 1) / largest
        curvature = hessian * (lipschitz * reports.norms) ** 2
        return gradient / (gradient + curvature).sum()


ENTRIES = {"qfedavg": QFedAvg}
