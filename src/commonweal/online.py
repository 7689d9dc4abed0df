"""Aggregation as online convex optimisation: a rule is a response, a decision loss and a leader.

Hahn et al., Pursuing Overall Welfare in Federated Learning through Sequential Decision Making, ICML 2024. Each round
the server decides on a mixture p, sees how clients fare as a response r, and pays -log(1 + <p, r>) (eq. 4): a mixture
that leans on clients with large losses pays less, so the next decision leans on them.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from commonweal.rule import Reports

__all__ = ["CDF", "CDFS", "decision_gradient", "decision_loss", "doubly_robust", "on_cohort", "relative", "response"]

CDF = Literal["weibull", "frechet", "gumbel", "exponential", "logistic", "normal"]

CDFS: dict[str, Callable[[Tensor], Tensor]] = {  # App. B.1, scale 1, of a loss relative to the cohort's mean
    "weibull": lambda x: 1 - torch.exp(-x.square()),
    "frechet": lambda x: torch.exp(-1 / x),
    "gumbel": lambda x: torch.exp(-torch.exp(1 - x)),
    "exponential": lambda x: 1 - torch.exp(-x),
    "logistic": lambda x: torch.sigmoid(x - 1),
    "normal": lambda x: torch.special.ndtr(x - 1),
}


def relative(losses: Tensor) -> Tensor:
    """Losses over their mean (S,), in float64; all ones where every loss is 0."""
    losses = losses.double()
    mean = losses.mean()
    return losses / mean if mean > 0 else torch.ones_like(losses)


def response(losses: Tensor, cdf: str, high: float) -> Tensor:
    """Eq. 8 with C1 = 0: where a client's loss stands among the cohort's, as a number in [0, high]."""
    return high * CDFS[cdf](relative(losses))


def doubly_robust(r: Tensor, ids: Tensor, clients: int) -> Tensor:
    """Eq. 10: an estimate of all K responses from a cohort's; r itself when everyone reports.

    Unbiased only while the cohort's mean is held fixed, as Lemma 4.3 does; with the mean of the same cohort it is
    nearly so.
    """
    mean, share = r.mean(), len(r) / clients
    full = mean.repeat(clients)
    full[ids] = mean + (r - mean) / share
    return full


def decision_loss(p: Tensor, r: Tensor) -> Tensor:
    """What the decision p costs against the response r (eq. 4)."""
    return -torch.log1p(p @ r)


def decision_gradient(p: Tensor, r: Tensor) -> Tensor:
    """The gradient of `decision_loss` in p."""
    return -r / (1 + p @ r)


def on_cohort(p: Tensor, reports: Reports) -> Tensor:
    """A decision over all clients, restricted to the cohort and renormalised (eq. 95)."""
    weights = p[reports.ids]
    total = weights.sum()
    # A cohort on which the decision puts nothing at all says nothing about its members: they count alike.
    return weights / total if total > 0 else torch.full_like(weights, 1 / len(weights))
