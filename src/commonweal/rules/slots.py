"""State with one number per client, for clients with any ids: each client has a slot.

A library for authors of rules with a memory. A rule that keeps a tensor (K,) of numbers takes the
slots of a round's reporters, and extends the tensor where clients joined late:

>>> slots = empty_slots(2)                      # in `init`, for 2 clients
>>> slots, index = take_slots(slots, torch.tensor([10**15, 0]), clients=3)
>>> index                                       # the positions of the two reporters
tensor([1, 0])
>>> extend(torch.tensor([0.5, 0.5]), len(slots), fill=0.0)
tensor([0.5000, 0.5000, 0.0000])

A client that has not reported before takes the slot of its own number if that is free, else the
first free slot, else a new one. With ids 0..K-1 a client's slot is its id.
"""

import torch
from torch import Tensor

from commonweal.base.errors import DataError
from commonweal.rules.online import on_cohort

__all__ = ["by_client", "empty_slots", "extend", "extend_mixture", "take_slots"]

FREE = torch.iinfo(torch.int64).min  # marks a free slot, so it cannot be a client's id


def empty_slots(clients: int) -> Tensor:
    """Return the slots (K,) of clients that have not reported yet."""
    return torch.full((clients,), FREE)


def take_slots(slots: Tensor, ids: Tensor, clients: int) -> tuple[Tensor, Tensor]:
    """Give the reporters of a round slots, where they have none yet.

    Args:
        slots: the slots (K,) so far.
        ids: the reporters (S,).
        clients: the least number of slots.

    Returns:
        The slots, and the positions (S,) of the reporters among them.
    """
    if (ids == FREE).any():
        raise DataError(f"{FREE} cannot be a client's id: rules use it to mark a free slot")
    index, placed = _find(slots, ids)
    if placed.all() and clients <= len(slots):
        return slots, index
    slots = _place(_with_room(slots, clients - len(slots)), ids[~placed])
    return slots, _find(slots, ids)[0]


def _find(slots: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return each client's slot (S,) and whether it has one (S,)."""
    last = len(slots) - 1
    index = ids.clamp(0, last)
    if not (slots[index] == ids).all() and not _own_slots_only(slots):
        ordered, order = slots.sort()
        index = order[torch.searchsorted(ordered, ids).clamp(max=last)]
    return index, slots[index] == ids


def _own_slots_only(slots: Tensor) -> bool:
    """Return whether every client's slot is its id, so that no search is needed."""
    return bool(((slots == torch.arange(len(slots))) | (slots == FREE)).all())


def _place(slots: Tensor, newcomers: Tensor) -> Tensor:
    """Give slots to clients that have none, in the order of their ids."""
    ids = newcomers.sort().values
    own = ids.clamp(0, len(slots) - 1)
    fits = (own == ids) & (slots[own] == FREE)
    slots = slots.clone()
    slots[ids[fits]] = ids[fits]
    others = ids[~fits]
    if len(others):
        slots = _with_room(slots, len(others) - int((slots == FREE).sum()))
        free = (slots == FREE).nonzero()[:, 0]
        slots[free[: len(others)]] = others
    return slots


def _with_room(slots: Tensor, missing: int) -> Tensor:
    return torch.cat([slots, empty_slots(missing)]) if missing > 0 else slots


def extend(values: Tensor, clients: int, fill: Tensor | float) -> Tensor:
    """Give newcomers the value `fill`, so that there are `clients` values."""
    if len(values) == clients:
        return values
    extra = torch.zeros(clients - len(values), dtype=values.dtype)
    return torch.cat([values, extra + fill])


def extend_mixture(p: Tensor, clients: int) -> Tensor:
    """Give newcomers the weight 1 / K each and scale the others down in proportion.

    >>> extend_mixture(torch.tensor([0.25, 0.75]), 4)
    tensor([0.1250, 0.3750, 0.2500, 0.2500])
    """
    if len(p) == clients:
        return p
    return extend(p, clients, p.mean()) * (len(p) / clients)


def by_client(slots: Tensor, p: Tensor, clients: int) -> Tensor:
    """Return the mixture over the clients 0..K-1. Those without a slot count as newcomers."""
    index = torch.arange(clients)
    if clients != len(slots) or not _own_slots_only(slots):
        slots, index = take_slots(slots, index, clients)
    return on_cohort(extend_mixture(p, len(slots)), index)
