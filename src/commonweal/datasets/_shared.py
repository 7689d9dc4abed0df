"""What the loaders share: pooled rows become a federation, scales and noise included."""

from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from commonweal import randomness
from commonweal.errors import DataError
from commonweal.federation import Federation, Rows
from commonweal.noise import Noise
from commonweal.partition import Dirichlet, Partition, assign

__all__ = ["DIRICHLET", "Pool", "Test", "noisy", "only", "partitioned", "standardised"]

DIRICHLET = Dirichlet()
Test = float | Literal["official"]


class Pool(NamedTuple):
    """Rows that belong to no one yet."""

    x: np.ndarray  # (N, ...)
    y: np.ndarray  # (N,)
    official: np.ndarray  # (N,) whether it is one of the publisher's test rows


def partitioned(
    pool: Pool, partition: Partition, noise: Noise | None, test: Test, seed: int, **what: Any
) -> Federation:
    """Pooled rows dealt to clients.

    A share `test` is held out of each client's rows, whatever part they come from. With "official", the training rows
    are dealt, and each class's test rows follow in proportion.
    """
    x, y, official = pool
    if test == "official":
        owner = np.empty(len(y), dtype=np.int64)
        owner[~official] = assign(partition, y[~official], seed)
        owner[official] = _following(y[~official], owner[~official], y[official], seed)
    else:
        owner = assign(partition, y, seed)
    rows = torch.from_numpy(x)
    rows = partition.shift(rows, owner) if hasattr(partition, "shift") else rows
    keep = np.flatnonzero(owner >= 0)
    if len(keep) < len(y):
        what["notes"] = (f"{len(y) - len(keep)} rows are given to no client and left out",)
        rows, y, owner, official = rows[torch.from_numpy(keep)], y[keep], owner[keep], official[keep]
    held = official if test == "official" else test
    return noisy(Federation.from_arrays(rows, y, owner, held, seed, **what), noise, seed)


def _following(y: np.ndarray, owner: np.ndarray, test_y: np.ndarray, seed: int) -> np.ndarray:
    """Owners of test rows: each class goes to those who train on it, in proportion to their rows of it."""
    rng = randomness.stream(seed, 1, 0, randomness.PARTITION)
    result = np.full(len(test_y), -1)
    for c in np.unique(test_y):
        of_class = np.sort(owner[(y == c) & (owner >= 0)])
        rows = rng.permutation(np.flatnonzero(test_y == c))
        if len(of_class):
            place = (np.arange(len(rows)) + rng.random()) * len(of_class) / len(rows)
            result[rows] = of_class[place.astype(np.int64)]
    return result


def only(pool: Pool, classes: tuple[int, ...]) -> Pool:
    """The rows of these classes, numbered anew from 0 in the order given; all rows where none is named."""
    x, y, official = pool
    if not classes:
        return pool
    unknown = sorted(set(classes) - set(np.unique(y).tolist()))
    if unknown or len(set(classes)) < len(classes):
        raise DataError(f"classes = {list(classes)}: name each once, and only such as there are; not {unknown}")
    keep = np.flatnonzero(np.isin(y, classes))
    number = np.zeros(int(y.max()) + 1, dtype=np.int64)
    number[list(classes)] = np.arange(len(classes))
    return Pool(x[keep], number[y[keep]], official[keep])


def noisy(federation: Federation, noise: Noise | None, seed: int) -> Federation:
    """The same federation with wrong labels in its training rows, and a note of how many they are."""
    if noise is None:
        return federation
    train, classes = federation.train, 2 if federation.loss == "binary" else federation.outputs
    y = torch.from_numpy(noise(train.y.numpy(), classes, seed))
    rate = float((y != train.y).double().mean())
    note = f"label noise: {100 * rate:.2f} % of the {len(y)} training labels are wrong, no test label is"
    return replace(federation, train=Rows(train.x, y, train.offsets), notes=(*federation.notes, note))


def standardised(x: np.ndarray, is_train: np.ndarray) -> np.ndarray:
    """Columns with mean 0 and deviation 1 over the training rows."""
    mean, scale = x[is_train].mean(0), x[is_train].std(0)
    result: np.ndarray = (x - mean) / np.where(scale > 0, scale, 1)
    return result
