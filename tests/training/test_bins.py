"""Bins from counts: those of scikit-learn where there is one for each value, else equal ones."""

from collections.abc import Iterable

import numpy as np
import torch
from sklearn.ensemble._hist_gradient_boosting.binning import _BinMapper

from cases import cases
from commonweal.training.bins import (
    STAGES,
    Bins,
    Distribution,
    floats_of_keys,
    keys_of,
    rows_up_to,
)


def distribution(clients: Iterable[np.ndarray], bins: int = 255) -> tuple[Distribution, int]:
    """What counts of clients' values say, and by how many requests."""
    known = Distribution.unknown()
    for stage in range(STAGES):
        coarse = known.coarse(bins)
        if not coarse.any():
            return known, stage
        keys = known.keys(coarse)
        thresholds = torch.from_numpy(floats_of_keys(keys))
        below = np.zeros(len(keys), np.int64)
        for x in clients:
            ordered, lengths = torch.from_numpy(np.sort(x))[None], torch.tensor([len(keys)])
            below += rows_up_to(ordered, thresholds, lengths).numpy()
        known = known.refined(coarse, keys, below)
    return known, STAGES


def drawn(kind: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    values = {
        "zeros and ones": rng.integers(0, 2, 3000),
        "ages": rng.integers(18, 99, 3000),
        "tenths": rng.integers(-100, 100, 3000) / 10,
        "constant": np.full(3000, 7.5),
        "neighbours": np.nextafter(np.float32(1), rng.integers(0, 3, 3000).astype(np.float32)),
        "far apart": np.array([-1e38, -1e-38, 0.0, 1e-45, 3e38])[rng.integers(0, 5, 3000)],
        "two rows": np.array([3.0, 4.0]),
        "one row": np.array([3.0]),
    }
    return values[kind].astype(np.float32)


SMALL = [
    "zeros and ones",
    "ages",
    "tenths",
    "constant",
    "neighbours",
    "far apart",
    "two rows",
    "one row",
]


def test_keys_are_in_the_order_of_numbers() -> None:
    rng = np.random.default_rng(0)
    values = np.sort(rng.normal(size=1000).astype(np.float32) * 10.0 ** rng.integers(-40, 38, 1000))
    values = values.astype(np.float32)
    keys = keys_of(values)
    assert (np.diff(keys) >= 0).all()
    assert np.array_equal(floats_of_keys(keys), values)
    assert np.array_equal(floats_of_keys(keys + 1), np.nextafter(values, np.float32(np.inf)))


@cases("kind", SMALL)
def test_a_bin_for_each_value(kind: str) -> None:
    x = drawn(kind)
    known, _ = distribution(np.array_split(x, 7))
    cuts = known.cuts(255)
    values = np.unique(x)
    assert len(cuts) == len(values) - 1
    assert np.array_equal(np.searchsorted(cuts, values), np.arange(len(values)))
    assert np.array_equal(known.rows, np.unique(x, return_counts=True)[1])


@cases("kind", ["zeros and ones", "ages", "tenths"])
def test_thresholds_are_those_of_scikit_learn(kind: str) -> None:
    x = drawn(kind)
    known, _ = distribution([x])
    expected = _BinMapper(n_bins=256).fit(x[:, None].astype(np.float64)).bin_thresholds_[0]
    np.testing.assert_allclose(known.cuts(255), expected, rtol=1e-6)


@cases("spread", ["normal", "heavy tails", "half are zero", "many whole numbers"])
@cases(("bins", "rows"), [(16, 5000), (255, 5000), (255, 300)])
def test_bins_are_those_of_scikit_learn(spread: str, bins: int, rows: int) -> None:
    rng = np.random.default_rng(1)
    x = {
        "normal": rng.normal(size=rows),
        "heavy tails": rng.standard_cauchy(rows) * 1e6,
        "half are zero": np.where(rng.random(rows) < 0.5, 0, rng.normal(size=rows)),
        "many whole numbers": rng.integers(0, 2000, rows),
    }[spread].astype(np.float32)
    known, requests = distribution(np.array_split(x, 20), bins)
    mapper = _BinMapper(n_bins=bins + 1).fit(x[:, None].astype(np.float64))
    expected = np.searchsorted(mapper.bin_thresholds_[0], x)
    assert np.array_equal(np.searchsorted(known.cuts(bins), x), expected)
    assert requests <= 10


@cases("kind", ["zeros and ones", "ages", "tenths", "far apart", "constant", "two rows"])
@cases("least", [1, 40, 700, 5000])
@cases("bins", [16, 255])
def test_bins_with_few_rows_are_merged(kind: str, least: int, bins: int) -> None:
    """Each bin has enough rows, and neighbours are merged no further than that."""
    x = drawn(kind)
    known, _ = distribution(np.array_split(x, 7), bins)
    whole, merged = known.cuts(bins), known.cuts(bins, least)
    assert np.isin(merged, whole).all()
    rows = np.bincount(np.searchsorted(merged, x), minlength=len(merged) + 1)
    assert len(rows) == 1 or rows.min() >= least
    size = np.bincount(np.searchsorted(whole, x)).max()
    assert (rows[:-1] < least + size).all()
    if least == 1:
        assert np.array_equal(whole, merged)


def test_it_does_not_matter_who_has_which_rows() -> None:
    x = np.random.default_rng(2).normal(size=5000).astype(np.float32)
    one, _ = distribution([x])
    many, _ = distribution([x[k::50] for k in range(50)])
    assert np.array_equal(one.cuts(255), many.cuts(255))


def test_missing_values_are_not_counted() -> None:
    x = drawn("ages")
    gaps = np.concatenate([x, np.full(500, np.nan, np.float32)])
    assert np.array_equal(distribution([x])[0].rows, distribution([gaps])[0].rows)
    none, _ = distribution([np.full(5, np.nan, np.float32)])
    assert len(none.rows) == len(none.cuts(255)) == 0


def test_cells_of_features() -> None:
    cuts = np.array([0.5, 1.0, 2.0], np.float32)
    bins = Bins(cuts, np.array([1, 0, 2]), np.array([False, True, True]))
    assert bins.sizes.tolist() == [2, 2, 4]
    assert bins.starts.tolist() == [0, 2, 4]
    some = bins.only(np.array([0, 2]))
    assert some.sizes.tolist() == [2, 4]
    assert [own.tolist() for own in some.by_feature()] == [[0.5], [1.0, 2.0]]
