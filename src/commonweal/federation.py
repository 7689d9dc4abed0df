"""Every client's examples, concatenated, with offsets: client k owns rows off[k]:off[k + 1].

Nothing is padded, so a million clients of three rows cost what three million rows cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from commonweal import randomness
from commonweal.errors import DataError

__all__ = ["Federation", "Rows"]


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of many clients, grouped by client."""

    x: Tensor  # (N, ...)
    y: Tensor  # (N,)
    offsets: Tensor  # (K + 1,) int64

    @cached_property
    def sizes(self) -> Tensor:  # (K,)
        return self.offsets.diff()

    def of(self, client: int) -> "Rows":
        """One client's rows, as a view."""
        a, b = int(self.offsets[client]), int(self.offsets[client + 1])
        return Rows(self.x[a:b], self.y[a:b], torch.tensor([0, b - a]))

    def edges(self, ids: Tensor) -> Tensor:
        """The offsets of these clients' rows, were they one client after the other."""
        return torch.cat([torch.zeros(1, dtype=torch.int64), self.sizes[ids].cumsum(0)])

    def where(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The row numbers of these clients, one client after the other, and the offsets among them."""
        offsets = self.edges(ids)
        shift = torch.repeat_interleave(self.offsets[ids] - offsets[:-1], offsets.diff())
        return shift + torch.arange(int(offsets[-1])), offsets


@dataclass(frozen=True, eq=False)
class Federation:
    """Training and test rows of K clients, their names, and what is to be learnt.

    `outputs` is how many numbers a model gives for a row; `loss` and `score` name what `Task` does with them.
    """

    train: Rows
    test: Rows
    names: tuple[str, ...]
    outputs: int
    loss: str = "cross-entropy"
    score: str = "accuracy"
    domains: tuple[str, ...] | None = None  # a group for every client, where the data has groups of clients
    notes: tuple[str, ...] = ()  # what a person should know of how the rows were made

    def __post_init__(self) -> None:
        _check_names(self.names)
        for part in (self.train, self.test):
            if len(part.offsets) != len(self.names) + 1 or int(part.offsets[-1]) != len(part.x):
                raise DataError(
                    f"{len(self.names)} names but offsets for {len(part.offsets) - 1} clients and {len(part.x)} rows"
                )
            if int(part.offsets[0]) != 0 or (part.sizes < 0).any():
                raise DataError(f"offsets {part.offsets[:5].tolist()}...: they must start at 0 and never fall")
            if part.y.shape[: 1 + (self.loss != "tokens")] != part.x.shape[:1]:
                raise DataError(f"labels of shape {tuple(part.y.shape)} for {len(part.x)} rows: give one label a row")
            if part.x.shape[1:] != self.train.x.shape[1:]:
                shapes = tuple(self.train.x.shape[1:]), tuple(part.x.shape[1:])
                raise DataError(f"training rows have shape {shapes[0]} and test rows {shapes[1]}: they must agree")
            _check_rows(part, self)
        empty = [self.names[k] for k in (self.train.sizes == 0).nonzero().flatten().tolist()]
        if empty:
            raise DataError(f"no training rows for {_some(empty)}: leave such clients out, or give them rows")

    @property
    def clients(self) -> int:
        return len(self.names)

    @cached_property
    def scored(self) -> Tensor:
        """The clients that have test rows; the others train but cannot be judged."""
        return (self.test.sizes > 0).nonzero().flatten()

    @property
    def unscored(self) -> list[str]:
        """The names of the clients too small to have test rows."""
        return [self.names[k] for k in (self.test.sizes == 0).nonzero().flatten().tolist()]

    @cached_property
    def counts(self) -> Tensor:
        """How many rows of each class each client has, training and test together (K, classes)."""
        classes = 2 if self.loss == "binary" else self.outputs
        total = torch.zeros(self.clients * classes, dtype=torch.int64)
        for part in (self.train, self.test):
            owner = torch.repeat_interleave(torch.arange(self.clients), part.sizes)
            total += torch.bincount(owner * classes + part.y, minlength=len(total))
        return total.view(self.clients, classes)

    @cached_property
    def unseen(self) -> list[int]:
        """The classes of test rows that no training row has: no model can learn them."""
        if self.loss not in ("cross-entropy", "binary"):
            return []
        return [int(c) for c in np.setdiff1d(self.test.y.numpy(), self.train.y.numpy())]

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any,
        client: Any,
        test: Any = 0.2,
        seed: int = 0,
        names: Sequence[str] | None = None,
        **what: Any,
    ) -> "Federation":
        """A federation from a user's own rows: features, labels, and the name of the client that owns each row.

        Each client gives the share `test` of its rows to the test set, by class in proportion where labels are
        classes; which rows depends on (seed, the client's name) only. A client with one row keeps it for training.
        Where the test rows are known, `test` is an array that says of each row whether it is one; with `names`,
        `client` gives each owner's number among them.

        >>> f = Federation.from_arrays([[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1], ["a", "a", "b", "b"], test=0.5)
        >>> f.names, f.train.sizes.tolist(), f.test.sizes.tolist()
        (('a', 'b'), [1, 1], [1, 1])
        """
        if np.ndim(test) == 0 and not 0 <= test < 1:
            raise DataError(f"test = {test}: the share of test rows must be at least 0 and below 1")
        features, labels = _features(x), _labels(y)
        if not len(features) == len(labels) == len(client):
            raise DataError(f"x has {len(features)} rows, y {len(labels)}, client {len(client)}: they must agree")
        if len(features) == 0:
            raise DataError("there are no rows: a federation needs at least one client with one row")
        if names is None:
            owners, inverse = _owners(client)
            names = [str(name) for name in owners.tolist()]
        else:
            inverse = np.asarray(client)
        is_test = np.asarray(test) if np.ndim(test) else _split(inverse, labels.numpy(), names, test, seed)
        if is_test.shape != (len(features),) or is_test.dtype != bool:
            raise DataError(
                f"test has shape {is_test.shape} and type {is_test.dtype}: give a share, or true or false a row"
            )
        order = np.argsort(inverse, kind="stable")
        train, held = (
            _group(features, labels, inverse, order[is_test[order] == want], len(names)) for want in (False, True)
        )
        return cls(train, held, tuple(names), **(_target(labels) | what))


# Images are bytes, tokens are int32 or int64; they become what a model takes with each batch.
KEPT = (torch.uint8, torch.int32, torch.int64, torch.float32)


def _tensor(values: Any, what: str) -> Tensor:
    try:
        return torch.as_tensor(values if isinstance(values, Tensor) else np.asarray(values))
    except (TypeError, ValueError) as error:
        raise DataError(f"{what} must be a table of numbers: {error}") from None


def _owners(client: Any) -> tuple[np.ndarray, np.ndarray]:
    each = np.asarray(client)
    if each.ndim != 1:
        raise DataError(f"client has shape {each.shape}: give one name or number a row")
    try:
        owners, inverse = np.unique(each, return_inverse=True)
    except TypeError:
        kinds = ", ".join(sorted({type(name).__name__ for name in each.tolist()}))
        raise DataError(
            f"client has names of several types ({kinds}): give every row a text, or every row a number"
        ) from None
    return owners, inverse


def _features(x: Any) -> Tensor:
    tensor = _tensor(x, "features (x)")
    sounds = tensor.dtype == torch.int16 and tensor.ndim == 3  # (N, channels, samples)
    return tensor if tensor.dtype in KEPT or sounds else tensor.to(torch.float32)


def _labels(y: Any) -> Tensor:
    tensor = _tensor(y, "labels (y)")
    return tensor.to(torch.float32) if tensor.is_floating_point() else tensor.to(torch.int64)


def _target(labels: Tensor) -> dict[str, Any]:
    """What is to be learnt, judged by the labels: whole numbers are classes, others are values."""
    if labels.is_floating_point():
        return {"outputs": 1, "loss": "squared", "score": "r2"}
    outputs = int(labels.max()) + 1
    if labels.ndim > 1 and labels.shape[1] > 1:  # a single column is a mistake, which the constructor names
        return {"outputs": outputs, "loss": "tokens", "score": "token-accuracy"}
    return {"outputs": outputs, "loss": "cross-entropy", "score": "accuracy"}


def _split(owner: np.ndarray, y: np.ndarray, names: Sequence[str], share: float, seed: int) -> np.ndarray:
    """Which rows are test rows: systematic sampling along each client's rows, ordered by class and then at random.

    Client k gives exactly round(share * n_k) rows (at least one, at most n_k - 1), each class its part within a row.
    """
    sizes = np.bincount(owner, minlength=len(names))
    who = np.array([randomness.key(name) for name in names], dtype=np.uint64)
    by_owner = np.argsort(owner, kind="stable")
    start = np.concatenate([[0], sizes.cumsum()[:-1]])
    position = np.empty(len(owner), dtype=np.int64)
    position[by_owner] = np.arange(len(owner)) - np.repeat(start, sizes)
    u = randomness.uniforms(seed, who[owner], position)
    strata = y if np.issubdtype(y.dtype, np.integer) and y.ndim == 1 else np.zeros(len(owner), dtype=np.int64)
    order = np.lexsort((u, strata, owner))
    take = np.clip(np.floor(share * sizes + 0.5), 1 if share > 0 else 0, None)
    take = np.minimum(take, sizes - 1)
    phase = randomness.uniforms(seed, who, np.full(len(names), -1))[owner[order]]
    m, n = take[owner[order]], sizes[owner[order]]
    rank = np.arange(len(owner)) - start[owner[order]]
    chosen = np.empty(len(owner), dtype=bool)
    chosen[order] = np.floor((rank + 1) * m / n + phase) > np.floor(rank * m / n + phase)
    return chosen


def _group(x: Tensor, y: Tensor, owner: np.ndarray, rows: np.ndarray, clients: int) -> Rows:
    sizes = np.bincount(owner[rows], minlength=clients)
    offsets = torch.from_numpy(np.concatenate([[0], sizes.cumsum()]).astype(np.int64))
    index = torch.from_numpy(rows)
    return Rows(x[index], y[index], offsets)


def _check_names(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        seen: set[str] = set()
        twice = [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
        raise DataError(f"two clients are called {_some(sorted(set(twice)))}: every client needs a name of its own")


def _check_rows(part: Rows, federation: Federation) -> None:
    def owner(row: Tensor) -> str:
        return repr(federation.names[int(torch.searchsorted(part.offsets, row, right=True)) - 1])

    if part.x.is_floating_point():
        bad = ~torch.isfinite(part.x.flatten(1)).all(1) if part.x.ndim > 1 else ~torch.isfinite(part.x)
        if bad.any():
            first = bad.nonzero()[0, 0]
            raise DataError(
                f"client {owner(first)} has NaN or infinite features in {int(bad.sum())} rows: fill or remove them"
            )
    if federation.loss == "squared":
        wrong = ~torch.isfinite(part.y)
    else:
        top = 2 if federation.loss == "binary" else federation.outputs
        least = -1 if federation.loss == "tokens" else 0  # -1 marks a token that does not count
        wrong = (part.y < least) | (part.y >= top) | (part.y != part.y.long())
    if wrong.any():
        first = wrong.nonzero()[0]
        limit = "" if federation.loss == "squared" else f"; labels must be whole numbers from 0 to {top - 1}"
        raise DataError(f"client {owner(first[0])} has the label {part.y[tuple(first)].item()}{limit}")


def _some(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
