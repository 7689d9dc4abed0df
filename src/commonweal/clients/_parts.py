"""Which coordinates of a model belong to its head, by the names of the module's layers."""

import torch
from torch import Tensor, nn

from commonweal.errors import ConfigError
from commonweal.task import Task

__all__ = ["head", "under"]


def under(task: Task, prefixes: tuple[str, ...], what: str) -> Tensor:
    """The coordinates (d,) of the layers with these names, and of what lies below them (`block` means `block.conv`)."""
    owners = [name.rpartition(".")[0] for name in task.names]
    for prefix in prefixes:
        if not any(f"{owner}.".startswith(f"{prefix}.") for owner in owners):
            layers = ", ".join(repr(owner) for owner in dict.fromkeys(owners))
            raise ConfigError(f"{what} = {prefix!r} is no layer of the model: its layers are {layers}")
    inside = torch.tensor([any(f"{owner}.".startswith(f"{p}.") for p in prefixes) for owner in owners])
    mask = torch.repeat_interleave(inside, torch.tensor(task.sizes))
    if mask.all() or not mask.any():
        part = "the whole" if mask.all() else "no part of the"
        raise ConfigError(f"{what} = {list(prefixes)} is {part} model: a client must have a part and share the rest")
    return mask


def head(task: Task) -> tuple[str, ...]:
    """The last linear layer."""
    linear = [name for name, part in task.module.named_modules() if isinstance(part, nn.Linear) and name]
    if not linear:
        raise ConfigError(f"{type(task.module).__name__} has no linear layer inside: name the layers of the head")
    return (linear[-1],)
