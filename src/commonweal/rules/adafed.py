"""AdaFed: a common descent direction along which larger losses decrease faster.

Hamidi, Yang, AdaFed: Fair Federated Learning via Adaptive Common Descent Direction, TMLR 2024.
Client k's loss decreases at the rate <u_k, D>, which is made proportional to f_k^gamma. The paper
finds D by Gram-Schmidt (eqs. 5, 6, 14); since the rates determine it, one linear solve gives the
same D in any order of clients. At a Pareto-stationary point no direction serves everyone: the
linear system is singular because the answer is 0, and the rule returns a direction of length 0.
Where updates depend on each other with both signs (always, with more clients than parameters), no
direction has the rates, and the paper's may raise a loss. The rule then takes the shortest point
of the convex hull of the updates in unit length: along it every loss falls.

Where the updates of many clients conflict, exact rates need large weights of both signs: what is
left of the updates is mostly noise, or too short to move the model (docs/results.md). The default
therefore adds a ridge to the linear system, so that rates hold approximately; every scale but
"bounded" is the published direction.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from commonweal.base.arguments import check_bounds
from commonweal.base.tensors import State
from commonweal.rules._lengths import as_long_as_the_mean
from commonweal.rules.rule import (
    RATIOS,
    Decision,
    Descent,
    Grid,
    Kind,
    Need,
    Reports,
    Rule,
    required,
)
from commonweal.rules.simplex import quadratic, solve

STATIONARY = 1e-8  # squared length of the shortest mean of unit updates that counts as 0
TINY = 1e-9  # a shorter update, relative to the longest one, is what rounding leaves of none
FEWEST = 1e-100  # a smaller power of the losses counts as this, so that weights stay finite
MOST = 3.0  # the largest sum of absolute weights of the scale "bounded"
SINGULAR = (
    "adafed: the updates' Gram matrix is singular (equal or zero updates, or more clients than "
    "parameters): losses need not fall at the rates that gamma asks for"
)


@dataclass(frozen=True)
class AdaFed(Rule):
    """weights ~ v, (G + ridge diag G) v = f^gamma, with the length of the mean update;
    other scales: weights = scale * v / <f^gamma, v>; may be negative, and do not sum to 1

    Args:
        gamma: how much faster larger losses decrease; 0 gives all clients the same rate.
        ridge: 0 makes the rates exact, larger values make the weights smaller and less
            often negative; by default 1 for the scale "bounded" and 0 for all others.
        scale: "bounded" takes the norm of the mean update, as far as the absolute weights
            sum to at most 3 (those of an average sum to 1); "mean" takes it always (and
            amplifies noise when gamma is below 1); "theorem" multiplies by min f^gamma (as
            Theorem 5.1 bounds the step: with full gradients and step 1 / L no loss rises),
            "largest" by max f^gamma (both vanish with the direction, and hardly move where
            the updates of many clients conflict; the steps of "largest" are longer than the
            theorem allows, so that losses may rise); "none" is as printed (a step that
            grows as 1 / f^gamma: no loss rises while all f^gamma are at least 1/2).
        loss: "before" local training, as for all rules, or "after" it, as in the paper's
            Algorithm 1.
        q: combine with q-FFL (section 6.1): the objectives are f^(q+1) / (q+1), divided by the
            largest f^q, and their updates are f^q times as long.
    """

    gamma: float = 5.0
    scale: Literal["bounded", "mean", "largest", "theorem", "none"] = "bounded"
    loss: Literal["before", "after"] = "before"
    ridge: float | None = None
    q: float = 0.0

    kind = Kind("direction", "f^gamma, the rate of descent", "minimum norm for given rates")
    grid = Grid(gamma=(0.0, 0.01, 0.1, 1.0, 5.0, 10.0))
    mixing = False

    def __post_init__(self) -> None:
        check_bounds("adafed gamma", self.gamma, least=0)
        check_bounds("adafed ridge", self.ridge, least=0)
        check_bounds("adafed q", self.q, least=0)

    @property
    def needs(self) -> frozenset[Need]:
        needs: frozenset[Need] = RATIOS | {"update"}
        return needs | {"loss_after"} if self.loss == "after" else needs

    def __call__(self, reports: Reports, state: State) -> Decision:
        # A client at its optimum, or one that did not train, has nothing to gain: the others can
        # still descend.
        losses = reports.losses
        if self.loss == "after":
            losses = required(reports.losses_after, "losses after local training")
        losses = losses.double().clamp(min=0)
        largest = losses.max()
        factor = torch.ones_like(losses)
        if self.q > 0 and largest > 0:
            factor = (losses / largest) ** self.q
            losses = losses * factor / (self.q + 1)
        gram = reports.gram * torch.outer(factor, factor)
        norms = gram.diagonal().sqrt()
        moving = norms > TINY * norms.max()
        if moving.all() or not moving.any():
            weights, singular = self._weigh(gram, losses)
        else:
            singular = True
            weights = torch.zeros_like(norms)
            weights[moving] = self._weigh(gram[moving][:, moving], losses[moving])[0]
        weights = factor * weights
        descent = Descent.along(weights, reports.gram)
        return Decision(weights, state, (SINGULAR,) if singular else (), descent=descent)

    def _weigh(self, gram: Tensor, losses: Tensor) -> tuple[Tensor, bool]:
        """The weights (S,), and whether the rates do not determine them."""
        if _dependent(gram):
            shortest, length = _shortest(gram)
            if length <= STATIONARY:
                return shortest, False
        # Powers of very large or small losses overflow: the rates are relative to the largest.
        largest = losses.max() if losses.any() else losses.new_ones(())
        rate = (losses / largest) ** self.gamma
        ridge = (1.0 if self.scale == "bounded" else 0.0) if self.ridge is None else self.ridge
        v, singular = solve(gram + ridge * gram.diagonal().diag(), rate)
        total = rate @ v
        if not total > 0:  # all updates or all losses are zero: any weights give the same step
            weights = torch.full_like(v, 1 / len(v))
            return self._scaled(weights, rate, gram), singular
        weights = self._scaled(v / total, rate, gram)
        if self.scale == "none":  # the only scale that depends on the unit of the losses
            weights = weights / (largest**self.gamma).clamp(FEWEST, 1 / FEWEST)
        rates = gram @ weights
        # By a step along D a loss falls by at least L (<u_k, D> - |D|^2 / 2), if it is L-smooth and
        # u_k its gradient / L.
        falls = bool((rates >= weights @ rates / 2).all())
        if not falls and ridge == 0 and (singular or self.scale == "theorem"):
            weights = _shortest(gram)[0]
            if self.scale == "mean":
                weights = as_long_as_the_mean(weights, gram)
        return weights, singular

    def _scaled(self, weights: Tensor, rate: Tensor, gram: Tensor) -> Tensor:
        if self.scale in ("none", "largest"):  # the largest rate is 1
            return weights
        if self.scale == "theorem":
            positive = rate[rate > 0]
            return weights * positive.min() if len(positive) else weights
        weights = as_long_as_the_mean(weights, gram)
        if self.scale == "mean":
            return weights
        return weights / max(1.0, float(weights.abs().sum()) / MOST)


def _cosines(gram: Tensor) -> Tensor:
    norms = gram.diagonal().sqrt()
    return gram / torch.outer(norms, norms)


def _dependent(gram: Tensor) -> bool:
    """Return whether a combination of updates may have the length 0, so that a convex one may."""
    if len(gram) < 2 or not gram.diagonal().all():
        return False
    # |lam|^2 >= 1 / S: a short combination has a small eigenvalue.
    smallest = torch.linalg.eigvalsh(_cosines(gram))[0]
    return bool(smallest <= STATIONARY * len(gram))


def _shortest(gram: Tensor) -> tuple[Tensor, float]:
    """Find the shortest point of the convex hull of the updates in unit length.

    Returns:
        The weights (S,) of that point times the shortest update's length, so that what rounding
        leaves of it is short as well; and its squared length before that.
    """
    cosines = _cosines(gram)
    norms = gram.diagonal().sqrt()
    lam = quadratic(cosines, torch.zeros_like(norms))
    return lam * norms.min() / norms, float(lam @ cosines @ lam)


ENTRIES = {"adafed": AdaFed}
