"""Every client's rows, concatenated, with offsets: client k owns rows offsets[k]:offsets[k + 1].

Nothing is padded: a million clients with three rows each take the memory of three million rows.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from commonweal.base import randomness
from commonweal.base.errors import DataError
from commonweal.data.population import Population
from commonweal.data.preprocessing import Preprocessing

__all__ = ["Federation", "HeldOut", "Rows", "number_clients"]

VALIDATION = 0x76616C6964  # makes the draws of other splits those of another seed
HOLD_OUT = 0x756E7365656E
CLASSIFICATION = ("cross-entropy", "binary")  # losses of tasks with one class per row


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of many clients, grouped by client."""

    x: Tensor  # (N, ...)
    y: Tensor  # (N,)
    offsets: Tensor  # (K + 1,) int64

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.x.shape))
        return f"<Rows: {shape} {self.x.dtype} of {len(self.offsets) - 1} clients>"

    @property
    def device(self) -> torch.device:
        """Where the rows are, and what is computed from them. Offsets are always on the CPU."""
        return self.x.device

    def to(self, device: torch.device | str) -> "Rows":
        """The rows on a device."""
        if self.device == torch.device(device):
            return self
        return Rows(self.x.to(device), self.y.to(device), self.offsets)

    @cached_property
    def sizes(self) -> Tensor:  # (K,)
        return self.offsets.diff()

    def client(self, client: int) -> "Rows":
        """One client's rows, as a view."""
        start = int(self.offsets[client])
        end = int(self.offsets[client + 1])
        offsets = torch.tensor([0, end - start])
        return Rows(self.x[start:end], self.y[start:end], offsets)

    def offsets_of(self, ids: Tensor) -> Tensor:
        """The offsets of these clients' rows when concatenated, (S + 1,)."""
        zero = torch.zeros(1, dtype=torch.int64)
        return torch.cat([zero, self.sizes[ids].cumsum(0)])

    def index_of(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The row numbers of these clients, client after client, and their offsets."""
        offsets = self.offsets_of(ids)
        shift = torch.repeat_interleave(self.offsets[ids] - offsets[:-1], offsets.diff())
        return shift + torch.arange(int(offsets[-1])), offsets


class HeldOut(NamedTuple):
    """Clients that take no part in training, and all their rows."""

    names: tuple[str, ...]
    rows: Rows


@dataclass(frozen=True, eq=False)
class Federation:
    """Training and test rows of K clients, their names, and the learning task.

    `outputs` is how many numbers a model gives per row; `loss` and `score` are named as in `Task`.
    """

    train: Rows
    test: Rows
    names: tuple[str, ...]
    outputs: int
    loss: str = "cross-entropy"
    score: str = "accuracy"
    groups: tuple[str, ...] | None = None  # each client's group, where the data has groups
    notes: tuple[str, ...] = ()  # what a user should know about how the rows were prepared
    class_names: tuple[str, ...] = ()  # the labels' own words; empty: they are numbers
    preprocessing: Preprocessing | None = None  # how a table's columns became these rows
    validation: Rows | None = None  # rows to choose by: best round, early stop; never trained on
    held_out: "HeldOut | None" = None  # clients that take no part in training

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.train.x.shape[1:]))
        what = f"{self.classes} classes" if self.classes else self.loss
        return (
            f"<Federation: {self.clients} clients, {len(self.train.y)} training and "
            f"{len(self.test.y)} test rows of {shape or 1} numbers, {what}>"
        )

    def with_validation(self, share: float, seed: int = 0) -> "Federation":
        """Move a share of each client's training rows to `validation`, stratified by class.

        Which rows depends on (seed, the client's name) only.
        """
        owner = np.repeat(np.arange(self.clients), self.train.sizes.numpy())
        chosen = _split(owner, self.train.y.numpy(), self.names, share, seed ^ VALIDATION)
        train, validation = (
            _take(self.train.x, self.train.y, owner, np.flatnonzero(rows), self.clients)
            for rows in (~chosen, chosen)
        )
        return replace(self, train=train, validation=validation)

    def augmented(self, x: Tensor, y: Tensor) -> "Federation":
        """Give these rows, such as synthetic ones, to every client for training."""
        shape = tuple(self.train.x.shape[1:])
        if tuple(x.shape[1:]) != shape or y.shape[1:] != self.train.y.shape[1:]:
            raise DataError(
                f"rows of shape {tuple(x.shape[1:])} cannot be added to clients' rows of {shape}: "
                "take those of a run on the same dataset"
            )
        if self.train.x.dtype == torch.uint8 and x.is_floating_point():
            x = (255 * x).round()
        added = torch.arange(len(y)) + len(self.train.y)
        index = [
            torch.cat([torch.arange(a, b), added]) for a, b in pairwise(self.train.offsets.tolist())
        ]
        chosen = torch.cat(index)
        offsets = self.train.offsets + len(y) * torch.arange(self.clients + 1)
        features = torch.cat([self.train.x, x.to(self.train.x.dtype)])
        labels = torch.cat([self.train.y, y.to(self.train.y.dtype)])
        note = f"every client trains on {len(y)} added rows, which are in its number of rows"
        train = Rows(features[chosen], labels[chosen], offsets)
        return replace(self, train=train, notes=(*self.notes, note))

    def hold_out(self, share: float, seed: int = 0) -> "Federation":
        """Hold a share of the clients out of training: `held_out` has all their rows.

        Which clients depends on the seed and their names only.
        """
        count = max(1, round(share * self.clients))
        if count >= self.clients:
            raise DataError(
                f"unseen = {share}: of {self.clients} clients, {count} would be held out and none "
                "would train; give a smaller share"
            )
        keys = np.array([randomness.key(name) for name in self.names], dtype=np.uint64)
        draws = randomness.uniforms(seed ^ HOLD_OUT, keys, np.zeros(self.clients))
        held = np.sort(np.argsort(draws, kind="stable")[:count])
        kept = torch.from_numpy(np.setdiff1d(np.arange(self.clients), held))
        names = tuple(self.names[k] for k in kept.tolist())
        groups = None if self.groups is None else tuple(self.groups[k] for k in kept.tolist())
        return replace(
            self,
            train=_of_clients(self.train, kept),
            test=_of_clients(self.test, kept),
            names=names,
            groups=groups,
            held_out=HeldOut(
                tuple(self.names[k] for k in held.tolist()),
                _joined(self.train, self.test, torch.from_numpy(held)),
            ),
        )

    def __post_init__(self) -> None:
        _check_names(self.names)
        for part in (self.train, self.test):
            _check_offsets(part, self.names)
            _check_shapes(part, self)
            _check_features(part, self.names)
            _check_labels(part, self)
        empty = self._names_of(self.train.sizes == 0)
        if empty:
            raise DataError(
                f"no training rows for {_some(empty)}: leave such clients out, or give them rows"
            )

    @property
    def clients(self) -> int:
        return len(self.names)

    @property
    def population(self) -> Population:
        """What a server may know of these clients."""
        return Population(
            names=self.names,
            sizes=self.train.sizes,
            shape=tuple(self.train.x.shape[1:]),
            outputs=self.outputs,
            loss=self.loss,
            groups=self.groups,
        )

    @property
    def classes(self) -> int | None:
        """How many classes there are; None where a row has no class."""
        if self.loss not in CLASSIFICATION:
            return None
        return 2 if self.loss == "binary" else self.outputs

    @cached_property
    def target(self) -> tuple[float, float] | None:
        """The mean and deviation of the training labels of a regression; None: not scaled."""
        if self.loss != "squared":
            return None
        y = self.train.y.double()
        mean = float(y.mean())
        deviation = float((y - mean).square().mean().sqrt())
        if not math.isfinite(deviation) or deviation <= 1e-12 * abs(mean):  # but for rounding
            return None
        return mean, deviation

    @cached_property
    def scored(self) -> Tensor:
        """The clients that have test rows. The others train but have no score."""
        return (self.test.sizes > 0).nonzero().flatten()

    @property
    def unscored(self) -> list[str]:
        """The names of the clients without test rows."""
        return self._names_of(self.test.sizes == 0)

    @cached_property
    def counts(self) -> Tensor:
        """Rows per client and class, training and test together (K, classes)."""
        classes = 2 if self.loss == "binary" else self.outputs
        total = torch.zeros(self.clients * classes, dtype=torch.int64)
        for part in (self.train, self.test):
            owner = torch.repeat_interleave(torch.arange(self.clients), part.sizes)
            total += torch.bincount(owner * classes + part.y, minlength=len(total))
        return total.view(self.clients, classes)

    @cached_property
    def unseen(self) -> list[int]:
        """The classes that occur in test rows only: no model can learn them."""
        if self.classes is None:
            return []
        trained = self.train.y.numpy()
        tested = self.test.y.numpy()
        missing: list[int] = np.setdiff1d(tested, trained).tolist()
        return missing

    def _names_of(self, mask: Tensor) -> list[str]:
        return [self.names[client] for client in mask.nonzero().flatten().tolist()]

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike | Tensor,
        y: ArrayLike | Tensor,
        client: ArrayLike | Tensor,
        test: float | ArrayLike = 0.2,
        seed: int = 0,
        names: Sequence[str] | None = None,
        *,
        outputs: int | None = None,
        loss: str | None = None,
        score: str | None = None,
        groups: Sequence[str] | None = None,
        notes: Sequence[str] = (),
        class_names: Sequence[str] = (),
    ) -> "Federation":
        """A federation from arrays: features, labels, and the name of each row's client.

        Each client gives the share `test` of its rows to the test set, stratified by class; which
        rows depends on (seed, the client's name) only. A client with one row keeps it for training.
        Labels may be texts: classes are then numbered in alphabetical order (`class_names`).
        Where the test rows are known, `test` is a mask of them. With `names`, `client` holds
        positions in `names`. What is not said about the task is inferred from the labels.

        >>> x = [[0.0], [1.0], [2.0], [3.0]]
        >>> f = Federation.from_arrays(x, [0, 1, 0, 1], ["a", "a", "b", "b"], test=0.5)
        >>> f.names, f.train.sizes.tolist(), f.test.sizes.tolist()
        (('a', 'b'), [1, 1], [1, 1])
        """
        features = _features(x)
        texts = None if isinstance(y, Tensor) else np.asarray(y)
        if texts is not None and texts.dtype.kind in "UO" and texts.ndim == 1:
            class_names, y = _named_classes(texts)
        labels = _labels(y)
        owner = np.asarray(client)
        _check_lengths(features, labels, owner)
        if names is None:
            names, owner = number_clients(owner)
        _check_names(names)
        is_test = _test_mask(test, owner, labels.numpy(), names, seed)
        order = np.argsort(owner, kind="stable")
        train_rows = order[~is_test[order]]
        test_rows = order[is_test[order]]
        inferred = _infer_task(labels)
        return cls(
            train=_take(features, labels, owner, train_rows, len(names)),
            test=_take(features, labels, owner, test_rows, len(names)),
            names=tuple(names),
            outputs=inferred.outputs if outputs is None else outputs,
            loss=inferred.loss if loss is None else loss,
            score=inferred.score if score is None else score,
            groups=None if groups is None else tuple(groups),
            notes=tuple(notes),
            class_names=tuple(class_names),
        )


def _of_clients(rows: Rows, ids: Tensor) -> Rows:
    index, offsets = rows.index_of(ids)
    return Rows(rows.x[index], rows.y[index], offsets)


def _joined(first: Rows, second: Rows, ids: Tensor) -> Rows:
    """The rows of some clients from two parts, client after client."""
    pieces = [part.client(k) for k in ids.tolist() for part in (first, second)]
    sizes = torch.tensor([len(piece.y) for piece in pieces]).view(-1, 2).sum(1)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    x = torch.cat([piece.x for piece in pieces])
    return Rows(x, torch.cat([piece.y for piece in pieces]), offsets)


def number_clients(client: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The clients' names in order, and each row's position among them."""
    if client.ndim != 1:
        raise DataError(f"client has shape {client.shape}: give one name or number per row")
    try:
        owners, position = np.unique(client, return_inverse=True)
    except TypeError:
        types = {type(name).__name__ for name in client.tolist()}
        several = ", ".join(sorted(types))
        raise DataError(
            f"client has names of several types ({several}): give texts only, or numbers only"
        ) from None
    return [str(name) for name in owners.tolist()], position


# Arrays to tensors

# Images are bytes and tokens are whole numbers until a batch is taken.
STORED = (torch.uint8, torch.int32, torch.int64, torch.float32)


def _tensor(values: ArrayLike | Tensor, what: str) -> Tensor:
    if isinstance(values, Tensor):
        return values
    try:
        return torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError) as error:
        raise DataError(f"{what} must be a table of numbers: {error}") from None


def _features(x: ArrayLike | Tensor) -> Tensor:
    tensor = _tensor(x, "features (x)")
    is_audio = tensor.dtype == torch.int16 and tensor.ndim == 3  # (N, channels, samples)
    return tensor if tensor.dtype in STORED or is_audio else tensor.to(torch.float32)


def _labels(y: ArrayLike | Tensor) -> Tensor:
    tensor = _tensor(y, "labels (y)")
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64)


def _named_classes(texts: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """The classes that texts name, in alphabetical order, and each row's class."""
    wrong = [each for each in texts.tolist() if not isinstance(each, str)]
    if wrong:
        raise DataError(f"labels (y) hold texts and {wrong[0]!r}: give texts only, or numbers only")
    names, classes = np.unique(texts.astype(str), return_inverse=True)
    return tuple(names.tolist()), classes


class _Task(NamedTuple):
    outputs: int
    loss: str
    score: str


def _infer_task(labels: Tensor) -> _Task:
    """Whole numbers are classes (several per row: tokens), other numbers are values."""
    if labels.is_floating_point():
        return _Task(1, "squared", "r2")
    outputs = int(labels.max()) + 1
    if labels.ndim > 1 and labels.shape[1] > 1:  # one column is an error, reported by Federation
        return _Task(outputs, "tokens", "token-accuracy")
    return _Task(outputs, "cross-entropy", "accuracy")


def _take(
    x: Tensor,
    y: Tensor,
    owner: np.ndarray,
    rows: np.ndarray,
    clients: int,
) -> Rows:
    """Rows whose numbers are given client after client."""
    sizes = np.bincount(owner[rows], minlength=clients)
    offsets = np.concatenate([[0], sizes.cumsum()]).astype(np.int64)
    index = torch.from_numpy(rows)
    return Rows(x[index], y[index], torch.from_numpy(offsets))


# The test split


def _test_mask(
    test: float | ArrayLike,
    owner: np.ndarray,
    labels: np.ndarray,
    names: Sequence[str],
    seed: int,
) -> np.ndarray:
    mask = np.asarray(test)
    if mask.ndim == 0:
        share = float(mask)
        if not 0 <= share < 1:
            raise DataError(
                f"test = {test!r}: the share of test rows must be at least 0 and below 1"
            )
        return _split(owner, labels, names, share, seed)
    if mask.shape != owner.shape or mask.dtype != bool:
        raise DataError(
            f"test has shape {mask.shape} and type {mask.dtype}: "
            "give a share, or true or false per row"
        )
    return mask


def _split(
    owner: np.ndarray,
    y: np.ndarray,
    names: Sequence[str],
    share: float,
    seed: int,
) -> np.ndarray:
    """A mask of test rows: systematic sampling of each client's rows, sorted by class, shuffled.

    Client k gives exactly round(share * n_k) rows (at least one, at most n_k - 1), and every class
    its share within a row.
    """
    keys = np.array([randomness.key(name) for name in names], dtype=np.uint64)
    sizes = np.bincount(owner, minlength=len(names))
    starts = sizes.cumsum() - sizes
    draws = _draws(owner, keys, sizes, seed)
    order = np.lexsort((draws, _strata(y), owner))
    client = owner[order]
    rank = np.arange(len(owner)) - starts[client]
    quota = _quota(sizes, share)[client]
    size = sizes[client]
    phases = randomness.uniforms(seed, keys, np.full(len(names), -1))
    phase = phases[client]
    before = np.floor(rank * quota / size + phase)
    after = np.floor((rank + 1) * quota / size + phase)
    mask = np.empty(len(owner), dtype=bool)
    mask[order] = after > before
    return mask


def _draws(owner: np.ndarray, keys: np.ndarray, sizes: np.ndarray, seed: int) -> np.ndarray:
    """A random number per row that depends on (seed, client's name, row within the client)."""
    starts = sizes.cumsum() - sizes
    order = np.argsort(owner, kind="stable")
    position = np.empty(len(owner), dtype=np.int64)
    position[order] = np.arange(len(owner)) - np.repeat(starts, sizes)
    return randomness.uniforms(seed, keys[owner], position)


def _strata(y: np.ndarray) -> np.ndarray:
    is_class = np.issubdtype(y.dtype, np.integer) and y.ndim == 1
    return y if is_class else np.zeros(len(y), dtype=np.int64)


def _quota(sizes: np.ndarray, share: float) -> np.ndarray:
    """Test rows per client."""
    least = 1 if share > 0 else 0
    rounded = np.floor(share * sizes + 0.5).clip(least)
    quota: np.ndarray = np.minimum(rounded, sizes - 1)
    return quota


# Checks


def _check_lengths(x: Tensor, y: Tensor, client: np.ndarray) -> None:
    rows = len(x)
    clients = len(np.atleast_1d(client))
    if not rows == len(y) == clients:
        raise DataError(f"x has {rows} rows, y {len(y)}, client {clients}: they must agree")
    if rows == 0:
        raise DataError("there are no rows: a federation needs at least one client with one row")


def _check_names(names: Sequence[str]) -> None:
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        raise DataError(f"two clients are called {_some(twice)}: give every client its own name")
    for name in names:
        if not name.isascii() and any("\ud800" <= letter <= "\udfff" for letter in name):
            raise DataError(
                f"the client's name {name!r} is not valid Unicode: write names and files as UTF-8"
            )


def _check_offsets(part: Rows, names: Sequence[str]) -> None:
    clients = len(part.offsets) - 1
    if clients != len(names) or int(part.offsets[-1]) != len(part.x):
        raise DataError(
            f"{len(names)} names but offsets for {clients} clients and {len(part.x)} rows"
        )
    if int(part.offsets[0]) != 0 or (part.sizes < 0).any():
        first = part.offsets[:5].tolist()
        raise DataError(f"offsets {first}...: they must start at 0 and never decrease")


def _check_shapes(part: Rows, federation: Federation) -> None:
    axes = 1 if federation.loss in ("tokens", "cox") else 2  # which have a second axis
    if federation.loss == "cox" and tuple(part.y.shape[1:]) != (2,):
        shape = tuple(part.y.shape)
        raise DataError(f"labels of shape {shape}: cox needs (time, event) per row, event 0 or 1")
    if part.y.shape[:axes] != part.x.shape[:1]:
        shape = tuple(part.y.shape)
        raise DataError(f"labels of shape {shape} for {len(part.x)} rows: give one label per row")
    expected = tuple(federation.train.x.shape[1:])
    shape = tuple(part.x.shape[1:])
    if shape != expected:
        raise DataError(
            f"training rows have shape {expected} and test rows {shape}: they must agree"
        )


def _check_features(part: Rows, names: Sequence[str]) -> None:
    if not part.x.is_floating_point():
        return
    finite = torch.isfinite(part.x)
    if finite.ndim > 1:
        finite = finite.flatten(1).all(1)
    bad = (~finite).nonzero().flatten()
    if len(bad):
        owner = _owner(part, names, bad[0])
        raise DataError(
            f"client {owner!r} has NaN or infinite features in {len(bad)} rows: fill or remove them"
        )


def _check_labels(part: Rows, federation: Federation) -> None:
    limit = ""
    if federation.loss == "squared":
        wrong = ~torch.isfinite(part.y)
    elif federation.loss == "cox":
        time, event = part.y.unbind(1)
        wrong = ~torch.isfinite(time) | ((event != 0) & (event != 1))
        limit = "; labels are (time, event), with event 0 or 1"
    else:
        top = 2 if federation.loss == "binary" else federation.outputs
        least = -1 if federation.loss == "tokens" else 0  # -1 marks a token that does not count
        outside = (part.y < least) | (part.y >= top)
        wrong = outside | (part.y != part.y.long())
        limit = f"; labels must be whole numbers from 0 to {top - 1}"
    if wrong.any():
        first = wrong.nonzero()[0]
        owner = _owner(part, federation.names, first[0])
        raise DataError(f"client {owner!r} has the label {part.y[tuple(first)].tolist()}{limit}")


def _owner(part: Rows, names: Sequence[str], row: Tensor) -> str:
    return names[int(torch.searchsorted(part.offsets, row, right=True)) - 1]


def _some(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
