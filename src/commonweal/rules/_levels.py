"""Clients in the order of their losses, where equal losses are one level."""

import torch
from torch import Tensor


def levels(values: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mass (S,) of clients with a smaller value, and of those with the same value.

    >>> levels(torch.tensor([2.0, 1.0, 2.0]), torch.tensor([0.25, 0.5, 0.25]))
    (tensor([0.5000, 0.0000, 0.5000]), tensor([0.5000, 0.5000, 0.5000]))
    """
    distinct, place = torch.unique(values, return_inverse=True)
    # Summed in the order of the masses, so that the order of clients does not change a digit.
    order = mass.argsort()
    empty = torch.zeros(len(distinct), dtype=mass.dtype)
    masses = empty.index_add(0, place[order], mass[order])
    below = masses.cumsum(0) - masses
    return below[place], masses[place]
