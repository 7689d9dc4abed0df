"""A Flower app's arrays as one vector. Nothing here imports flwr."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from commonweal.base.errors import DataError
from commonweal.task.task import Task

# What a module calls the statistics of its normalisation layers: averaged, never trained.
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class Piece(NamedTuple):
    """One array of a model, and its place in the model's vector."""

    shape: tuple[int, ...]
    dtype: np.dtype
    place: slice


@dataclass(frozen=True)
class Layout:
    """A model's arrays by name, as one vector: what is trained first, statistics after it."""

    pieces: dict[str, Piece]  # in the model's own order
    size: int  # how many numbers the vector has
    trainable: int  # how many of them are trained
    dtype: torch.dtype  # float64 where a trained array has it, else float32

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> "Layout":
        """The layout of a model."""
        dtype = torch.float32
        places = {}
        start = trainable = 0
        for name in sorted(arrays, key=lambda name: not _is_trainable(name, arrays[name])):
            array = arrays[name]
            places[name] = slice(start, start + array.size)
            start += array.size
            if _is_trainable(name, array):
                trainable = start
                dtype = torch.float64 if array.dtype == np.float64 else dtype
        if trainable == 0 and {array.dtype.name for array in arrays.values()} == {"uint8"}:
            raise DataError(
                f"the app sends bytes ({list(arrays)[:4]}), as apps with XGBoost send their trees, "
                'but rules weigh arrays of numbers: use algorithm = "boosting" in an experiment'
            )
        if trainable == 0:
            raise DataError(
                f"the model has no array of floating-point numbers to train: {list(arrays)}"
            )
        pieces = {name: Piece(a.shape, a.dtype, places[name]) for name, a in arrays.items()}
        return cls(pieces, start, trainable, dtype)

    def _read(self, arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[slice, np.ndarray]]:
        """A model's arrays, flat, with their places. Raises DataError where they do not fit."""
        if arrays.keys() != self.pieces.keys():
            raise DataError(f"it sent the arrays {list(arrays)[:4]}, not {list(self.pieces)[:4]}")
        for name, piece in self.pieces.items():
            array = arrays[name]
            if array.shape != piece.shape:
                raise DataError(f"its array {name!r} has shape {array.shape}, not {piece.shape}")
            if array.dtype.kind not in "biuf":
                raise DataError(f"its array {name!r} holds {array.dtype}, not numbers")
            yield piece.place, array.reshape(-1)

    def vector(self, arrays: Mapping[str, np.ndarray]) -> Tensor:
        """A model as a vector (d,). Raises DataError where it has other arrays than this one."""
        w = torch.empty(self.size, dtype=self.dtype)
        for place, values in self._read(arrays):
            w.numpy()[place] = values
        return w

    def subtract(self, w: Tensor, arrays: Mapping[str, np.ndarray], out: Tensor) -> None:
        """Write w minus a model, both (d,), to `out`, in one pass. Raises DataError."""
        minuend, difference = w.numpy(), out.numpy()
        for place, values in self._read(arrays):
            np.subtract(minuend[place], values, out=difference[place], casting="unsafe")

    def arrays(self, w: Tensor) -> dict[str, np.ndarray]:
        """The vector as arrays of the model's shapes and types."""
        arrays = {}
        for name, piece in self.pieces.items():
            values = w[piece.place].numpy().reshape(piece.shape)
            if not np.issubdtype(piece.dtype, np.floating):
                values = np.asarray(np.rint(values))
            arrays[name] = values.astype(piece.dtype, copy=False)
        return arrays

    @cached_property
    def task(self) -> Task:
        """A task with a vector of this layout: what the server's part of an algorithm needs."""
        module = nn.Module()
        module.register_parameter("trained", nn.Parameter(torch.zeros(self.trainable)))
        if self.size > self.trainable:
            module.register_buffer("statistics", torch.zeros(self.size - self.trainable))
        return Task(module)


def _is_trainable(name: str, array: np.ndarray) -> bool:
    return np.issubdtype(array.dtype, np.floating) and not name.endswith(STATISTICS)
