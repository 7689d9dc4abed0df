"""Items are computed together: as many as the budget holds, of similar width."""

import numpy as np
import pytest

from commonweal.base.packing import pack


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_as_long_as_they_may_be(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 30))
    costs = rng.integers(1, 9, n).tolist()
    widths = rng.integers(1, 5, n).tolist()
    apart = (rng.random(n) < 0.1).tolist()
    budget = int(rng.integers(1, 60))

    def fits(begin: int, end: int) -> bool:
        """Whether these items may be a group."""
        if end - begin == 1:
            return True
        dear = (end - begin) * max(costs[begin:end]) > budget
        uneven = max(widths[begin:end]) > 2 * min(widths[begin:end])
        return not (dear or uneven or any(apart[begin + 1 : end]))

    groups = pack(costs, budget, widths, apart)
    assert [i for group in groups for i in range(n)[group]] == list(range(n))
    for group in groups:
        assert fits(group.start, group.stop)
        assert group.stop == n or not fits(group.start, group.stop + 1)


def test_without_conditions_there_is_one_group() -> None:
    assert pack([5, 1, 7], None) == [slice(0, 3)]
    assert pack([], None) == []
    assert pack([], 0) == []


def test_an_item_that_the_budget_does_not_hold_is_alone() -> None:
    assert pack([5, 1, 1], 0) == [slice(0, 1), slice(1, 2), slice(2, 3)]
