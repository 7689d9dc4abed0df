"""Clients whose samples are in datasets of torch: read once where they fit, else when needed."""

import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from threading import Lock
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, default_collate

from commonweal.base.arguments import expect, expect_names
from commonweal.base.errors import CommonwealWarning, DataError
from commonweal.data.arrays import as_features
from commonweal.data.samples import (
    Batch,
    Inputs,
    Lazy,
    Stacked,
    joined_inputs,
    leaves,
    non_finite_samples,
)

MEMORY = 1 << 30  # bytes of inputs that are kept in memory
CHUNK = 256  # samples that are read at once
OPEN = 8  # datasets that are kept open, where they are opened when needed
LABELS = ("label", "labels", "y", "target")  # names of the label in a sample that is a dict

Collate = Callable[[list[object]], object]  # samples -> a batch


class MapDataset(Protocol):
    """A map-style dataset of torch: also Subset, TensorDataset, and those of torchvision."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> object: ...


class ClientDataset(NamedTuple):
    """The dataset of a client's training or test samples."""

    client: str
    open: Callable[[], MapDataset]


def _sample(dataset: MapDataset, index: int, client: str) -> object:
    try:
        return dataset[index]
    except Exception as error:  # of a user's own code
        kind = type(dataset).__name__
        reason = f"{type(error).__name__}: {error}"
        raise DataError(
            f"client {client!r}: sample {index} of {kind}, which has {len(dataset)}, raised "
            f"{reason[:200]}"
        ) from error


def _reader(
    parts: Sequence[ClientDataset],
    starts: np.ndarray,
    batch: Callable[[list[object]], Batch],
    workers: int,
) -> Callable[[np.ndarray], Callable[[], Tensor | Stacked]]:
    """The function that begins to read samples in threads, by their numbers among all parts'.

    starts: the number of each part's first sample (P,)
    """
    pool = ThreadPoolExecutor(workers, thread_name_prefix="commonweal-read")
    lock = Lock()
    opened = lru_cache(maxsize=OPEN)(lambda part: parts[part].open())

    def read(numbers: np.ndarray) -> list[object]:
        samples = []
        owners = np.searchsorted(starts, numbers, side="right") - 1
        for part, index in zip(owners.tolist(), (numbers - starts[owners]).tolist(), strict=True):
            with lock:  # else several threads open the same dataset
                dataset = opened(part)
            samples.append(_sample(dataset, index, parts[part].client))
        return samples

    def start(numbers: np.ndarray) -> Callable[[], Tensor | Stacked]:
        chunks = np.array_split(numbers, min(workers, len(numbers)))
        futures = [pool.submit(read, chunk) for chunk in chunks]

        def inputs() -> Tensor | Stacked:
            samples = chain.from_iterable(future.result() for future in futures)
            return batch(list(samples))[0]

        return inputs

    return start


def read_parts(
    parts: Sequence[ClientDataset],
    label: str | None,
    collate: Collate | None,
    memory: int,
    workers: int,
) -> tuple[Inputs, Tensor, list[int]]:
    """Read all samples once, and keep the inputs where they fit into memory.

    Returns:
        The inputs and labels of all parts, one after the other, and the parts' sizes.
    """
    in_memory: list[Inputs] | None = []
    labels: list[Tensor] = []
    sizes: list[int] = []
    size = 0
    like: Tensor | Stacked | None = None

    def batch(samples: list[object]) -> Batch:
        return split_batch(samples, label, collate, like)

    for part in parts:
        dataset = part.open()
        sizes.append(_length(dataset, part.client))
        for start in range(0, sizes[-1], CHUNK):
            numbers = range(start, min(start + CHUNK, sizes[-1]))
            before = _random_state() if like is None else None
            inputs, y = batch([_sample(dataset, i, part.client) for i in numbers])
            if before is not None and _random_state() != before:
                _warn_of_draws(dataset, part.client)
            bad = non_finite_samples(inputs)
            if len(bad):
                raise DataError(
                    f"client {part.client!r} has NaN or infinite features in sample "
                    f"{start + int(bad[0])}: fill or remove them"
                )
            like = inputs[:1] if like is None else like
            _check_alike(y, labels[:1], part.client)
            labels.append(y)
            size += sum(value.numel() * value.element_size() for value in leaves(inputs))
            if size > memory:
                in_memory = None
            if in_memory is not None:
                in_memory.append(inputs)
    if like is None:
        raise DataError(f"the datasets of {len(parts)} clients hold no samples: check them")
    y = torch.cat(labels)
    if in_memory is not None:
        return joined_inputs(in_memory), y, sizes
    start_reading = _reader(parts, np.cumsum([0, *sizes[:-1]]), batch, workers)
    return Lazy(start_reading, np.arange(len(y)), like), y, sizes


def _check_alike(y: Tensor, first: Sequence[Tensor], client: str) -> None:
    """Raise DataError where labels differ in shape from the first ones, or are no classes."""
    for other in first:
        is_alike = other.is_floating_point() == y.is_floating_point()
        if not is_alike or other.shape[1:] != y.shape[1:]:
            raise DataError(
                f"client {client!r} has labels of {y.dtype} and shape {tuple(y.shape[1:])}, others "
                f"have {other.dtype} and {tuple(other.shape[1:])}: make them alike"
            )


def _random_state() -> tuple[object, ...]:
    """The state of the generators that programs share."""
    return (
        torch.default_generator.get_state().numpy().tobytes(),
        random.getstate(),
        str(np.random.get_state(legacy=False)["state"]),
    )


def _warn_of_draws(dataset: MapDataset, client: str) -> None:
    warnings.warn(
        f"the samples of client {client!r} ({type(dataset).__name__}) draw random numbers: inputs "
        "that fit into memory are drawn once, others are not the same in a resumed run; give a "
        "random transform as transform=",
        CommonwealWarning,
        stacklevel=5,
    )


def _length(dataset: MapDataset, client: str) -> int:
    kind = type(dataset).__name__
    if isinstance(dataset, IterableDataset | DataLoader):
        raise DataError(
            f"client {client!r}: {kind} cannot be read by index; give a map-style dataset, with "
            "__len__ and __getitem__ (of a DataLoader its .dataset)"
        )
    try:
        return len(dataset)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise DataError(
            f"client {client!r}: {kind} has no length ({error}); give a map-style dataset, with "
            "__len__ and __getitem__"
        ) from None


# Batches


def split_batch(
    samples: list[object],
    label: str | None,
    collate: Collate | None,
    like: Tensor | Stacked | None = None,
) -> Batch:
    """The inputs and labels of samples as a dataset gives them.

    like: the inputs of another sample, which these must resemble
    """
    try:
        batch = (collate or default_collate)(samples)
    except Exception as error:  # of a user's own code, too
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise DataError(
            f"samples cannot be stacked to a batch ({reason[:150]}): give a collate_fn, or a "
            "transform that makes tensors of one shape"
        ) from None
    inputs, y = _divided(batch, samples, label)
    for number, value in enumerate((y, *leaves(inputs))):
        if value.shape[:1] != (len(samples),):
            name = f"input {number}" if number else "label"
            raise DataError(
                f"{name} of a batch has shape {tuple(value.shape)} for {len(samples)} samples: let "
                "collate_fn return one for each sample"
            )
    return (inputs if like is None else _resembling(inputs, like)), y


def _divided(batch: object, samples: list[object], label: str | None) -> Batch:
    if isinstance(batch, Mapping):
        named = dict(zip(map(str, batch), batch.values(), strict=True))
        keys = [name for name in LABELS if name in named] if label is None else [label]
        if len(keys) != 1 or keys[0] not in named:
            raise DataError(f"a sample has {sorted(named)}: name its label, as in label='label'")
        y = _tensor(named.pop(keys[0]), keys[0])
        return _inputs(tuple(named.values()), tuple(named)), y
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        kind = type(samples[0]).__name__
        raise DataError(f"a sample is a {kind}: give tuples (input, label), or dicts with a label")
    *inputs, label_ = batch
    y = _tensor(label_, "label")
    only = inputs[0]
    if len(inputs) == 1 and isinstance(only, Mapping):
        return _inputs(tuple(only.values()), tuple(map(str, only))), y
    if len(inputs) == 1 and isinstance(only, tuple | list):
        return _inputs(tuple(only), None), y
    return _inputs(tuple(inputs), None), y


def _inputs(values: tuple[object, ...], names: tuple[str, ...] | None) -> Tensor | Stacked:
    tensors = tuple(_tensor(value, f"input {i + 1}") for i, value in enumerate(values))
    if names is None and len(tensors) == 1:
        return as_features(tensors[0])
    # Of several inputs some may be masks or positions: only their precision is changed.
    ready = tuple(as_features(v) if v.is_floating_point() else v for v in tensors)
    return Stacked(ready, names)


def _tensor(value: object, name: str) -> Tensor:
    if not isinstance(value, Tensor):
        first = value[0] if isinstance(value, list | tuple) and value else value
        kind = type(first).__name__
        raise DataError(f"{name} of a sample is a {kind}: give tensors or numbers")
    return value.detach().cpu()


def _resembling(inputs: Tensor | Stacked, like: Tensor | Stacked) -> Tensor | Stacked:
    """Inputs in the order of those of another sample. Raises DataError where they differ."""
    if isinstance(inputs, Stacked) and isinstance(like, Stacked) and like.names is not None:
        _, named = inputs.arguments()
        if named.keys() == set(like.names):
            inputs = Stacked(tuple(named[name] for name in like.names), like.names)
    described, other = _described(inputs), _described(like)
    if described != other:
        raise DataError(
            f"samples have inputs of different shapes: {described} and {other}; give a collate_fn "
            "or a transform that makes them alike"
        )
    return inputs


def _described(inputs: Tensor | Stacked) -> str:
    names = inputs.names if isinstance(inputs, Stacked) else None
    shapes = []
    for number, value in enumerate(leaves(inputs)):
        name = f"{names[number]} " if names else ""
        shapes.append(f"{name}{tuple(value.shape[1:])}")
    return ", ".join(shapes)


class HuggingFaceDataset(Protocol):
    """A dataset of Hugging Face: columns by name, and rows by number as dicts."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: str | int, /) -> object: ...


@dataclass(frozen=True, eq=False)
class _Samples(Dataset[object]):
    """The rows of a table, as samples."""

    table: HuggingFaceDataset
    inputs: Sequence[str]
    label: str

    def __getitem__(self, index: int) -> object:
        row = self.table[index]
        assert isinstance(row, dict)
        values = {name: torch.as_tensor(row[name]) for name in self.inputs}
        if len(values) == 1:
            return values[self.inputs[0]], row[self.label]
        return values, row[self.label]


def of_table(
    table: HuggingFaceDataset, client: str, inputs: Sequence[str], label: str
) -> dict[str, MapDataset]:
    """The rows of a table as one dataset per client."""
    expect_names("inputs", inputs)
    arguments = ("client", "label", *["inputs"] * len(inputs))
    for argument, name in zip(arguments, (client, label, *inputs), strict=True):
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
    samples = _Samples(table, inputs, label)
    datasets: dict[str, MapDataset] = {}
    for name in np.unique(owner).tolist():
        datasets[name] = Subset(samples, np.flatnonzero(owner == name).tolist())
    return datasets
