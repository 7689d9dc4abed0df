"""A Flower app's arrays as one vector. Nothing here imports flwr."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from commonweal.base.errors import DataError
from commonweal.training.task import Task

# What a module calls the statistics of its normalisation layers: averaged, never trained.
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class Piece:
    """One array of a model, and its place in the model's vector."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    start: int
    end: int

    def read(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """The array's values, flat. Raises DataError where they do not fit."""
        array = arrays[self.name]
        if array.shape != self.shape:
            raise DataError(f"its array {self.name!r} has shape {array.shape}, not {self.shape}")
        if array.dtype.kind not in "biuf":
            raise DataError(f"its array {self.name!r} holds {array.dtype}, not numbers")
        return array.reshape(-1)


@dataclass(frozen=True)
class Layout:
    """A model's arrays by name, as one vector: what is trained first, statistics after it."""

    names: tuple[str, ...]  # in the model's own order
    pieces: tuple[Piece, ...]  # in the vector's order
    trainable: int  # of the pieces

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> "Layout":
        """The layout of a model."""
        ordered = sorted(arrays.items(), key=lambda item: not _is_trainable(*item))
        trainable = sum(_is_trainable(*item) for item in ordered)
        if trainable == 0:
            raise DataError(
                f"the model has no array of floating-point numbers to train: {list(arrays)}"
            )
        pieces = []
        start = 0
        for name, array in ordered:
            pieces.append(Piece(name, array.shape, array.dtype, start, start + array.size))
            start += array.size
        return cls(tuple(arrays), tuple(pieces), trainable)

    @cached_property
    def size(self) -> int:
        """How many numbers the vector has."""
        return self.pieces[-1].end

    @cached_property
    def dtype(self) -> torch.dtype:
        """float64 where a trained array of the model has it, else float32."""
        trained = self.pieces[: self.trainable]
        wide = any(piece.dtype == np.float64 for piece in trained)
        return torch.float64 if wide else torch.float32

    def vector(self, arrays: Mapping[str, np.ndarray]) -> Tensor:
        """A model as a vector (d,). Raises DataError where it has other arrays than this one."""
        w = torch.empty(self.size, dtype=self.dtype)
        self._check_names(arrays)
        for piece in self.pieces:
            w.numpy()[piece.start : piece.end] = piece.read(arrays)
        return w

    def subtract(self, w: Tensor, arrays: Mapping[str, np.ndarray], out: Tensor) -> None:
        """Write w minus a model, both (d,), to `out`, in one pass over the arrays.

        Raises:
            DataError: The model has other arrays than this one.
        """
        self._check_names(arrays)
        minuend, difference = w.numpy(), out.numpy()
        for piece in self.pieces:
            place = slice(piece.start, piece.end)
            np.subtract(minuend[place], piece.read(arrays), out=difference[place], casting="unsafe")

    def _check_names(self, arrays: Mapping[str, np.ndarray]) -> None:
        if arrays.keys() != set(self.names):
            raise DataError(f"it sent the arrays {list(arrays)[:4]}, not {list(self.names)[:4]}")

    def arrays(self, w: Tensor) -> dict[str, np.ndarray]:
        """The vector as arrays of the model's shapes and types."""
        arrays = {}
        for piece in self.pieces:
            values = w[piece.start : piece.end].numpy().reshape(piece.shape)
            if not np.issubdtype(piece.dtype, np.floating):
                values = np.asarray(np.rint(values))
            arrays[piece.name] = values.astype(piece.dtype, copy=False)
        return {name: arrays[name] for name in self.names}

    @cached_property
    def task(self) -> Task:
        """A task with a vector of this layout: what the server's part of an algorithm needs."""
        return Task(_Shapes(self))


class _Shapes(nn.Module):
    """Parameters and buffers of given sizes. It computes nothing."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        for k, piece in enumerate(layout.pieces):
            zeros = torch.zeros(piece.end - piece.start)
            if k < layout.trainable:
                self.register_parameter(f"p{k}", nn.Parameter(zeros))
            else:
                self.register_buffer(f"b{k}", zeros)


def _is_trainable(name: str, array: np.ndarray) -> bool:
    return np.issubdtype(array.dtype, np.floating) and not name.endswith(STATISTICS)
