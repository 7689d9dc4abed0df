"""95 % confidence intervals of a client's scores, from the statistics of its rows.

    accuracy, top-5      Wilson's interval of a share
    auroc                Newcombe's interval (2006, method 5): Wilson's with the variance of Hanley
                         and McNeil; it depends on the numbers of positive and negative rows
    concordance          the same, with events in place of positive rows
    auprc                logistic interval of Boyd, Eng and Page (2013), by positive rows
    balanced-accuracy    Wilson's intervals of the classes' recalls, combined by squares (MOVER)
    f1                   Wilson's interval of F / (2 - F) = TP / (TP + FP + FN), transformed; the
                         mean over classes: their intervals combined by squares
    mae, rmse, r2-pooled, brier, log-loss
                         Student's interval of the logarithm of the mean
    net-benefit          Wilson's intervals of true and false positives, combined by squares
    sensitivity          Wilson's interval, combined by squares with what the bounds of the
                         specificity give
    calibration-intercept, calibration-slope
                         the likelihood's, by the curvature at the estimate

They hold for one model and new rows of the same client, not for another training.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit
from torch import Tensor

from commonweal.base.shares import wilson_bounds
from commonweal.task.calibration import Line, line_fit, offset_fit
from commonweal.task.scores import (
    classes_by_client,
    mean_by_client,
    sensitivity_at,
    specificity_of,
)

Floats = NDArray[np.float64]
CONFIDENCE = 0.95
FEW = {"positives": 10, "events": 10, "rows": 20}  # below which a score says little
Z = float(ndtri((1 + CONFIDENCE) / 2))
STEPS = 60  # of a bisection


class Interval(NamedTuple):
    """Bounds of every client's score (K,), and the number of rows that decide its width."""

    low: Floats
    high: Floats
    support: Floats
    unit: str  # what is counted: rows, positives or events


def interval(
    name: str, stats: Tensor, offsets: Tensor, values: Tensor, variance: float | None
) -> Interval | None:
    """The intervals of a score with the values (K,); None: there is no formula for it here.

    stats: (N, s), as the score's `row_stats` gives them; variance: of all labels, for pooled R^2
    """
    formula = FORMULAS.get(name.partition("@")[0])
    if formula is None or (name == "r2-pooled" and variance is None):
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high, support, unit = formula(stats, offsets, values.double().numpy())
    if name == "r2-pooled" and variance is not None:
        low, high = 1 - high / variance, 1 - low / variance
    undefined = values.isnan().numpy()
    low = np.where(undefined, np.nan, low)
    high = np.where(undefined, np.nan, high)
    return Interval(low, high, support, unit)


def _newcombe(area: Floats, m: Floats, n: Floats) -> tuple[Floats, Floats]:
    """The areas that lie Z standard errors from the one that was found, below and above."""

    def beyond(theta: Floats) -> Floats:
        size = (m + n) / 2 - 1
        spread = 1 + size * (1 - theta) / (2 - theta) + size * theta / (1 + theta)
        error = np.sqrt(theta * (1 - theta) * spread / (m * n))
        return np.asarray(np.abs(area - theta) > Z * error)

    bounds = []
    for end in (np.zeros_like(area), np.ones_like(area)):
        outer, inner = end, area
        for _ in range(STEPS):
            middle = (outer + inner) / 2
            is_outside = beyond(middle)
            outer = np.where(is_outside, middle, outer)
            inner = np.where(is_outside, inner, middle)
        bounds.append((outer + inner) / 2)
    return bounds[0], bounds[1]


Bounds = tuple[Floats, Floats, Floats, str]
Formula = Callable[[Tensor, Tensor, Floats], Bounds]


def _sizes(offsets: Tensor) -> Floats:
    return np.asarray(offsets.diff().double())


def _total(values: Tensor, offsets: Tensor) -> Floats:
    return np.asarray(torch.segment_reduce(values.double(), "sum", offsets=offsets))


def _share(stats: Tensor, offsets: Tensor, values: Floats) -> Bounds:
    rows = _sizes(offsets)
    return *wilson_bounds(values, rows, Z), rows, "rows"


def _auroc(stats: Tensor, offsets: Tensor, values: Floats) -> Bounds:
    positive = _total(stats[:, 1], offsets)
    negative = _sizes(offsets) - positive
    return *_newcombe(values, positive, negative), np.minimum(positive, negative), "positives"


def _concordance(stats: Tensor, offsets: Tensor, values: Floats) -> Bounds:
    events = _total(stats[:, 2], offsets)
    others = np.maximum(_sizes(offsets) - events, events)  # without censoring: pairs of events
    return *_newcombe(values, events, others), events, "events"


def _auprc(stats: Tensor, offsets: Tensor, values: Floats) -> Bounds:
    positive = _total(stats[:, 1], offsets)
    inside = np.clip(values, 0.5 / (positive + 1), 1 - 0.5 / (positive + 1))
    logit = np.log(inside / (1 - inside))
    half = Z / np.sqrt(positive * inside * (1 - inside))
    low = 1 / (1 + np.exp(half - logit))
    high = 1 / (1 + np.exp(-half - logit))
    return low, high, positive, "positives"


def _rarest(true: Floats) -> Floats:
    """The rows of the rarest class that a client has."""
    return np.asarray(np.where(true > 0, true, np.inf).min(1))


def _combined(shares: Floats, rows: Floats, curve: Callable[..., Floats]) -> tuple[Floats, Floats]:
    """The interval of a mean over classes of curve(share), from those of the shares."""
    low, high = wilson_bounds(shares, rows, Z)
    middle = curve(shares)
    present = rows > 0
    count = present.sum(1)
    mean = (middle * present).sum(1) / count
    below = np.sqrt(((middle - curve(low)) ** 2 * present).sum(1)) / count
    above = np.sqrt(((curve(high) - middle) ** 2 * present).sum(1)) / count
    return mean - below, mean + above


def _balanced_accuracy(stats: Tensor, offsets: Tensor, values: Floats) -> Bounds:
    right, _, true = map(np.asarray, classes_by_client(stats, offsets))
    recall = right / np.maximum(true, 1)
    bounds = _combined(recall, true, lambda p: p)
    return *bounds, _rarest(true), "positives"


def _f1(stats: Tensor, offsets: Tensor, values: Floats) -> Bounds:
    right, guessed, true = map(np.asarray, classes_by_client(stats, offsets))
    if right.shape[1] == 2:
        right, guessed, true = right[:, 1:], guessed[:, 1:], true[:, 1:]
    union = guessed + true - right
    jaccard = right / np.maximum(union, 1)
    bounds = _combined(jaccard, union, lambda p: 2 * p / (1 + p))
    return *bounds, _rarest(true), "positives"


def _mean(stats: Tensor, offsets: Tensor) -> tuple[Floats, Floats]:
    """The interval of the mean over a client's rows, by Student's of its logarithm."""
    rows = _sizes(offsets)
    values = stats[:, 0]
    means = mean_by_client(values, offsets)
    centred = values - torch.repeat_interleave(means, offsets.diff())
    mean = np.asarray(means)
    variance = _total(centred.square(), offsets) / (rows - 1)
    half = np.where(rows > 1, stdtrit(rows - 1, (1 + CONFIDENCE) / 2), np.inf)
    factor = np.exp(half * np.sqrt(variance / rows) / mean)
    return mean / factor, mean * factor


def _error(stats: Tensor, offsets: Tensor, values: Floats) -> Bounds:
    return *_mean(stats, offsets), _sizes(offsets), "rows"


def _rmse(stats: Tensor, offsets: Tensor, values: Floats) -> Bounds:
    low, high = _mean(stats, offsets)
    return np.sqrt(low), np.sqrt(high), _sizes(offsets), "rows"


def _net_benefit(stats: Tensor, offsets: Tensor, values: Floats) -> Bounds:
    rows = _sizes(offsets)
    true, false = (_total(stats[:, k], offsets) / rows for k in (1, 2))
    odds = float(stats[0, 3]) if len(stats) else 1.0
    true_low, true_high = wilson_bounds(true, rows, Z)
    false_low, false_high = wilson_bounds(false, rows, Z)
    # The correlation of the shares: a row is not both.
    both = -np.nan_to_num(np.sqrt(true * false / ((1 - true) * (1 - false))))

    def half(own: Floats, other: Floats) -> Floats:
        other = odds * other
        return np.sqrt(np.maximum(own**2 + other**2 - 2 * both * own * other, 0))

    low = values - half(true - true_low, false_high - false)
    return low, values + half(true_high - true, false - false_low), rows, "rows"


def _sensitivity(stats: Tensor, offsets: Tensor, values: Floats) -> Bounds:
    positive = _total(stats[:, 1], offsets)
    negative = _sizes(offsets) - positive
    specificity = np.asarray(specificity_of(stats, offsets))
    specific_low, specific_high = wilson_bounds(specificity, negative, Z)
    at_low, at_high = (
        np.asarray(sensitivity_at(stats, offsets, torch.from_numpy(bound)))
        for bound in (specific_low, specific_high)
    )
    low, high = wilson_bounds(values, positive, Z)
    low = values - np.hypot(values - low, values - at_high)
    high = values + np.hypot(high - values, at_low - values)
    few = np.minimum(positive, negative)
    return np.maximum(low, 0), np.minimum(high, 1), few, "positives"


def _line(fit: Callable[[Tensor, Tensor], Line]) -> Formula:
    def formula(stats: Tensor, offsets: Tensor, values: Floats) -> Bounds:
        positive = _total(stats[:, 1], offsets)
        few = np.minimum(positive, _sizes(offsets) - positive)
        half = Z * np.asarray(fit(stats, offsets).errors)
        return values - half, values + half, few, "positives"

    return formula


FORMULAS: dict[str, Formula] = {
    "accuracy": _share,
    "top-5": _share,
    "auroc": _auroc,
    "auprc": _auprc,
    "concordance": _concordance,
    "balanced-accuracy": _balanced_accuracy,
    "f1": _f1,
    "mae": _error,
    "rmse": _rmse,
    "brier": _error,
    "log-loss": _error,
    "net-benefit": _net_benefit,
    "sensitivity": _sensitivity,
    "calibration-intercept": _line(offset_fit),
    "calibration-slope": _line(line_fit),
    "r2-pooled": _error,  # of the squared error: see `interval`
}
