"""Histograms: sums by node and bin, exactly, whatever the order of the rows."""

import numpy as np
import pytest
import torch

from cases import cases
from commonweal.training.bins import Bins
from commonweal.training.histograms import UNIT, Cells, exact, histograms

RNG = np.random.default_rng(0)
N, SLOTS = 700, 3


def data() -> tuple[np.ndarray, Bins]:
    x = RNG.normal(size=(N, 4)).astype(np.float32)
    x[:, 1] = RNG.integers(0, 2, N)
    x[:, 2] = 5.0
    x[RNG.random(N) < 0.2, 3] = np.nan
    cuts = np.array([-1, 0, 0.5, 0.5, -0.3, 0.2], np.float32)
    return x, Bins(cuts, np.array([3, 1, 0, 2]), np.array([False, False, False, True]))


def by_hand(x: np.ndarray, bins: Bins, slot: np.ndarray, derivatives: np.ndarray) -> np.ndarray:
    total = np.zeros((SLOTS, bins.total, 3))
    for row, s, (g, h) in zip(x, slot, derivatives, strict=True):
        for feature, (value, cuts) in enumerate(zip(row, bins.by_feature(), strict=True)):
            code = len(cuts) + 1 if np.isnan(value) else int((cuts < value).sum())
            if s >= 0:
                total[s, bins.starts[feature] + code] += g, h, 1
    return total


def summed(cells: Cells, bins: Bins, slot: np.ndarray, derivatives: np.ndarray) -> np.ndarray:
    counted = np.flatnonzero(slot >= 0)
    sums, rows = histograms(cells, bins, counted, slot[counted], derivatives[counted], SLOTS)
    return np.concatenate([sums, rows[..., None]], -1)


@cases("at_once", [1, 64, 1 << 20])
def test_sums_are_those_of_a_loop(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commonweal.training.histograms.AT_ONCE", at_once)
    x, bins = data()
    slot = RNG.integers(-1, SLOTS, N)
    derivatives = exact(RNG.normal(size=(N, 2)))
    cells = Cells.of(torch.from_numpy(x), bins)
    found = summed(cells, bins, slot, derivatives)
    assert np.array_equal(found, by_hand(x, bins, slot, derivatives))


def test_sums_are_exact() -> None:
    """To the last bit the same in any order, in parts, and by subtraction."""
    x, bins = data()
    slot = RNG.integers(0, 2, N)
    derivatives = exact(RNG.normal(size=(N, 2)) * 10.0 ** RNG.integers(-6, 3, (N, 1)))
    cells = Cells.of(torch.from_numpy(x), bins)
    whole = summed(cells, bins, slot, derivatives)
    order = RNG.permutation(N)
    parts = np.array_split(order, 9)
    total = sum(
        summed(Cells.of(torch.from_numpy(x[part]), bins), bins, slot[part], derivatives[part])
        for part in parts
    )
    assert np.array_equal(whole, total)
    parent = summed(cells, bins, np.zeros(N, np.int64), derivatives)
    assert np.array_equal(parent[0] - whole[0], whole[1])
    assert (np.abs(derivatives / UNIT) % 1 == 0).all()


def test_some_features() -> None:
    x, bins = data()
    slot, derivatives = RNG.integers(-1, SLOTS, N), exact(RNG.normal(size=(N, 2)))
    features = np.array([0, 2, 3])
    some = bins.only(features)
    cells = Cells.of(torch.from_numpy(x), bins).only(features, bins, some)
    found = summed(cells, some, slot, derivatives)
    assert np.array_equal(found, by_hand(x[:, features], some, slot, derivatives))


def test_a_cell_for_each_client() -> None:
    x, bins = data()
    slot, derivatives = RNG.integers(-1, SLOTS, N), exact(RNG.normal(size=(N, 2)))
    client = RNG.integers(0, 5, N)
    cells = Cells.of(torch.from_numpy(x), bins).with_clients(client, 4)  # the fifth joined late
    found = summed(cells, bins, slot, derivatives)
    assert np.array_equal(found[:, : bins.total], by_hand(x, bins, slot, derivatives))
    for k in range(4):
        for s in range(SLOTS):
            own = (client == k) & (slot == s)
            assert np.array_equal(found[s, bins.total + k, :2], derivatives[own].sum(0))
            assert found[s, bins.total + k, 2] == own.sum()


def test_one_row_or_none() -> None:
    """A single row has only bins that are the most frequent ones."""
    x, bins = data()
    for count in (0, 1):
        cells = Cells.of(torch.from_numpy(x[:count]), bins)
        slot, derivatives = np.ones(count, np.int64), np.full((count, 2), 0.5)
        found = summed(cells, bins, slot, derivatives)
        assert np.array_equal(found, by_hand(x[:count], bins, slot, derivatives))
        assert found[..., 2].sum() == count * len(bins.sizes)
