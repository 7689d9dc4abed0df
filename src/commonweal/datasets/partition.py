"""Partitions divide pooled rows among clients, every row to at most one.

A partition is a frozen value. Called with the labels and a seed, it returns each row's owner.
A partitioner of flwr-datasets can be used too (`flwr_datasets.partitioner:ShardPartitioner`; its
column of labels is called "label").
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from commonweal.base import randomness
from commonweal.base.arguments import check_bounds, expect, expect_int
from commonweal.base.errors import ConfigError, DataError
from commonweal.config import catalog

TINY = 1e-300  # below it, a sum of probabilities has lost its precision


class Partition(ABC):
    """The interface of partitions. Subclasses are frozen dataclasses of their parameters."""

    @abstractmethod
    def __call__(self, labels: np.ndarray, seed: int) -> np.ndarray:
        """Each row's owner (N,): 0, 1, ..., or -1 for a row that no client gets."""

    def shift(self, rows: Tensor, owner: np.ndarray) -> Tensor:
        """The rows (N, ...) as their owners see them."""
        return rows


class _Checked(Partition):
    """A partition whose parameters are numbers of things, at least 1, and a concentration alpha."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name == "alpha":
                check_bounds("partition alpha", value, above=0)
            else:
                check_bounds(f"partition {name}", value, least=1)


@dataclass(frozen=True)
class IID(_Checked):
    """Rows at random: all clients have the same distribution and, within one row, the same size.

    clients: how many
    """

    clients: int = 100

    def __call__(self, labels: np.ndarray, seed: int) -> np.ndarray:
        rows = len(labels)
        _check_rows(rows, self.clients)
        return _place(_rng(seed).permutation(rows), np.arange(rows) % self.clients)


@dataclass(frozen=True)
class Dirichlet(_Checked):
    """Label skew: each client's label distribution is drawn from Dirichlet(alpha * prior).

    Hsu, Qi and Brown 2019. The prior is the pool's label distribution. A client draws its rows by
    its distribution, without replacement; it is renormalised when a class runs out. Sizes are equal
    within one row.
    clients: how many; alpha: concentration (small: few classes per client)
    """

    clients: int = 100
    alpha: float = 0.5

    def __call__(self, labels: np.ndarray, seed: int) -> np.ndarray:
        _check_rows(len(labels), self.clients)
        rng = _rng(seed)
        order = _by_class(labels, "dirichlet", rng)
        left = np.unique(labels, return_counts=True)[1]  # rows of each class not yet given
        concentration = self.alpha * left / left.sum()
        counts = np.empty((self.clients, len(left)), dtype=np.int64)
        size, more = divmod(len(labels), self.clients)
        for client in range(self.clients):
            counts[client] = _draw_counts(size + (client < more), concentration, left, rng)
            left -= counts[client]
        owners = [np.repeat(np.arange(self.clients), of_class) for of_class in counts.T]
        return _place(order, np.concatenate(owners))


@dataclass(frozen=True)
class DirichletByClass(_Checked):
    """Label and quantity skew: each class is spread over the clients by Dirichlet(alpha).

    Yurochkin et al., ICML 2019; Li et al., ICDE 2022 (NIID-Bench). Clients below the minimum get
    random rows of the largest ones, so that every draw succeeds.
    clients: how many; alpha: concentration (small: few classes per client)
    least: the minimum of rows per client
    """

    clients: int = 100
    alpha: float = 0.5
    least: int = 2

    def __call__(self, labels: np.ndarray, seed: int) -> np.ndarray:
        _check_rows(len(labels), self.clients, self.least)
        rng = _rng(seed)
        order = _by_class(labels, "dirichlet-by-class", rng)
        concentration = np.full(self.clients, self.alpha)
        owners = []
        for count in np.unique(labels, return_counts=True)[1]:
            owners.append(_cut(count, rng.dirichlet(concentration)))
        owner = _place(order, np.concatenate(owners))
        return _fill_up(owner, self.clients, self.least, rng)


@dataclass(frozen=True)
class Shards(_Checked):
    """Label skew: rows sorted by class are cut into equal shards, a few of them per client.

    McMahan et al., AISTATS 2017.
    clients: how many; classes: shards per client (so about as many classes)
    """

    clients: int = 100
    classes: int = 2

    def __call__(self, labels: np.ndarray, seed: int) -> np.ndarray:
        rows = len(labels)
        _check_rows(rows, self.clients, self.classes)
        rng = _rng(seed)
        order = _by_class(labels, "shards", rng)
        shards = self.clients * self.classes
        owner_of_shard = rng.permutation(np.arange(shards) % self.clients)
        return _place(order, owner_of_shard[np.arange(rows) * shards // rows])


@dataclass(frozen=True)
class Quantity(_Checked):
    """Quantity skew: the same label distribution everywhere, sizes drawn from Dirichlet(alpha).

    clients: how many; alpha: concentration (small: a few clients own nearly all rows)
    least: the minimum of rows per client
    """

    clients: int = 100
    alpha: float = 0.5
    least: int = 2

    def __call__(self, labels: np.ndarray, seed: int) -> np.ndarray:
        rows = len(labels)
        _check_rows(rows, self.clients, self.least)
        rng = _rng(seed)
        shares = rng.dirichlet(np.full(self.clients, self.alpha))
        owners = _cut(rows, shares)
        owner = _place(rng.permutation(rows), owners)
        return _fill_up(owner, self.clients, self.least, rng)


@dataclass(frozen=True)
class Labels(Partition):
    """One client per class, the hardest label skew. (Mohri, Sivek and Suresh, ICML 2019)"""

    def __call__(self, labels: np.ndarray, seed: int) -> np.ndarray:
        _check_classes(labels, "labels")
        owner: np.ndarray = np.unique(labels, return_inverse=True)[1]
        return owner


@dataclass(frozen=True)
class Rotation(_Checked):
    """Feature shift: rows at random, and client k's images turned by k quarter turns.

    Ghosh et al., NeurIPS 2020.
    clients: how many; turns: how many different turns (4: 0, 90, 180 and 270 degrees)
    """

    clients: int = 100
    turns: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bounds("partition turns", self.turns, least=1, most=4)

    def __call__(self, labels: np.ndarray, seed: int) -> np.ndarray:
        return IID(self.clients)(labels, seed)

    def shift(self, rows: Tensor, owner: np.ndarray) -> Tensor:
        if rows.ndim != 4 or rows.shape[2] != rows.shape[3]:
            shape = tuple(rows.shape[1:])
            raise DataError(f"rotation needs square images (C, H, H), not rows of shape {shape}")
        turns = torch.from_numpy(owner % self.turns)
        turned = rows.clone()
        for k in range(1, self.turns):
            turned[turns == k] = torch.rot90(rows[turns == k], k, (2, 3))
        return turned


ENTRIES = {
    "dirichlet": Dirichlet,
    "dirichlet-by-class": DirichletByClass,
    "iid": IID,
    "labels": Labels,
    "quantity": Quantity,
    "rotation": Rotation,
    "shards": Shards,
}


# Partitions that are not ours


class FlowerPartitioner(Protocol):
    """The part of flwr_datasets.partitioner.Partitioner that is used."""

    dataset: object

    @property
    def num_partitions(self) -> int: ...

    def load_partition(self, partition_id: int) -> Mapping[str, Sequence[int]]: ...


Assignment = Callable[[np.ndarray, int], np.ndarray]  # (labels, seed) -> each row's owner
Partitioning = Partition | Assignment | FlowerPartitioner


def partition(
    labels: ArrayLike | Tensor, name: str = "dirichlet", seed: int = 0, **parameters: object
) -> list[np.ndarray]:
    """Divide pooled samples among clients.

    Args:
        labels: The label of each sample (N,), such as `dataset.targets` of torchvision.
        name: A partition of the catalog (`commonweal list partitions`).
        seed: Which of the possible divisions.
        parameters: Those of the partition, such as `clients` and `alpha`.

    Returns:
        The numbers of each client's samples, for `torch.utils.data.Subset`.

    >>> [len(part) for part in partition([0, 1] * 50, "iid", clients=4)]
    [25, 25, 25, 25]
    """
    expect_int("seed", seed, most=2**64 - 1)
    expect("name", name, str, "the name of a partition")
    try:
        y = labels.numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    except (TypeError, ValueError) as error:
        raise DataError(f"labels cannot be an array ({error}): give one per sample") from None
    if y.ndim == 0 or len(y) == 0:
        raise DataError(f"labels have shape {y.shape}: give one per sample")
    chosen = catalog.build("partitions", {"name": name, **parameters})
    owner = assign(chosen, y, seed)
    return [np.flatnonzero(owner == client) for client in range(int(owner.max()) + 1)]


def assign(partition: Partitioning, labels: np.ndarray, seed: int) -> np.ndarray:
    """Each row's owner, checked; -1 for a row that no client gets."""
    owner = partition(labels, seed) if callable(partition) else _flower_owners(partition, labels)
    if owner.shape != (len(labels),):
        name = type(partition).__name__
        raise DataError(
            f"{name} gave {owner.shape} owners for {len(labels)} rows: give one per row"
        )
    return owner


def _flower_owners(partitioner: FlowerPartitioner, labels: np.ndarray) -> np.ndarray:
    try:
        dataset = import_module("datasets").Dataset
    except (ImportError, AttributeError):
        raise ConfigError(
            "a partitioner of flwr-datasets needs that package: pip install flwr-datasets"
        ) from None
    rows = list(range(len(labels)))
    partitioner.dataset = dataset.from_dict({"label": labels.tolist(), "row": rows})
    owner = np.full(len(labels), -1)
    for client in range(partitioner.num_partitions):
        mine = np.asarray(partitioner.load_partition(client)["row"], dtype=np.int64)
        twice = mine[owner[mine] >= 0]
        if len(twice):
            name = type(partitioner).__name__
            raise DataError(f"{name} gives a row to two clients: {int(twice[0])}")
        owner[mine] = client
    return owner


# Steps that partitions share


def _rng(seed: int) -> np.random.Generator:
    return randomness.stream(seed, 0, 0, randomness.PARTITION)


def _place(order: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """Owners given along an order of the rows, in the rows' own order."""
    owner = np.empty(len(order), dtype=np.int64)
    owner[order] = owners
    return owner


def _by_class(labels: np.ndarray, name: str, rng: np.random.Generator) -> np.ndarray:
    """The rows sorted by class, in random order within a class."""
    _check_classes(labels, name)
    return np.lexsort((rng.random(len(labels)), labels))


def _cut(rows: int, shares: np.ndarray) -> np.ndarray:
    """The owners of rows in a line, of which each client takes its share."""
    ends = shares.cumsum()[:-1]
    middles = (np.arange(rows) + 0.5) / rows
    return np.searchsorted(ends, middles)


def _draw_counts(
    size: int, concentration: np.ndarray, left: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Rows per class for one client: `size` draws from a Dirichlet draw, at most `left` of a class.

    What is drawn beyond a class's last row is drawn again from the other classes. This is the same
    as drawing row by row and renormalising the distribution when a class runs out.
    """
    target = rng.dirichlet(concentration)
    counts = np.zeros(len(left), dtype=np.int64)
    while counts.sum() < size:
        free = left - counts
        target = np.where(free > 0, target, 0)
        if target.sum() < TINY:
            # A renormalised part of a Dirichlet draw is a Dirichlet draw, independent of the rest.
            target[free > 0] = rng.dirichlet(concentration[free > 0])
        target = target / target.sum()
        drawn = rng.multinomial(size - counts.sum(), target)
        counts += np.minimum(drawn, free)
    return counts


def _fill_up(owner: np.ndarray, clients: int, least: int, rng: np.random.Generator) -> np.ndarray:
    """At least `least` rows per client: the largest give random rows, down to a common level."""
    sizes = np.bincount(owner, minlength=clients)
    missing = np.maximum(least - sizes, 0)
    if not missing.any():
        return owner
    levels = range(least, int(sizes.max()) + 1)
    # The highest level down to which the largest clients have as many rows as are missing.
    above = bisect_right(levels, -missing.sum(), key=lambda size: -(sizes - size).clip(0).sum())
    spare = np.maximum(sizes - levels[above - 1], 0)
    order = np.lexsort((rng.random(len(owner)), owner))
    starts = sizes.cumsum() - sizes
    rank = np.arange(len(owner)) - np.repeat(starts, sizes)  # a row's place within its client
    given = rng.permutation(order[rank < spare[owner[order]]])
    filled = owner.copy()
    filled[given[: missing.sum()]] = np.repeat(np.arange(clients), missing)
    return filled


def _check_rows(rows: int, clients: int, least: int = 1) -> None:
    if rows < clients * least:
        raise DataError(
            f"{rows} rows cannot give {clients} clients {least} each: ask for fewer clients"
        )


def _check_classes(labels: np.ndarray, name: str) -> None:
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(
            f"partition {name!r} needs one whole-number label per row, not {labels.dtype} labels "
            f"of shape {labels.shape}: use 'iid' or 'quantity'"
        )
