"""Who owns which row: pooled rows are dealt to clients, every row to exactly one.

A partition is a frozen value; called with the labels and a seed it gives each row's owner. Any partitioner of
flwr-datasets serves too (`flwr_datasets.partitioner:ShardPartitioner`; its column of labels is called "label").
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from commonweal import randomness
from commonweal.errors import ConfigError, DataError

__all__ = ["Dirichlet", "Iid", "Labels", "Quantity", "Rotation", "Shards"]


class Partition(Protocol):
    def __call__(self, labels: np.ndarray, seed: int) -> np.ndarray: ...  # (N,) -> (N,) owners 0 .. clients - 1


@dataclass(frozen=True)
class Iid:
    """Rows dealt like cards: all clients alike, their sizes equal within one row.

    clients: how many
    """

    clients: int = 100

    def __call__(self, labels: np.ndarray, seed: int) -> np.ndarray:
        n = _enough(len(labels), self.clients)
        return _along(_rng(seed).permutation(n), np.arange(n) % self.clients)


@dataclass(frozen=True)
class Dirichlet:
    """Label skew: each class is spread over the clients by proportions drawn from Dirichlet(alpha).

    Hsu, Qi and Brown 2019. A small alpha gives clients of few classes. Clients below the minimum are filled up with
    random rows of the largest ones, so that every draw succeeds.
    clients: how many; alpha: concentration; least: the fewest rows of a client
    """

    clients: int = 100
    alpha: float = 0.5
    least: int = 2

    def __call__(self, labels: np.ndarray, seed: int) -> np.ndarray:
        _positive("dirichlet alpha", self.alpha)
        n, rng = _enough(len(labels), self.clients, self.least), _rng(seed)
        label = _classes(labels, "dirichlet")
        order = np.lexsort((rng.random(n), label))  # by class, within a class at random
        counts = np.bincount(label)
        parts = [
            np.searchsorted(rng.dirichlet(np.full(self.clients, self.alpha)).cumsum()[:-1], (np.arange(c) + 0.5) / c)
            for c in counts[counts > 0]
        ]
        return _filled(_along(order, np.concatenate(parts)), self.clients, self.least, rng)


@dataclass(frozen=True)
class Shards:
    """Pathological label skew: rows sorted by class are cut into equal shards, and each client gets a few of them.

    McMahan et al., AISTATS 2017.
    clients: how many; classes: shards a client (so about as many classes)
    """

    clients: int = 100
    classes: int = 2

    def __call__(self, labels: np.ndarray, seed: int) -> np.ndarray:
        _positive("shards classes", self.classes)
        n, rng = _enough(len(labels), self.clients, self.classes), _rng(seed)
        order = np.lexsort((rng.random(n), _classes(labels, "shards")))
        shards = self.clients * self.classes
        return _along(order, rng.permutation(np.arange(shards) % self.clients)[np.arange(n) * shards // n])


@dataclass(frozen=True)
class Quantity:
    """Quantity skew: classes alike everywhere, sizes in proportions drawn from Dirichlet(alpha).

    clients: how many; alpha: concentration (small: a few own nearly everything); least: the fewest rows of a client
    """

    clients: int = 100
    alpha: float = 0.5
    least: int = 2

    def __call__(self, labels: np.ndarray, seed: int) -> np.ndarray:
        _positive("quantity alpha", self.alpha)
        n, rng = _enough(len(labels), self.clients, self.least), _rng(seed)
        cuts = rng.dirichlet(np.full(self.clients, self.alpha)).cumsum()[:-1]
        owner = _along(rng.permutation(n), np.searchsorted(cuts, (np.arange(n) + 0.5) / n))
        return _filled(owner, self.clients, self.least, rng)


@dataclass(frozen=True)
class Labels:
    """One client a class, the hardest split (the three garments of AFL: Mohri, Sivek and Suresh, ICML 2019)."""

    def __call__(self, labels: np.ndarray, seed: int) -> np.ndarray:
        owner: np.ndarray = np.unique(_classes(labels, "labels"), return_inverse=True)[1]
        return owner


@dataclass(frozen=True)
class Rotation:
    """Feature shift: rows dealt like cards, then client k's images are turned by k quarter turns.

    Ghosh et al., NeurIPS 2020.
    clients: how many; turns: how many different turns (4: 0, 90, 180 and 270 degrees)
    """

    clients: int = 100
    turns: int = 4

    def __call__(self, labels: np.ndarray, seed: int) -> np.ndarray:
        return Iid(self.clients)(labels, seed)

    def shift(self, x: Tensor, owner: np.ndarray) -> Tensor:
        """The images as their owners see them."""
        if x.ndim != 4 or x.shape[2] != x.shape[3]:
            raise DataError(f"rotation needs square images (N, C, H, H), not rows of shape {tuple(x.shape[1:])}")
        if not 1 <= self.turns <= 4:
            raise ConfigError(f"rotation turns = {self.turns}: there are 1 to 4 quarter turns")
        turned, turn = x.clone(), torch.from_numpy(owner % self.turns)
        for k in range(1, self.turns):
            turned[turn == k] = torch.rot90(x[turn == k], k, (2, 3))
        return turned


def assign(partition: Any, labels: np.ndarray, seed: int) -> np.ndarray:
    """Each row's owner under any partition, ours or one of flwr-datasets; -1 for rows that it hands to no one."""
    owner: np.ndarray = _foreign(partition, labels) if hasattr(partition, "load_partition") else partition(labels, seed)
    if owner.shape != (len(labels),):
        raise DataError(f"{type(partition).__name__} gave {owner.shape} owners for {len(labels)} rows: one a row")
    return owner


def _foreign(partition: Any, labels: np.ndarray) -> np.ndarray:
    try:
        from datasets import Dataset
    except ImportError:
        raise ConfigError("a partitioner of flwr-datasets needs that package: pip install flwr-datasets") from None
    partition.dataset = Dataset.from_dict({"label": labels.tolist(), "row": list(range(len(labels)))})
    owner = np.full(len(labels), -1)
    for k in range(partition.num_partitions):
        rows = np.asarray(partition.load_partition(k)["row"], dtype=np.int64)
        if (owner[rows] >= 0).any():
            raise DataError(f"{type(partition).__name__} gives a row to two clients: {int(rows[owner[rows] >= 0][0])}")
        owner[rows] = k
    return owner


def _rng(seed: int) -> np.random.Generator:
    return randomness.stream(seed, 0, 0, randomness.PARTITION)


def _along(order: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """Owners given along an order of the rows, put back to the rows' own places."""
    owner = np.empty(len(order), dtype=np.int64)
    owner[order] = owners
    return owner


def _enough(rows: int, clients: int, least: int = 1) -> int:
    if clients < 1 or least < 1:
        raise ConfigError(f"a partition into {clients} clients of at least {least} rows: both must be 1 or more")
    if rows < clients * least:
        raise DataError(f"{rows} rows cannot give {clients} clients {least} each: ask for fewer clients")
    return rows


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise ConfigError(f"partition {name} = {value}: it must be above 0")


def _classes(labels: np.ndarray, name: str) -> np.ndarray:
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"partition {name!r} needs one whole-number label a row: use 'iid' or 'quantity'")
    return labels


def _filled(owner: np.ndarray, clients: int, least: int, rng: np.random.Generator) -> np.ndarray:
    """The same partition with `least` rows a client: the largest give random rows, down to a common level."""
    sizes = np.bincount(owner, minlength=clients)
    missing = np.maximum(least - sizes, 0)
    need = missing.sum()
    if need == 0:
        return owner
    low, high = least, int(sizes.max())  # the highest level above which there are rows enough to give
    while low < high:
        level = (low + high + 1) // 2
        low, high = (level, high) if np.maximum(sizes - level, 0).sum() >= need else (low, level - 1)
    gives = np.maximum(sizes - low, 0)
    order = np.lexsort((rng.random(len(owner)), owner))
    place = np.arange(len(owner)) - np.repeat(sizes.cumsum() - sizes, sizes)  # a row's place within its client
    given = order[place < gives[owner[order]]]
    filled = owner.copy()
    filled[rng.permutation(given)[:need]] = np.repeat(np.arange(clients), missing)
    return filled
