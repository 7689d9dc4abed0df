"""Checks of what nodes send: replies that do not fit the others, and evaluations."""

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from commonweal.base.errors import DataError
from commonweal.base.tensors import Tensors
from commonweal.protocols.algorithm import Algorithm, Replies
from commonweal.protocols.averaging import Averaging
from commonweal.training.evaluation import Evaluation


def check_reply(algorithm: Algorithm, purpose: str, values: Tensors) -> None:
    """Raise DataError where a reply cannot be used, whatever the others are."""
    for name, value in values.items():
        if value.ndim == 0 or len(value) != 1:
            shape = tuple(value.shape)
            raise DataError(f"its {name} is not that of one client: it has shape {shape}")
    if not isinstance(algorithm, Averaging) or purpose != "train":
        return
    loss = ("train_loss",) if algorithm.training_loss == "first epoch" else ("loss", "score")
    needed = (*loss, "size", "update") if type(algorithm) is Averaging else ()
    missing = [name for name in needed if name not in values]
    if missing:
        raise DataError(f"its reply has no {', '.join(missing)}")
    if "update" not in values:
        return
    size = algorithm.task.size
    try:
        whole = algorithm.decode(Replies(torch.tensor([0]), values)).values["update"]
    except (RuntimeError, IndexError, ValueError, KeyError):
        whole = values["update"].new_empty(0)
    if tuple(whole.shape) != (1, size):
        shape = tuple(values["update"].shape)
        raise DataError(f"its update has shape {shape}, which does not fit a model of {size}")


def unusual(replies: Mapping[int, Tensors]) -> dict[int, str]:
    """The clients whose replies have other names, types or shapes than most, and why."""
    signatures = {}
    for client, values in replies.items():
        signatures[client] = frozenset((n, v.dtype, tuple(v.shape)) for n, v in values.items())
    usual = Counter(signatures.values()).most_common(1)
    wrong = {}
    for client, signature in signatures.items():
        different = sorted(name for name, _, _ in signature ^ usual[0][0])
        if different:
            value = replies[client].get(different[0])
            what = "missing"
            if value is not None:
                what = f"of type {value.dtype} and shape {tuple(value.shape)}"
            wrong[client] = f"its {different[0]} is {what}, unlike the other clients'"
    return wrong


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
