"""AFL: the mixture of clients that is worst for the model, followed by projected ascent.

Mohri, Sivek, Suresh, Agnostic Federated Learning, ICML 2019, Fig. 3. The paper's own algorithm is a single stochastic
gradient of every domain a round: local training of one step, all clients, server "polyak" for the averaged output, and
`grouped` for domains.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.errors import ConfigError
from commonweal.online import on_cohort
from commonweal.rule import Kind, Reports, State
from commonweal.simplex import project

__all__ = ["AFL"]

KIND = Kind("online", "f", "projected gradient ascent")


@dataclass(frozen=True)
class AFL:
    """lam <- project(lam + lr * f); weights_i ~ lam_i over the cohort

    lr: the ascent's step; mu: pulls lam to the clients' sizes (the skewness term of eq. 6)
    concentration: a Dirichlet prior on lam (above 1: towards uniform); optimistic: step along 2 g_t - g_(t-1)
    lagged: weigh with the lam before this round's losses, as Fig. 3 prints
    """

    lr: float = 0.1
    mu: float = 0.0
    concentration: float | None = None
    optimistic: bool = False
    lagged: bool = False

    def __post_init__(self) -> None:
        if self.lr <= 0 or self.mu < 0 or (self.concentration is not None and self.concentration <= 0):
            raise ConfigError(f"afl {self}: lr and concentration must be above 0, mu at least 0")

    def init(self, clients: int) -> State:
        state = {"lam": torch.full((clients,), 1 / clients, dtype=torch.float64)}
        if self.optimistic:
            state["last"] = torch.zeros(clients, dtype=torch.float64)
        return state

    def __call__(self, reports: Reports, state: State) -> tuple[Tensor, State]:
        ids, lam = reports.ids, state["lam"]
        g = torch.zeros_like(lam)
        g[ids] = self.gradient(reports, lam[ids])
        ahead = 2 * g - state["last"] if self.optimistic else g
        new = {"lam": project(lam + self.lr * ahead)} | ({"last": g} if self.optimistic else {})
        return on_cohort(lam if self.lagged else new["lam"], reports), new

    def response(self, losses: Tensor) -> Tensor:
        return losses

    def gradient(self, reports: Reports, lam: Tensor) -> Tensor:
        """The slope of the mixture's loss in lam (S,), with the regulariser of eq. 6 and the prior's log-density."""
        g = reports.losses.double().clone()
        if self.mu:
            sizes = reports.sizes.double()
            g -= 2 * self.mu * lam / (sizes / sizes.sum())
        if self.concentration is not None:
            g += (self.concentration - 1) / lam.clamp(min=1e-9)  # the prior's pull is unbounded at the border
        return g
