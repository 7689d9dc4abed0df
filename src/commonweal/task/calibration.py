"""Calibration errors: the gap between confidence and accuracy, over 20 equal bins of confidence.

    ECE = sum_b n_b/n |accuracy_b - confidence_b|     Naeini, Cooper, Hauskrecht, AAAI 2015
    MCE = max_b |accuracy_b - confidence_b|           over the bins that have rows

Lower is better. Confidence is the probability of the predicted class; bins are half-open, (a, b].
"""

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
