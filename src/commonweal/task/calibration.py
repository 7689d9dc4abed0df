"""Calibration: whether predicted probabilities are as large as the shares that they predict.

    ECE = sum_b n_b/n |accuracy_b - confidence_b|     Naeini, Cooper, Hauskrecht, AAAI 2015
    MCE = max_b |accuracy_b - confidence_b|           over the bins that have rows

    intercept  a of  logit P(y = 1) = a + margin            Cox, Biometrika 1958
    slope      b of  logit P(y = 1) = a + b margin

ECE and MCE are over 20 equal bins of confidence, the probability of the predicted class; bins are
half-open, (a, b]. Intercept and slope are of two classes, whose margin is the log odds of class 1.
"""

from typing import NamedTuple

import torch
from torch import Tensor

BINS = 20


def row_stats(outputs: Tensor, y: Tensor) -> Tensor:
    """Each row's confidence and whether its predicted class is correct, (N, 2)."""
    if outputs.shape[-1] == 1:
        outputs = torch.cat([torch.zeros_like(outputs), outputs], -1)
    confidence, predicted = outputs.double().softmax(-1).max(-1)
    return torch.stack([confidence, (predicted == y).double()], 1)


def bins(stats: Tensor, offsets: Tensor) -> Tensor:
    """Rows, sum of their confidence and number of correct rows by client and bin, (K, 20, 3).

    >>> bins(torch.tensor([[0.99, 1.0], [0.96, 0.0]]), torch.tensor([0, 2]))[0, -1]
    tensor([2.0000, 1.9500, 1.0000], dtype=torch.float64)
    """
    clients = len(offsets) - 1
    sizes = offsets.diff()
    owner = torch.repeat_interleave(torch.arange(clients), sizes)
    bin_of = (stats[:, 0] * BINS).ceil().long().clamp(1, BINS) - 1
    ones = torch.ones(len(stats), 1)
    values = torch.cat([ones, stats], 1).double()
    table = torch.zeros(clients * BINS, 3, dtype=torch.float64)
    table = table.index_add(0, owner * BINS + bin_of, values)
    return table.view(clients, BINS, 3)


def ece(stats: Tensor, offsets: Tensor) -> Tensor:
    """Each client's expected calibration error (K,); NaN for one without rows."""
    count, confidence, correct = bins(stats, offsets).unbind(-1)
    return (correct - confidence).abs().sum(1) / count.sum(1)


def mce(stats: Tensor, offsets: Tensor) -> Tensor:
    """Each client's maximum calibration error (K,); NaN for one without rows."""
    count, confidence, correct = bins(stats, offsets).unbind(-1)
    gaps = (correct - confidence).abs() / count.clamp(min=1)
    has_rows = count.sum(1) > 0
    return torch.where(has_rows, gaps.amax(1), torch.nan)


class Line(NamedTuple):
    """Intercepts and slopes of clients (K,), and the standard errors of their last coefficient."""

    intercepts: Tensor
    slopes: Tensor
    errors: Tensor


STEPS = 60  # of Newton's method, or of a bisection


def intercept(stats: Tensor, offsets: Tensor) -> Tensor:
    """Each client's calibration intercept (K,), of margins and labels; NaN with one class."""
    return offset_fit(stats, offsets).intercepts


def slope(stats: Tensor, offsets: Tensor) -> Tensor:
    """Each client's calibration slope (K,); NaN where a margin separates its classes."""
    return line_fit(stats, offsets).slopes


def offset_fit(stats: Tensor, offsets: Tensor) -> Line:
    """Fit the intercepts at slope 1, by bisection of their equation sum(p) = sum(y)."""
    margin, y = stats[:, 0].double(), stats[:, 1].double()
    sizes = offsets.diff()
    positives = _sum(y, offsets)
    defined = (positives > 0) & (positives < sizes) & (_sum(~margin.isfinite(), offsets) == 0)
    base = (positives / sizes).logit()
    low = base - _reduce(margin, offsets, "max")  # no probability is above the share there
    high = base - _reduce(margin, offsets, "min")
    for _ in range(STEPS):
        middle = (low + high) / 2
        expected = _sum((margin + _spread(middle, offsets)).sigmoid(), offsets)
        low = torch.where(expected < positives, middle, low)
        high = torch.where(expected < positives, high, middle)
    values = torch.where(defined, (low + high) / 2, torch.nan)
    p = (margin + _spread(values, offsets)).sigmoid()
    return Line(values, torch.ones_like(values), _sum(p * (1 - p), offsets).rsqrt())


def line_fit(stats: Tensor, offsets: Tensor) -> Line:
    """Fit intercepts and slopes, by Newton steps that are halved until the likelihood rises."""
    margin, y = stats[:, 0].double(), stats[:, 1].double()
    defined = _overlap(margin, y, offsets)
    sizes = offsets.diff()
    mean = _sum(margin, offsets) / sizes
    centred = margin - _spread(mean, offsets)
    scale = (_sum(centred.square(), offsets) / sizes).sqrt()
    z = torch.where(_spread(defined, offsets), centred / _spread(scale, offsets), 0.0)
    x = torch.stack([torch.ones_like(z), z], 1)
    share = torch.where(defined, _sum(y, offsets) / sizes, 0.5)
    line = torch.stack([share.logit(), torch.zeros_like(share)], 1)
    best = _likelihoods(line, x, y, offsets)
    inverse = torch.eye(2, dtype=torch.float64).expand(len(sizes), 2, 2)
    for _ in range(STEPS):
        p = _logits(line, x, offsets).sigmoid()
        gradient = _sum(x * (y - p)[:, None], offsets)
        weighted = x[:, :, None] * x[:, None] * (p * (1 - p))[:, None, None]
        curvature = _sum(weighted, offsets)
        curvature[~defined] = torch.eye(2, dtype=torch.float64)
        inverse = torch.linalg.pinv(curvature, hermitian=True)
        step = (inverse @ gradient[:, :, None]).squeeze(-1)
        step[~defined] = 0.0
        if float(step.abs().max()) < 1e-12:
            break
        for _ in range(STEPS):
            value = _likelihoods(line + step, x, y, offsets)
            worse = value < best - 1e-12 * best.abs()
            if not worse.any():
                break
            step = torch.where(worse[:, None], step / 2, step)
        line = line + step
        best = _likelihoods(line, x, y, offsets)
    slopes = torch.where(defined, line[:, 1] / scale, torch.nan)
    return Line(line[:, 0] - slopes * mean, slopes, inverse[:, 1, 1].sqrt() / scale)


def _overlap(margin: Tensor, y: Tensor, offsets: Tensor) -> Tensor:
    """Return whether no threshold of the margin separates a client's classes (K,)."""
    inf = torch.inf
    lowest = [_reduce(torch.where(y == k, margin, inf), offsets, "min") for k in (0, 1)]
    highest = [_reduce(torch.where(y == k, margin, -inf), offsets, "max") for k in (0, 1)]
    overlaps = (highest[0] > lowest[1]) & (highest[1] > lowest[0])
    return overlaps & (_sum(~margin.isfinite(), offsets) == 0)


def _logits(line: Tensor, x: Tensor, offsets: Tensor) -> Tensor:
    return (x * _spread(line, offsets)).sum(1)


def _likelihoods(line: Tensor, x: Tensor, y: Tensor, offsets: Tensor) -> Tensor:
    logits = _logits(line, x, offsets)
    return _sum(y * logits - torch.nn.functional.softplus(logits), offsets)


def _spread(values: Tensor, offsets: Tensor) -> Tensor:
    return torch.repeat_interleave(values, offsets.diff(), 0)


def _sum(values: Tensor, offsets: Tensor) -> Tensor:
    return _reduce(values.double(), offsets, "sum")


def _reduce(values: Tensor, offsets: Tensor, how: str) -> Tensor:
    reduced: Tensor = torch.segment_reduce(values, how, offsets=offsets, axis=0)
    return reduced
