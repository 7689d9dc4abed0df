"""Functions of one client, run for a group of clients."""

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from commonweal.data.samples import Stacked

T = TypeVar("T")


class Vectorize(Protocol):
    """Turns a function of one client into one of a group.

    The second argument says which arguments have a client axis (0) and which are the same for all
    clients (None).
    """

    def __call__(
        self, f: Callable[..., T], dims: tuple[int | None, ...], /
    ) -> Callable[..., T]: ...


def vmap_clients(f: Callable[..., T], dims: tuple[int | None, ...]) -> Callable[..., T]:
    """Run a function of one client for a group of clients at once."""
    vectorized: Callable[..., T] = torch.vmap(f, in_dims=dims)
    return vectorized


def single(f: Callable[..., T], dims: tuple[int | None, ...]) -> Callable[..., T]:
    """Run a function of one client for a group of one."""

    def call(*arguments: object) -> T:
        squeezed = []
        for argument, dim in zip(arguments, dims, strict=True):
            squeezed.append(_map_tensors(argument, Tensor.squeeze) if dim == 0 else argument)
        return _map_tensors(f(*squeezed), Tensor.unsqueeze)

    return call


def _map_tensors(tree: T, change: Callable[[Tensor, int], Tensor]) -> T:
    """Change axis 0 of every tensor in nested dicts and tuples (torch's tree_map is far slower)."""
    changed: object
    if isinstance(tree, Tensor):
        changed = change(tree, 0)
    elif isinstance(tree, dict):
        changed = {name: _map_tensors(value, change) for name, value in tree.items()}
    elif isinstance(tree, Stacked):
        changed = tree.map(lambda value: change(value, 0))
    elif isinstance(tree, tuple):
        changed = tuple(_map_tensors(value, change) for value in tree)
    else:
        changed = tree
    return changed  # type: ignore[return-value]
