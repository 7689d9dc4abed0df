"""Summaries of the rounds of a run, as single numbers."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, pairwise

from commonweal.base.errors import RunError
from commonweal.record.rounds import RoundRecord


def cumulative_objective(rounds: Sequence[RoundRecord]) -> float:
    """sum_t sum_i p_i F_i: what Figure A1 of AAggFF (Hahn et al., ICML 2024) draws.

    F: the losses that the cohort of round t reported; p: the weights of its updates
    """
    total = 0.0
    for record in rounds:
        losses = reported_losses(record)
        total += sum(weight * losses[name] for name, weight in record.weights.items())
    return total


def reported_losses(record: RoundRecord) -> dict[str, float]:
    """The losses of a round by client."""
    return dict(zip(record.clients, record.losses, strict=True))


def improved_by_round(rounds: Sequence[RoundRecord]) -> dict[int, float]:
    """rho_t by round: the fraction of a cohort whose training loss did not rise in it.

    (Hamidi and Yang, TMLR 2024, eq. 31.) The loss after a round is known of those clients who
    report in the next round as well; rounds without any are left out.
    """
    return {number: sum(fell) / len(fell) for number, fell in _fallen(rounds).items()}


def improved(rounds: Sequence[RoundRecord]) -> float:
    """The mean of rho_t over rounds, in which every report counts alike.

    Where cohorts are drawn uniformly, those who report twice in a row are a random part of the
    cohort, so that the mean over many rounds is unbiased.
    """
    fell = list(chain.from_iterable(_fallen(rounds).values()))
    if not fell:
        raise RunError("no client reports in two rounds in a row: take larger cohorts, or more")
    return sum(fell) / len(fell)


def length(rounds: Sequence[RoundRecord]) -> float:
    """|d_t| of the last round, NaN for rules that choose no direction."""
    last = rounds[-1].length if rounds else None
    return math.nan if last is None else last


def _fallen(rounds: Sequence[RoundRecord]) -> dict[int, list[bool]]:
    """By round, whether the losses of clients that report in the next one, too, did not rise."""
    fallen: dict[int, list[bool]] = {}
    for before, after in pairwise(rounds):
        then = reported_losses(after)
        for name, loss in reported_losses(before).items():
            if name in then:
                fallen.setdefault(before.number, []).append(then[name] <= loss)
    return fallen


CURVES: Mapping[str, Callable[[Sequence[RoundRecord]], float]] = {
    "improved": lambda rounds: 100 * improved(rounds),
    "length": length,
}  # metrics of whole runs
