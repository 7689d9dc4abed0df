"""Checks of what nodes send: replies that do not fit the others, and evaluations."""

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from commonweal.base.errors import DataError
from commonweal.base.tensors import Tensors
from commonweal.training.evaluation import Evaluation

__all__ = ["evaluated", "gathered", "unusual"]

Signature = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]


def unusual(replies: Mapping[int, Tensors], size: int) -> dict[int, str]:
    """The clients whose replies have other names, types or shapes than most, and why.

    size: of the model; no update is longer
    """
    wrong = {}
    signatures = {}
    for client, values in replies.items():
        update = values.get("update")
        if update is not None and (update.ndim != 2 or not 0 < update.shape[1] <= size):
            wrong[client] = f"its update has shape {tuple(update.shape)}, the model {size} numbers"
        elif any(value.ndim == 0 or len(value) != 1 for value in values.values()):
            wrong[client] = "its reply is not that of one client"
        else:
            signatures[client] = _signature(values)
    if not signatures:
        return wrong
    usual, _ = Counter(signatures.values()).most_common(1)[0]
    for client, signature in signatures.items():
        if signature != usual:
            wrong[client] = _difference(signature, usual)
    return wrong


def _signature(values: Tensors) -> Signature:
    return tuple(sorted((name, v.dtype, tuple(v.shape)) for name, v in values.items()))


def _difference(signature: Signature, usual: Signature) -> str:
    expected = {name: (dtype, shape) for name, dtype, shape in usual}
    for name, dtype, shape in signature:
        if expected.get(name) != (dtype, shape):
            return f"its {name} has type {dtype} and shape {shape}, unlike the other clients'"
    missing = sorted(expected.keys() - {name for name, _, _ in signature})
    return f"its reply has no {', '.join(missing)}"


def evaluated(values: Tensors) -> Tensors:
    """An evaluation of one client. Raises DataError where it is not one."""
    for name in ("size", "loss", "undefined"):
        if name not in values:
            raise DataError(f"it has no {name}")
    for name, value in values.items():
        if value.numel() != 1:
            raise DataError(f"its {name} has shape {tuple(value.shape)}")
    return values


def gathered(
    arrived: Mapping[int, Tensors], clients: int, scores: Sequence[str], prefix: str = ""
) -> Evaluation:
    """Every client's loss and scores, NaN where none arrived."""

    def column(name: str, default: float = torch.nan) -> Tensor:
        values = torch.full((clients,), default, dtype=torch.float64)
        for client, reply in arrived.items():
            if name in reply:
                values[client] = reply[name].item()
        return values

    return Evaluation(
        losses=column(f"{prefix}loss"),
        scores={name: column(f"{prefix}score/{name}") for name in scores},
        sizes=column("size", 0).long(),
        undefined=column("undefined", 1).bool(),
    )
