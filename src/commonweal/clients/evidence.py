"""Choose a model for each client, by samples that none of the models was trained on.

After training, a client can use several models: its local one, the global one, a fine-tuned one
and others. It compares them on its validation samples. Few samples say little: `choose_together`
takes one method for all clients, by the evidence of all of them. `choose_by_client` leaves local
training client by client, in three ways that differ in how much evidence they ask for:

- `likely` takes the candidate with the largest mean improvement over local training.
- `safe` asks that the expected improvement is above 0 with 95 % confidence by Student's t. Of
  several such candidates it takes the steadiest: that with the largest lower limit at 99 %.
- `proved` asks for a proof: at the confidence level, the expected improvement is above minus the
  margin. The proof holds for each client separately, over the draw of its validation samples, for
  all candidates together and however improvements are distributed.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from commonweal.base.arguments import expect
from commonweal.base.errors import ConfigError, DataError, did_you_mean

Floats = NDArray[np.float64]
How = Literal["safe", "likely", "proved"]
ALONE = "alone"  # the name of local training, which needs no evidence

RIGHT_OR_WRONG = ("accuracy", "top-5")  # scores that are 0 or 1 for each sample

# Confidence levels of `safe`: of leaving local training, and of the limits by which it takes one of
# several candidates. The largest mean of noisy ones would often be the noisiest.
CONFIDENT = 0.95
CAUTIOUS = 0.99
NEGLIGIBLE = 1e-4  # part of a mean loss, below which a difference is none
TOGETHER = 0.975  # of a method that all clients get in place of the base

# The bets of `_betting_evidence`, as shares of the largest that cannot lose everything.
BETS = np.geomspace(0.01, 0.99, 24)


def choose_by_client(
    rows: Sequence[Mapping[str, ArrayLike]],
    how: How = "safe",
    margin: float = 0.0,
    level: float = 0.95,
    bound: float | None = None,
) -> list[str]:
    """Choose a model for each client from its improvements over local training.

    Args:
        rows: For each client, candidate -> one improvement per validation sample: the loss of the
            local model minus the candidate's loss, or +1, 0, -1 where the candidate is right and
            the local model wrong, both agree, or the reverse. Above 0 is better.
        how: How much evidence a client needs before it leaves local training.
        margin: How much worse than local training a "proved" candidate may be in expectation.
        level: The confidence level of "proved", for each client, over all its candidates together.
        bound: The largest possible loss of a sample, for "proved" with losses: improvements below
            -bound are impossible. By default the largest absolute improvement of any client: the
            proof then assumes that no larger loss exists, so give it where there are few clients.

    Returns:
        The name of the chosen candidate for each client, "alone" where nothing is better.

    >>> choose_by_client([{"global": [0.5, 0.3, 0.4], "tuned": [0.9, -0.8, 0.1]}])
    ['global']
    >>> choose_by_client([{"global": [1, 1, 0, -1]}, {}], how="proved")
    ['alone', 'alone']
    """
    expect("rows", rows, list | tuple, "a list with a dict for each client")
    expect("level", level, int | float, "a number")
    expect("margin", margin, int | float, "a number")
    expect("bound", bound, int | float | None, "a number, or None")
    if how not in get_args(How):
        raise ConfigError(f"how = {how!r}: {did_you_mean(str(how), get_args(How))}")
    if not 0.5 <= level < 1:
        raise ConfigError(f"level = {level}: give a confidence level from 0.5 to below 1")
    if not 0 <= margin < np.inf:
        raise ConfigError(f"margin = {margin}: give a finite number, 0 or more")
    if bound is not None and not 0 < bound < np.inf:
        raise ConfigError(f"bound = {bound}: give a finite number above 0")
    clients = [_checked(k, candidates) for k, candidates in enumerate(rows)]
    for candidates in clients:
        candidates.pop(ALONE, None)
    every = np.concatenate([np.empty(0), *(own for client in clients for own in client.values())])
    if bound is None:
        bound = float(np.abs(every).max(initial=0.0))
    # What single clients saw does not show that these are no losses.
    by_sign = bound <= 1 and bool(np.isin(every, (-1.0, 0.0, 1.0)).all())
    chosen = []
    for candidates in clients:
        merits = {}
        for name, values in candidates.items():
            mean = float(values.mean()) if len(values) else 0.0
            if how == "safe":
                if _lower_limit(values, CONFIDENT) > 0:
                    merits[name] = _lower_limit(values, CAUTIOUS)
            elif how == "likely":
                if mean > 0:
                    merits[name] = mean
            else:
                alpha = (1 - level) / len(candidates)  # Bonferroni, over the candidates
                if _is_proved(values, margin, alpha, bound, by_sign):
                    merits[name] = mean
        # The largest; of equal ones the first by name.
        chosen.append(min(merits, key=lambda name: (-merits[name], name), default=ALONE))
    return chosen


def choose_together(rows: Sequence[Mapping[str, ArrayLike]], base: str = "blend") -> str:
    """Choose one method for all clients: the base, unless another is better for them together.

    Another is better if its improvement, averaged over the samples of every client and then over
    clients, is above 0 with 95 % confidence (two-sided, by Student's t over clients). Of several
    such candidates it takes the one with the highest lower limit.

    Args:
        rows: For each client, candidate -> its improvements over the base, one per validation
            sample or a single mean; above 0 is better. Clients without samples do not count.
        base: The name of the method that all clients have without evidence.

    >>> choose_together([{"global": [0.5, 0.3]}, {"global": [0.4]}, {"global": [0.3, 0.4]}])
    'global'
    >>> choose_together([{"global": [0.5, 0.3]}, {"global": [-0.4]}, {"global": []}])
    'blend'
    """
    expect("rows", rows, list | tuple, "a list with a dict for each client")
    clients = [_checked(k, candidates) for k, candidates in enumerate(rows)]
    voting = [own for own in clients if any(len(values) for values in own.values())]
    everywhere = set.intersection(*map(set, voting)) if voting else set()
    merits = {}
    for name in everywhere - {base}:
        means = np.array([own[name].mean() for own in voting])
        limit = lower_limit(means, TOGETHER)
        if limit > 0:
            merits[name] = limit
    return min(merits, key=lambda name: (-merits[name], name), default=base)


def lower_limit(values: Floats, level: float) -> float:
    """The lower limit of the expected value by Student's t; minus infinity for one value."""
    if len(values) < 2:
        return -np.inf
    error = values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean() - special.stdtrit(len(values) - 1, level) * error)


def _checked(client: int, candidates: Mapping[str, ArrayLike]) -> dict[str, Floats]:
    """The improvements of one client as arrays."""
    if not isinstance(candidates, Mapping):
        raise DataError(
            f"client {client} is a {type(candidates).__name__}: give a dict for each client, "
            "candidate -> one improvement per validation sample"
        )
    checked = {}
    for name, given in candidates.items():
        try:
            values = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"client {client}, candidate {name!r}: improvements are not numbers ({error})"
            ) from None
        if values.ndim != 1:
            raise DataError(
                f"client {client}, candidate {name!r}: improvements have shape {values.shape}; "
                "give one number per validation sample"
            )
        if not np.isfinite(values).all():
            raise DataError(
                f"client {client}, candidate {name!r}: an improvement is not finite; leave out "
                "candidates whose loss is not a number"
            )
        checked[name] = values
    if len({len(values) for values in checked.values()}) > 1:
        raise DataError(
            f"client {client}: its candidates have different numbers of samples; compare all of "
            "them on the same validation samples"
        )
    return checked


def _lower_limit(values: Floats, level: float) -> float:
    """The lower limit of the expected improvement by Student's t, which needs two samples.

    One more sample without any difference is added: without it, two or three equal improvements
    would have no spread, and no doubt would be left.
    """
    if len(values) < 2:
        return 0.0
    smoothed = np.append(values, 0.0)
    error = smoothed.std(ddof=1) / np.sqrt(len(smoothed))
    return float(smoothed.mean() - special.stdtrit(len(values), level) * error)


def _is_proved(values: Floats, margin: float, alpha: float, bound: float, by_sign: bool) -> bool:
    """Return whether the expected improvement is above -margin, with error probability alpha."""
    if len(values) == 0 or values.mean() <= 0:
        return False
    if margin == 0 and by_sign:
        from scipy.stats import binomtest  # imported late: it takes a third of a second

        # Exact one-sided sign test on the samples on which the two models differ.
        wins, losses = int((values > 0).sum()), int((values < 0).sum())
        return bool(binomtest(wins, wins + losses, 0.5, "greater").pvalue <= alpha)
    return _betting_evidence(values + margin, bound + margin) >= 1 / alpha


def _betting_evidence(values: Floats, bound: float) -> float:
    """Evidence (an e-value) against a mean of at most 0, for values of at least -bound.

    The capital of a gambler who bets on a positive mean with a fixed stake grows on average only if
    the mean is positive, so that it exceeds 1 / alpha with probability at most alpha (Markov).
    The mean of the capitals over several stakes has the same property, and does not depend on the
    order of the samples. Waudby-Smith and Ramdas, Estimating means of bounded random variables by
    betting, JRSS B 2024.
    """
    if bound <= 0:
        return 1.0
    capital = np.log1p(np.outer(BETS / bound, np.maximum(values, -bound))).sum(1)
    with np.errstate(over="ignore"):
        return float(np.exp(capital).mean())


def largest_loss(classes: int) -> float:
    """Return the bound at which losses are clipped as proof: twice the loss of a guess."""
    return 2 * float(np.log(max(2, classes)))


class Evidence(NamedTuple):
    """A candidate on a client's validation samples: losses (n,), and whether it is right (n,)."""

    losses: Floats
    right: Floats | None  # 0 or 1; None where the score is none by sample


def improvements(
    candidates: Mapping[str, Evidence],
    proof: bool = False,
    bound: float | None = None,
    base: str = ALONE,
) -> dict[str, Floats]:
    """Return the improvements of a client's other candidates over the base, by sample.

    A candidate whose loss is not finite is left out. Differences that are tiny compared with the
    base's mean loss are none.
    proof: compare what `proved` is about: what is right or wrong, otherwise losses clipped at bound
    """
    local = candidates[base]
    negligible = NEGLIGIBLE * np.abs(local.losses).mean() if len(local.losses) else 0.0
    compared = {}
    for name, other in candidates.items():
        improvement = local.losses - other.losses
        if name == base or not np.isfinite(improvement).all():
            continue
        improvement[np.abs(improvement) < negligible] = 0.0
        if proof and local.right is not None and other.right is not None:
            improvement = other.right - local.right
        elif proof and bound is not None:
            improvement = np.minimum(local.losses, bound) - np.minimum(other.losses, bound)
        compared[name] = improvement
    return compared
