"""Masks of a model's coordinates by the names of its layers."""

from fnmatch import fnmatchcase
from functools import lru_cache

import torch
from torch import Tensor, nn

from commonweal.base.errors import ConfigError
from commonweal.task.task import Task


@lru_cache(maxsize=128)
def layer_mask(task: Task, prefixes: tuple[str, ...], parameter: str) -> Tensor:
    """The coordinates (d,) of these layers and of those inside them: `block` has `block.conv`.

    Args:
        task: The model.
        prefixes: The names of layers, or patterns of names of parameters such as "*lora_B*".
        parameter: The name under which the user gave them, for errors.
    """
    layers = [name.rpartition(".")[0] for name in task.names]
    chosen = torch.zeros(len(layers), dtype=torch.bool)
    for prefix in prefixes:
        if any(sign in prefix for sign in "*?["):
            inside = torch.tensor([fnmatchcase(name, prefix) for name in task.names])
        else:
            inside = torch.tensor([f"{layer}.".startswith(f"{prefix}.") for layer in layers])
        if not inside.any():
            known = ", ".join(repr(layer) for layer in dict.fromkeys(layers))
            raise ConfigError(
                f"{parameter} = {prefix!r} is not a layer of the model, nor a pattern such as "
                f"'*bias' of its parameters: its layers are {known}"
            )
        chosen |= inside
    mask = torch.repeat_interleave(chosen, torch.tensor(task.sizes))
    if mask.all() or not mask.any():
        part = "the whole" if mask.all() else "no part of the"
        raise ConfigError(
            f"{parameter} = {list(prefixes)} is {part} model: "
            "clients must keep some layers and share the others"
        )
    return mask


@lru_cache(maxsize=128)
def head_layer(task: Task) -> tuple[str, ...]:
    """The name of the last linear layer."""
    modules = task.module.named_modules()
    linear = [name for name, module in modules if isinstance(module, nn.Linear) and name]
    if not linear:
        raise ConfigError(
            f"{type(task.module).__name__} has no linear layer inside: name the layers of the head"
        )
    return (linear[-1],)


def head_mask(task: Task, layers: tuple[str, ...] = ()) -> Tensor:
    """The coordinates (d,) of the head: of these layers, or of the last linear one."""
    return layer_mask(task, layers or head_layer(task), "head")


@lru_cache(maxsize=128)
def body_mask(task: Task, layers: tuple[str, ...] = (), parameter: str = "head") -> Tensor:
    """The coordinates (d,) of everything but the head."""
    return ~layer_mask(task, layers or head_layer(task), parameter)
