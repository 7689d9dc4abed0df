"""The inner products of updates, which direction rules decide by."""

import numpy as np
import torch

from commonweal.rules.rule import BLOCK, Reports


def test_inner_products_are_those_of_float64() -> None:
    """Two blocks and a part of one; nearly equal updates, whose difference float32 would lose."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=2 * BLOCK + 77)
    updates = np.stack(
        [base, base + 1e-5 * rng.normal(size=base.size), -base, rng.normal(size=base.size)]
    )
    single = torch.from_numpy(updates).float()
    ones = torch.ones(4)
    reports = Reports(ids=torch.arange(4), sizes=ones, losses=ones, updates=single, clients=4)
    exact = single.double().numpy()
    np.testing.assert_allclose(reports.gram.numpy(), exact @ exact.T, rtol=1e-12, atol=1e-9)
    step = torch.tensor([1.0, -1.0, 0.0, 0.0], dtype=torch.float64)
    length = float(step @ reports.gram @ step)
    np.testing.assert_allclose(length, ((exact[0] - exact[1]) ** 2).sum(), rtol=1e-4)
