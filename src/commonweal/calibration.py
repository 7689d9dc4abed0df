"""Whether a model's confidence can be believed: rows in 20 equal bins by confidence, and how far each is off.

    ECE = sum_b n_b/n |accuracy_b - confidence_b|     Naeini, Cooper, Hauskrecht, AAAI 2015
    MCE = max_b |accuracy_b - confidence_b|           over the bins that have rows

Lower is better. Confidence is the probability of the likeliest class; a row belongs to the bin (a, b] that holds it.
"""

import torch
from torch import Tensor

__all__ = ["BINS", "bins", "ece", "evidence", "mce"]

BINS = 20


def evidence(outputs: Tensor, y: Tensor) -> Tensor:
    """Each row's confidence and whether its class is right, (N, 2)."""
    if outputs.shape[-1] == 1:
        outputs = torch.cat([torch.zeros_like(outputs), outputs], -1)
    confidence, guess = outputs.double().softmax(-1).max(-1)
    return torch.stack([confidence, (guess == y).double()], 1)


def bins(evidence: Tensor, offsets: Tensor) -> Tensor:
    """For every client and bin the number of rows, the sum of their confidence, and how many are right: (K, 20, 3).

    >>> bins(torch.tensor([[0.99, 1.0], [0.96, 0.0]]), torch.tensor([0, 2]))[0, -1]
    tensor([2.0000, 1.9500, 1.0000], dtype=torch.float64)
    """
    clients = len(offsets) - 1
    owner = torch.repeat_interleave(torch.arange(clients), offsets.diff())
    place = (evidence[:, 0] * BINS).ceil().long().clamp(1, BINS) - 1
    values = torch.cat([torch.ones(len(evidence), 1), evidence], 1).double()
    table = torch.zeros(clients * BINS, 3, dtype=torch.float64)
    return table.index_add(0, owner * BINS + place, values).view(clients, BINS, 3)


def ece(evidence: Tensor, offsets: Tensor) -> Tensor:
    """Each client's expected calibration error (K,); NaN for one without rows."""
    count, confidence, right = bins(evidence, offsets).unbind(-1)
    return (right - confidence).abs().sum(1) / count.sum(1)


def mce(evidence: Tensor, offsets: Tensor) -> Tensor:
    """Each client's maximum calibration error (K,); NaN for one without rows."""
    count, confidence, right = bins(evidence, offsets).unbind(-1)
    worst = ((right - confidence).abs() / count.clamp(min=1)).amax(1)
    return torch.where(count.sum(1) > 0, worst, torch.nan)
