"""Epsilon, delta and noise of a run, each from the others.

A round is a Gaussian mechanism on a cohort in which every client takes part with the same
probability, independently. Its privacy loss is computed numerically, by dp-accounting (Google).
"""

import math
from functools import cache

from commonweal.base.arguments import check_bounds
from commonweal.base.errors import ConfigError, install

STEP = 1e-3  # between the values of the privacy loss that are kept; epsilon is rounded up
CLOSE = 1e-4  # relative precision of a noise
LARGEST = 1e6  # noise that is tried
TINY = 1e-12  # an epsilon that counts as 0


@cache
def epsilon_of(*, noise: float, rate: float, rounds: int, delta: float) -> float:
    """Return the epsilon that a run spends.

    Args:
        noise: Standard deviation of the noise, relative to the most that one client changes.
        rate: Probability of a client to take part in a round; 1: everyone does.
        rounds: Number of rounds.
        delta: Probability that the promise does not hold.
    """
    _check(noise=noise, rate=rate, rounds=rounds, delta=delta)
    try:
        import dp_accounting
        from dp_accounting.pld import PLDAccountant
    except ImportError:
        raise ConfigError(f"private needs dp-accounting: {install('dp')}") from None
    event = dp_accounting.GaussianDpEvent(noise)
    if rate < 1:
        event = dp_accounting.PoissonSampledDpEvent(rate, event)
    # Replacing one client by nothing has the same privacy loss as removing it.
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = PLDAccountant(relation, value_discretization_interval=STEP)
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, rounds))
    return float(accountant.get_epsilon(delta))


@cache
def noise_for(*, epsilon: float, rate: float, rounds: int, delta: float) -> float:
    """Return the smallest noise, rounded up, with which a run spends at most this epsilon.

    Args:
        epsilon: What the run may spend.
        rate: As in `epsilon_of`, like the other arguments.
        rounds: Number of rounds.
        delta: Probability that the promise does not hold.
    """
    _check(epsilon=epsilon, rate=rate, rounds=rounds, delta=delta)

    def excess(log_noise: float) -> float:
        noise = math.exp(log_noise)
        spent = epsilon_of(noise=noise, rate=rate, rounds=rounds, delta=delta)
        return math.log(max(spent, TINY) / epsilon)

    high = 0.0
    while excess(high) > 0:
        high += math.log(2)
        if high > math.log(LARGEST):
            raise ConfigError(
                f"private: epsilon = {epsilon:g} at delta = {delta:g} needs a noise above "
                f"{LARGEST:g}: allow a larger epsilon or delta"
            )
    low = high - math.log(2)
    while excess(low) <= 0:
        high, low = low, low - math.log(2)
    from scipy.optimize import brentq  # imported late: it takes a tenth of a second

    root = float(brentq(excess, low, high, xtol=CLOSE / 4))
    while excess(root) > 0:
        root += CLOSE / 2
    return math.exp(root)


def _check(*, rate: float, rounds: int, delta: float, **positive: float) -> None:
    """Raise ConfigError for numbers that have no meaning."""
    for name, value in positive.items():
        check_bounds(f"private: {name}", value, above=0, below=math.inf)
    check_bounds("private: rate", rate, above=0, most=1)
    check_bounds("private: rounds", rounds, least=1)
    check_bounds("private: delta", delta, above=0, below=1)
