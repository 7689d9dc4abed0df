"""AFL: the mixture of clients that is worst for the model, followed by projected gradient ascent.

Mohri, Sivek, Suresh, Agnostic Federated Learning, ICML 2019, Fig. 3. The paper's own algorithm
takes a single stochastic gradient of every domain per round: local training of one step, all
clients, server "polyak" for the averaged model, and `grouped` for domains. There every domain
reports in every round; for clients that are not asked a loss is imputed here, since a loss of 0
would let every reporter gain on every absent client.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from commonweal.errors import ConfigError
from commonweal.population import Setting
from commonweal.rules._online import on_cohort, relative
from commonweal.rules._seats import by_client, empty_seats, extend, extend_mixture, take_seats
from commonweal.rules._simplex import project, project_ball, project_inside
from commonweal.rules.rule import Decision, Kind, Reports, Rule
from commonweal.tensors import State

__all__ = ["AFL"]


@dataclass(frozen=True)
class AFL(Rule):
    """lam <- project(lam + lr * f); weights_i ~ lam_i over the cohort

    lr: the step of the ascent
    mu: pulls lam towards the clients' sizes (the skewness term of eq. 6)
    radius: keeps lam in the chi-square ball of this radius around equal weights
    concentration: of a Dirichlet prior on lam: 1 is no prior, larger values favour uniform weights;
    or a list with every client's, which says whose mixture is likelier (eq. 9)
    optimistic: step along 2 g_t - g_(t-1); the server "optimistic" does so for the model
    lagged: use the lam before this round's losses, as Fig. 3 prints
    absent: the loss of clients that do not report: "mean" of the cohort, "last" (what they last
    reported, relative to its cohort's mean, times this cohort's mean), or "zero"

    Any client id is accepted. A client that joins late begins with lam = 1 / K, and the others are
    scaled down in proportion.
    """

    lr: float = 0.1
    mu: float = 0.0
    radius: float | None = None
    concentration: float | tuple[float, ...] | None = None
    optimistic: bool = False
    lagged: bool = False
    absent: Literal["mean", "last", "zero"] = "mean"

    kind: ClassVar[Kind] = Kind("online", "f", "projected gradient ascent")
    grid: ClassVar[Mapping[str, tuple[float | str, ...]]] = {"lr": (0.01, 0.05, 0.1, 0.5, 1.0)}

    def __post_init__(self) -> None:
        prior = self.concentration
        prior = prior if isinstance(prior, tuple) else (1.0 if prior is None else prior,)
        wrong_radius = self.radius is not None and self.radius <= 0
        if self.lr <= 0 or self.mu < 0 or min(prior) < 1 or wrong_radius:
            raise ConfigError(
                f"afl {self}: lr and radius must be above 0, mu at least 0, concentration at "
                "least 1"
            )
        if self.radius is not None and max(prior) > 1:
            raise ConfigError(f"afl {self}: give a radius or a concentration, not both")

    def init(self, setting: Setting | int) -> State:
        clients = Setting.of(setting).clients
        prior = self.concentration
        if isinstance(prior, tuple) and len(prior) != clients:
            raise ConfigError(
                f"afl: {len(prior)} concentrations for {clients} clients; give every client's"
            )
        ones = torch.ones(clients, dtype=torch.float64)
        state = {"seats": empty_seats(clients), "lam": ones / clients}
        if self.absent == "last":
            state["relative"] = ones  # each client's loss over the mean of its cohort
        if self.optimistic:
            state["last"] = torch.empty(0, dtype=torch.float64)
        return state

    def __call__(self, reports: Reports, state: State) -> Decision:
        seats, index = take_seats(state["seats"], reports.ids, reports.clients)
        lam = extend_mixture(state["lam"], len(seats))
        following = {"seats": seats}
        losses = reports.losses.double().mean().repeat(len(lam))
        if self.absent == "zero":
            losses = torch.zeros_like(losses)
        if self.absent == "last":
            known = extend(state["relative"], len(seats), 1.0)
            losses = losses * known
            following["relative"] = known.index_copy(0, index, relative(reports.losses))
        losses[index] = reports.losses.double()
        gradient = losses + self._skewness(reports, lam, index)
        step = gradient
        if self.optimistic and len(state["last"]):  # there is no last gradient in the first round
            step = 2 * gradient - extend(state["last"], len(lam), 0.0)
        if self.optimistic:
            following["last"] = gradient
        following["lam"] = self._project(lam + self.lr * step)
        return Decision(on_cohort(lam if self.lagged else following["lam"], index), following)

    def _project(self, lam: Tensor) -> Tensor:
        if self.radius is not None:
            equal = torch.full_like(lam, 1 / len(lam))
            return project_ball(lam, equal, self.radius)
        pull = self.lr * (self._concentrations(len(lam)) - 1)
        if not pull.any():
            return project(lam)
        # The gradient of the prior is unbounded at the boundary, so it is evaluated at the end of
        # the step: a proximal step converges.
        return project_inside(lam, pull)

    def _concentrations(self, clients: int) -> Tensor:
        """Every client's (K,); clients that joined late have none."""
        prior = self.concentration
        if isinstance(prior, tuple):
            return extend(torch.tensor(prior, dtype=torch.float64), clients, 1.0)
        return torch.full((clients,), 1.0 if prior is None else prior, dtype=torch.float64)

    def _skewness(self, reports: Reports, lam: Tensor, index: Tensor) -> Tensor:
        """The gradient (K,) of the regulariser of eq. 6. Absent clients have the mean size."""
        if not self.mu:
            return torch.zeros_like(lam)
        sizes = reports.sizes.double().mean().repeat(len(lam))
        sizes[index] = reports.sizes.double()
        return -2 * self.mu * lam * sizes.sum() / sizes

    def response(self, losses: Tensor) -> Tensor:
        return losses

    def distribution(self, state: State, clients: int) -> Tensor:
        return by_client(state["seats"], state["lam"], clients)


ENTRIES = {"afl": AFL}
