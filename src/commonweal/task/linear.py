"""Linear models of single clients: logistic and ridge regression, as scikit-learn fits them.

Few samples often suit a linear model better than a network, so that local training has one among
its candidates. A model of f features and k outputs is a vector of the matrix (k, f + 1), whose last
column is the intercept.
"""

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from commonweal.data.rows import Rows
from commonweal.task.task import Task

# scikit-learn's C, the inverse of the weight decay; rising, as a small one is fitted fast.
STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)
LOSSES = ("cross-entropy", "binary", "squared")  # of which there are linear models, and trees
MOST_FEATURES = 1024  # with more, a linear model is no cheap candidate
TOLERANCE = 1e-3  # of the solver: a tenth of scikit-learn's precision, in half of its time
EPSILON = float(np.finfo(np.float64).eps)
Floats = NDArray[np.float64]
ABSENT = -10.0  # the logit of a class that the client does not have


def has_linear(task: Task, rows: Rows) -> bool:
    """Return whether there is a linear model for this loss and these samples."""
    if task.loss not in LOSSES or rows.y.ndim > 1:
        return False
    x = rows.inputs
    if not isinstance(x, Tensor) or x[:1].numel() > MOST_FEATURES:
        return False
    return x.is_floating_point() or x.dtype == torch.uint8


def fit_linear(task: Task, rows: Rows, strength: float, near: Tensor | None = None) -> Tensor:
    """Fit a linear model to the samples of one client. The task's loss decides which.

    strength: scikit-learn's C; near: another linear model from which the search starts
    """
    features = task.ready_tensor(rows.x).reshape(len(rows.y), -1)
    x = features.cpu().double().numpy()
    if task.loss == "squared":
        from sklearn.linear_model import Ridge  # slow to import, and classification needs none

        values = task.scaled(rows.y).cpu().double().numpy()
        ridge = Ridge(alpha=1 / strength).fit(x, values)
        matrix = np.append(ridge.coef_, ridge.intercept_)
    else:
        labels = rows.y.cpu().numpy().astype(np.int64)
        outputs = count_outputs(task, rows.x.shape[1:])
        start = np.zeros((outputs, x.shape[1] + 1))
        if near is not None:
            start += near.double().numpy().reshape(start.shape)
        matrix = _logistic(x, labels, start, strength)
    return torch.from_numpy(matrix).float().flatten()


@lru_cache(maxsize=16)
def count_outputs(task: Task, shape: torch.Size) -> int:
    """Return the number of the model's outputs for a sample; asked once, for all fits."""
    with torch.no_grad():
        return task.raw_outputs(task.initial.cpu(), torch.zeros(1, *shape)).shape[-1]


def _logistic(x: Floats, y: NDArray[np.int64], start: Floats, strength: float) -> Floats:
    """The matrix (k, f + 1) of a logistic regression. One output is the logit of class 1."""
    classes, labels = np.unique(y, return_inverse=True)
    single = len(start) == 1
    matrix = np.concatenate([np.zeros_like(start), start]) if single else start.copy()
    begin = matrix[classes]
    matrix[:] = 0.0
    matrix[:, -1] = ABSENT
    if len(classes) == 1:
        matrix[classes, -1] = 0.0
    else:
        targets = np.eye(len(classes))[:, labels]
        matrix[classes] = _minimize_logistic(x, targets, strength, begin)
    return matrix[1:] - matrix[:1] if single else matrix


def _minimize_logistic(x: Floats, targets: Floats, strength: float, start: Floats) -> Floats:
    """The matrix (k, f + 1) that scikit-learn's LogisticRegression finds, in half of its time.

    For few samples most of its time goes into checks. The loss and the steps are the same.
    x: (N, f); targets: the classes as one-hot columns (k, N), k > 1; start: (k, f + 1)
    """
    from scipy.optimize import minimize

    count = len(x)
    classes = len(targets)
    free = classes if classes > 2 else 1  # of two classes the first one's logit stays 0
    padded = np.column_stack([x, np.ones(count)])
    decay = 1 / (strength * count)

    def loss(flat: Floats) -> tuple[float, Floats]:
        weights = flat.reshape(free, -1)
        logits = np.zeros((classes, count))  # in rows: short axes are slow to sum
        np.matmul(weights, padded.T, out=logits[-free:])
        logits -= logits.max(0)
        likely = np.exp(logits)
        totals = likely.sum(0)
        value = (np.log(totals).sum() - np.vdot(logits, targets)) / count
        likely /= totals
        likely -= targets
        gradient = likely[-free:] @ padded / count
        slopes = weights[:, :-1]
        gradient[:, :-1] += decay * slopes
        return value + decay / 2 * np.square(slopes).sum(), gradient.ravel()

    if free == 1:
        start = start[1:] - start[:1]
    fitted = minimize(
        loss,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 100, "maxls": 50, "gtol": TOLERANCE, "ftol": 64 * EPSILON},
    )
    weights = fitted.x.reshape(free, -1)
    return weights if free > 1 else np.concatenate([-weights / 2, weights / 2])


def linear_outputs(linear: Tensor, x: Tensor) -> Tensor:
    """The outputs (..., N, k) of linear models (..., p) for samples (..., N, features)."""
    axes = linear.ndim - 1
    flat = x.flatten(axes + 1).to(linear.dtype)
    matrix = linear.reshape(*linear.shape[:-1], -1, flat.shape[-1] + 1)
    outputs: Tensor = flat @ matrix[..., :-1].mT + matrix[..., None, :, -1]
    return outputs
