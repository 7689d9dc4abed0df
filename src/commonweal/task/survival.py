"""Cox's partial likelihood and comparable pairs, in O(N log N) steps and memory that is linear.

Both are of clients' samples: only those of one client are compared with each other. Rows that
belong together (a client's, or those with the same time) are neighbours after sorting, a run.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Pairs(NamedTuple):
    """The comparable pairs of each sample (N,). A pair is counted at both of its samples."""

    right: Tensor  # those whose earlier event has the higher risk; ties count half
    all: Tensor


def cox_losses(risk: Tensor, y: Tensor, offsets: Tensor | None = None) -> Tensor:
    """Return each row's negative log partial likelihood (N,), 0 for censored ones.

    Rows with the same time are in each other's risk sets (Breslow).

    Args:
        risk: The log-risks (N,).
        y: The times, and whether there was an event (N, 2).
        offsets: Where the clients' rows begin, (K + 1,). None: all are of one client.
    """
    time, event = y.unbind(-1)
    order = time.argsort(descending=True, stable=True)
    begin: Tensor | None = None
    client = torch.zeros_like(order)
    if offsets is not None:
        client = _clients(offsets)  # also of the rows in that order: clients' rows are neighbours
        order = order[client[order].argsort(stable=True)]
        begin = _begin(_changes(client))
    sums = _running_logsumexp(risk.gather(-1, order), begin)
    # All rows with one time have the sum up to the last of them.
    last = _end(_changes(client, time.gather(-1, order))) - 1
    together = torch.zeros_like(sums).scatter(-1, order, sums.gather(-1, last))
    return (together - risk) * event


def _running_logsumexp(values: Tensor, begin: Tensor | None) -> Tensor:
    """The logsumexp of all values (N,) up to each, from `begin` (N,) on, by doubling.

    The error grows with log N, as that of a sum in pairs. torch.logcumsumexp has no segments, and
    adds one after the other.
    """
    rows = values.shape[-1]
    index = torch.arange(rows, device=values.device)
    step = 1
    while step < rows:
        both = torch.logaddexp(values[step:], values[:-step])
        if begin is not None:
            both = torch.where(index[:-step] >= begin[step:], both, values[step:])
        values = torch.cat([values[:step], both])
        step *= 2
    return values


def comparable_pairs(risk: Tensor, time: Tensor, event: Tensor, offsets: Tensor) -> Pairs:
    """Count the pairs of a client's samples of which one has its event before the other's time.

    In the order of time, a pair is in two halves of one block at exactly one of the block sizes
    N, N/2, ..., 2: within blocks that are sorted by risk, counts are running sums.

    Args:
        risk: The log-risks (N,), without NaN.
        time: (N,)
        event: Whether there was an event (N,).
        offsets: Where the clients' samples begin, (K + 1,).
    """
    client = _clients(offsets)
    # Of equal times the lower risk comes first, so that none of them counts as a right pair.
    by_time = _sorted(client, time, risk)
    risk, time = risk[by_time], time[by_time]
    event = (event[by_time] > 0).long()
    index = torch.arange(len(risk))
    position = index - offsets[client]  # within the client
    right = torch.zeros_like(index)  # in halves
    order = _sorted(client, risk)
    sizes = offsets.diff()
    blocks = int(sizes.max()).bit_length() if len(sizes) else 0
    for bit in reversed(range(blocks)):
        late = (position[order] >> bit) & 1
        early_event = event[order] * (1 - late)
        is_block = _changes(client[order], position[order] >> (bit + 1))
        is_tie = is_block | _changes(risk[order])
        begin, end = _begin(is_block), _end(is_block)
        first, last = _begin(is_tie), _end(is_tie)
        lates, events = _running(late), _running(early_event)
        lower = 2 * (lates[first] - lates[begin]) + lates[last] - lates[first]
        higher = 2 * (events[end] - events[last]) + events[last] - events[first]
        right[order] += early_event * lower + late * higher
        # The halves of each block, in the same order by risk.
        late_before = lates[index] - lates[begin]
        early_rows = end - begin - (lates[end] - lates[begin])
        moved = begin + torch.where(late > 0, early_rows + late_before, index - begin - late_before)
        order = torch.empty_like(order).scatter(0, moved, order)
    is_time = _changes(client, time)
    is_same = is_time | _changes(risk)
    events = _running(event)
    # Equal times and risks are no pairs, but were counted as ties.
    right -= event * (_end(is_same) - index - 1) + events[index] - events[_begin(is_same)]
    later = offsets[client + 1] - _end(is_time)
    earlier = events[_begin(is_time)] - events[offsets[client]]
    pairs = event * later + earlier
    return Pairs(_unsorted(right, by_time).double() / 2, _unsorted(pairs, by_time).double())


def _clients(offsets: Tensor) -> Tensor:
    """The position of each row's client (N,)."""
    sizes = offsets.diff()
    return torch.repeat_interleave(torch.arange(len(sizes)), sizes)


def _sorted(*keys: Tensor) -> Tensor:
    """The rows (N,) in the order of the keys, the first one first."""
    order = torch.arange(len(keys[0]))
    for key in reversed(keys):
        order = order[key[order].argsort(stable=True)]
    return order


def _unsorted(values: Tensor, order: Tensor) -> Tensor:
    """Values that are given in an order, by row."""
    return torch.empty_like(values).scatter(0, order, values)


def _running(values: Tensor) -> Tensor:
    """The sums (N + 1,) of the first 0, 1, ..., N values."""
    return torch.cat([values.new_zeros(1), values.cumsum(0)])


def _changes(*keys: Tensor) -> Tensor:
    """Return whether a run of equal keys begins at each row (N,)."""
    starts = torch.zeros_like(keys[0][1:], dtype=torch.bool)
    for key in keys:
        starts = starts | (key[1:] != key[:-1])
    first = torch.ones_like(keys[0][:1], dtype=torch.bool)
    return torch.cat([first, starts])


def _begin(starts: Tensor) -> Tensor:
    """Return the number of the row at which each row's run begins (N,)."""
    index = torch.arange(len(starts), device=starts.device)
    return torch.where(starts, index, 0).cummax(0).values


def _end(starts: Tensor) -> Tensor:
    """Return the number of the row after each row's run (N,)."""
    rows = len(starts)
    index = torch.arange(rows, device=starts.device)
    following = torch.where(starts, index, rows)
    following = torch.cat([following[1:], torch.full_like(following[:1], rows)])
    return following.flip(0).cummin(0).values.flip(0)
