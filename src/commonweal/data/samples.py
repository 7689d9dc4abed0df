"""The inputs of samples: stacked tensors, several of them, or read when they are needed.

Rows hold a tensor (N, ...) wherever they can. `Stacked` and `Lazy` stand for inputs that are no
single tensor: they are indexed like one, which gives a tensor or a `Stacked`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree

from commonweal.base.errors import DataError

Index = Tensor | slice
Transform = Callable[[Tensor, torch.Generator], Tensor]  # of a client's batch of inputs
IDENTIFYING = 64  # samples by which data that are read when needed are told from others


@dataclass(frozen=True, eq=False)
class Stacked:
    """Several inputs per sample: by name, as a module's keywords, or by position.

    >>> x = Stacked((torch.zeros(5, 3), torch.ones(5)), ("ids", "mask"))
    >>> x[torch.tensor([0, 4])].arguments()[1]["mask"]
    tensor([1., 1.])
    """

    values: tuple[Tensor, ...]
    names: tuple[str, ...] | None = None

    def map(self, function: Callable[[Tensor], Tensor]) -> "Stacked":
        """A function of each input."""
        return Stacked(tuple(map(function, self.values)), self.names)

    def arguments(self) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """The positional and keyword arguments of a module."""
        if self.names is None:
            return self.values, {}
        return (), dict(zip(self.names, self.values, strict=True))

    @property
    def shape(self) -> torch.Size:
        return self.values[0].shape

    @property
    def dtype(self) -> torch.dtype:
        return self.values[0].dtype

    @property
    def device(self) -> torch.device:
        return self.values[0].device

    def __len__(self) -> int:
        return len(self.values[0])

    def __getitem__(self, index: Index) -> "Stacked":
        return self.map(lambda value: value[index])

    def subset(self, index: Index) -> "Stacked":
        return self[index]

    def to(self, device: torch.device | str) -> "Stacked":
        return self.map(lambda value: value.to(device))


_pytree.register_pytree_node(  # so that vmap takes it
    Stacked,
    lambda stacked: (list(stacked.values), stacked.names),
    lambda values, names: Stacked(tuple(values), names),
)


@dataclass(frozen=True, eq=False)
class Lazy:
    """Samples that are read when they are needed: only some batches are in memory.

    Attributes:
        start: Begins to read the inputs of the samples with these numbers, each of them once.
            Returns the function that waits for them.
        rows: The numbers of these samples.
        like: One sample's inputs, as a batch of one.
    """

    start: Callable[[np.ndarray], Callable[[], Tensor | Stacked]]
    rows: np.ndarray
    like: Tensor | Stacked

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.rows), *self.like.shape[1:]))

    @property
    def dtype(self) -> torch.dtype:
        return self.like.dtype

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Index) -> Tensor | Stacked:
        return self.begin(index)()

    def begin(self, index: Index) -> Callable[[], Tensor | Stacked]:
        """Begin to read the samples with these numbers. Returns the function that waits for them.

        Raises:
            DataError: By that function, where inputs are not finite.
        """
        numbers = self.subset(index).rows
        different, where = np.unique(numbers, return_inverse=True)  # padding repeats samples
        if len(different) == 0:
            return lambda: self.like[:0]
        read = self.start(different)

        def inputs() -> Tensor | Stacked:
            taken = read()
            bad = non_finite_samples(taken)
            if len(bad):
                first = int(different[bad[0]])
                raise DataError(f"sample {first} has NaN or infinite inputs: fill or remove it")
            return taken[torch.from_numpy(where.reshape(numbers.shape))]

        return inputs

    def subset(self, index: Index) -> "Lazy":
        position = index if isinstance(index, slice) else index.cpu().numpy()
        return Lazy(self.start, self.rows[position], self.like)

    def to(self, device: torch.device | str) -> "Lazy":
        if torch.device(device).type != "cpu":
            raise DataError(
                f"samples that are read when needed cannot be kept on {device}: use the CPU, or "
                "give them more memory"
            )
        return self


Inputs = Tensor | Stacked | Lazy
Batch = tuple[Tensor | Stacked, Tensor]  # inputs and labels


def joined_inputs(parts: Sequence[Inputs]) -> Inputs:
    """Inputs one after the other."""
    first = parts[0]
    if isinstance(first, Lazy):
        rows = [part.rows for part in parts if isinstance(part, Lazy)]
        return Lazy(first.start, np.concatenate(rows), first.like)
    if isinstance(first, Stacked):
        columns = zip(*(part.values for part in parts if isinstance(part, Stacked)), strict=True)
        return Stacked(tuple(map(torch.cat, columns)), first.names)
    return torch.cat([part for part in parts if isinstance(part, Tensor)])


def subset(x: Inputs, index: Index) -> Inputs:
    """The inputs of some samples; those that are read when needed are not read yet."""
    return x[index] if isinstance(x, Tensor) else x.subset(index)


def zeros_like(x: Inputs, count: int) -> Tensor | Stacked:
    """Samples of the shape and type of x, all zeros."""
    like = x.like if isinstance(x, Lazy) else x

    def zeros(value: Tensor) -> Tensor:
        return torch.zeros(count, *value.shape[1:], dtype=value.dtype)

    if isinstance(like, Stacked):
        return like.map(zeros)
    assert isinstance(like, Tensor)
    return zeros(like)


def leaves(x: Inputs) -> tuple[Tensor, ...]:
    """The tensors of inputs that are in memory."""
    if isinstance(x, Stacked):
        return x.values
    return (x,) if isinstance(x, Tensor) else ()


def non_finite_samples(x: Inputs) -> Tensor:
    """The positions of the samples with a NaN or infinite input, among those in memory."""
    bad = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    for values in leaves(x):
        if values.is_floating_point():
            wrong = ~torch.isfinite(values)
            bad |= wrong.flatten(1).any(1) if wrong.ndim > 1 else wrong
    return bad.nonzero().flatten()


def sampled(x: Inputs) -> tuple[Tensor, ...]:
    """The tensors that identify inputs: all, or of samples that are read when needed some."""
    if not isinstance(x, Lazy):
        return leaves(x)
    step = max(1, len(x) // IDENTIFYING)
    return leaves(x[slice(None, None, step)])
