"""From what a loader returns to a federation: a partition deals, label noise is added."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from commonweal.base import randomness
from commonweal.base.errors import ConfigError, DataError
from commonweal.data.federation import Federation, Rows
from commonweal.datasets._shared import Pool
from commonweal.datasets.noise import Noise
from commonweal.datasets.partition import Dealer, FlowerPartitioner, Partition, as_partition, assign

__all__ = ["add_noise", "build_federation", "deal", "pool_clients", "standardize_columns"]


def build_federation(
    loaded: Federation | Pool,
    partition: Partition | Dealer | FlowerPartitioner | None = None,
    noise: Noise | None = None,
    seed: int = 0,
) -> Federation:
    """Deal a pool to clients, and add label noise.

    A pool is dealt by the partition, or by its default. A federation with natural clients that is
    given a partition is pooled and dealt again. The noise is in training labels only.
    """
    if isinstance(loaded, Federation) and partition is None:
        federation = loaded
    else:
        pool = pool_clients(loaded) if isinstance(loaded, Federation) else loaded
        dealer = pool.partition if partition is None else as_partition(partition)
        if dealer is None:
            raise ConfigError(
                "these rows have no clients: name the column that has them, or give a partition"
            )
        federation = deal(pool, dealer, seed)
    return federation if noise is None else add_noise(federation, noise, seed)


def pool_clients(federation: Federation) -> Pool:
    """All rows of a federation. Its clients, groups and test split are forgotten."""
    x = torch.cat([federation.train.x, federation.test.x]).numpy()
    y = torch.cat([federation.train.y, federation.test.y]).numpy()
    notes = federation.notes
    if federation.preprocessing is not None:
        notes = (*notes, "dealt again: columns stay as fitted on the clients' own training rows")
    return Pool(
        x,
        y,
        official=np.zeros(len(y), dtype=bool),
        test=len(federation.test.y) / len(y),
        partition=None,
        outputs=federation.outputs,
        loss=federation.loss,
        score=federation.score,
        notes=notes,
        class_names=federation.class_names,
        preprocessing=federation.preprocessing,
    )


def deal(pool: Pool, partition: Partition, seed: int) -> Federation:
    """A federation of a pool's rows.

    A share `test` is held out of each client's rows. With "official", the training rows are dealt,
    and each class's test rows follow in proportion.
    """
    owner = _owners(pool, partition, seed)
    x = partition.shift(torch.from_numpy(pool.x), owner)
    rows = np.flatnonzero(owner >= 0)
    notes = pool.notes
    if len(rows) < len(owner):
        x = x[torch.from_numpy(rows)]
        notes = (*notes, f"{len(owner) - len(rows)} rows are given to no client and left out")
    federation = Federation.from_arrays(
        x,
        pool.y[rows],
        owner[rows],
        pool.official[rows] if pool.test == "official" else pool.test,
        pool.seed,
        outputs=pool.outputs,
        loss=pool.loss,
        score=pool.score,
        notes=notes,
        class_names=pool.class_names,
    )
    federation = replace(federation, preprocessing=pool.preprocessing)
    return federation if pool.prepare is None else pool.prepare(federation)


def _owners(pool: Pool, partition: Partition, seed: int) -> np.ndarray:
    if pool.test != "official":
        return assign(partition, pool.y, seed)
    official = pool.official
    train_y = pool.y[~official]
    owner = np.empty(len(pool.y), dtype=np.int64)
    owner[~official] = assign(partition, train_y, seed)
    owner[official] = _follow(train_y, owner[~official], pool.y[official], seed)
    return owner


def _follow(y: np.ndarray, owner: np.ndarray, test_y: np.ndarray, seed: int) -> np.ndarray:
    """Owners of test rows: each class goes to its owners in proportion to their training rows."""
    rng = randomness.stream(seed, 1, 0, randomness.PARTITION)
    test_owner = np.full(len(test_y), -1)
    for label in np.unique(test_y):
        owners = np.sort(owner[(y == label) & (owner >= 0)])
        rows = rng.permutation(np.flatnonzero(test_y == label))
        if len(owners):
            step = np.arange(len(rows)) + rng.random()
            position = step * len(owners) / len(rows)
            test_owner[rows] = owners[position.astype(np.int64)]
    return test_owner


def add_noise(federation: Federation, noise: Noise, seed: int) -> Federation:
    """The same federation with wrong training labels, and a note of how many."""
    classes = federation.classes
    if classes is None:
        raise DataError(
            f"label noise needs one class per row, but this dataset's loss is {federation.loss!r}: "
            "leave the noise out"
        )
    train = federation.train
    sizes = train.sizes.numpy()
    y = torch.from_numpy(noise.by_client(train.y.numpy(), sizes, classes, seed))
    wrong = 100 * float((y != train.y).double().mean())
    note = f"label noise: {wrong:.2f} % of the {len(y)} training labels are wrong, no test label is"
    return replace(
        federation,
        train=Rows(train.x, y, train.offsets),
        notes=(*federation.notes, note),
    )


def standardize_columns(federation: Federation, columns: int) -> Federation:
    """The first columns with mean 0 and standard deviation 1 over all training rows.

    A real federation would share two sums per client for it, and no row.
    """
    if columns == 0:
        return federation
    numbers = federation.train.x[:, :columns].double()
    mean = numbers.mean(0)
    spread = numbers.std(0, correction=0)
    spread = torch.where(spread > 0, spread, 1.0)
    return replace(
        federation,
        train=_rescaled(federation.train, mean, spread),
        test=_rescaled(federation.test, mean, spread),
    )


def _rescaled(rows: Rows, mean: Tensor, spread: Tensor) -> Rows:
    columns = len(mean)
    centred = rows.x[:, :columns].double() - mean
    numbers = (centred / spread).float()
    x = torch.cat([numbers, rows.x[:, columns:]], 1)
    return Rows(x, rows.y, rows.offsets)
