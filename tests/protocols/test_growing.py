"""Growing a tree: the splits of scikit-learn, whatever may be missing, one request per depth."""

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.ensemble._hist_gradient_boosting.binning import _BinMapper

from cases import cases
from commonweal.models.tree_ensemble import TreeEnsemble, Trees, descend, from_sklearn, not_above
from commonweal.protocols.growing import Growing, Limits, Question
from commonweal.training.bins import Bins
from commonweal.training.histograms import Histograms, codes_of, exact

RNG = np.random.default_rng(0)
ROWS = 1500


def table(missing: float) -> np.ndarray:
    x = np.column_stack(
        [
            RNG.normal(size=ROWS).round(1),
            RNG.integers(0, 2, ROWS),
            RNG.integers(0, 40, ROWS),
            RNG.normal(size=ROWS),
            np.full(ROWS, 3.0),
        ]
    ).astype(np.float32)
    x[RNG.random(x.shape) < missing] = np.nan
    return x


def target(x: np.ndarray) -> np.ndarray:
    known = np.nan_to_num(x, nan=-1.0)
    noise = RNG.normal(size=len(x))
    return np.asarray(known[:, 0] * known[:, 1] + (known[:, 2] > 20) + np.isnan(x[:, 3]) + noise)


def bins_of(x: np.ndarray) -> Bins:
    """The bins of scikit-learn, so that splits can be compared."""
    mapper = _BinMapper(n_bins=256).fit(x.astype(np.float64))
    cuts = mapper.bin_thresholds_
    lengths = np.array([len(own) for own in cuts])
    return Bins(not_above(np.concatenate(cuts)), lengths, np.isnan(x).any(0))


def grown(x: np.ndarray, y: np.ndarray, limits: Limits) -> tuple[Growing, int]:
    """A tree of half the squared error, and how many requests it takes."""
    bins = bins_of(x)
    features = np.arange(x.shape[1])
    growing = Growing(bins, Question.of(bins, features, features[:0]), limits)
    adding = Histograms(
        codes_of(torch.from_numpy(x), bins), bins, exact(y.mean() - y), exact(np.ones(len(y)))
    )
    requests = 0
    while growing.asked:
        trees = Trees.unpacked(torch.from_numpy(growing.so_far()[None]).float())
        start = torch.zeros(len(x), 1, dtype=torch.int64)
        node = descend(trees, torch.from_numpy(x), start, requests)[:, 0].numpy()
        asked = [np.flatnonzero(node == k).astype(np.uint32) for k in growing.asked]
        sums, rows = adding.of(asked)
        growing.receive(np.concatenate([sums, rows[:, None]], 1))
        requests += 1
    return growing, requests


def module(growing: Growing, base: float, depth: int) -> TreeEnsemble:
    trees = Trees.unpacked(torch.from_numpy(growing.finished()[None]).float())
    return TreeEnsemble(trees, torch.tensor([base]).float(), depth)


LIMITS = [
    Limits(leaves=15, depth=6),
    Limits(leaves=31, depth=30),  # as by default in scikit-learn: depth is not limited
    Limits(leaves=8, depth=30, rows=1),
    Limits(leaves=1000, depth=4, l2=3.0),
    Limits(leaves=2, depth=1, rows=400),
]


@cases("limits", LIMITS)
@cases("missing", [0.0, 0.25])
def test_the_tree_of_scikit_learn(limits: Limits, missing: float) -> None:
    x = table(missing)
    y = target(x)
    model = HistGradientBoostingRegressor(
        max_iter=1,
        max_leaf_nodes=limits.leaves,
        max_depth=limits.depth,
        min_samples_leaf=limits.rows,
        l2_regularization=limits.l2,
        early_stopping=False,
    ).fit(x, y)
    growing, requests = grown(x, y, limits)
    found = module(growing, float(y.mean()), limits.depth)
    expected = from_sklearn(model, 1)
    new = torch.from_numpy(np.concatenate([x, table(0.5)]))
    np.testing.assert_allclose(found(new).detach(), expected(new).detach(), atol=1e-6)
    leaves = (len(growing.finished()) + 1) // 2
    assert leaves == model._predictors[0][0].get_n_leaf_nodes()
    assert leaves <= limits.leaves
    assert requests <= limits.depth


def test_a_tree_of_a_few_leaves_asks_for_few_nodes() -> None:
    """Splits that cannot be among the best are not looked into."""
    x = table(0.0)
    y = target(x)
    narrow, _ = grown(x, y, Limits(leaves=4, depth=8))
    wide, _ = grown(x, y, Limits(leaves=1000, depth=8))
    assert len(narrow.nodes) < 16 < len(wide.nodes) / 4


def test_nothing_to_split() -> None:
    x = table(0.0)
    same = np.full(ROWS, 2.0)
    for values, limits in (
        (same, Limits(15, 6)),  # all labels are the same
        (target(x), Limits(15, 6, rows=ROWS)),  # no leaf would have enough rows
        (target(x), Limits(15, 6, curvature=ROWS)),
    ):
        growing, requests = grown(x, values, limits)
        assert requests == 1
        assert growing.finished().tolist() == [[0, 0, 0, 0, 0, growing.finished()[0, 5]]]
        assert abs(growing.finished()[0, 5]) < 1e-6


def test_gains_are_of_the_features_that_are_asked() -> None:
    x = table(0.0)
    growing, _ = grown(x, (x[:, 2] > 20).astype(np.float64), Limits(15, 6))
    gains = growing.gains(5)
    assert gains[2] > 100 and gains[[0, 1, 3, 4]].tolist() == [0, 0, 0, 0]
    assert growing.gains(2)[1] == gains[2]  # those after the last one are counted with it
