"""Dense state over clients with any ids: each client has a seat, and the number of seats can grow.

A client that has not reported before takes the seat of its own number if that is free, else the
first free seat, else a new one. With ids 0..K-1 a client's seat is its id.
"""

import torch
from torch import Tensor

from commonweal.base.errors import DataError
from commonweal.rules.online import on_cohort

__all__ = ["by_client", "empty_seats", "extend", "extend_mixture", "take_seats"]

FREE = torch.iinfo(torch.int64).min  # marks a free seat, so it cannot be a client's id


def empty_seats(clients: int) -> Tensor:
    return torch.full((clients,), FREE)


def take_seats(seats: Tensor, ids: Tensor, clients: int) -> tuple[Tensor, Tensor]:
    """Seat these clients among at least `clients` seats: the seats (K,) and the clients' (S,).

    >>> seats, index = take_seats(empty_seats(3), torch.tensor([10**15, 0]), 3)
    >>> index
    tensor([1, 0])
    """
    if (ids == FREE).any():
        raise DataError(f"{FREE} cannot be a client's id: rules use it to mark a free seat")
    index, seated = _find(seats, ids)
    if seated.all() and clients <= len(seats):
        return seats, index
    seats = _seat(_with_room(seats, clients - len(seats)), ids[~seated])
    return seats, _find(seats, ids)[0]


def _find(seats: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return each client's seat (S,) and whether it has one (S,)."""
    last = len(seats) - 1
    index = ids.clamp(0, last)
    if not (seats[index] == ids).all() and not _own_seats_only(seats):
        ordered, order = seats.sort()
        index = order[torch.searchsorted(ordered, ids).clamp(max=last)]
    return index, seats[index] == ids


def _own_seats_only(seats: Tensor) -> bool:
    """Whether every client's seat is its id, so that no search is needed."""
    return bool(((seats == torch.arange(len(seats))) | (seats == FREE)).all())


def _seat(seats: Tensor, newcomers: Tensor) -> Tensor:
    """Seat clients that have no seat yet, in the order of their ids."""
    ids = newcomers.sort().values
    own = ids.clamp(0, len(seats) - 1)
    fits = (own == ids) & (seats[own] == FREE)
    seats = seats.clone()
    seats[ids[fits]] = ids[fits]
    others = ids[~fits]
    if len(others):
        seats = _with_room(seats, len(others) - int((seats == FREE).sum()))
        free = (seats == FREE).nonzero()[:, 0]
        seats[free[: len(others)]] = others
    return seats


def _with_room(seats: Tensor, missing: int) -> Tensor:
    return torch.cat([seats, empty_seats(missing)]) if missing > 0 else seats


def extend(values: Tensor, clients: int, fill: Tensor | float) -> Tensor:
    """Give newcomers the value `fill`, for `clients` entries in all."""
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


def by_client(seats: Tensor, p: Tensor, clients: int) -> Tensor:
    """Return the mixture over the clients 0..K-1. Those without a seat count as newcomers."""
    index = torch.arange(clients)
    if clients != len(seats) or not _own_seats_only(seats):
        seats, index = take_seats(seats, index, clients)
    return on_cohort(extend_mixture(p, len(seats)), index)
