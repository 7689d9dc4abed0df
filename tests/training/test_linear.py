"""Linear models of single clients, against scikit-learn's."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from commonweal.data.federation import Federation
from commonweal.task.linear import STRENGTHS, fit_linear, linear_outputs
from commonweal.task.task import Task


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize(
    ("loss", "classes", "outputs"),
    [("binary", [0, 1], 1), ("cross-entropy", [0, 2], 3), ("cross-entropy", [0, 1, 3], 4)],
)
def test_logistic_regression_equals_scikit_learns(
    loss: str, classes: list[int], outputs: int, strength: float
) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5)).astype(np.float32)
    y = np.array(classes)[(x[:, 0] + rng.normal(size=60) > 0) * rng.integers(len(classes), size=60)]
    rows = Federation.from_arrays(x, y, np.repeat("a", 60), test=0.1).train
    linear = fit_linear(Task(nn.Linear(5, outputs), loss=loss), rows, strength)

    logits = linear_outputs(linear, rows.x)
    if outputs == 1:
        logits = torch.cat([torch.zeros_like(logits), logits], 1)
    shares = torch.softmax(logits[:, classes], 1).numpy()
    model = LogisticRegression(C=strength, tol=1e-3).fit(rows.x.numpy(), rows.y.numpy())
    np.testing.assert_allclose(shares, model.predict_proba(rows.x.numpy()), atol=1e-5)
