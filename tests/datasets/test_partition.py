"""Every row goes to exactly one client, and each skew is the one that was asked for."""

import sys
import types
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import commonweal
from commonweal.base.errors import ConfigError, DataError
from commonweal.config import catalog
from commonweal.data.federation import Federation
from commonweal.datasets import Partition, Pool, build_federation
from commonweal.datasets.digits import digits
from commonweal.datasets.noise import Noise, Pair, Symmetric
from commonweal.datasets.partition import (
    IID,
    Dirichlet,
    DirichletByClass,
    Labels,
    Quantity,
    Rotation,
    Shards,
    assign,
)
from commonweal.datasets.pools import standardized
from commonweal.datasets.synthetic import synthetic
from commonweal.datasets.vowel import vowel

quick = settings(derandomize=True, max_examples=60, deadline=None, database=None)
alphas = st.sampled_from([1e-4, 0.01, 0.1, 1.0, 100.0])
labels = st.integers(0, 4).flatmap(
    lambda seed: st.integers(20, 400).map(
        lambda n: np.random.default_rng(seed).integers(0, 1 + seed * 3, n)
    )
)


def table(owner: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Rows per client and class."""
    counts = np.zeros((owner.max() + 1, y.max() + 1), dtype=int)
    np.add.at(counts, (owner, y), 1)
    return counts


# Every row to one client


@quick
@given(labels, st.integers(1, 10), alphas, st.integers(1, 2), st.integers(0, 9))
def test_dirichlet_by_class_gives_every_row_once_and_always_succeeds(
    y: np.ndarray, clients: int, alpha: float, least: int, seed: int
) -> None:
    owner = DirichletByClass(clients, alpha, least)(y, seed)
    assert owner.shape == y.shape and owner.dtype == np.int64
    assert np.bincount(owner, minlength=clients).min() >= least and owner.max() < clients


@quick
@given(labels, st.integers(1, 10), alphas, st.integers(0, 9))
def test_dirichlet_gives_every_row_once_in_equal_sizes(
    y: np.ndarray, clients: int, alpha: float, seed: int
) -> None:
    owner = Dirichlet(clients, alpha)(y, seed)
    assert owner.shape == y.shape and owner.dtype == np.int64
    sizes = np.bincount(owner, minlength=clients)
    assert owner.min() >= 0 and len(sizes) == clients and sizes.max() - sizes.min() <= 1


@quick
@given(labels, st.integers(1, 10), st.integers(1, 2), st.integers(0, 9))
def test_the_other_partitions_give_every_row_once(
    y: np.ndarray, clients: int, classes: int, seed: int
) -> None:
    for partition in (
        IID(clients),
        Shards(clients, classes),
        Quantity(clients, 0.05),
        Rotation(clients),
    ):
        sizes = np.bincount(partition(y, seed), minlength=clients)
        assert len(sizes) == clients and sizes.sum() == len(y) and sizes.min() >= 1


def test_a_seed_determines_a_partition() -> None:
    y = np.arange(1000) % 10
    for partition in (IID(7), Shards(7), Quantity(7), Dirichlet(7), DirichletByClass(7)):
        assert np.array_equal(partition(y, 1), partition(y, 1))
        assert not np.array_equal(partition(y, 1), partition(y, 2))


def test_iid_sizes_differ_by_one_at_most() -> None:
    assert set(np.bincount(IID(7)(np.zeros(100, int), 0)).tolist()) == {14, 15}


# Dirichlet as Hsu et al.


def test_a_thousand_dirichlet_clients_at_alpha_0_01_have_equal_sizes() -> None:
    y = np.random.default_rng(0).integers(0, 10, 60_000)
    owner = Dirichlet(1000, 0.01)(y, 0)
    assert set(np.bincount(owner).tolist()) == {60}
    # Of a label distribution with concentration 0.01, nearly all mass is in one class.
    assert np.median(table(owner, y).max(1)) == 60
    by_class = np.bincount(DirichletByClass(1000, 0.01)(y, 0))
    assert (by_class == 2).sum() > 500  # the other one leaves most clients the minimum


def test_dirichlet_clients_have_the_moments_of_their_distribution() -> None:
    """Shares under Dirichlet(alpha * p) have mean p and variance p (1 - p) / (alpha + 1).

    With enough rows per client, the shares of the rows are nearly those of the distribution.
    Only the first clients are looked at: the last ones get what is left.
    """
    prior = np.array([0.5, 0.3, 0.2])
    y = np.repeat([0, 1, 2], (prior * 400_000).astype(int))
    for alpha in (0.5, 5.0):
        counts = table(Dirichlet(2000, alpha)(y, 1), y)[:600]
        share = counts / counts.sum(1, keepdims=True)
        assert np.abs(share.mean(0) - prior).max() < 0.06
        variance = prior * (1 - prior) * (1 / (alpha + 1) + 1 / 200)  # and of 200 draws
        assert np.abs(share.var(0) / variance - 1).max() < 0.2


def test_a_large_alpha_gives_the_labels_of_the_pool() -> None:
    y = np.repeat(np.arange(5), [100, 200, 300, 400, 1000])
    counts = table(Dirichlet(4, 1e9)(y, 0), y)
    assert np.abs(counts - np.bincount(y) / 4).max() < 60  # three standard deviations and more
    assert (counts.sum(1) == 500).all()


def test_a_class_that_runs_out_is_replaced_by_the_others() -> None:
    y = np.array([0] * 5 + [1] * 95)
    counts = table(Dirichlet(10, 0.001)(y, 3), y)
    assert (counts.sum(1) == 10).all() and counts.sum(0).tolist() == [5, 95]


# Skew


# The last clients of "dirichlet" get what is left, so that a class may be missing.
@pytest.mark.parametrize(("kind", "most"), [(Dirichlet, 9.5), (DirichletByClass, 10)])
def test_a_small_alpha_concentrates_and_a_large_one_spreads(
    kind: Callable[..., Partition], most: float
) -> None:
    y = np.repeat(np.arange(10), 600)

    def classes_per_client(alpha: float) -> float:
        counts = table(kind(20, alpha)(y, 0), y)
        return float((counts > 0.01 * counts.sum(1, keepdims=True)).sum(1).mean())

    assert classes_per_client(0.01) < 3 and classes_per_client(1000.0) >= most


def test_filling_up_takes_from_the_largest_only() -> None:
    y = np.zeros(1000, int)
    before = np.bincount(Quantity(50, 0.05, least=1)(y, 3), minlength=50)
    after = np.bincount(Quantity(50, 0.05, least=10)(y, 3), minlength=50)
    assert after.min() == 10 and (after[before < 10] == 10).all()
    untouched = (before >= 10) & (before <= after.max() - 1)
    assert (after[untouched] == before[untouched]).all() and untouched.any()


def test_shards_have_few_classes() -> None:
    y = np.repeat(np.arange(10), 100)
    owner = Shards(10, 2)(y, 0)  # 20 shards of 50 rows: none crosses a class
    assert all(len(np.unique(y[owner == k])) <= 2 for k in range(10))
    assert set(np.bincount(owner).tolist()) == {100}


def test_labels_gives_a_client_per_class_and_rotation_turns_it() -> None:
    y = np.array([5, 2, 5, 9])
    assert Labels()(y, 0).tolist() == [1, 0, 1, 2]
    x = torch.arange(4 * 9).view(4, 1, 3, 3)
    turned = Rotation(clients=4).shift(x, np.array([0, 1, 2, 3]))
    for k in range(4):
        assert torch.equal(turned[k], torch.rot90(x[k], k, (1, 2)))
    assert torch.equal(x, torch.arange(4 * 9).view(4, 1, 3, 3))


def test_only_rotation_changes_the_rows() -> None:
    x = torch.arange(4 * 9).view(4, 1, 3, 3)
    for partition in (IID(2), Dirichlet(2), DirichletByClass(2), Labels(), Quantity(2), Shards(2)):
        assert partition.shift(x, np.zeros(4, int)) is x


# Errors


@pytest.mark.parametrize(
    ("partition", "rows", "words"),
    [
        (IID(10), 9, "9 rows cannot give 10 clients"),
        (Dirichlet(10, 0.5), 9, "9 rows cannot give 10 clients 1 each"),
        (DirichletByClass(10, 0.5, 3), 29, "29 rows cannot give 10 clients 3 each"),
        (Shards(5, 2), 9, "9 rows cannot give 5 clients 2 each"),
    ],
)
def test_too_few_rows_are_errors(partition: Partition, rows: int, words: str) -> None:
    with pytest.raises(DataError, match=words):
        partition(np.zeros(rows, int), 0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: IID(0), "clients = 0: it must be at least 1"),
        (lambda: Dirichlet(0), "clients = 0: it must be at least 1"),
        (lambda: Dirichlet(3, 0.0), "alpha = 0.0: it must be above 0"),
        (lambda: Dirichlet(3, float("nan")), "alpha = nan: it must be above 0"),
        (lambda: DirichletByClass(3, 0.0), "alpha = 0.0: it must be above 0"),
        (lambda: DirichletByClass(3, 0.5, 0), "least = 0: it must be at least 1"),
        (lambda: Quantity(3, -1.0), "alpha = -1.0: it must be above 0"),
        (lambda: Shards(3, 0), "classes = 0: it must be at least 1"),
        (lambda: Rotation(3, 5), "turns = 5: it must be at most 4"),
    ],
)
def test_a_parameter_out_of_bounds_is_an_error(make: Callable[[], Partition], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def test_values_cannot_be_partitioned_by_label() -> None:
    for partition in (Dirichlet(2), DirichletByClass(2), Shards(2), Labels()):
        with pytest.raises(DataError, match="use 'iid' or 'quantity'"):
            partition(np.linspace(0, 1, 50), 0)
    with pytest.raises(DataError, match="square images"):
        Rotation(2).shift(torch.zeros(3, 1, 4, 5), np.zeros(3, int))


# Partitions of others


class FlowerPartitioner:
    """The interface of flwr_datasets.partitioner.Partitioner: set a dataset, load by number."""

    def __init__(self, num_partitions: int, twice: bool = False) -> None:
        self.num_partitions = num_partitions
        self.twice = twice

    @property
    def dataset(self) -> Any:
        return self._dataset

    @dataset.setter
    def dataset(self, value: Any) -> None:
        self._dataset = value

    def load_partition(self, partition_id: int) -> dict[str, list[int]]:
        count = self.num_partitions
        rows = [r for r in self._dataset["row"] if r % count == partition_id and r != 4]
        given = [*rows, 1] if self.twice else rows
        return {"row": given, "label": [self._dataset["label"][r] for r in rows]}


@pytest.fixture
def flower(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("datasets")
    vars(module)["Dataset"] = types.SimpleNamespace(from_dict=dict)
    monkeypatch.setitem(sys.modules, "datasets", module)


@pytest.mark.usefixtures("flower")
def test_a_partitioner_of_flower_can_be_used() -> None:
    assert assign(FlowerPartitioner(3), np.arange(7), 0).tolist() == [0, 1, 2, 0, -1, 2, 0]
    federation = build_federation(digits(), FlowerPartitioner(5))
    assert federation.clients == 5
    assert len(federation.train.y) + len(federation.test.y) == 1796
    assert federation.notes == ("1 rows are given to no client and left out",)
    with pytest.raises(DataError, match="a row to two clients: 1"):
        assign(FlowerPartitioner(3, twice=True), np.arange(7), 0)


@pytest.mark.usefixtures("flower")
def test_a_partitioner_of_flower_can_be_named() -> None:
    partition = {"name": "test_partition:FlowerPartitioner", "num_partitions": 5}
    federation = commonweal.dataset("digits", partition=partition)
    assert federation.clients == 5
    assert federation.notes == ("1 rows are given to no client and left out",)


def test_without_flower_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match="pip install flwr-datasets"):
        assign(FlowerPartitioner(2), np.arange(4), 0)


def test_a_function_of_labels_and_a_seed_can_be_used() -> None:
    federation = build_federation(digits(), lambda labels, seed: labels % 3 + seed, seed=0)
    assert federation.names == ("0", "1", "2")
    assert set(federation.train.client(1).y.tolist()) == {1, 4, 7}
    with pytest.raises(DataError, match=r"gave \(2,\) owners for 7 rows: give one per row"):
        assign(lambda labels, seed: labels[:2], np.arange(7), 0)


# By name


def test_partitions_and_noises_are_completed_and_checked() -> None:
    partition = catalog.complete("partitions", {"name": "dirichlet-by-class", "alpha": 0.1})
    assert partition == {"name": "dirichlet-by-class", "clients": 100, "alpha": 0.1, "least": 2}
    assert catalog.complete("noises", "pair") == {"name": "pair", "rate": 0.1}
    with pytest.raises(ConfigError, match=r"did you mean 'alpha'"):
        catalog.complete("partitions", {"name": "dirichlet", "alhpa": 0.1})
    with pytest.raises(ConfigError, match=r"no partition is called 'dirichet': .* 'dirichlet'"):
        commonweal.dataset("digits", partition="dirichet")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("iid", IID), ("dirichlet", Dirichlet), ("dirichlet-by-class", DirichletByClass)],
)
def test_a_partition_by_name_is_the_class(name: str, kind: Callable[..., Partition]) -> None:
    named = commonweal.dataset("digits", partition={"name": name, "clients": 6}, seed=2)
    assert same(named, build_federation(digits(seed=2), kind(clients=6), seed=2))


def test_a_partition_can_be_given_as_a_value() -> None:
    assert catalog.complete("partitions", Dirichlet(5))["clients"] == 5
    assert commonweal.dataset("digits", partition=DirichletByClass(clients=6)).clients == 6


# From loaders to federations


def same(a: Federation, b: Federation) -> bool:
    parts = [(a.train, b.train), (a.test, b.test)]
    return a.names == b.names and all(
        torch.equal(p.x, q.x) and torch.equal(p.y, q.y) and torch.equal(p.offsets, q.offsets)
        for p, q in parts
    )


def pool(rows: int = 60, test_rows: int = 20) -> Pool:
    """A pool with a publisher's split; a row's only feature is its number."""
    x = np.arange(rows, dtype=np.float32)[:, None]
    return Pool(x, np.arange(rows) % 4, np.arange(rows) >= rows - test_rows)


def test_a_pool_is_partitioned_by_its_default_or_by_the_partition() -> None:
    assert build_federation(digits()).clients == 20
    default = build_federation(digits(), DirichletByClass(clients=20))
    assert same(build_federation(digits()), default)
    assert build_federation(digits(), IID(7)).clients == 7


def test_a_pool_without_a_default_needs_a_partition() -> None:
    bare = replace(pool(), partition=None)
    with pytest.raises(ConfigError, match=r"these rows have no clients: .*, or give a partition"):
        build_federation(bare)
    assert build_federation(bare, IID(3)).clients == 3


def test_a_share_is_held_out_of_both_parts_of_a_pool() -> None:
    federation = build_federation(pool(), IID(4))
    assert federation.train.sizes.tolist() == [12] * 4 and federation.test.sizes.tolist() == [3] * 4
    held_out = federation.test.x[:, 0]
    assert (held_out < 40).any() and (held_out >= 40).any()


def test_official_test_rows_stay_test_rows() -> None:
    federation = build_federation(replace(pool(), test="official"), IID(4))
    assert federation.train.x[:, 0].sort().values.tolist() == list(range(40))
    assert federation.test.x[:, 0].sort().values.tolist() == list(range(40, 60))


def test_the_seed_of_a_pool_splits_and_the_other_partitions() -> None:
    federation = build_federation(pool(), IID(4), seed=1)
    other_split = build_federation(replace(pool(), seed=5), IID(4), seed=1)
    other_partition = build_federation(pool(), IID(4), seed=2)

    def owned(f: Federation) -> list[list[float]]:
        rows = [torch.cat([f.train.client(k).x, f.test.client(k).x]) for k in range(f.clients)]
        return [sorted(x[:, 0].tolist()) for x in rows]

    assert owned(other_split) == owned(federation) != owned(other_partition)
    assert not torch.equal(other_split.test.x, federation.test.x)


def test_numeric_columns_of_a_pool_are_standardised_over_the_training_rows() -> None:
    x = np.tile(np.arange(60, dtype=np.float32)[:, None], 2)
    wide = replace(pool(), features=partial(standardized, torch.from_numpy(x), 1))
    federation = build_federation(wide, IID(4))
    first = federation.train.x[:, 0]
    assert float(first.mean()) == pytest.approx(0, abs=1e-6)
    assert float(first.std(correction=0)) == pytest.approx(1, abs=1e-6)
    raw = torch.cat([federation.train.x, federation.test.x])[:, 1]
    assert sorted(raw.tolist()) == list(range(60))


def test_a_natural_federation_stays_unless_a_partition_is_given() -> None:
    natural = vowel(seed=1)
    assert build_federation(natural) is natural
    divided = build_federation(replace(natural, groups=("x",) * 15), Dirichlet(9, 0.1), seed=1)
    assert divided.clients == 9 and divided.groups is None
    sizes = divided.train.sizes + divided.test.sizes
    assert sizes.tolist() == [110] * 9
    assert divided.test.sizes.tolist() == [22] * 9  # the same share of test rows, 195 of 990
    both = [torch.cat([f.train.x, f.test.x]).sum(1).sort().values for f in (natural, divided)]
    assert torch.equal(both[0], both[1])
    assert (divided.outputs, divided.labels, divided.score) == (11, "classes", "accuracy")


def test_a_natural_federation_without_test_rows_is_partitioned_without() -> None:
    divided = build_federation(vowel(test=0), IID(3))
    assert divided.test.sizes.tolist() == [0] * 3 and divided.train.sizes.tolist() == [330] * 3


# Noise


def test_noise_has_the_given_rate() -> None:
    y = np.random.default_rng(0).integers(0, 10, 5000)
    pair = Pair(0.3)(y, 10, 0)
    symmetric = Symmetric(0.3)(y, 10, 0)
    assert (pair != y).sum() == (symmetric != y).sum() == 1500
    assert set(((pair - y) % 10).tolist()) == {0, 1}
    moved = np.bincount((symmetric - y) % 10, minlength=10)[1:]
    assert moved.min() > 120 and moved.max() < 220  # 1500 over nine other classes
    assert np.array_equal(Pair(0.3)(y, 10, 0), pair)
    assert not np.array_equal(Pair(0.3)(y, 10, 1), pair)
    assert np.array_equal(Symmetric(0.0)(y, 10, 0), y)


@pytest.mark.parametrize("kind", [Pair, Symmetric])
def test_noise_that_cannot_be_is_an_error(kind: Callable[[float], Noise]) -> None:
    with pytest.raises(ConfigError, match=r"rate = 1.5: it must be at most 1"):
        kind(1.5)
    with pytest.raises(ConfigError, match=r"rate = -0.1: it must be at least 0"):
        kind(-0.1)
    with pytest.raises(DataError, match="whole-number label"):
        kind(0.1)(np.zeros(3), 2, 0)


@pytest.mark.parametrize("loaded", [digits, vowel], ids=["pool", "natural"])
def test_noise_touches_training_rows_only_and_counts_them(
    loaded: Callable[[], Pool | Federation],
) -> None:
    clean = build_federation(loaded())
    noisy = build_federation(loaded(), noise=Symmetric(0.25))
    wrong = int((noisy.train.y != clean.train.y).sum())
    rows = len(clean.train.y)
    assert wrong == round(0.25 * rows) and torch.equal(noisy.test.y, clean.test.y)
    assert torch.equal(noisy.train.x, clean.train.x) and noisy.names == clean.names
    rate = f"{100 * wrong / rows:.2f} %"
    note = f"label noise: {rate} of the {rows} training labels are wrong, no test label is"
    assert noisy.notes == (note,)


def test_noise_and_a_partition_go_together() -> None:
    noisy = build_federation(vowel(), IID(5), Pair(0.5), seed=3)
    clean = build_federation(vowel(), IID(5), seed=3)
    assert int((noisy.train.y != clean.train.y).sum()) == round(0.5 * len(clean.train.y))
    other = build_federation(vowel(), IID(5), Pair(0.5), seed=4)
    assert not torch.equal(noisy.train.y, other.train.y)


def test_noise_swaps_the_two_classes_of_a_binary_task() -> None:
    binary = replace(synthetic(clients=4, classes=2), outputs=1, labels="binary")
    noisy = build_federation(binary, noise=Pair(1.0))
    assert torch.equal(noisy.train.y, 1 - binary.train.y)


def test_noise_without_classes_is_an_error() -> None:
    x = np.zeros((4, 1))
    values = Federation.from_arrays(x, [0.5, 1.5, 2.5, 3.5], ["a"] * 4)
    tokens = Federation.from_arrays(x, np.zeros((4, 2), int), ["a"] * 4)
    for federation in (values, tokens):
        with pytest.raises(DataError, match=f"labels are {federation.labels}: leave the noise"):
            build_federation(federation, noise=Pair(0.1))
