"""Regret: what a rule's decisions cost beyond the best single decision in hindsight, from a run's record alone.

The decision of round t is the mixture that the rounds before it led to; its cost is -log(1 + <p, r>) for AAggFF (eq. 4)
and -<p, r> for the others, with each rule's own response r (Table 1 of Hahn et al., ICML 2024).
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from commonweal import catalog
from commonweal.errors import RunError
from commonweal.simplex import best_fixed
from commonweal.store import Record

__all__ = ["Regret", "of_run", "regret"]


class Regret(NamedTuple):
    rounds: list[int]
    regret: list[float]
    bound: list[float] | None  # the theorem's, where the rule has one


def regret(decisions: Tensor, responses: Tensor, rounds: list[int], logarithmic: bool) -> list[float]:
    """The regret after each of `rounds`, for decisions and responses (T, K)."""
    gains = (decisions * responses).sum(1)
    paid = (-gains.log1p() if logarithmic else -gains).cumsum(0)
    best = [best_fixed(responses[:t])[1] if logarithmic else float(responses[:t].sum(0).max()) for t in rounds]
    return [float(paid[t - 1]) + b for t, b in zip(rounds, best, strict=True)]


def of_run(record: Record, points: int = 40) -> Regret:
    """The regret of a run in which everyone reported, at some of its rounds."""
    part = record.experiment.get("rule")
    rule = catalog.build("rules", part) if part else None
    if rule is None or not hasattr(rule, "response"):
        raise RunError(f"{str(record.folder)!r}: regret needs a rule that decides on a mixture of clients")
    clients = record.facts["clients"]
    lines = record.rounds
    if not lines or any(len(line["weights"]) != clients for line in lines):
        raise RunError(
            f"{str(record.folder)!r}: regret needs every client's loss in every round; this run's cohorts are smaller"
        )
    weights = torch.tensor([list(line["weights"].values()) for line in lines], dtype=torch.float64)
    losses = torch.tensor([line["losses"] for line in lines], dtype=torch.float64)
    # Nothing was known before the first round: all clients alike.
    decisions = torch.cat([torch.full((1, clients), 1 / clients, dtype=torch.float64), weights[:-1]])
    responses = torch.stack([rule.response(row) for row in losses])
    rounds = sorted({int(t) for t in np.linspace(1, len(lines), min(points, len(lines)))})
    has_bound = hasattr(rule, "bound")
    curve = regret(decisions, responses, rounds, logarithmic=has_bound)
    return Regret(rounds, curve, [rule.bound(t, clients) for t in rounds] if has_bound else None)
