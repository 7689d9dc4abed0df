"""Per-client evaluation metrics: statistics per row, reduced by client. Higher is better.

A score is a pair of functions, so that all clients are evaluated in one pass over all rows.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from commonweal import calibration
from commonweal.errors import ConfigError, did_you_mean

__all__ = ["DIAGNOSTICS", "SCORES", "Score", "check", "find", "mean_by_client", "undefined"]


class Score(NamedTuple):
    """A score as two functions: statistics of rows, and their reduction by client."""

    row_stats: Callable[[Tensor, Tensor], Tensor]  # outputs (N, c), labels (N,) -> (N, s)
    reduce: Callable[[Tensor, Tensor], Tensor]  # (N, s), offsets (K + 1,) -> (K,), NaN: undefined
    meaning: str
    losses: tuple[str, ...] = ()  # of tasks that it fits; empty: all


def mean_by_client(values: Tensor, offsets: Tensor) -> Tensor:
    """The mean over each client's rows, in float64; NaN for a client without rows."""
    total = torch.segment_reduce(values.double(), "sum", offsets=offsets, axis=0)
    sizes = offsets.diff().double()
    return total / (sizes if values.ndim == 1 else sizes[:, None])


def _correct(outputs: Tensor, y: Tensor) -> Tensor:
    predicted = outputs.argmax(-1)
    if outputs.shape[-1] == 1:
        predicted = (outputs.squeeze(-1) > 0).long()
    return (predicted == y).double()[:, None]


def _top5(outputs: Tensor, y: Tensor) -> Tensor:
    best = outputs.topk(min(5, outputs.shape[-1]), dim=-1).indices
    return (best == y[:, None]).any(-1).double()[:, None]


def _margins(outputs: Tensor, y: Tensor) -> Tensor:
    margin = outputs[:, 0]
    if outputs.shape[-1] == 2:
        margin = outputs[:, 1] - outputs[:, 0]
    return torch.stack([margin.double(), y.double()], 1)


def _auroc(stats: Tensor, offsets: Tensor) -> Tensor:
    """The probability that a positive row ranks above a negative one, ties half (Mann-Whitney)."""
    margin, y = stats.unbind(1)
    sizes = offsets.diff()
    client = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    order = torch.argsort(margin, stable=True)
    order = order[torch.argsort(client[order], stable=True)]  # by client, then by margin
    y = y[order]
    rank = _mid_ranks(margin[order], client) - offsets[client] + 1  # within the client, from 1
    positives = torch.segment_reduce(y, "sum", offsets=offsets)
    ranks = torch.segment_reduce(rank * y, "sum", offsets=offsets)
    wins = ranks - positives * (positives + 1) / 2
    area = wins / (positives * (sizes - positives))  # 0 / 0 = NaN with one class
    has_nan = mean_by_client(margin.isnan(), offsets) > 0
    return area.masked_fill(has_nan, torch.nan)


def _mid_ranks(margin: Tensor, client: Tensor) -> Tensor:
    """The mean positions of equal margins of a client, in rows sorted by both."""
    n = len(margin)
    starts_tie = torch.ones(n, dtype=torch.bool)
    starts_tie[1:] = (margin[1:] != margin[:-1]) | (client[1:] != client[:-1])
    first = starts_tie.nonzero().flatten()
    following = torch.cat([first[1:], torch.tensor([n])])[: len(first)]
    tie = starts_tie.cumsum(0) - 1
    return ((first + following - 1).double() / 2)[tie]


def _errors(outputs: Tensor, y: Tensor) -> Tensor:
    y = y.double()
    return torch.stack([(outputs.squeeze(-1).double() - y).square(), y], 1)


def _r2(stats: Tensor, offsets: Tensor) -> Tensor:
    error, mean = mean_by_client(stats, offsets).unbind(1)
    # Centred first, against cancellation.
    centred = stats[:, 1] - torch.repeat_interleave(mean, offsets.diff())
    variance = mean_by_client(centred.square(), offsets)
    constant = variance <= 1e-24 * mean.square()  # but for rounding
    return 1 - error / torch.where(constant, torch.nan, variance)


def _absolute(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs.squeeze(-1).double() - y.double()).abs()[:, None]


def _sequences(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Rows with one label are sequences of one token."""
    return (outputs, y) if y.ndim > 1 else (outputs[:, None], y[:, None])


def _correct_tokens(outputs: Tensor, y: Tensor) -> Tensor:
    outputs, y = _sequences(outputs, y)
    valid = y >= 0
    correct = (outputs.argmax(-1) == y) & valid
    return torch.stack([correct.sum(-1), valid.sum(-1)], 1).double()


def _log_likelihoods(outputs: Tensor, y: Tensor) -> Tensor:
    outputs, y = _sequences(outputs, y)
    valid = y >= 0
    labels = y.clamp(min=0)[..., None]
    log_probability = outputs.log_softmax(-1).gather(-1, labels).squeeze(-1)
    total = (log_probability.double() * valid).sum(-1)
    return torch.stack([total, valid.sum(-1).double()], 1)


def _per_token(stats: Tensor, offsets: Tensor) -> Tensor:
    total, count = mean_by_client(stats, offsets).unbind(1)
    return total / count


def _mean(stats: Tensor, offsets: Tensor) -> Tensor:
    return mean_by_client(stats[:, 0], offsets)


CLASSES = ("cross-entropy", "binary")
VALUES = ("squared",)
TOKENS = ("tokens", "cross-entropy")

SCORES = {
    "accuracy": Score(_correct, _mean, "share of rows whose class is right", CLASSES),
    "top-5": Score(
        _top5, _mean, "share of rows whose class is among the five likeliest", ("cross-entropy",)
    ),
    "auroc": Score(
        _margins,
        _auroc,
        "probability that a positive row ranks above a negative one; needs both in each client",
        CLASSES,
    ),
    "r2": Score(_errors, _r2, "share of the variance explained", VALUES),
    "neg-mae": Score(
        _absolute,
        lambda stats, offsets: -_mean(stats, offsets),
        "minus the mean absolute error",
        VALUES,
    ),
    "token-accuracy": Score(_correct_tokens, _per_token, "share of tokens that are right", TOKENS),
    "likelihood": Score(
        _log_likelihoods,
        lambda stats, offsets: _per_token(stats, offsets).exp(),
        "geometric mean of the probability of the right class or token; 1 / perplexity",
        TOKENS,
    ),
}

# Lower is better; not allowed as a run's main score.
DIAGNOSTICS = {
    "ece": Score(
        calibration.row_stats, calibration.ece, "expected calibration error, 20 bins", CLASSES
    ),
    "mce": Score(
        calibration.row_stats, calibration.mce, "maximum calibration error, 20 bins", CLASSES
    ),
}


def find(name: str) -> Score:
    """The score or diagnostic of that name."""
    known = SCORES | DIAGNOSTICS
    if name not in known:
        raise ConfigError(f"no score is called {name!r}: {did_you_mean(name, SCORES)}")
    return known[name]


def check(name: str, loss: str) -> None:
    """Raise ConfigError if the score does not exist, or does not fit tasks of this loss."""
    fits = find(name).losses
    if fits and loss not in fits:
        possible = [other for other, score in SCORES.items() if loss in (score.losses or (loss,))]
        hint = did_you_mean(name, possible)
        raise ConfigError(f"score = {name!r} does not fit data whose loss is {loss!r}: {hint}")


def undefined(name: str, y: Tensor, offsets: Tensor) -> list[int]:
    """The clients with rows whose score is undefined: AUROC needs both classes, R^2 two values."""
    if name not in ("auroc", "r2") or len(y) == 0:
        return []
    first = y[offsets[:-1].clamp(max=len(y) - 1)].double()
    sizes = offsets.diff()
    differs = y.double() != torch.repeat_interleave(first, sizes)
    constant = (mean_by_client(differs.double(), offsets) == 0) & (sizes > 0)
    clients: list[int] = constant.nonzero().flatten().tolist()
    return clients
