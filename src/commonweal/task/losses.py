"""Losses by name: one value per sample, from what a module gives and the labels in its units."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from commonweal.base.errors import ConfigError
from commonweal.task.survival import cox_losses


def _cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    # As logsumexp - logit: torch's cross_entropy has no batching rule, and is slow under vmap.
    return outputs.logsumexp(-1) - outputs.gather(-1, y[:, None]).squeeze(-1)


def _binary(outputs: Tensor, y: Tensor) -> Tensor:
    logits = outputs.squeeze(-1)
    y = y.to(outputs.dtype)
    return nn.functional.binary_cross_entropy_with_logits(logits, y, reduction="none")


def _squared(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs.squeeze(-1) - y).square()


def _huber(outputs: Tensor, y: Tensor) -> Tensor:
    """Half the squared error up to one deviation of the labels, linear beyond."""
    error = (outputs.squeeze(-1) - y).abs()
    return torch.where(error < 1, 0.5 * error.square(), error - 0.5)


def _absolute(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs.squeeze(-1) - y).abs()


def _poisson(outputs: Tensor, y: Tensor) -> Tensor:
    """Half the deviance of Poisson's distribution, at least 0. outputs: logarithms of rates"""
    log_rate = outputs.squeeze(-1)
    return log_rate.exp() - y * log_rate + torch.xlogy(y, y) - y


def _tokens(outputs: Tensor, y: Tensor) -> Tensor:
    """The mean over a row's tokens, (N, L, V), (N, L) -> (N,). Tokens with label -1 are skipped."""
    if outputs.ndim != 3:
        shape = tuple(outputs.shape[1:])
        raise ConfigError(
            f"the data labels each token, but the model gives one output per row, {shape}: "
            "take a model of sequences, such as 'lstm'"
        )
    valid = y >= 0
    labels = y.clamp(min=0)[..., None]
    losses = outputs.logsumexp(-1) - outputs.gather(-1, labels).squeeze(-1)
    return (losses * valid).sum(-1) / valid.sum(-1).clamp(min=1)


def next_tokens(y: Tensor) -> Tensor:
    """The label of the next position (N, L), as a causal model predicts it; -1 at the last one."""
    return torch.cat([y[:, 1:], torch.full_like(y[:, :1], -1)], 1)


def _cox(outputs: Tensor, y: Tensor) -> Tensor:
    """Cox's negative log partial likelihood by row (Breslow's way with ties); 0 where censored.

    y: (N, 2), the time and whether there was an event. The rows are each other's risk sets.
    """
    return cox_losses(outputs.squeeze(-1), y)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # (N, outputs), (N,) -> (N,)
    "cross-entropy": _cross_entropy,
    "binary": _binary,
    "squared": _squared,
    "huber": _huber,
    "absolute": _absolute,
    "poisson": _poisson,
    "tokens": _tokens,
    "causal": _tokens,  # of `next_tokens`
    "cox": _cox,
}
