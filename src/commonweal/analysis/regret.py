"""Regret: what a rule's decisions cost beyond the best fixed decision in hindsight.

It is computed from a run's record alone. The decision of round t is the mixture that the rounds
before it led to. Its cost is -log(1 + <p, r>) for AAggFF (eq. 4) and -<p, r> for other rules, with
each rule's own response r (Hahn et al., ICML 2024, Table 1).
"""

import inspect
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from commonweal import catalog
from commonweal.errors import RunError
from commonweal.rules._simplex import best_fixed
from commonweal.rules.rule import Rule
from commonweal.store import Record, RoundRecord

__all__ = ["Regret", "cumulative_regret", "of_run"]


class Regret(NamedTuple):
    """The cumulative regret at some rounds of a run."""

    rounds: list[int]
    regret: list[float]
    bound: list[float] | None  # the theorem's, if the rule has one


def of_run(record: Record, points: int = 40, trust: bool = False) -> Regret:
    """The regret of a run in which every client reported in every round.

    points: at most this many rounds are evaluated
    trust: import a rule of your own that the run names (`package.module:callable`)
    """
    with catalog.trusting(trust):
        rule = _rule(record)
    losses, weights = _reported(record)
    total, clients = losses.shape
    responses = _responses(record, rule, losses)
    # Before the first round nothing is known: all clients have the same weight.
    first = torch.full((1, clients), 1 / clients, dtype=torch.float64)
    decisions = torch.cat([first, weights[:-1]])
    rounds = sorted({int(t) for t in np.linspace(1, total, min(points, total))})
    bounds = [rule.bound(t, clients) for t in rounds]
    known = [bound for bound in bounds if bound is not None]
    # Theorems of this kind are about the logarithmic decision loss.
    curve = cumulative_regret(decisions, responses, rounds, logarithmic=bool(known))
    return Regret(rounds, curve, known or None)


def cumulative_regret(
    decisions: Tensor, responses: Tensor, rounds: Sequence[int], logarithmic: bool
) -> list[float]:
    """The regret after each of `rounds`, for decisions and responses (T, K)."""
    gains = (decisions * responses).sum(1)
    if logarithmic:
        gains = gains.log1p()
    cost = -gains.cumsum(0)
    return [float(cost[t - 1]) + _best_gain(responses[:t], logarithmic) for t in rounds]


def _best_gain(responses: Tensor, logarithmic: bool) -> float:
    """The gain of the best fixed decision."""
    if logarithmic:
        return best_fixed(responses)[1]
    return float(responses.sum(0).max())


def _rule(record: Record) -> Rule:
    part = record.experiment.get("rule")
    algorithm = record.experiment.get("algorithm", {"name": "averaging"})
    factory = catalog.find("algorithms", algorithm["name"]).factory
    if part is None or "rule" not in inspect.signature(factory).parameters:
        _refuse(record)
    rule: Rule = catalog.build("rules", part)
    return rule


def _responses(record: Record, rule: Rule, losses: Tensor) -> Tensor:
    """The rule's responses (T, K)."""
    each = []
    for row in losses:
        response = rule.response(row)
        if response is None:
            _refuse(record)
        each.append(response.double())
    return torch.stack(each)


def _refuse(record: Record) -> NoReturn:
    raise RunError(
        f"{str(record.folder)!r}: regret needs a rule that decides on a mixture of clients, "
        f"such as aaggff-s; {record.title} does not"
    )


def _reported(record: Record) -> tuple[Tensor, Tensor]:
    """The losses and weights (T, K) of a run, with the clients in the order of the first round."""
    clients = record.facts["clients"]
    if not record.rounds or any(not _is_complete(each, clients) for each in record.rounds):
        raise RunError(
            f"{str(record.folder)!r}: regret needs every client's loss in every round; "
            "in this run some clients did not report"
        )
    names = record.rounds[0].clients
    losses = [_by_name(dict(zip(r.clients, r.losses, strict=True)), names) for r in record.rounds]
    weights = [_by_name(r.weights, names) for r in record.rounds]
    return torch.stack(losses), torch.stack(weights)


def _is_complete(each: RoundRecord, clients: int) -> bool:
    return len(each.weights) == clients and not any(np.isnan(each.losses))


def _by_name(values: dict[str, float], names: Sequence[str]) -> Tensor:
    return torch.tensor([values[name] for name in names], dtype=torch.float64)
