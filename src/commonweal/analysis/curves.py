"""What papers draw over the rounds of a run, as single numbers."""

from collections.abc import Sequence
from itertools import pairwise

from commonweal.base.errors import RunError
from commonweal.record.rounds import RoundRecord

__all__ = ["cumulative_objective", "improved"]


def cumulative_objective(rounds: Sequence[RoundRecord]) -> float:
    """sum_t sum_i p_i F_i: what Figure A1 of AAggFF (Hahn et al., ICML 2024) draws.

    F: the losses that the cohort of round t reported; p: the weights of its updates
    """
    total = 0.0
    for each in rounds:
        losses = dict(zip(each.clients, each.losses, strict=True))
        total += sum(weight * losses[name] for name, weight in each.weights.items())
    return total


def improved(rounds: Sequence[RoundRecord]) -> float:
    """The mean over rounds of rho_t, the fraction of a cohort whose training loss did not rise.

    (Hamidi and Yang, TMLR 2024, eq. 31.) The loss after a round is known of those clients who
    report in the next round as well. Where cohorts are drawn uniformly, they are a random part of
    the cohort, so that the mean over many rounds is unbiased.
    """
    fell = []
    for before, after in pairwise(rounds):
        then = dict(zip(after.clients, after.losses, strict=True))
        now = zip(before.clients, before.losses, strict=True)
        fell += [then[name] <= loss for name, loss in now if name in then]
    if not fell:
        raise RunError("no client reports in two rounds in a row: take larger cohorts, or more")
    return sum(fell) / len(fell)
