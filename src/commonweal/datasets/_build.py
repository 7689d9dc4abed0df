"""From what a loader returns to a federation: rows are partitioned, label noise is added."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from commonweal.base import randomness
from commonweal.base.errors import ConfigError, DataError
from commonweal.data.arrays import as_labels
from commonweal.data.federation import Federation
from commonweal.data.rows import usual_loss
from commonweal.data.split import split_rows
from commonweal.datasets.noise import Noise
from commonweal.datasets.partition import Partition, Partitioning, assign
from commonweal.datasets.pools import Pool, take_features


def build_federation(
    loaded: Federation | Pool,
    partition: Partitioning | None = None,
    noise: Noise | None = None,
    seed: int = 0,
) -> Federation:
    """Partition a pool among clients, and add label noise.

    Args:
        loaded: What a loader returned. A federation with natural clients that is given a partition
            is pooled and partitioned again.
        partition: Who gets which rows; by default the pool's own partition.
        noise: Which training labels are wrong. Test labels never are.
        seed: Of the partition and the noise.
    """
    if isinstance(loaded, Federation) and partition is None:
        federation = loaded
    else:
        pool = pool_clients(loaded) if isinstance(loaded, Federation) else loaded
        chosen = pool.partition if partition is None else partition
        if chosen is None:
            raise ConfigError(
                "these rows have no clients: name the column that has them, or give a partition"
            )
        federation = divide(pool, chosen, seed)
    return federation if noise is None else add_noise(federation, noise, seed)


def pool_clients(federation: Federation) -> Pool:
    """All rows of a federation. Its clients, groups and test split are forgotten."""
    x = torch.cat([federation.train.x, federation.test.x]).numpy()
    y = torch.cat([federation.train.y, federation.test.y]).numpy()
    notes = federation.notes
    if federation.preprocessing is not None:
        notes = (*notes, "partitioned again: columns stay as fitted on the first training rows")
    return Pool(
        x,
        y,
        official=np.zeros(len(y), dtype=bool),
        test=len(federation.test.y) / len(y),
        partition=None,
        outputs=federation.outputs,
        loss=usual_loss(federation.labels),
        score=federation.score,
        notes=notes,
        class_names=federation.class_names,
        preprocessing=federation.preprocessing,
    )


def divide(pool: Pool, partition: Partitioning, seed: int) -> Federation:
    """A federation of a pool's rows.

    A share `test` of each client's rows is tested. With "official", the training rows are
    partitioned, and each class's test rows follow in proportion.
    """
    owner = _owners(pool, partition, seed)
    rows = np.flatnonzero(owner >= 0)
    notes = pool.notes
    if len(rows) < len(owner):
        notes += (f"{len(owner) - len(rows)} rows are given to no client and left out",)
    test = pool.official[rows] if pool.test == "official" else pool.test
    labels = as_labels(pool.y)
    split = split_rows(owner[rows], labels[rows].numpy(), test, pool.seed).within(rows)
    features = take_features(pool.features, split)
    if isinstance(partition, Partition):
        train, test_x = features.train, features.test
        assert isinstance(train, Tensor) and isinstance(test_x, Tensor)
        features = features._replace(
            train=partition.shift(train, owner[split.train.rows]),
            test=partition.shift(test_x, owner[split.test.rows]),
        )
    federation = Federation.from_split(
        split,
        features,
        labels,
        outputs=pool.outputs,
        loss=pool.loss,
        score=pool.score,
        notes=notes,
        class_names=pool.class_names,
    )
    if pool.preprocessing is None:
        return federation
    return replace(federation, preprocessing=pool.preprocessing, pooled=True)


def _owners(pool: Pool, partition: Partitioning, seed: int) -> np.ndarray:
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
            "label noise needs one class per row, but this dataset's labels are "
            f"{federation.labels}: leave the noise out"
        )
    train = federation.train
    sizes = train.sizes.numpy()
    y = torch.from_numpy(noise.by_client(train.y.numpy(), sizes, classes, seed))
    wrong = 100 * float((y != train.y).double().mean())
    note = f"label noise: {wrong:.2f} % of the {len(y)} training labels are wrong, no test label is"
    return replace(
        federation,
        train=replace(train, y=y),
        notes=(*federation.notes, note),
    )
