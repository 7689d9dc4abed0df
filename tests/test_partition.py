"""Every row to exactly one client, whatever is asked; each skew is the one that was asked for."""

import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from commonweal import catalog, noise
from commonweal.errors import ConfigError, DataError
from commonweal.partition import Dirichlet, Iid, Labels, Quantity, Rotation, Shards, assign

quick = settings(derandomize=True, max_examples=60, deadline=None, database=None)
labels = st.integers(0, 4).flatmap(
    lambda seed: st.integers(20, 400).map(lambda n: np.random.default_rng(seed).integers(0, 1 + seed * 3, n))
)


@quick
@given(labels, st.integers(1, 10), st.sampled_from([1e-4, 0.01, 0.1, 1.0, 100.0]), st.integers(1, 2), st.integers(0, 9))
def test_dirichlet_gives_every_row_once_and_always_succeeds(
    y: np.ndarray, clients: int, alpha: float, least: int, seed: int
) -> None:
    owner = Dirichlet(clients, alpha, least)(y, seed)
    assert owner.shape == y.shape and owner.dtype == np.int64
    assert np.bincount(owner, minlength=clients).min() >= least and owner.max() < clients


@quick
@given(labels, st.integers(1, 10), st.integers(1, 2), st.integers(0, 9))
def test_the_other_partitions_give_every_row_once(y: np.ndarray, clients: int, classes: int, seed: int) -> None:
    for partition in (Iid(clients), Shards(clients, classes), Quantity(clients, 0.05), Rotation(clients)):
        sizes = np.bincount(partition(y, seed), minlength=clients)
        assert len(sizes) == clients and sizes.sum() == len(y) and sizes.min() >= 1


def test_a_seed_determines_a_partition() -> None:
    y = np.arange(1000) % 10
    for partition in (Iid(7), Shards(7), Quantity(7), Dirichlet(7)):
        assert np.array_equal(partition(y, 1), partition(y, 1))
        assert not np.array_equal(partition(y, 1), partition(y, 2))


def test_iid_sizes_differ_by_one_at_most() -> None:
    assert set(np.bincount(Iid(7)(np.zeros(100, int), 0)).tolist()) == {14, 15}


def test_a_small_alpha_concentrates_and_a_large_one_spreads() -> None:
    y = np.repeat(np.arange(10), 600)

    def classes_a_client(alpha: float) -> float:
        owner = Dirichlet(20, alpha)(y, 0)
        table = np.zeros((20, 10))
        np.add.at(table, (owner, y), 1)
        return float((table > 0.01 * table.sum(1, keepdims=True)).sum(1).mean())

    assert classes_a_client(0.01) < 3 and classes_a_client(1000.0) == 10


def test_filling_up_takes_from_the_largest_only() -> None:
    y = np.zeros(1000, int)
    raw, filled = Quantity(50, 0.05, least=1)(y, 3), Quantity(50, 0.05, least=10)(y, 3)
    before, after = np.bincount(raw, minlength=50), np.bincount(filled, minlength=50)
    assert after.min() == 10 and (after[before < 10] == 10).all()
    untouched = (before >= 10) & (before <= after.max() - 1)
    assert (after[untouched] == before[untouched]).all() and untouched.any()


def test_shards_have_few_classes() -> None:
    y = np.repeat(np.arange(10), 100)
    owner = Shards(10, 2)(y, 0)  # 20 shards of 50 rows: none crosses a class
    assert all(len(np.unique(y[owner == k])) <= 2 for k in range(10))
    assert set(np.bincount(owner).tolist()) == {100}


def test_labels_gives_a_client_a_class_and_rotation_turns_it() -> None:
    y = np.array([5, 2, 5, 9])
    assert Labels()(y, 0).tolist() == [1, 0, 1, 2]
    x = torch.arange(4 * 9).view(4, 1, 3, 3)
    turned = Rotation(clients=4).shift(x, np.array([0, 1, 2, 3]))
    for k in range(4):
        assert torch.equal(turned[k], torch.rot90(x[k], k, (1, 2)))
    assert torch.equal(x, torch.arange(4 * 9).view(4, 1, 3, 3))


@pytest.mark.parametrize(
    ("partition", "rows", "error", "words"),
    [
        (Iid(10), 9, DataError, "9 rows cannot give 10 clients"),
        (Dirichlet(10, 0.5, 3), 29, DataError, "29 rows cannot give 10 clients 3 each"),
        (Dirichlet(0), 9, ConfigError, "0 clients"),
        (Dirichlet(3, 0.0), 9, ConfigError, "alpha = 0.0"),
        (Shards(3, 0), 9, ConfigError, "classes = 0"),
    ],
)
def test_what_cannot_be_dealt_is_a_sentence(partition: Any, rows: int, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        partition(np.zeros(rows, int), 0)


def test_values_cannot_be_dealt_by_label() -> None:
    for partition in (Dirichlet(2), Shards(2), Labels()):
        with pytest.raises(DataError, match="use 'iid' or 'quantity'"):
            partition(np.linspace(0, 1, 50), 0)
    with pytest.raises(DataError, match="square images"):
        Rotation(2).shift(torch.zeros(3, 1, 4, 5), np.zeros(3, int))


class FlowerPartitioner:
    """The interface of flwr_datasets.partitioner.Partitioner: a dataset is set, partitions are loaded by number."""

    def __init__(self, num_partitions: int, twice: bool = False) -> None:
        self.num_partitions, self.twice = num_partitions, twice

    @property
    def dataset(self) -> Any:
        return self._dataset

    @dataset.setter
    def dataset(self, value: Any) -> None:
        self._dataset = value

    def load_partition(self, partition_id: int) -> Any:
        rows = [r for r in self._dataset["row"] if r % self.num_partitions == partition_id and r != 4]
        return {"row": [*rows, *([1] if self.twice else [])], "label": [self._dataset["label"][r] for r in rows]}


@pytest.fixture
def flower(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("datasets")
    module.Dataset = types.SimpleNamespace(from_dict=dict)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_a_partitioner_of_flower_serves_too(flower: None) -> None:
    assert assign(FlowerPartitioner(3), np.arange(7), 0).tolist() == [0, 1, 2, 0, -1, 2, 0]
    part = {"name": "test_partition:FlowerPartitioner", "num_partitions": 5}
    federation = catalog.build("datasets", {"name": "digits", "partition": part})
    assert federation.clients == 5 and len(federation.train.y) + len(federation.test.y) == 1796
    assert federation.notes == ("1 rows are given to no client and left out",)
    with pytest.raises(DataError, match="a row to two clients: 1"):
        assign(FlowerPartitioner(3, twice=True), np.arange(7), 0)


def test_without_flower_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match="pip install flwr-datasets"):
        assign(FlowerPartitioner(2), np.arange(4), 0)


def test_a_part_within_a_part_is_completed_and_checked() -> None:
    done = catalog.complete("datasets", {"name": "digits", "partition": {"alpha": 0.1}, "noise": "pair"})
    assert done["partition"] == {"name": "dirichlet", "clients": 20, "alpha": 0.1, "least": 2}
    assert done["noise"] == {"name": "pair", "rate": 0.1}
    with pytest.raises(ConfigError, match=r"did you mean 'alpha'"):
        catalog.complete("datasets", {"name": "digits", "partition": {"name": "dirichlet", "alhpa": 0.1}})
    with pytest.raises(ConfigError, match=r"no partition is called 'dirichet': did you mean 'dirichlet'"):
        catalog.complete("datasets", {"name": "digits", "partition": "dirichet"})
    same = catalog.complete("datasets", {"name": "digits", "partition": Dirichlet(5)})
    assert same["partition"]["clients"] == 5


def test_noise_is_what_it_says() -> None:
    y = np.random.default_rng(0).integers(0, 10, 5000)
    pair, symmetric = noise.Pair(0.3)(y, 10, 0), noise.Symmetric(0.3)(y, 10, 0)
    assert (pair != y).sum() == (symmetric != y).sum() == 1500
    assert set(((pair - y) % 10).tolist()) == {0, 1}
    moved = np.bincount((symmetric - y) % 10, minlength=10)[1:]
    assert moved.min() > 120 and moved.max() < 220  # 1500 over nine other classes
    assert np.array_equal(noise.Pair(0.3)(y, 10, 0), pair) and not np.array_equal(noise.Pair(0.3)(y, 10, 1), pair)
    assert np.array_equal(noise.Symmetric(0.0)(y, 10, 0), y)


def test_noise_that_cannot_be_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"rate = 1.5"):
        noise.Pair(1.5)(np.zeros(3, int), 2, 0)
    with pytest.raises(DataError, match="whole-number label"):
        noise.Symmetric(0.1)(np.zeros(3), 2, 0)


def test_noise_touches_training_rows_only_and_says_how_many() -> None:
    clean = catalog.build("datasets", "digits")
    noisy = catalog.build("datasets", {"name": "digits", "noise": {"name": "symmetric", "rate": 0.25}})
    wrong = int((noisy.train.y != clean.train.y).sum())
    assert wrong == round(0.25 * len(clean.train.y)) and torch.equal(noisy.test.y, clean.test.y)
    assert noisy.notes == (f"label noise: {100 * wrong / len(clean.train.y):.2f} % of the {len(clean.train.y)} "
                           "training labels are wrong, no test label is",)  # fmt: skip
