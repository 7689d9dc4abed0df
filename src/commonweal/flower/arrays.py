"""What a Flower app sends, in Commonweal's terms: arrays as one vector, node ids, metric names.

Nothing here imports flwr.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from commonweal.base import randomness
from commonweal.base.errors import DataError
from commonweal.training.task import Task

__all__ = ["LOSS_NAMES", "SCORE_NAMES", "Layout", "find_number", "name_id", "positive", "to_id"]

# What a module calls the statistics of its normalisation layers: averaged, never trained.
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

# How apps call the loss and the score of an evaluation, where they are not told which to use.
LOSS_NAMES = ("loss", "eval-loss", "evaluate-loss", "val-loss", "valid-loss", "test-loss")
SCORE_NAMES = (
    "accuracy",
    "acc",
    "eval-acc",
    "eval-accuracy",
    "val-acc",
    "val-accuracy",
    "test-acc",
    "test-accuracy",
    "score",
)


def to_id(node: int) -> int:
    """A node's id (64 bits without sign) as a signed number: a client's id for rules.

    >>> to_id(2**64 - 1), to_id(7)
    (-1, 7)
    """
    return node - (1 << 64) if node >= 1 << 63 else node


def name_id(name: str) -> int:
    """The id of a client that is known by name."""
    return to_id(randomness.key(name))


def find_number(metrics: Mapping[str, object], names: Sequence[str]) -> float | None:
    """The first of these metrics that is there; `_` and `-` are the same.

    >>> find_number({"eval_loss": 0.5}, ["loss", "eval-loss"])
    0.5
    """
    known = {name.replace("_", "-").lower(): value for name, value in metrics.items()}
    for name in names:
        value = known.get(name.replace("_", "-").lower())
        if isinstance(value, int | float):
            return float(value)
    return None


def positive(value: object) -> bool:
    """Whether a value is a whole number above 0."""
    return isinstance(value, int | float) and 0 < value < 1 << 62 and value == int(value)


@dataclass(frozen=True)
class Piece:
    """One array of a model."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    trainable: bool

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class Layout:
    """A model's arrays by name, as one vector: what is trained first, statistics after it."""

    names: tuple[str, ...]  # in the model's own order
    pieces: tuple[Piece, ...]  # in the vector's order

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> "Layout":
        """The layout of a model."""
        pieces = [
            Piece(name, array.shape, array.dtype, _is_trainable(name, array))
            for name, array in arrays.items()
        ]
        if not any(piece.trainable for piece in pieces):
            raise DataError(
                f"the model has no array of floating-point numbers to train: {list(arrays)}"
            )
        ordered = sorted(pieces, key=lambda piece: not piece.trainable)
        return cls(tuple(arrays), tuple(ordered))

    @property
    def dtype(self) -> torch.dtype:
        """float64 where an array of the model has it, else float32."""
        wide = any(piece.dtype == np.float64 for piece in self.pieces if piece.trainable)
        return torch.float64 if wide else torch.float32

    def vector(self, arrays: Mapping[str, np.ndarray]) -> Tensor:
        """A model as a vector (d,). Raises DataError where it has other arrays than this one."""
        if arrays.keys() != set(self.names):
            raise DataError(f"it sent the arrays {list(arrays)[:4]}, not {list(self.names)[:4]}")
        parts = []
        for piece in self.pieces:
            array = np.asarray(arrays[piece.name])
            if array.shape != piece.shape:
                raise DataError(
                    f"its array {piece.name!r} has shape {array.shape}, not {piece.shape}"
                )
            flat = np.ascontiguousarray(array).reshape(-1)
            parts.append(torch.tensor(flat.astype(np.float64)).to(self.dtype))
        return torch.cat(parts)

    def arrays(self, w: Tensor) -> dict[str, np.ndarray]:
        """The vector as arrays of the model's shapes and types."""
        found = {}
        split = torch.split(w, [piece.size for piece in self.pieces])
        for piece, part in zip(self.pieces, split, strict=True):
            values = part.numpy().reshape(piece.shape)
            if not np.issubdtype(piece.dtype, np.floating):
                values = np.asarray(np.rint(values))
            found[piece.name] = values.astype(piece.dtype)
        return {name: found[name] for name in self.names}

    @cached_property
    def task(self) -> Task:
        """A task with a vector of this layout: what the server's part of an algorithm needs."""
        return Task(_Shapes(self.pieces))


class _Shapes(nn.Module):
    """Parameters and buffers of given shapes. It computes nothing."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__()
        for k, piece in enumerate(pieces):
            zeros = torch.zeros(piece.size)
            if piece.trainable:
                self.register_parameter(f"p{k}", nn.Parameter(zeros))
            else:
                self.register_buffer(f"b{k}", zeros)


def _is_trainable(name: str, array: np.ndarray) -> bool:
    return np.issubdtype(array.dtype, np.floating) and not name.endswith(STATISTICS)
