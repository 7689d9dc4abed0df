"""Items that are computed together, as many as memory holds."""

from collections.abc import Sequence


def pack(
    costs: Sequence[int],
    budget: int | None,
    widths: Sequence[int] | None = None,
    apart: Sequence[bool] | None = None,
) -> list[slice]:
    """Split items into groups of neighbours; a group costs its number times its highest cost.

    Args:
        costs: What each item costs.
        budget: What a group may cost, unless it has one item only. None: any amount.
        widths: What items are padded to each other by; to at most twice their own.
        apart: Whether each item must begin a group.

    >>> pack([3, 3, 1, 1, 1], 4)
    [slice(0, 1, None), slice(1, 2, None), slice(2, 5, None)]
    """
    groups = []
    begin = 0
    highest, narrow, wide = 0, 0, 0  # cost and widths of the group that begins there
    for i, cost in enumerate(costs):
        width = 0 if widths is None else widths[i]
        dearer = max(highest, cost)
        is_dear = budget is not None and (i + 1 - begin) * dearer > budget
        is_uneven = 2 * min(narrow, width) < max(wide, width)
        must_begin = apart is not None and apart[i]
        if i > begin and (is_dear or is_uneven or must_begin):
            groups.append(slice(begin, i))
            begin = i
        if i == begin:
            highest, narrow, wide = cost, width, width
        else:
            highest, narrow, wide = dearer, min(narrow, width), max(wide, width)
    if len(costs) > begin:
        groups.append(slice(begin, len(costs)))
    return groups
