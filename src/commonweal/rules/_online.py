"""Aggregation as online convex optimisation: a rule is a response, a decision loss and an update.

Hahn et al., Pursuing Overall Welfare in Federated Learning through Sequential Decision Making,
ICML 2024. In each round the server decides on a mixture p, observes the response r to the clients'
losses, and pays -log(1 + <p, r>) (eq. 4). A mixture with more weight on clients with large losses
pays less, so the next decision gives them more weight.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from commonweal.errors import ConfigError
from commonweal.rules.rule import Prior, Reports, prior_weights

__all__ = [
    "CDF",
    "CDFS",
    "check_range",
    "decision_gradient",
    "decision_loss",
    "doubly_robust",
    "mixture",
    "on_cohort",
    "relative",
    "response",
]

CDF = Literal["weibull", "frechet", "gumbel", "exponential", "logistic", "normal"]

# App. B.1, with scale 1, as functions of a loss relative to the cohort's mean.
CDFS: dict[str, Callable[[Tensor], Tensor]] = {
    "weibull": lambda x: 1 - torch.exp(-x.square()),
    "frechet": lambda x: torch.exp(-1 / x),
    "gumbel": lambda x: torch.exp(-torch.exp(1 - x)),
    "exponential": lambda x: 1 - torch.exp(-x),
    "logistic": lambda x: torch.sigmoid(x - 1),
    "normal": lambda x: torch.special.ndtr(x - 1),
}

LOCATED = ("gumbel", "logistic", "normal")  # CDFs with a location, which is 1


def mixture(reports: Reports, response: Tensor, prior: Prior) -> Tensor:
    """Take one entropic step from the prior: softmax(log prior + response), Table 1 of the paper.

    FedAvg, q-FedAvg, TERM and PropFair are this step with four responses. A response of -inf gives
    a weight of 0. If all responses are equal, the result is exactly the prior.
    """
    start = prior_weights(reports, prior)
    if (response == response[0]).all():
        return start
    weights = start * torch.exp(response - response.max())
    return weights / weights.sum()


def relative(losses: Tensor) -> Tensor:
    """Divide losses (S,) by their mean, in float64. All ones if every loss is 0."""
    losses = losses.double()
    mean = losses.mean()
    return losses / mean if mean > 0 else torch.ones_like(losses)


def response(losses: Tensor, cdf: str, high: float, low: float = 0.0, scale: float = 1.0) -> Tensor:
    """Map losses (S,) to [low, high] by a CDF of the relative loss: eq. 8, C1 = low, C2 = high.

    A smaller scale makes the CDF steeper: around 1, the mean loss, where the CDF has a location,
    else around 0.
    """
    x = relative(losses)
    x = 1 + (x - 1) / scale if cdf in LOCATED else x / scale
    return low + (high - low) * CDFS[cdf](x)


def check_range(rule: str, low: float, high: float | None, scale: float) -> None:
    """Raise unless [low, high] is a range of responses; None stands for the paper's high."""
    if low < 0 or scale <= 0 or (low > 0 if high is None else high <= low):
        raise ConfigError(
            f"{rule} low = {low}, high = {high}, scale = {scale}: low must be at least 0, high "
            "above it (and given if low is), scale above 0"
        )


def doubly_robust(r: Tensor, index: Tensor, clients: int) -> Tensor:
    """Estimate all K responses from those of the cohort at `index` (eq. 10).

    The result is r itself when everyone reports. It is unbiased only for a fixed imputed mean, as
    in Lemma 4.3; with the mean of the same cohort it is nearly unbiased.
    """
    mean = r.mean()
    sampled = len(r) / clients
    full = mean.repeat(clients)
    full[index] = mean + (r - mean) / sampled
    return full


def decision_loss(p: Tensor, r: Tensor) -> Tensor:
    """The loss of the decision p under the response r (eq. 4)."""
    return -torch.log1p(p @ r)


def decision_gradient(p: Tensor, r: Tensor) -> Tensor:
    """The gradient of `decision_loss` with respect to p."""
    return -r / (1 + p @ r)


def on_cohort(p: Tensor, index: Tensor) -> Tensor:
    """Restrict a decision over all clients to the cohort at `index` and renormalise (eq. 95)."""
    weights = p[index]
    total = weights.sum()
    if total > 0:
        return weights / total
    # A decision that gives the whole cohort nothing does not distinguish its members.
    return torch.full_like(weights, 1 / len(weights))
