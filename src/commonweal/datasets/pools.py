"""Tools of loaders: pools of rows, natural federations, and standardised columns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from commonweal.base.arguments import check_bounds
from commonweal.base.errors import ConfigError, DataError
from commonweal.data.arrays import as_features, as_labels
from commonweal.data.federation import Features, Federation
from commonweal.data.sources.cache import Arrays
from commonweal.data.split import Split, draw_names, number_clients, split_rows
from commonweal.data.tables.preprocessing import Preprocessing
from commonweal.datasets.images import resize
from commonweal.datasets.partition import DirichletByClass, Partition

Fit = Callable[[Split], Features]  # makes features once it is known which rows are for training
DEFAULT_PARTITION = DirichletByClass()
Test = float | Literal["official"]
Part = Literal["all", "train", "test"]


class TaskOptions(TypedDict, total=False):
    """The learning task, as far as it is not inferred from the labels: see `from_arrays`."""

    outputs: int | None
    loss: str | None
    score: str | None
    notes: tuple[str, ...]
    class_names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Pool:
    """Rows that belong to no client yet: a partition divides them.

    What is not given about the task is inferred from the labels, as in `Federation.from_arrays`.
    """

    features: np.ndarray | Fit  # (N, ...)
    y: np.ndarray  # (N,)
    official: np.ndarray  # (N,) bool, the publisher's test rows
    test: Test = 0.2  # the share of each client's rows that is tested, or "official"
    seed: int = 0  # of the test split
    partition: Partition | None = DEFAULT_PARTITION  # where the user gives none; None: they must
    outputs: int | None = None
    loss: str | None = None
    score: str | None = None
    notes: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    preprocessing: Preprocessing | None = None  # by which the features were made

    @property
    def x(self) -> np.ndarray:
        """The features, where they do not depend on which rows are for training."""
        if not isinstance(self.features, np.ndarray):
            raise DataError("a table has no features until it is split: use build_federation")
        return self.features


def pool_of(
    arrays: Arrays,
    part: Part,
    test: Test,
    seed: int,
    outputs: int | None = None,
    classes: Sequence[int] = (),
    size: int | None = None,
) -> Pool:
    """A pool of the arrays x, y and official: one part of the publisher's split, or some classes.

    Classes are renumbered from 0 in the order given; images are resized to `size`.
    """
    if test == "official" and part != "all":
        raise ConfigError(
            f"part = {part!r} with test = 'official': that split needs both parts; "
            "use part = 'all', or give test as a share"
        )
    x = arrays["x"]
    y = arrays["y"]
    official = arrays["official"]
    chosen = np.ones(len(y), dtype=bool)
    if part != "all":
        chosen &= official == (part == "test")
    if classes:
        unknown = sorted(set(classes) - set(np.unique(y).tolist()))
        if unknown or len(set(classes)) < len(classes):
            raise DataError(
                f"classes = {list(classes)}: name each class once; there are no classes {unknown}"
            )
        chosen &= np.isin(y, classes)
        number = np.zeros(int(y.max()) + 1, dtype=np.int64)
        number[list(classes)] = np.arange(len(classes))
        y = number[y]
        outputs = len(classes)
    if not chosen.all():
        x = x[chosen]
        y = y[chosen]
        official = official[chosen]
    if size is not None:
        x = resize(x, size)
    return Pool(x, y, official, test, seed, outputs=outputs)


def natural_federation(
    x: np.ndarray | Fit,
    y: np.ndarray,
    client: ArrayLike,
    test: float | np.ndarray,
    seed: int,
    clients: int | None = None,
    names: Sequence[str] | None = None,
    **task: Unpack[TaskOptions],
) -> Federation:
    """A federation of clients that come with the data: all, or `clients` of them.

    The other parameters are those of `Federation.from_arrays`.
    """
    owner = np.asarray(client)
    labels = as_labels(y)
    if clients is None:
        split = split_rows(owner, labels.numpy(), test, seed, names)
    else:
        if names is None:
            names, owner = number_clients(owner)
        if task.get("outputs") is None and np.issubdtype(y.dtype, np.integer):
            task["outputs"] = int(y.max()) + 1  # some classes may occur in other clients only
        chosen = choose_clients(names, clients, seed)
        position = np.full(len(names), -1)
        position[chosen] = np.arange(len(chosen))
        rows = np.flatnonzero(position[owner] >= 0)
        test = test[rows] if isinstance(test, np.ndarray) else test
        names = list(map(names.__getitem__, chosen))
        y = labels[rows].numpy()
        split = split_rows(position[owner[rows]], y, test, seed, names).within(rows)
    return Federation.from_split(split, take_features(x, split), labels, **task)


def take_features(x: np.ndarray | Tensor | Fit, split: Split) -> Features:
    """The features of a split's rows, from an array or from what fits them."""
    if callable(x):
        return x(split)
    return Features.of(as_features(x), split)


def choose_clients(names: Sequence[str], clients: int, seed: int) -> list[int]:
    """The positions of `clients` of the names, in order."""
    check_bounds("dataset clients", clients, least=1, most=len(names))
    positions: list[int] = draw_names(names, clients, seed, position=-2).tolist()
    return positions  # position -1 is of the test split


def standardize(x: np.ndarray, is_train: np.ndarray) -> np.ndarray:
    """Columns with mean 0 and standard deviation 1 over the training rows."""
    mean = x[is_train].mean(0)
    scale = x[is_train].std(0)
    scaled: np.ndarray = (x - mean) / np.where(scale > 0, scale, 1)
    return scaled


def standardized(x: Tensor, columns: int, split: Split) -> Features:
    """The features of a split's rows, the first columns with mean 0 and standard deviation 1.

    The statistics are those of all training rows. A real federation would share two sums per
    client for it, and no row.
    """
    features = x.float()
    train, test = features[split.train.rows], features[split.test.rows]
    numbers = train[:, :columns].double()
    mean = numbers.mean(0)
    deviation = numbers.std(0, correction=0)
    deviation = torch.where(deviation > 0, deviation, 1.0)

    def scaled(rows: Tensor) -> Tensor:
        centred = rows[:, :columns].double() - mean
        return torch.cat([(centred / deviation).float(), rows[:, columns:]], 1)

    return Features(scaled(train), scaled(test), pooled=True)
