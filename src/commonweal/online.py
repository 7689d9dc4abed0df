"""Aggregation as online convex optimisation: a rule is a response, a decision loss and a leader.

Hahn et al., Pursuing Overall Welfare in Federated Learning through Sequential Decision Making, ICML 2024. Each round
the server decides on a mixture p, sees how clients fare as a response r, and pays -log(1 + <p, r>) (eq. 4): a mixture
that leans on clients with large losses pays less, so the next decision leans on them.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from commonweal.rule import Prior, Reports, State, shares

__all__ = [
    "CDF",
    "CDFS",
    "decision_gradient",
    "decision_loss",
    "doubly_robust",
    "empty_table",
    "lookup",
    "mixture",
    "on_cohort",
    "put",
    "relative",
    "response",
]

CDF = Literal["weibull", "frechet", "gumbel", "exponential", "logistic", "normal"]

CDFS: dict[str, Callable[[Tensor], Tensor]] = {  # App. B.1, scale 1, of a loss relative to the cohort's mean
    "weibull": lambda x: 1 - torch.exp(-x.square()),
    "frechet": lambda x: torch.exp(-1 / x),
    "gumbel": lambda x: torch.exp(-torch.exp(1 - x)),
    "exponential": lambda x: 1 - torch.exp(-x),
    "logistic": lambda x: torch.sigmoid(x - 1),
    "normal": lambda x: torch.special.ndtr(x - 1),
}


def mixture(reports: Reports, response: Tensor, prior: Prior) -> Tensor:
    """Table 1 of the paper: one entropic step from the prior along the response, softmax(log prior + response).

    FedAvg, q-FedAvg, TERM and PropFair are this with four responses. A response of -inf is a weight of 0; where
    responses do not differ, the prior stands, exactly.
    """
    start = shares(reports, prior)
    if (response == response[0]).all():
        return start
    weights = start * torch.exp(response - response.max())
    return weights / weights.sum()


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


def lookup(state: State, ids: Tensor) -> Tensor:
    """The numbers kept for these clients (S,), 0 for those never seen: recent ones first, then settled ones."""
    values = torch.zeros(len(ids), dtype=torch.float64)
    for part in ("settled", "recent"):
        known, kept = state[f"{part}_ids"], state[part]
        if len(known):
            place = torch.searchsorted(known, ids).clamp(max=len(known) - 1)
            values = torch.where(known[place] == ids, kept[place], values)
    return values


def put(state: State, ids: Tensor, values: Tensor) -> State:
    """Keep these numbers. Costs what the recent clients cost: the table of settled ones is shared, not copied.

    When the recent ones grow to an eighth of the settled, both are merged: O(S) a round on average, whatever the
    population, and memory for clients ever seen only.
    """
    recent_ids, recent = _merge(state["recent_ids"], state["recent"], ids, values)
    if 8 * len(recent_ids) < len(state["settled_ids"]):
        return state | {"recent_ids": recent_ids, "recent": recent}
    settled_ids, settled = _merge(state["settled_ids"], state["settled"], recent_ids, recent)
    return state | {"settled_ids": settled_ids, "settled": settled, **empty_table("recent")}


def empty_table(*parts: str) -> State:
    """A table of numbers by client id, for `lookup` and `put`."""
    ids = {f"{part}_ids": torch.empty(0, dtype=torch.int64) for part in parts}
    return ids | {part: torch.empty(0, dtype=torch.float64) for part in parts}


def _merge(known: Tensor, kept: Tensor, ids: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Two tables as one, sorted by id; the second one's numbers win."""
    order = torch.argsort(ids)
    ids, values = ids[order], values[order]
    place = torch.searchsorted(ids, known).clamp(max=len(ids) - 1)
    old = ids[place] != known
    joined, numbers = torch.cat([known[old], ids]), torch.cat([kept[old], values])
    order = torch.argsort(joined)
    return joined[order], numbers[order]
