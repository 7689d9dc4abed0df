"""Clients whose samples are in datasets of torch: read once where they fit, else when needed."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from threading import Lock
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from commonweal.base.arguments import expect, expect_names
from commonweal.base.errors import DataError
from commonweal.data.samples import Collate, Inputs, Lazy, Stacked, joined, leaves, split_batch

__all__ = ["MEMORY", "MapDataset", "Read", "Table", "of_table", "read_parts"]

MEMORY = 1 << 30  # bytes of inputs that are kept in memory
CHUNK = 256  # samples that are read at once
OPEN = 8  # datasets that are kept open, where they are opened when needed


class MapDataset(Protocol):
    """A map-style dataset of torch: also Subset, TensorDataset, and those of torchvision."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> object: ...


class Read(NamedTuple):
    """The samples of all parts, one part after the other."""

    inputs: Inputs
    labels: Tensor  # (N,)
    sizes: list[int]  # samples of each part


@dataclass(frozen=True, eq=False)
class _Reader:
    """Reads samples by their numbers among those of all parts, in threads."""

    open: Callable[[int], MapDataset]
    starts: np.ndarray  # (P,) the number of each part's first sample
    label: str | None
    collate: Collate | None
    workers: int

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.workers, thread_name_prefix="commonweal-read")

    def __call__(self, numbers: np.ndarray) -> Tensor | Stacked:
        samples = list(self._pool.map(self._sample, numbers.tolist()))
        return split_batch(samples, self.label, self.collate)[0]

    def _sample(self, number: int) -> object:
        part = int(np.searchsorted(self.starts, number, side="right")) - 1
        return self.open(part)[number - int(self.starts[part])]


def read_parts(
    parts: Sequence[Callable[[], MapDataset]],
    label: str | None,
    collate: Collate | None,
    memory: int,
    workers: int,
) -> Read:
    """Read all samples once, and keep the inputs where they fit into memory.

    Args:
        parts: Functions that open the datasets.
        label: The key of the label, where samples are dicts.
        collate: Makes a batch of samples.
        memory: The bytes of inputs that are kept. Beyond them they are read when needed.
        workers: How many threads then read.
    """
    kept: list[Inputs] | None = []
    labels: list[Tensor] = []
    sizes: list[int] = []
    size = 0
    like: Tensor | Stacked | None = None
    for part in parts:
        dataset = part()
        sizes.append(_length(dataset))
        for start in range(0, sizes[-1], CHUNK):
            numbers = range(start, min(start + CHUNK, sizes[-1]))
            inputs, y = split_batch([dataset[i] for i in numbers], label, collate)
            labels.append(y)
            like = inputs[:1] if like is None else like
            size += sum(value.numel() * value.element_size() for value in leaves(inputs))
            if size > memory:
                kept = None
            if kept is not None:
                kept.append(inputs)
    if like is None:
        raise DataError(f"the datasets of {len(parts)} clients hold no samples: check them")
    if kept is not None:
        return Read(_joined(kept), torch.cat(labels), sizes)
    lock = Lock()
    cached = lru_cache(maxsize=OPEN)(lambda number: parts[number]())

    def opened(number: int) -> MapDataset:
        with lock:  # else several threads open the same dataset
            return cached(number)

    reader = _Reader(opened, np.cumsum([0, *sizes[:-1]]), label, collate, workers)
    return Read(Lazy(reader, np.arange(sum(sizes)), like), torch.cat(labels), sizes)


def _joined(parts: list[Inputs]) -> Inputs:
    try:
        return joined(parts)
    except RuntimeError as error:
        raise DataError(
            f"samples have inputs of different shapes ({str(error)[:150]}): give a collate_fn or a "
            "transform that makes them alike"
        ) from None


def _length(dataset: MapDataset) -> int:
    try:
        return len(dataset)
    except TypeError:
        kind = type(dataset).__name__
        raise DataError(
            f"{kind} has no length: give map-style datasets, with __len__ and __getitem__"
        ) from None


class Table(Protocol):
    """A dataset of Hugging Face: columns by name, and rows by number as dicts."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: str | int, /) -> object: ...


@dataclass(frozen=True, eq=False)
class _RowsOfTable:
    """Some rows of a table, as samples."""

    table: Table
    numbers: np.ndarray
    inputs: tuple[str, ...]
    label: str

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> object:
        row = self.table[int(self.numbers[index])]
        assert isinstance(row, dict)
        values = {name: torch.as_tensor(row[name]) for name in self.inputs}
        if len(values) == 1:
            return next(iter(values.values())), row[self.label]
        return values, row[self.label]


def of_table(table: Table, client: str, inputs: Sequence[str], label: str) -> dict[str, MapDataset]:
    """The rows of a table as one dataset per client."""
    expect_names("inputs", inputs)
    columns = [("client", client), ("label", label), *(("inputs", name) for name in inputs)]
    for argument, name in columns:
        expect(argument, name, str, "the name of a column")
        try:
            table[name]
        except Exception as error:  # libraries raise errors of any kind
            kind = type(table).__name__
            raise DataError(
                f"{argument} = {name!r}: the dataset ({kind}) has no such column ({error})"
            ) from None
    if not inputs:
        raise DataError("inputs is empty: name the columns, there are no others to train on")
    owner = np.asarray(table[client]).astype(str)
    if owner.shape != (len(table),):
        raise DataError(f"client = {client!r} has shape {owner.shape}: name a column of clients")
    datasets: dict[str, MapDataset] = {}
    for name in np.unique(owner).tolist():
        rows = np.flatnonzero(owner == name)
        datasets[name] = _RowsOfTable(table, rows, tuple(inputs), label)
    return datasets
