"""AFL: the mixture of clients that is worst for the model, followed by projected gradient ascent.

Mohri, Sivek, Suresh, Agnostic Federated Learning, ICML 2019, Fig. 3. The paper's own algorithm
takes a single stochastic gradient of every domain per round: local training of one step, all
clients, server "polyak" for the averaged model, and `grouped` for domains.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from commonweal.errors import ConfigError
from commonweal.population import Setting
from commonweal.rules._online import on_cohort
from commonweal.rules._seats import by_client, empty_seats, extend, extend_mixture, take_seats
from commonweal.rules._simplex import project, project_inside
from commonweal.rules.rule import Decision, Kind, Reports, Rule
from commonweal.tensors import State

__all__ = ["AFL"]


@dataclass(frozen=True)
class AFL(Rule):
    """lam <- project(lam + lr * f); weights_i ~ lam_i over the cohort

    lr: the step of the ascent
    mu: pulls lam towards the clients' sizes (the skewness term of eq. 6)
    concentration: of a Dirichlet prior on lam; 1 is no prior, larger values favour uniform weights
    optimistic: step along 2 g_t - g_(t-1)
    lagged: use the lam before this round's losses, as Fig. 3 prints

    Any client id is accepted. A client that joins late begins with lam = 1 / K, and the others are
    scaled down in proportion.
    """

    lr: float = 0.1
    mu: float = 0.0
    concentration: float | None = None
    optimistic: bool = False
    lagged: bool = False

    kind: ClassVar[Kind] = Kind("online", "f", "projected gradient ascent")

    def __post_init__(self) -> None:
        wrong_prior = self.concentration is not None and self.concentration < 1
        if self.lr <= 0 or self.mu < 0 or wrong_prior:
            raise ConfigError(
                f"afl {self}: lr must be above 0, mu at least 0, concentration at least 1"
            )

    def init(self, setting: Setting | int) -> State:
        clients = Setting.of(setting).clients
        lam = torch.full((clients,), 1 / clients, dtype=torch.float64)
        state = {"seats": empty_seats(clients), "lam": lam}
        if self.optimistic:
            state["last"] = torch.empty(0, dtype=torch.float64)
        return state

    def __call__(self, reports: Reports, state: State) -> Decision:
        seats, index = take_seats(state["seats"], reports.ids, reports.clients)
        lam = extend_mixture(state["lam"], len(seats))
        gradient = torch.zeros_like(lam)
        gradient[index] = self._gradient(reports, lam[index], len(lam))
        step = gradient
        if self.optimistic and len(state["last"]):  # there is no last gradient in the first round
            step = 2 * gradient - extend(state["last"], len(lam), 0.0)
        after = self._project(lam + self.lr * step)
        following = {"seats": seats, "lam": after}
        if self.optimistic:
            following["last"] = gradient
        return Decision(on_cohort(lam if self.lagged else after, index), following)

    def _project(self, lam: Tensor) -> Tensor:
        if self.concentration is None or self.concentration == 1:
            return project(lam)
        # The gradient of the prior is unbounded at the boundary, so it is evaluated at the end of
        # the step: a proximal step converges.
        return project_inside(lam, self.lr * (self.concentration - 1))

    def _gradient(self, reports: Reports, lam: Tensor, clients: int) -> Tensor:
        """Return the gradient (S,) of the mixture's loss in lam, with the regulariser of eq. 6."""
        gradient = reports.losses.double().clone()
        if self.mu:
            sizes = reports.sizes.double()
            total = sizes.mean() * clients  # an estimate of the rows of all K clients
            gradient -= 2 * self.mu * lam / (sizes / total)
        return gradient

    def response(self, losses: Tensor) -> Tensor:
        return losses

    def distribution(self, state: State, clients: int) -> Tensor:
        return by_client(state["seats"], state["lam"], clients)


ENTRIES = {"afl": AFL}
