"""Regret: what a rule's decisions cost beyond the best fixed decision in hindsight.

It is computed from a run's record alone. The decision of round t is the mixture that the rounds
before it led to. Its cost is -log(1 + <p, r>) for AAggFF (eq. 4) and -<p, r> for other rules, with
each rule's own response r (Hahn et al., ICML 2024, Table 1).

Where only cohorts report, the rule is played again for its decision over all clients, and absent
clients have the doubly robust response (eq. 10). That is an estimate of the regret that Corollary
5.3 is about. No bound is drawn there: the estimator is biased towards the cohort's mean, so that
Lemma 4.3, on which the corollary rests, does not hold as printed.
"""

import inspect
from collections.abc import Iterable, Sequence
from typing import NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from commonweal.base.errors import RunError
from commonweal.config import catalog
from commonweal.jobs.job import with_local_losses
from commonweal.record.record import Record
from commonweal.rules.online import doubly_robust
from commonweal.rules.rule import Need, Reports, Rule
from commonweal.rules.simplex import best_fixed
from commonweal.study.curves import reported_losses

LOSSES: frozenset[Need] = frozenset({"size", "loss", "nonnegative_loss"})  # known of a run


class Regret(NamedTuple):
    """The cumulative regret at some rounds of a run."""

    rounds: list[int]
    regret: list[float]
    bound: list[float] | None  # the theorem's, if the rule has one
    estimated: bool = False  # from cohorts


def of_run(record: Record, points: int = 40, trust: bool = False) -> Regret:
    """The regret of a run; where only cohorts reported, an estimate.

    points: at most this many rounds are evaluated
    trust: import a rule of your own that the run names (`package.module:callable`)
    """
    with catalog.trusting(trust):
        rule = _rule(record)
    clients = record.facts.clients
    for done in record.rounds:
        if len(done.weights) < clients or any(np.isnan(done.losses)):
            return _of_cohorts(record, rule, clients, min(points, 10))
    losses, weights = _reported(record)
    total, clients = losses.shape
    responses = []
    for row in losses:
        response = rule.response(row)
        if response is None:
            _refuse(record)
        responses.append(response.double())
    # Before the first round nothing is known: all clients have the same weight.
    first = torch.full((1, clients), 1 / clients, dtype=torch.float64)
    decisions = torch.cat([first, weights[:-1]])
    rounds = _spaced(total, points)
    bounds = [rule.bound(t, clients) for t in rounds]
    known = [bound for bound in bounds if bound is not None]
    curve = cumulative_regret(decisions, torch.stack(responses), rounds, rule.logarithmic)
    return Regret(rounds, curve, known or None)


def _of_cohorts(record: Record, rule: Rule, clients: int, points: int) -> Regret:
    decisions = []
    responses = []
    state = rule.init(clients)
    ids: dict[str, int] = {}  # clients in the order in which they first reported
    for done in record.rounds:
        index = torch.tensor([ids.setdefault(name, len(ids)) for name in done.weights])
        reported = _by_name(reported_losses(done), done.weights)
        if done.fallback or not done.weights or reported.isnan().any():
            _refuse_cohorts(record)
        decision = rule.distribution(state, clients)
        response = rule.cohort_response(reported, clients)
        if decision is None or response is None or not rule.needs <= LOSSES:
            _refuse_cohorts(record)
        decisions.append(decision)
        responses.append(doubly_robust(response.double(), index, clients))
        sizes = torch.ones_like(reported)
        played = rule(Reports(ids=index, sizes=sizes, losses=reported, clients=clients), state)
        if not torch.allclose(played.weights, _by_name(done.weights, done.weights), atol=1e-6):
            _refuse_cohorts(record)
        state = played.state
    rounds = _spaced(len(record.rounds), points)
    curve = cumulative_regret(
        torch.stack(decisions), torch.stack(responses), rounds, rule.logarithmic
    )
    return Regret(rounds, curve, None, estimated=True)


def _spaced(total: int, points: int) -> list[int]:
    """Evenly spaced rounds up to the last, at most so many."""
    return sorted({int(t) for t in np.linspace(1, total, min(points, total))})


def _refuse_cohorts(record: Record) -> NoReturn:
    raise RunError(
        f"{str(record.folder)!r}: some clients did not report in every round, and the decisions of "
        f"{record.title} over all clients cannot be computed from its record; use aaggff-s, "
        'aaggff-d or afl, or cohort = "all"'
    )


def cumulative_regret(
    decisions: Tensor, responses: Tensor, rounds: Sequence[int], logarithmic: bool
) -> list[float]:
    """The regret after each of `rounds`, for decisions and responses (T, K)."""
    gains = (decisions * responses).sum(1)
    if logarithmic:
        gains = gains.log1p()
    cost = -gains.cumsum(0)
    regret = []
    for t in rounds:
        past = responses[:t]
        best = best_fixed(past)[1] if logarithmic else float(past.sum(0).max())
        regret.append(float(cost[t - 1]) + best)
    return regret


def _rule(record: Record) -> Rule:
    part = record.experiment.get("rule")
    algorithm = record.experiment.get("algorithm", {"name": "averaging"})
    factory = catalog.find_entry("algorithms", algorithm["name"]).factory
    if part is None or "rule" not in inspect.signature(factory).parameters:
        _refuse(record)
    rule: Rule = catalog.build("rules", part)
    return with_local_losses(rule, record.rounds[0].clients if record.rounds else [])


def _refuse(record: Record) -> NoReturn:
    raise RunError(
        f"{str(record.folder)!r}: regret needs a rule that decides on a mixture of clients, "
        f"such as aaggff-s; {record.title} does not"
    )


def _reported(record: Record) -> tuple[Tensor, Tensor]:
    """The losses and weights (T, K) of a run, with the clients in the order of the first round."""
    if not record.rounds:
        raise RunError(f"{str(record.folder)!r}: regret needs at least one round; there is none")
    names = record.rounds[0].clients
    losses, weights = [], []
    for done in record.rounds:
        losses.append(_by_name(reported_losses(done), names))
        weights.append(_by_name(done.weights, names))
    return torch.stack(losses), torch.stack(weights)


def _by_name(values: dict[str, float], names: Iterable[str]) -> Tensor:
    return torch.tensor([values[name] for name in names], dtype=torch.float64)
