"""A sparse table of one number per client id, as rule state: memory only for clients ever seen.

Entries are sorted by id and held in two parts. `recent` is small and copied in every round;
`settled` is shared between states until the recent entries are merged into it.
"""

import torch
from torch import Tensor

from commonweal.base.tensors import State

MERGE = 8  # recent entries are merged once they are an eighth of the settled ones


def empty_table() -> State:
    """Return a table without entries, for `lookup` and `put_numbers`."""
    ids = torch.empty(0, dtype=torch.int64)
    values = torch.empty(0, dtype=torch.float64)
    return {"settled_ids": ids, "settled": values, "recent_ids": ids, "recent": values}


def lookup(state: State, ids: Tensor) -> Tensor:
    """Return the numbers (S,) of these clients, 0 for clients that have none."""
    values = torch.zeros(len(ids), dtype=torch.float64)
    for part in ("settled", "recent"):  # a recent number replaces a settled one
        known = state[f"{part}_ids"]
        if len(known) == 0:
            continue
        place = torch.searchsorted(known, ids).clamp(max=len(known) - 1)
        values = torch.where(known[place] == ids, state[part][place], values)
    return values


def put_numbers(state: State, ids: Tensor, values: Tensor) -> State:
    """Return the state with these numbers, in O(S) time per round on average."""
    recent_ids, recent = _merge(state["recent_ids"], state["recent"], ids, values)
    if MERGE * len(recent_ids) < len(state["settled_ids"]):
        return state | {"recent_ids": recent_ids, "recent": recent}
    merged_ids, merged = _merge(state["settled_ids"], state["settled"], recent_ids, recent)
    return state | empty_table() | {"settled_ids": merged_ids, "settled": merged}


def _merge(known: Tensor, old: Tensor, ids: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Join two tables and sort by id. The second one's numbers take precedence."""
    order = torch.argsort(ids)
    ids = ids[order]
    values = values[order]
    place = torch.searchsorted(ids, known).clamp(max=len(ids) - 1)
    unchanged = ids[place] != known
    joined = torch.cat([known[unchanged], ids])
    numbers = torch.cat([old[unchanged], values])
    order = torch.argsort(joined)
    return joined[order], numbers[order]
