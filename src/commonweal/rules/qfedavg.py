"""q-FedAvg: losses to the power q, so that a client weighs more the worse it fares.

Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020. The published algorithm (`scaled`) also sets the
step's length by an estimate of the loss's curvature, L = 1 / (the clients' lr); AAggFF's Table 1 normalises instead.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from commonweal.errors import ConfigError
from commonweal.federation import Federation
from commonweal.local import Local
from commonweal.online import mixture
from commonweal.rule import Kind, Prior, Reports, Stateless, shares

__all__ = ["QFedAvg"]

KIND = Kind("mixture", "q log f", "one entropic step from the prior, its length by curvature")

TINY = 1e-10  # as the authors' code: powers below 0 of a loss of 0 stay finite


@dataclass(frozen=True)
class QFedAvg(Stateless):
    """weights_i = L f_i^q / sum_j (q f_j^(q-1) L^2 |u_j|^2 + L f_j^q), not summing to 1; unscaled: weights_i ~ f_i^q

    q: 0 is plain averaging, large values see the worst client only
    scaled: the published step length; lipschitz: L, in an experiment 1 / (the clients' lr) unless it is given
    prior: "uniform" (as the authors run it, sampling by size) or "sizes" (n_i)
    """

    q: float = 1.0
    scaled: bool = True
    lipschitz: float | None = None
    prior: Prior = "uniform"

    def __post_init__(self) -> None:
        if self.q < 0 or (self.lipschitz is not None and self.lipschitz <= 0):
            raise ConfigError(f"qfedavg q = {self.q}, lipschitz = {self.lipschitz}: q must be >= 0, lipschitz above 0")

    def bind(self, federation: Federation, local: Local) -> "QFedAvg":
        return self if self.lipschitz is not None else replace(self, lipschitz=1 / local.lr)

    def response(self, losses: Tensor) -> Tensor:
        return self.q * losses.log() if self.q else torch.zeros_like(losses)

    def weigh(self, reports: Reports) -> Tensor:
        losses = reports.losses.double()
        if not self.scaled:
            return mixture(reports, self.response(losses), self.prior)
        if self.lipschitz is None:
            raise ConfigError("qfedavg: lipschitz is not set; outside an experiment give lipschitz = 1 / (clients' lr)")
        losses, prior, slope = losses.clamp(min=TINY), shares(reports, self.prior), self.lipschitz
        rate = prior * slope * losses**self.q
        curve = prior * self.q * losses ** (self.q - 1) * (slope * reports.lengths) ** 2
        return rate / (rate + curve).sum()
