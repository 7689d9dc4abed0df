"""Derivatives of losses: those that torch computes of the same losses."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from cases import cases
from commonweal.task.losses import LOSSES
from commonweal.training.gradients import GRADIENTS, cox


def diagonal(total: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """The second derivatives of a function by each number of its argument."""
    at = at.clone().requires_grad_()
    (first,) = torch.autograd.grad(total(at), at, create_graph=True)
    values = []
    if not first.requires_grad:  # it is the same everywhere
        return torch.zeros(at.numel(), dtype=at.dtype)
    for k in range(at.numel()):
        (row,) = torch.autograd.grad(first.flatten()[k], at, retain_graph=True)
        values.append(row.flatten()[k])
    return torch.stack(values)


ROWS = 40


@cases(("loss", "columns"), [("cross-entropy", 4), *((loss, 1) for loss in GRADIENTS)])
def test_the_derivatives_of_losses(loss: str, columns: int) -> None:
    rng = np.random.default_rng(0)
    sums = rng.normal(size=(ROWS, columns)) * 2
    y = rng.integers(0, max(2, columns), ROWS).astype(np.float64)
    if loss in ("squared", "huber", "absolute"):
        y = rng.normal(size=ROWS)
    labels = torch.from_numpy(y)
    if loss == "cross-entropy":
        labels = labels.long()

    def total(outputs: Tensor) -> Tensor:
        if loss == "cross-entropy" and columns == 1:
            outputs = torch.cat([torch.zeros_like(outputs), outputs], 1)
        return LOSSES[loss](outputs, labels).sum()

    first, second = GRADIENTS[loss](sums, y)
    at = torch.from_numpy(sums)
    scale = 2 if loss == "squared" else 1  # scikit-learn halves the squared error
    expected = torch.func.grad(total)(at) / scale
    np.testing.assert_allclose(first, expected, atol=1e-12)
    if loss in ("huber", "absolute"):  # in scikit-learn's place of a second derivative
        assert (second == 1).all()
        return
    expected = diagonal(total, at) / scale
    np.testing.assert_allclose(second.ravel(), expected, atol=1e-12)


def test_survival_by_client() -> None:
    """Tied times, a client of one row, one without rows, and one without events."""
    offsets = np.array([0, 15, 16, 16, 25, ROWS])
    rng = np.random.default_rng(0)
    y = np.stack([np.round(rng.exponential(size=ROWS) * 4), rng.integers(0, 2, ROWS)], 1)
    y[16:25, 1] = 0
    sums = rng.normal(size=(ROWS, 1)) * 3
    first, second = cox(sums, y, offsets)
    for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        if a == b:
            continue
        labels = torch.from_numpy(y[a:b])

        def total(risk: Tensor, labels: Tensor = labels) -> Tensor:
            return LOSSES["cox"](risk, labels).sum()

        own = torch.from_numpy(sums[a:b])
        np.testing.assert_allclose(first[a:b], torch.func.grad(total)(own), atol=1e-12)
        expected = diagonal(total, own)
        np.testing.assert_allclose(second[a:b, 0], expected, atol=1e-12)
