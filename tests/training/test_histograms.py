"""Histograms: sums by node and bin, exactly, whatever the order of the rows."""

import numpy as np
import torch

from commonweal.training.bins import Bins
from commonweal.training.histograms import UNIT, Histograms, codes_of, exact

RNG = np.random.default_rng(0)
N, SLOTS = 700, 3


def data() -> tuple[np.ndarray, Bins]:
    x = RNG.normal(size=(N, 4)).astype(np.float32)
    x[:, 1] = RNG.integers(0, 2, N)
    x[:, 2] = 5.0
    x[RNG.random(N) < 0.2, 3] = np.nan
    cuts = np.array([-1, 0, 0.5, 0.5, -0.3, 0.2], np.float32)
    return x, Bins(cuts, np.array([3, 1, 0, 2]), np.array([False, False, False, True]))


def loop(x: np.ndarray, bins: Bins, slot: np.ndarray, derivatives: np.ndarray) -> np.ndarray:
    total = np.zeros((SLOTS, 3, bins.total))
    for row, s, (g, h) in zip(x, slot, derivatives, strict=True):
        for feature, (value, cuts) in enumerate(zip(row, bins.by_feature(), strict=True)):
            code = len(cuts) + 1 if np.isnan(value) else int((cuts < value).sum())
            if s >= 0:
                total[s, :, bins.starts[feature] + code] += g, h, 1
    return total


def summed(
    x: np.ndarray,
    bins: Bins,
    slot: np.ndarray,
    derivatives: np.ndarray,
    client: np.ndarray | None = None,
    clients: int = 0,
) -> np.ndarray:
    first, second = np.ascontiguousarray(derivatives.T)
    adding = Histograms(codes_of(torch.from_numpy(x), bins), bins, first, second, client, clients)
    sums, rows = adding.of([np.flatnonzero(slot == k).astype(np.uint32) for k in range(SLOTS)])
    return np.concatenate([sums, rows[:, None]], 1)


def test_sums_are_those_of_a_loop() -> None:
    x, bins = data()
    slot = RNG.integers(-1, SLOTS, N)
    derivatives = exact(RNG.normal(size=(N, 2)))
    assert np.array_equal(summed(x, bins, slot, derivatives), loop(x, bins, slot, derivatives))


def test_sums_are_exact() -> None:
    """To the last bit the same in any order, in parts, and by subtraction."""
    x, bins = data()
    slot = RNG.integers(0, 2, N)
    derivatives = exact(RNG.normal(size=(N, 2)) * 10.0 ** RNG.integers(-6, 3, (N, 1)))
    whole = summed(x, bins, slot, derivatives)
    order = RNG.permutation(N)
    parts = np.array_split(order, 9)
    total = sum(summed(x[part], bins, slot[part], derivatives[part]) for part in parts)
    assert np.array_equal(whole, total)
    parent = summed(x, bins, np.zeros(N, np.int64), derivatives)
    assert np.array_equal(parent[0] - whole[0], whole[1])
    assert (np.abs(derivatives.astype(np.float64) / UNIT) % 1 == 0).all()


def test_rounding_is_that_of_float32() -> None:
    values = RNG.normal(size=1000) * 10.0 ** RNG.integers(-4, 6, 1000)
    np.testing.assert_allclose(exact(values), values, rtol=2**-24, atol=UNIT)


def test_255_thresholds_and_missing_values() -> None:
    """The largest number of bins: the codes fill a byte."""
    x = np.append(np.repeat(np.arange(255), 2), [np.nan] * 3).astype(np.float32)[:, None]
    bins = Bins(np.arange(254) + np.float32(0.5), np.array([254]), np.array([True]))
    derivatives = exact(RNG.normal(size=(len(x), 2)))
    slot = np.zeros(len(x), np.int64)
    found = summed(x, bins, slot, derivatives)
    assert np.array_equal(found, loop(x, bins, slot, derivatives))
    assert found[0, 2].tolist() == [2] * 255 + [3]


def test_a_cell_for_each_client() -> None:
    x, bins = data()
    slot, derivatives = RNG.integers(-1, SLOTS, N), exact(RNG.normal(size=(N, 2)))
    client = RNG.integers(0, 5, N)
    found = summed(x, bins, slot, derivatives, client, 4)  # the fifth joined late
    assert np.array_equal(found[..., : bins.total], loop(x, bins, slot, derivatives))
    for k in range(4):
        for s in range(SLOTS):
            own = (client == k) & (slot == s)
            expected = derivatives[own].sum(0, dtype=np.float64)
            assert np.array_equal(found[s, :2, bins.total + k], expected)
            assert found[s, 2, bins.total + k] == own.sum()


def test_one_row_or_none() -> None:
    x, bins = data()
    for count in (0, 1):
        slot, derivatives = np.ones(count, np.int64), np.full((count, 2), 0.5, np.float32)
        found = summed(x[:count], bins, slot, derivatives)
        assert np.array_equal(found, loop(x[:count], bins, slot, derivatives))
        assert found[:, 2].sum() == count * len(bins.sizes)
