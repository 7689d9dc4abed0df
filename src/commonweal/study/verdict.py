"""The sentence that a comparison with local training ends in, the same wherever it is printed.

There are three verdicts. Joining helps: the interval of the mean gain is above 0. It does not help:
the interval excludes a gain worth having. Otherwise these samples do not decide it.
"""

import math

from commonweal.base.arguments import check_bounds
from commonweal.study.judging import Judgement
from commonweal.study.units import decimals_of, in_points, points, sign_of, unit, written_score

WORTH = 1.0  # a gain worth having, in points: hundredths of a score of which 1 is the best
WORTH_OF_ERROR = 2.0  # and of an error, in per cent of local training's


def worth_having(score: str, local: float, worth: float | None = None) -> float:
    """The least gain that is worth having, in the score's unit.

    Args:
        score: Its name.
        local: The mean over clients with local training.
        worth: In points, or in per cent of an error; by default 1 point, or 2 %.
    """
    check_bounds("worth", worth, above=0)
    if sign_of(score) < 0 and local != 0:
        return 0.01 * abs(local) * (WORTH_OF_ERROR if worth is None else worth)
    return 0.01 * (WORTH if worth is None else worth)


def verdict(
    judgement: Judgement | None, score: str, models: str = "", worth: float | None = None
) -> str:
    """Return the verdict on joining, in a sentence or two.

    Args:
        judgement: Of all methods. None: the runs have no scores of single test samples.
        score: Its name.
        models: What clients use, as in "with blend". By default the method of the headline.
        worth: What a user called a gain worth having, in points or in per cent of an error.

    >>> from commonweal.study.judging import judge
    >>> verdict(judge({"blend": {"Ulm": [1.0, 0.0] * 20}}), "accuracy").partition(" (")[0]
    'Joining helps: with blend, the mean gain in accuracy over local training is +50.0 points'
    """
    if judgement is None:
        return (
            "Whether joining helps is not known: these runs have no scores of single test samples."
        )
    undecided = "Whether joining helps cannot be decided with these samples"
    if math.isnan(judgement.gain):
        return f"{undecided}: no client has one with a score."
    subject = models or _best(judgement)
    if math.isnan(judgement.low):
        return f"{undecided}: {subject}, each of them has the same score as with local training."
    gain = (
        f"{subject}, the mean gain in {written_score(score)} over local training is "
        f"{in_points(points(judgement.gain, score, _digits(judgement, score)), score)} "
        f"({_interval(judgement, score)})"
    )
    if judgement.says == "helps":
        return f"Joining helps: {gain}."
    asked = "" if worth is None else f" A gain of {_worth_words(worth, score)} is worth having."
    if judgement.says == "does not help":
        if judgement.high < 0:
            return f"Joining does not help: {gain}."
        limit = in_points(points(judgement.high, score, _digits(judgement, score)), score)
        return f"Joining does not help: {gain}; more than {limit} is excluded.{asked}"
    return f"{undecided}: {gain}. {detectable(judgement, score)}{asked}"


def _worth_words(worth: float, score: str) -> str:
    if sign_of(score) < 0:
        return f"{worth:g} % of the error"
    if unit(score):
        return "1 point" if worth == 1 else f"{worth:g} points"
    return f"{0.01 * worth:g}"


def detectable(judgement: Judgement, score: str) -> str:
    """Describe the smallest difference that would be found; empty where that is not known."""
    if math.isnan(judgement.detectable):
        return ""
    size = points(judgement.detectable, score, _digits(judgement, score))
    return f"These samples would show a mean gain of {in_points(size, score)} in 80 % of cases."


def _best(judgement: Judgement) -> str:
    """The method of the headline, and whether it was picked by the scores that are printed."""
    if judgement.corrected == 1:
        return f"with {judgement.method}"
    return f"with {judgement.method}, the best of {judgement.corrected} methods here"


def _interval(judgement: Judgement, score: str) -> str:
    digits = _digits(judgement, score)
    low, high = points(judgement.low, score, digits), points(judgement.high, score, digits)
    text = f"95 % interval {low} to {high}"
    if judgement.corrected > 1:
        text += f", corrected for {judgement.corrected} methods"
    return text


def _digits(judgement: Judgement, score: str) -> int:
    """Digits after the point: two that count of the interval's width."""
    width = judgement.high - judgement.low
    return 1 if unit(score) else max(0, decimals_of(score, width) - 1)
