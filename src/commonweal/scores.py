"""How well a model serves a client: rows give evidence, a client's evidence gives its score. Higher is better.

A score is a pair of functions, so that all clients are judged in one pass over all rows and one reduction by client.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from commonweal import calibration
from commonweal.errors import ConfigError, did_you_mean

__all__ = ["ERRORS", "SCORES", "Score", "by_client", "named", "undefined"]


class Score(NamedTuple):
    rows: Callable[[Tensor, Tensor], Tensor]  # (N, outputs), (N,) -> (N, c) evidence
    clients: Callable[[Tensor, Tensor], Tensor]  # (N, c) evidence, (K + 1,) offsets -> (K,); NaN where it is undefined
    meaning: str


def by_client(values: Tensor, offsets: Tensor) -> Tensor:
    """The mean over each client's rows, in float64; NaN for a client without rows."""
    total = torch.segment_reduce(values.double(), "sum", offsets=offsets, axis=0)
    sizes = offsets.diff().double()
    return total / (sizes if values.ndim == 1 else sizes[:, None])


def _correct(outputs: Tensor, y: Tensor) -> Tensor:
    guess = outputs.argmax(-1) if outputs.shape[-1] > 1 else (outputs.squeeze(-1) > 0).long()
    return (guess == y).double()[:, None]


def _top5(outputs: Tensor, y: Tensor) -> Tensor:
    best = outputs.topk(min(5, outputs.shape[-1]), dim=-1).indices
    return (best == y[:, None]).any(-1).double()[:, None]


def _ranked(outputs: Tensor, y: Tensor) -> Tensor:
    margin = outputs[:, 1] - outputs[:, 0] if outputs.shape[-1] == 2 else outputs[:, 0]
    return torch.stack([margin.double(), y.double()], 1)


def _auroc(evidence: Tensor, offsets: Tensor) -> Tensor:
    """The chance that a positive row of the client outranks a negative one, ties counting half (Mann-Whitney)."""
    margin, y = evidence.unbind(1)
    sizes = offsets.diff()
    client = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    order = torch.argsort(margin, stable=True)
    order = order[torch.argsort(client[order], stable=True)]  # by client, then by margin
    margin, y = margin[order], y[order]
    new = torch.ones(len(y), dtype=torch.bool)
    new[1:] = (margin[1:] != margin[:-1]) | (client[1:] != client[:-1])
    tie = new.cumsum(0) - 1
    first = new.nonzero().flatten()
    last = torch.cat([first[1:], torch.tensor([len(y)])]) if len(y) else first
    rank = ((first + last - 1).double() / 2)[tie] - offsets[client] + 1  # mid-ranks within the client, from 1
    positives = torch.segment_reduce(y, "sum", offsets=offsets)
    ranks = torch.segment_reduce(rank * y, "sum", offsets=offsets)
    area = (ranks - positives * (positives + 1) / 2) / (positives * (sizes - positives))  # 0 / 0 = NaN with one class
    return area.masked_fill(by_client(margin.isnan(), offsets) > 0, torch.nan)  # no number, no rank


def _errors(outputs: Tensor, y: Tensor) -> Tensor:
    y = y.double()
    return torch.stack([(outputs.squeeze(-1).double() - y).square(), y], 1)


def _r2(evidence: Tensor, offsets: Tensor) -> Tensor:
    error, mean = by_client(evidence, offsets).unbind(1)
    around = evidence[:, 1] - torch.repeat_interleave(mean, offsets.diff())  # centred first: no cancellation
    variance = by_client(around.square(), offsets)
    constant = variance <= 1e-24 * mean.square()  # what rounding leaves of nothing
    return 1 - error / torch.where(constant, torch.nan, variance)


def _absolute(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs.squeeze(-1).double() - y.double()).abs()[:, None]


def _sequences(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Rows with one label are sequences of one token."""
    return (outputs, y) if y.ndim > 1 else (outputs[:, None], y[:, None])


def _right_tokens(outputs: Tensor, y: Tensor) -> Tensor:
    outputs, y = _sequences(outputs, y)
    valid = y >= 0
    return torch.stack([((outputs.argmax(-1) == y) & valid).sum(-1), valid.sum(-1)], 1).double()


def _surprise(outputs: Tensor, y: Tensor) -> Tensor:
    outputs, y = _sequences(outputs, y)
    chosen = outputs.log_softmax(-1).gather(-1, y.clamp(min=0)[..., None]).squeeze(-1)
    return torch.stack([(chosen.double() * (y >= 0)).sum(-1), (y >= 0).sum(-1).double()], 1)


def _per_token(evidence: Tensor, offsets: Tensor) -> Tensor:
    total, count = by_client(evidence, offsets).unbind(1)
    return total / count


SCORES = {
    "accuracy": Score(_correct, lambda e, offsets: by_client(e[:, 0], offsets), "share of rows whose class is right"),
    "top-5": Score(
        _top5, lambda e, offsets: by_client(e[:, 0], offsets), "share of rows whose class is among the five likeliest"
    ),
    "auroc": Score(_ranked, _auroc, "chance that a positive row outranks a negative one; needs both in each client"),
    "r2": Score(_errors, _r2, "share of a value's variance explained"),
    "neg-mae": Score(_absolute, lambda e, offsets: -by_client(e[:, 0], offsets), "minus the mean absolute error"),
    "token-accuracy": Score(_right_tokens, _per_token, "share of tokens that are right"),
    "likelihood": Score(
        _surprise,
        lambda e, offsets: _per_token(e, offsets).exp(),
        "geometric mean of the probability given to the right class or token; its inverse is the perplexity",
    ),
}


# Of these lower is better: to be looked at, not to be run by.
ERRORS = {
    "ece": Score(calibration.evidence, calibration.ece, "expected calibration error, 20 bins"),
    "mce": Score(calibration.evidence, calibration.mce, "maximum calibration error, 20 bins"),
}


def named(name: str) -> Score:
    """The score or error of that name."""
    if name not in SCORES | ERRORS:
        raise ConfigError(f"no score is called {name!r}: {did_you_mean(name, SCORES)}")
    return (SCORES | ERRORS)[name]


def undefined(name: str, y: Tensor, offsets: Tensor) -> list[int]:
    """The clients with rows for which the score is undefined: AUROC needs both classes, R^2 two values."""
    if name not in ("auroc", "r2") or len(y) == 0:
        return []
    first = y[offsets[:-1].clamp(max=len(y) - 1)].double()
    sizes = offsets.diff()
    differs = y.double() != torch.repeat_interleave(first, sizes)
    return ((by_client(differs.double(), offsets) == 0) & (sizes > 0)).nonzero().flatten().tolist()
