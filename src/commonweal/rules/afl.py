"""AFL: minimises the largest loss; weights follow the losses by projected gradient ascent.

Mohri, Sivek, Suresh, Agnostic Federated Learning, ICML 2019, Fig. 3. The paper's own algorithm
takes a single stochastic gradient of every domain per round: local training of one step, all
clients, server "polyak" for the averaged model, "ball" for the projection of w, and `grouped` for
domains. There every domain reports in every round; for clients that are not asked a loss is imputed
here, since a loss of 0 would let every reporter gain on every absent client.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from commonweal.base.arguments import check_bounds
from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State
from commonweal.data.population import Setting
from commonweal.rules.online import on_cohort, relative
from commonweal.rules.rule import RATIOS, Decision, Grid, Kind, Need, Reports, Rule
from commonweal.rules.simplex import project, project_ball, project_hull, project_inside
from commonweal.rules.slots import extend, extend_mixture, over_all

ALONE = (
    "afl: a single reporter says nothing about the others, so that the mixture does not move: ask "
    "at least 2 clients per round, or set absent = 'zero'"
)


@dataclass(frozen=True)
class AFL(Rule):
    """lam <- project(lam + lr * f); weights_i ~ lam_i over the cohort

    A client that joins late begins with lam = 1 / K, and the others are scaled down in proportion;
    it has no part in mixtures that are given. The mean of lam over all rounds is in the record of
    evaluated rounds ("mixture").

    Args:
        lr: the step of the ascent.
        mu: pulls lam towards the clients' sizes (the skewness term of eq. 6).
        radius: keeps lam where 1 + chi2(lam || centre) is at most this, r in Section 5.1: from 1,
            where lam is the centre, to the clients' number over the smallest share, and beyond.
        centre: of this ball: the clients' shares of samples ("sizes", where clients that have never
            reported have the mean size), or equal weights ("uniform").
        mixtures: keeps lam a mixture of these mixtures of clients: the set Lambda of the
            paper is their convex hull, [[1, 0, 0], [0, 0.5, 0.5]] for "the first client, or
            the other two".
        concentration: of a Dirichlet prior on lam: 1 is no prior, larger values favour
            uniform weights; or a list with every client's, which says whose mixture is
            likelier (eq. 9).
        optimistic: step along 2 g_t - g_(t-1); the server "optimistic" does so for the
            model.
        lagged: use the lam before this round's losses, as Fig. 3 prints.
        absent: the loss of clients that do not report: "mean" of the cohort, "last" (what
            they last reported, relative to its cohort's mean, times this cohort's mean), or
            "zero".
    """

    lr: float = 0.1
    mu: float = 0.0
    radius: float | None = None
    centre: Literal["sizes", "uniform"] = "sizes"
    mixtures: tuple[tuple[float, ...], ...] | None = None
    concentration: float | tuple[float, ...] | None = None
    optimistic: bool = False
    lagged: bool = False
    absent: Literal["mean", "last", "zero"] = "mean"

    kind = Kind("online", "f", "projected gradient ascent")
    grid = Grid(lr=(0.01, 0.05, 0.1, 0.5, 1.0))

    @property
    def needs(self) -> frozenset[Need]:
        return RATIOS if self.absent == "last" else super().needs

    def __post_init__(self) -> None:
        prior = self.concentration
        prior = prior if isinstance(prior, tuple) else (1.0 if prior is None else prior,)
        check_bounds("afl lr", self.lr, above=0)
        check_bounds("afl mu", self.mu, least=0)
        check_bounds("afl radius", self.radius, least=1)
        for value in prior or (0.0,):
            check_bounds("afl concentration", value, least=1)
        if max(prior) > 1 and (self.radius is not None or self.mixtures is not None):
            raise ConfigError(f"afl {self}: give a concentration, or radius and mixtures")
        if self.mixtures is not None:
            _check_mixtures(self.mixtures)

    def init(self, setting: Setting | int) -> State:
        clients = Setting.of(setting).clients
        prior = self.concentration
        if isinstance(prior, tuple) and len(prior) != clients:
            raise ConfigError(
                f"afl: {len(prior)} concentrations for {clients} clients; give every client's"
            )
        ones = torch.ones(clients, dtype=torch.float64)
        start = ones / clients
        if self.mixtures is not None:
            start = torch.tensor(self.mixtures, dtype=torch.float64).mean(0)
        if len(start) != clients:
            raise ConfigError(
                f"afl: mixtures of {len(start)} clients, but there are {clients}; give every "
                "client's part"
            )
        state = {"t": torch.tensor(0), "mean": torch.zeros_like(start)}
        if self.radius is not None:
            sizes = Setting.of(setting).sizes
            known = torch.zeros_like(start) if sizes is None else sizes.double()
            state["sizes"] = known  # 0: not known yet
            start = self._project(start, known)
        state["lam"] = start
        if self.absent == "last":
            state["relative"] = ones  # each client's loss over the mean of its cohort
        if self.optimistic:
            state["last"] = torch.empty(0, dtype=torch.float64)
        return state

    def __call__(self, reports: Reports, state: State) -> Decision:
        ids = reports.ids
        lam = extend_mixture(state["lam"], reports.clients)
        following = {}
        losses = reports.losses.double().mean().repeat(len(lam))
        if self.absent == "zero":
            losses = torch.zeros_like(losses)
        if self.absent == "last":
            known = extend(state["relative"], len(lam), 1.0)
            losses = losses * known
            following["relative"] = known.index_copy(0, ids, relative(reports.losses))
        losses[ids] = reports.losses.double()
        gradient = losses + self._skewness(reports, lam)
        step = gradient
        if self.optimistic:
            following["last"] = gradient
            if len(state["last"]):  # none in the first round
                step = 2 * gradient - extend(state["last"], len(lam), 0.0)
        sizes = None
        if self.radius is not None:
            sizes = extend(state["sizes"], len(lam), 0.0)
            sizes = sizes.index_copy(0, ids, reports.sizes.double())
            following["sizes"] = sizes
        following["lam"] = self._project(lam + self.lr * step, sizes)
        used = lam if self.lagged else following["lam"]
        following |= _averaged(used, state)
        moves = len(ids) > 1 or len(lam) == 1 or self.absent == "zero" or self.mu
        return Decision(on_cohort(used, ids), following, () if moves else (ALONE,))

    def _project(self, lam: Tensor, sizes: Tensor | None) -> Tensor:
        """The point of the set of mixtures that is nearest to lam; sizes (K,): 0 if not known."""
        points = None
        if self.mixtures is not None:
            given = torch.tensor(self.mixtures, dtype=torch.float64)
            late = torch.zeros(len(given), len(lam) - given.shape[1], dtype=torch.float64)
            points = torch.cat([given, late], 1)
        if self.radius is not None and sizes is not None:
            return project_ball(lam, self._centre(sizes), self.radius, points)
        if points is not None:
            return project_hull(lam, points)
        pull = self.lr * (self._concentrations(len(lam)) - 1)
        if not pull.any():
            return project(lam)
        # The gradient of the prior is unbounded at the boundary, so it is evaluated at the end of
        # the step: a proximal step converges.
        return project_inside(lam, pull)

    def _centre(self, sizes: Tensor) -> Tensor:
        known = sizes > 0
        if self.centre == "uniform" or not known.any():
            return torch.full_like(sizes, 1 / len(sizes))
        shares = torch.where(known, sizes, sizes[known].mean())
        return shares / shares.sum()

    def _concentrations(self, clients: int) -> Tensor:
        """Every client's (K,); clients that joined late have none."""
        prior = self.concentration
        if isinstance(prior, tuple):
            return extend(torch.tensor(prior, dtype=torch.float64), clients, 1.0)
        return torch.full((clients,), 1.0 if prior is None else prior, dtype=torch.float64)

    def _skewness(self, reports: Reports, lam: Tensor) -> Tensor:
        """The gradient (K,) of the regulariser of eq. 6. Absent clients have the mean size."""
        if not self.mu:
            return torch.zeros_like(lam)
        sizes = reports.sizes.double().mean().repeat(len(lam))
        sizes[reports.ids] = reports.sizes.double()
        return -2 * self.mu * lam * sizes.sum() / sizes

    def response(self, losses: Tensor) -> Tensor:
        return losses

    def distribution(self, state: State, clients: int) -> Tensor:
        return over_all(state["lam"], clients)

    def averaged(self, state: State, clients: int) -> Tensor | None:
        if int(state["t"]) == 0:
            return None
        return over_all(state["mean"], clients)


def _averaged(lam: Tensor, state: State) -> State:
    """The mean (K,) of the mixtures so far: lam^A of Fig. 3."""
    t = int(state["t"]) + 1
    mean = extend_mixture(state["mean"], len(lam))
    return {"t": torch.tensor(t), "mean": mean + (lam - mean) / t}


def _check_mixtures(mixtures: tuple[tuple[float, ...], ...]) -> None:
    """Raise ConfigError unless each is a point of the simplex over the same clients."""
    if not mixtures:
        raise ConfigError(f"afl mixtures = {list(mixtures)}: give at least one mixture of clients")
    clients = len(mixtures[0])
    for mixture in mixtures:
        inside = len(mixture) == clients > 0 and min(mixture) >= 0
        if not (inside and abs(sum(mixture) - 1) <= 1e-6):  # also where it is NaN
            raise ConfigError(
                f"afl mixtures: {list(mixture)} sums to {sum(mixture):g} and is not a mixture of "
                f"{clients} clients; give a number of at least 0 for each, with a sum of 1"
            )


ENTRIES = {"afl": AFL}
