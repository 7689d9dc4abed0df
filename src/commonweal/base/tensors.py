"""Named tensors: what travels in messages and what is kept as state."""

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
DEPTH = 20  # of dicts within each other
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
    for path, value in sorted(flat.items()):  # a name before names within it
        *parents, name = path.split("/")
        if len(parents) > DEPTH:
            raise ValueError(f"{len(parents)} dicts within each other")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
            if isinstance(place, Tensor):
                raise ValueError(f"{path!r} is the name of a tensor within a tensor")
        # A view into a file's buffer has another alignment, and its sums may round differently.
        place[name] = value.clone()
    return nested


def tensor_bytes(value: Tensor) -> memoryview:
    """The bytes of a tensor of any type, without a copy where they are in memory in one piece."""
    return value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data


def select(values: Tensors, index: Tensor | slice) -> Tensors:
    """Return the same rows of every tensor."""
    return {name: value[index] for name, value in values.items()}


def stack(each: list[Tensors]) -> Tensors:
    """Stack the tensors of several clients: a leading client axis (S, ...)."""
    return {name: torch.stack([one[name] for one in each]) for name in each[0]}


def concatenate(parts: list[Tensors]) -> Tensors:
    """Join the tensors of groups of clients (S, ...) along their client axes."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def summed(values: Tensors) -> Tensors:
    """Sum over the client axis (S, ...), which stays, with one entry."""
    return {n: value.sum(0, keepdim=True, dtype=value.dtype) for n, value in values.items()}


def move(values: Tensors, device: torch.device | str) -> Tensors:
    """The same tensors on a device. Scalars stay: on the CPU they meet tensors of any device."""
    return {name: value.to(device) if value.ndim else value for name, value in values.items()}


def num_bytes(values: Tensors) -> int:
    return sum(value.numel() * value.element_size() for value in values.values())


def is_finite(value: Tensor) -> Tensor:
    """Return for each client whether its values (S, ...) are all finite, (S,)."""
    flat = value.flatten(1) if value.ndim > 1 else value[:, None]
    finite = torch.isfinite(flat.sum(1))  # cheap, but a sum of finite terms may overflow
    return finite if finite.all() else torch.isfinite(flat).all(1)


@lru_cache(maxsize=16)
def spans(mask: Tensor) -> list[tuple[int, int, bool]]:
    """Return where runs of equal values of a mask (d,) begin and end, and their values.

    Remembered by the tensor, not by its values: masks are never changed.

    >>> spans(torch.tensor([True, True, False]))
    [(0, 2, True), (2, 3, False)]
    """
    cuts = (mask[1:] != mask[:-1]).nonzero().flatten() + 1
    ends = [0, *cuts.tolist(), len(mask)]
    return [(a, b, bool(mask[a])) for a, b in pairwise(ends)]


def take(values: Tensor, mask: Tensor) -> Tensor:
    """`values[..., mask]` by whole runs: masks of layers have few, an index is slow.

    A single run is a view.
    """
    pieces = [values[..., a:b] for a, b, inside in spans(mask) if inside]
    if len(pieces) == 1:
        return pieces[0]
    return torch.cat(pieces, -1) if pieces else values[..., :0]


def merge(outside: Tensor, inside: Tensor, mask: Tensor) -> Tensor:
    """A vector with the values `inside` where a mask (d,) is true, and the others elsewhere.

    outside: (d,), or the other values only (d - p,); inside: (p,). Either may have client axes.
    """
    pieces = []
    taken = left = 0
    whole = outside.shape[-1] == len(mask)
    for a, b, is_inside in spans(mask):
        if is_inside:
            pieces.append(inside[..., taken : taken + b - a])
            taken += b - a
        else:
            begin = a if whole else left
            pieces.append(outside[..., begin : begin + b - a])
            left += b - a
    return torch.cat(pieces, -1)


def put(target: Tensor, values: Tensor, mask: Tensor) -> None:
    """`target[..., mask] = values` by whole runs, in place: inverts `take`."""
    runs = [(a, b) for a, b, inside in spans(mask) if inside]
    count = sum(b - a for a, b in runs)
    if values.shape[-1] != count:
        raise ValueError(f"{values.shape[-1]} values for {count} places")
    taken = 0
    for a, b in runs:
        target[..., a:b] = values[..., taken : taken + b - a]
        taken += b - a
