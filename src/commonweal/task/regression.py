"""Log-likelihoods of linear predictors, with their gradients and information matrices."""

import torch
from torch import Tensor, nn

# Loss -> whether the predictor has an intercept
FAMILIES = {"binary": True, "cross-entropy": True, "squared": True, "poisson": True, "cox": False}


def derivatives(loss: str, x: Tensor, y: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The log-likelihood of a client's rows, its gradient (p,) and minus its Hessian (p, p).

    Of a linear regression for a variance of 1; Poisson's without the factorials of counts.

    Args:
        loss: One of FAMILIES.
        x: The columns (n, p), the first of ones.
        y: The labels (n,), or times and events (n, 2).
        beta: The coefficients (p,).
    """
    if loss == "cox":
        return _cox(x, y, beta)
    eta = x @ beta
    if loss == "squared":
        return -(y - eta).square().sum() / 2, x.T @ (y - eta), x.T @ x
    if loss == "poisson":
        rate = eta.exp()
        return (y * eta - rate).sum(), x.T @ (y - rate), (x.T * rate) @ x
    p = eta.sigmoid()
    value = (y * eta - nn.functional.softplus(eta)).sum()
    return value, x.T @ (y - p), (x.T * (p * (1 - p))) @ x


def _cox(x: Tensor, y: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Breslow's partial likelihood. The column of ones has no information."""
    order = y[:, 0].argsort(descending=True, stable=True)
    x, time, event = x[order], y[order, 0], y[order, 1] > 0
    eta = x @ beta
    highest = eta.max() if len(eta) else eta.sum()
    risk = (eta - highest).exp()
    # All rows with one time have the sums up to the last of them.
    last = torch.searchsorted(-time, -time, right=True) - 1
    at = last[event]
    total = risk.cumsum(0)[at]
    mean = (risk[:, None] * x).cumsum(0)[at] / total[:, None]
    value = (eta[event] - highest - total.log()).sum()
    gradient = (x[event] - mean).sum(0)
    # A row counts in the risk set of every event at or after its place.
    share = torch.zeros_like(risk).index_add(0, at, 1 / total)
    weight = risk * share.flip(0).cumsum(0).flip(0)
    information = (x.T * weight) @ x - mean.T @ mean
    gradient[0] = 0.0
    information[0] = information[:, 0] = 0.0
    return value, gradient, information
