"""The numbers of scores as text: in per cent or in the score's own unit, with enough digits."""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from commonweal.base.errors import ConfigError, did_you_mean
from commonweal.task import scores

Array: TypeAlias = NDArray[np.float64]


class Metric(NamedTuple):
    """The form in which a metric over clients is shown."""

    title: str
    in_score_units: bool = True
    lower_is_better: bool = False
    digits: int = 1  # after the point, where it is not in units of the score


METRICS = {
    "mean": Metric("mean"),
    "weighted_mean": Metric("mean by samples"),
    "worst": Metric("worst"),
    "worst_5": Metric("worst 5 %"),
    "worst_10": Metric("worst 10 %"),
    "worst_20": Metric("worst 20 %"),
    "best": Metric("best"),
    "best_5": Metric("best 5 %"),
    "best_10": Metric("best 10 %"),
    "std": Metric("std", lower_is_better=True),
    "variance": Metric("variance", in_score_units=False, lower_is_better=True),
    "gini": Metric("Gini", in_score_units=False, lower_is_better=True),
    "gap": Metric("gap", lower_is_better=True),
    "gap_10": Metric("gap 10 %", lower_is_better=True),
    "angle": Metric("angle (degrees)", in_score_units=False, lower_is_better=True),
    "kl": Metric("KL (nats)", in_score_units=False, lower_is_better=True),
    "improved": Metric("losses not risen (%)", in_score_units=False),
    "length": Metric("|d|", in_score_units=False, lower_is_better=True, digits=3),
}


# The columns of the tables that papers print; worst and best are tenths with many clients.
PAPERS = {
    "aaggff": ("weighted_mean", "worst", "best", "gini"),
    "adafed": ("mean", "std", "worst_10", "best_10"),
    "qffl": ("weighted_mean", "worst_10", "best_10", "variance"),
    "vred": ("mean", "std", "worst", "worst_10", "worst_20", "best_10"),
}


def chosen_columns(text: str) -> list[str]:
    """The metrics that a text names: themselves, or those of a paper's table.

    >>> chosen_columns("mean,qffl")
    ['mean', 'weighted_mean', 'worst_10', 'best_10', 'variance']
    """
    columns: list[str] = []
    for part in text.split(","):
        name = part.strip()
        if name not in METRICS and name not in PAPERS:
            known = (*METRICS, *PAPERS)
            raise ConfigError(f"there is no column {name!r}: {did_you_mean(name, known)}")
        columns += PAPERS.get(name, (name,))
    return list(dict.fromkeys(columns))


def scale(score: str) -> float:
    """The factor by which a score is shown: fractions are shown in per cent."""
    return 100.0 if scores.find_score(score).in_per_cent else 1.0


def unit(score: str) -> str:
    """Return the unit after a value of a score: " %", or nothing."""
    return " %" if scores.find_score(score).in_per_cent else ""


SCORE_NAMES = {
    "auroc": "AUROC",
    "brier": "Brier score",
    "log-loss": "log loss",
    "f1": "F1",
    "mae": "MAE",
    "r2": "R²",
    "r2-pooled": "pooled R²",
    "rmse": "RMSE",
}


def written_score(score: str) -> str:
    """A score as people write it."""
    return SCORE_NAMES.get(score, score)


def score_label(score: str) -> str:
    """The title of an axis or column of a score, with its unit."""
    return f"{written_score(score)} (%)" if scale(score) == 100 else written_score(score)


def decimals_of(score: str, values: Array | float, given: int | None = None) -> int:
    """Digits after the point as given, or one for per cent, or three significant digits."""
    if given is not None:
        return given
    if scores.find_score(score).in_per_cent:
        return 1
    sizes = np.abs(np.atleast_1d(values))
    largest = float(np.max(sizes, initial=0.0, where=np.isfinite(sizes)))
    return 2 if largest == 0 else min(4, max(0, 2 - math.floor(math.log10(largest))))


def show_score(value: float, score: str, digits: int = 2) -> str:
    """Format a score with its unit and at least some digits; "-" where it is undefined.

    >>> show_score(0.5, "accuracy")
    '50.00 %'
    """
    if math.isnan(value):
        return "-"
    if not scores.find_score(score).in_per_cent:
        digits = max(digits, decimals_of(score, value))
    return f"{scale(score) * value:.{digits}f}{unit(score)}"


def points(change: float, score: str, digits: int | None = None) -> str:
    """A difference of scores with its sign, in points of per cent or in the score's unit."""
    return f"{scale(score) * change:+z.{decimals_of(score, change, digits)}f}"


def in_points(change: str, score: str) -> str:
    """A difference in a sentence, followed by "points" where it is one of per cent."""
    return f"{change} points" if unit(score) else change


def counted(count: int, noun: str) -> str:
    """A number of things: "1 seed", "2 seeds"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def sign_of(score: str) -> int:
    """Return the sign that turns a difference of scores into a gain: -1 for errors."""
    return -1 if scores.find_score(score).lower_is_better else 1


def worst_first(values: Sequence[float], score: str) -> list[int]:
    """The positions of clients by their scores; those without one stand at the end."""
    sign = sign_of(score)
    return sorted(range(len(values)), key=lambda k: (math.isnan(values[k]), sign * values[k]))
