"""Named tensors: what travels in messages and what is kept as state."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["State", "Tensors", "flatten", "is_finite", "num_bytes", "select", "stack", "unflatten"]

Tensors = dict[str, Tensor]
State = dict[str, Any]  # tensors by name, in nested dicts: saved without pickling


def flatten(nested: Mapping[str, Any], prefix: str = "") -> Tensors:
    """Join nested dicts of tensors into one dict, with names joined by '/'.

    >>> list(flatten({"a": {"b": torch.zeros(1)}, "c": torch.ones(1)}))
    ['a/b', 'c']
    """
    flat: Tensors = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}/")
        else:
            flat[prefix + name] = value
    return flat


def unflatten(flat: Mapping[str, Tensor]) -> State:
    """Invert `flatten`. Empty dicts are lost."""
    nested: State = {}
    for path, value in flat.items():
        *parents, name = path.split("/")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
            if isinstance(place, Tensor):
                raise ValueError(f"{path!r} is the name of a tensor within a tensor")
        # A view into a file's buffer has another alignment, and its sums may round differently.
        place[name] = value.clone()
    return nested


def select(values: Tensors, index: Tensor | slice) -> Tensors:
    """Return the same rows of every tensor."""
    return {name: value[index] for name, value in values.items()}


def stack(each: list[Tensors]) -> Tensors:
    """Stack the tensors of several clients: a leading client axis (S, ...)."""
    return {name: torch.stack([one[name] for one in each]) for name in each[0]}


def num_bytes(values: Tensors) -> int:
    return sum(value.numel() * value.element_size() for value in values.values())


def is_finite(value: Tensor) -> Tensor:
    """Return for each client whether its values (S, ...) are all finite, (S,)."""
    flat = value.flatten(1) if value.ndim > 1 else value[:, None]
    finite = torch.isfinite(flat.sum(1))  # cheap, but a sum of finite terms may overflow
    return finite if finite.all() else torch.isfinite(flat).all(1)
