"""State with one number per client: a client's slot is its id.

A library for authors of rules with a memory. A client's id is its position in the population, so
that a rule keeps a tensor (K,) of numbers and indexes it by the reports' ids. It extends the tensor
where clients joined late:

>>> extend(torch.tensor([0.5, 0.5]), 3, fill=0.0)
tensor([0.5000, 0.5000, 0.0000])
"""

import torch
from torch import Tensor

from commonweal.rules.online import on_cohort

__all__ = ["extend", "extend_mixture", "over_all"]


def extend(values: Tensor, clients: int, fill: Tensor | float) -> Tensor:
    """Give newcomers the value `fill`, so that there are at least `clients` values."""
    if len(values) >= clients:
        return values
    extra = torch.zeros(clients - len(values), dtype=values.dtype)
    return torch.cat([values, extra + fill])


def extend_mixture(p: Tensor, clients: int) -> Tensor:
    """Give newcomers the weight 1 / K each and scale the others down in proportion.

    >>> extend_mixture(torch.tensor([0.25, 0.75]), 4)
    tensor([0.1250, 0.3750, 0.2500, 0.2500])
    """
    if len(p) >= clients:
        return p
    return extend(p, clients, p.mean()) * (len(p) / clients)


def over_all(p: Tensor, clients: int) -> Tensor:
    """Extend a decision to all clients (K,), some of which may have joined since, and normalise."""
    return on_cohort(extend_mixture(p, clients), torch.arange(clients))
