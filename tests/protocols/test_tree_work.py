"""Work of clients for boosting: rows are divided as trees predict, also those with gaps."""

from dataclasses import replace

import numpy as np
import torch

from cases import cases
from commonweal.data.federation import Federation
from commonweal.models.tree_ensemble import LARGEST, Trees, leaf_values
from commonweal.models.trees import trees
from commonweal.protocols.tree_work import TreeWork
from commonweal.task.task import Task

ROWS, FEATURES = 300, 3
CUTS = np.array([-0.5, 0.0, 0.5], np.float32)
LEAF = 7.0


def work() -> TreeWork:
    """Rows of one client, of which a third has gaps; the third feature has none."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
    f = Federation.from_arrays(x, x[:, 0], np.zeros(ROWS, int), test=0.2)
    inputs = f.train.x.clone()
    inputs[torch.from_numpy(rng.random((len(inputs), 2)) < 0.3).nonzero(as_tuple=True)] = torch.nan
    task = Task(trees((FEATURES,), 1, 2, leaves=4, depth=2), loss="squared")
    return TreeWork(task, replace(f.train, inputs=inputs), depth=2)


def message(table: list[list[float]], slots: list[int]) -> dict[str, torch.Tensor]:
    lengths = torch.full((FEATURES,), len(CUTS))
    return {
        "trees": torch.empty(0, len(table), 6),
        "base": torch.zeros(1),
        "cuts": torch.from_numpy(np.tile(CUTS, FEATURES)),
        "lengths": lengths,
        "missing": torch.tensor([True, True, False]),
        "features": torch.arange(FEATURES),
        "clients": torch.tensor(0),
        "tree": torch.tensor([table]),
        "slots": torch.tensor([slots]),
    }


@cases("missing_left", [0.0, 1.0])
@cases(("feature", "threshold"), [(0, -0.5), (1, 0.5), (0, LARGEST), (2, 0.0)])
def test_rows_are_where_trees_say(feature: int, threshold: float, missing_left: float) -> None:
    """Histograms are of the rows of a leaf, and the tree's values are added to the same rows."""
    own = work()
    weights = np.ones(len(own.x))
    weights[::7] = 0.0  # these do not count, but are predicted
    own.weigh((torch.tensor(1),), lambda: weights)
    values = [0.0, 0.25, 0.0, LEAF, -0.5]
    table = [
        [feature, threshold, missing_left, 1, 2, values[0]],
        [0, 0, 0, 1, 1, values[1]],
        [1, 0.0, 1 - missing_left, 3, 4, values[2]],
        [0, 0, 0, 3, 3, values[3]],
        [0, 0, 0, 4, 4, values[4]],
    ]
    asked = message(table, [-1, -1, -1, 0, 1])
    expected = leaf_values(Trees.unpacked(asked["tree"]), own.x, 2)[:, 0, 0].numpy()
    _, rows = own.histograms(asked)
    for slot, leaf in enumerate(values[3:]):
        mine = own.x.numpy()[(expected == np.float32(leaf)) & (weights > 0)]
        codes = np.where(np.isnan(mine[:, 0]), 4, np.searchsorted(CUTS, mine[:, 0]))
        assert rows[slot, :5].tolist() == np.bincount(codes, minlength=5).tolist()
    grown = {**asked, "trees": asked["tree"]}
    assert np.array_equal(own.sums(grown)[:, 0], expected)
    assert np.array_equal(work().sums(grown)[:, 0], expected)  # who did not grow it
