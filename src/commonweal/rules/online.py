"""Aggregation as online convex optimisation: a rule is a response, a decision loss and an update.

Hahn et al., Pursuing Overall Welfare in Federated Learning through Sequential Decision Making,
ICML 2024. In each round the server decides on a mixture p, observes the response r to the clients'
losses, and pays -log(1 + <p, r>) (eq. 4). A mixture with more weight on clients with large losses
pays less, so the next decision gives them more weight.

A library for authors of rules. With a response of your own, a rule without memory is one line:

>>> reports = Reports(
...     ids=torch.tensor([0, 1]),
...     sizes=torch.tensor([30, 10]),
...     losses=torch.tensor([1.0, 3.0]),
...     clients=2,
... )
>>> mixture(reports, relative(reports.losses).log(), "sizes")
tensor([0.5000, 0.5000], dtype=torch.float64)

A rule with memory maps losses by `response`, completes the cohort by `doubly_robust`, and steps
along `decision_gradient`; `on_cohort` gives the weights of those who report.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from commonweal.base.errors import ConfigError, DivergedError
from commonweal.rules.rule import Prior, Reports, prior_weights

__all__ = ["CDF", "CDFS", "Scale", "check_range", "decision_gradient", "doubly_robust", "mixture"]
__all__ += ["on_cohort", "relative", "response", "scaled_cdf", "spacing_scale"]

CDF = Literal[
    "weibull", "frechet", "gumbel", "exponential", "logistic", "normal", "clipped", "subtracted"
]

# App. B.1, with scale 1, as functions of a loss relative to the cohort's mean. The last two are the
# heuristics that it names: a loss clipped at twice the mean, and PropFair's -log(M - x), from 0 to
# 1, with the M and the margin of the rule propfair.
CDFS: dict[str, Callable[[Tensor], Tensor]] = {
    "weibull": lambda x: 1 - torch.exp(-x.square()),
    "frechet": lambda x: torch.exp(-1 / x),
    "gumbel": lambda x: torch.exp(-torch.exp(1 - x)),
    "exponential": lambda x: 1 - torch.exp(-x),
    "logistic": lambda x: torch.sigmoid(x - 1),
    "normal": lambda x: torch.special.ndtr(x - 1),
    "clipped": lambda x: (x / 2).clamp(max=1),
    "subtracted": lambda x: (1 - (5 * (3 - x)).clamp(1, 15).log() / math.log(15)).clamp(min=0),
}

Scale = float | Literal["spacing"]  # of a CDF: a number, or fitted to each cohort

NARROWEST, WIDEST = 0.05, 20.0  # scales that are tried, in units of the mean loss
GRID, REFINED = 61, 40  # scales on a grid, and golden-section steps around the best
LOCATED = ("gumbel", "logistic", "normal")  # CDFs with a location, which is 1


def mixture(reports: Reports, response: Tensor, prior: Prior) -> Tensor:
    """Take one entropic step from the prior: softmax(log prior + response), Table 1 of the paper.

    FedAvg, q-FedAvg, TERM and PropFair are this step with four responses. If all responses are
    equal, the result is exactly the prior.

    Args:
        reports: of the cohort.
        response: to each loss (S,); -inf gives a weight of 0.
        prior: "sizes" or "uniform".
    """
    start = prior_weights(reports, prior)
    if (response == response[0]).all():
        return start
    weights = start * torch.exp(response - response.max())
    return weights / weights.sum()


def relative(losses: Tensor) -> Tensor:
    """Divide losses (S,) by their mean, in float64. All ones if every loss is 0.

    A loss below 0 counts as 0: ratios of losses mean nothing there.
    """
    losses = losses.double().clamp(min=0)
    mean = losses.mean()
    return losses / mean if mean > 0 else torch.ones_like(losses)


def response(losses: Tensor, cdf: str, high: float, low: float = 0.0, scale: Scale = 1.0) -> Tensor:
    """Map losses (S,) to [low, high] by a CDF of the relative loss: eq. 8, C1 = low, C2 = high.

    Args:
        losses: of the cohort.
        cdf: a name of `CDFS`.
        high: the response to an infinite loss.
        low: the response to a loss of 0, or far below the mean.
        scale: smaller values make the CDF steeper: around 1, the mean loss, where the CDF has a
            location, else around 0.
    """
    x = relative(losses)
    width = spacing_scale(x, cdf) if scale == "spacing" else float(scale)
    return low + (high - low) * scaled_cdf(x, cdf, width)


def scaled_cdf(x: Tensor, cdf: str, scale: float) -> Tensor:
    """Map relative losses to [0, 1] by a CDF of this scale."""
    return CDFS[cdf](1 + (x - 1) / scale if cdf in LOCATED else x / scale)


def spacing_scale(x: Tensor, cdf: str) -> float:
    """Fit the scale by maximum spacing (Cheng and Amin 1983), which App. B.1 of the paper names.

    It maximises the product of the differences of the CDF between neighbouring values (S,): the
    values then lie as evenly in [0, 1] as a change of scale can make them.
    """
    if len(x) < 2 or x.max() - x.min() <= 1e-12:
        return 1.0
    ordered = x.sort().values

    def evenness(log_scale: float) -> float:
        inside = scaled_cdf(ordered, cdf, math.exp(log_scale))
        ends = torch.cat([inside.new_zeros(1), inside, inside.new_ones(1)])
        return float(ends.diff().clamp(min=1e-12).log().sum())

    steps = torch.linspace(math.log(NARROWEST), math.log(WIDEST), GRID).tolist()
    best = max(range(GRID), key=lambda k: evenness(steps[k]))
    low, high = steps[max(best - 1, 0)], steps[min(best + 1, GRID - 1)]
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(REFINED):
        left = high - golden * (high - low)
        right = low + golden * (high - low)
        if evenness(left) < evenness(right):
            low = left
        else:
            high = right
    return math.exp((low + high) / 2)


def check_range(rule: str, low: float, high: float | None, scale: Scale) -> None:
    """Raise unless [low, high] is a range of responses; None stands for the paper's high."""
    narrow = scale != "spacing" and float(scale) <= 0
    if low < 0 or narrow or (low > 0 if high is None else high <= low):
        raise ConfigError(
            f"{rule} low = {low}, high = {high}, scale = {scale}: low must be at least 0, high "
            "above it (and given if low is), scale above 0"
        )


def doubly_robust(r: Tensor, index: Tensor, clients: int) -> Tensor:
    """Estimate all K responses from those r (S,) of the cohort at `index` (eq. 10).

    The result is r itself when everyone reports. It is unbiased only for a fixed imputed mean, as
    in Lemma 4.3; with the mean of the same cohort it is nearly unbiased.
    """
    mean = r.mean()
    sampled = len(r) / clients
    full = mean.repeat(clients)
    full[index] = mean + (r - mean) / sampled
    return full


def decision_gradient(p: Tensor, r: Tensor) -> Tensor:
    """The gradient with respect to p of the decision loss -log(1 + <p, r>) (eq. 4)."""
    return -r / (1 + p @ r)


def on_cohort(p: Tensor, index: Tensor) -> Tensor:
    """Restrict a decision over all clients to the cohort at `index` and renormalise (eq. 95).

    Raises:
        DivergedError: a weight of the decision is NaN or infinite.
    """
    wrong = (~p.isfinite()).nonzero()
    if len(wrong):
        first = int(wrong[0])
        raise DivergedError(
            f"the rule's weights over all clients are not finite ({float(p[first])} at position "
            f"{first} of {len(p)}): use a smaller step size, or check the rule's arithmetic"
        )
    weights = p[index]
    total = weights.sum()
    if total > 0:
        return weights / total
    # A decision that gives the whole cohort nothing does not distinguish its members.
    return torch.full_like(weights, 1 / len(weights))
