"""Arrays of a user to the tensors that a federation stores."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from commonweal.base.errors import DataError
from commonweal.data.samples import Lazy

# Images are bytes and tokens are whole numbers until a batch is taken.
STORED = (torch.uint8, torch.int32, torch.int64, torch.float32)


def _tensor(values: ArrayLike | Tensor, what: str) -> Tensor:
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
    else:
        array = as_array(values, what)
        try:
            tensor = torch.as_tensor(array)
        except (TypeError, ValueError) as error:
            raise DataError(f"{what} must be a table of numbers: {error}") from None
    if tensor.is_complex():
        raise DataError(f"{what} are complex numbers: give real ones, as torch.view_as_real does")
    return tensor


def as_array(values: ArrayLike | Tensor, what: str) -> np.ndarray:
    try:
        return np.asarray(values)
    except (TypeError, ValueError) as error:
        raise DataError(f"{what} must be a table of numbers: {error}") from None


def as_features(x: ArrayLike | Tensor) -> Tensor:
    """Features as a tensor of a type that is stored."""
    tensor = _tensor(x, "features (x)")
    is_audio = tensor.dtype == torch.int16 and tensor.ndim == 3  # (N, channels, samples)
    return tensor if tensor.dtype in STORED or is_audio else tensor.to(torch.float32)


def mapped(x: np.memmap) -> Lazy:
    """Features in a file that is mapped to memory: they stay there until they are needed."""

    def take(numbers: np.ndarray) -> Tensor:
        return as_features(np.array(x[numbers]))

    def start(numbers: np.ndarray) -> Callable[[], Tensor]:
        return lambda: take(numbers)

    return Lazy(start, np.arange(len(x)), take(np.arange(min(1, len(x)))))


def as_labels(y: ArrayLike | Tensor) -> Tensor:
    """Labels as whole numbers (int64), or as float32."""
    tensor = _tensor(y, "labels (y)")
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64)


def named_classes(texts: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """The classes that strings name, in alphabetical order, and each row's class."""
    others = [label for label in texts.tolist() if not isinstance(label, str)]
    if others:
        raise DataError(
            f"labels (y) hold strings and {others[0]!r}: give strings only, or numbers only"
        )
    names, classes = np.unique(texts.astype(str), return_inverse=True)
    return tuple(names.tolist()), classes
