"""Identity of a run's data: files, rows by client, columns, and a fingerprint of samples.

It does not depend on how samples are split into training, validation and test samples, nor on how
features are scaled: these are settings. It is small, and comparing two says in words what changed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from commonweal.base.errors import RunError
from commonweal.base.files import digest
from commonweal.data.samples import Lazy, leaves
from commonweal.data.split import some

if TYPE_CHECKING:
    from commonweal.data.federation import Federation
    from commonweal.data.rows import Rows

BLOCK = 1 << 22  # numbers that are hashed at once
FACTORS = 0x9E3779B97F4A7C15  # the seed of what numbers are multiplied by
OTHER_DATA = (
    "restore the data; or choose another folder (--out, or out=); or start again with --force "
    "(force=True)"
)
SOME_VALUE = "the numbers of rows, the columns and the clients are the same, some value is not"


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file, or a folder of files, that samples were read from."""

    path: str
    digest: str  # of what it holds
    in_data_directory: bool = False  # then its path is relative to $COMMONWEAL_DATA

    @property
    def name(self) -> str:
        return PurePath(self.path).name


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The identity of the data of a run."""

    sources: tuple[Source, ...] = ()  # none: the data were given in Python, or come with Commonweal
    columns: tuple[str, ...] = ()  # of a table
    clients: Mapping[str, int] = field(default_factory=dict)  # samples of all parts, by name
    samples: tuple[str, ...] = ()  # a fingerprint of each client's samples, unless there are files
    labels: str = ""  # one of all labels, which no scaling by the samples of a split changes
    drawn: bool = False  # clients or samples are drawn by the seed, so that seeds differ

    @property
    def rows(self) -> int:
        """The samples of all clients."""
        return sum(self.clients.values())

    @property
    def whole(self) -> str:
        """A hash of everything but the places of files: equal data of one seed share it."""
        return self._hash("\0".join(self.samples))

    def _hash(self, samples: str) -> str:
        names = "\0".join([self._contents, *self.columns, "", *self.clients, "", samples])
        counts = repr(list(self.clients.values()))
        return digest(names.encode(errors="surrogateescape"), counts.encode())

    @property
    def for_all_seeds(self) -> str:
        """A hash of what all seeds have in common; empty where that is nothing."""
        if self.sources:
            return digest(self._contents.encode(), "\0".join(self.columns).encode())
        return "" if self.drawn else self._hash(self.labels)

    @property
    def _contents(self) -> str:
        return " ".join(source.digest for source in self.sources)


# What changed


def changes(before: Identity, now: Identity) -> list[str]:
    """Describe the differences between the data of a run and today's; empty: there are none.

    The place of a file is no difference.
    """
    files = source_changes(before.sources, now.sources)
    told = content_changes(before, now)
    return [*files, *(told or [SOME_VALUE])] if files else told


def content_changes(before: Identity, now: Identity) -> list[str]:
    """Describe differences besides files: columns, clients and rows, or the samples' values."""
    told = [*_column_changes(before.columns, now.columns), *_row_changes(before, now)]
    if told or not before.samples or not now.samples:
        return told
    return _value_changes(before, now)


def source_changes(before: Sequence[Source], now: Sequence[Source]) -> list[str]:
    """The files that changed, are new or gone; a file that was moved has not changed."""
    old = {source.digest: source for source in before}
    new = {source.digest: source for source in now}
    gone = {source.name for value, source in old.items() if value not in new}
    added = {source.name for value, source in new.items() if value not in old}
    told = [f"{name!r} was changed" for name in sorted(gone & added)]
    told += [f"{name!r} is gone" for name in sorted(gone - added)]
    return told + [f"{name!r} is new" for name in sorted(added - gone)]


def _column_changes(before: Sequence[str], now: Sequence[str]) -> list[str]:
    gone = [name for name in before if name not in now]
    added = [name for name in now if name not in before]
    told = [f"columns gone: {some(gone)}"] if gone else []
    told += [f"new columns: {some(added)}"] if added else []
    if not told and before != now:
        told = ["the columns are in another order"]
    return told


def _row_changes(before: Identity, now: Identity) -> list[str]:
    told = []
    if before.rows != now.rows:
        told.append(f"rows: {before.rows:,} before, {now.rows:,} now")
    gone = [name for name in before.clients if name not in now.clients]
    added = [name for name in now.clients if name not in before.clients]
    told += [f"clients gone: {some(gone)}"] if gone else []
    told += [f"new clients: {some(added)}"] if added else []
    others = []
    for name, count in before.clients.items():
        if now.clients.get(name, count) != count:
            others.append(f"{name} ({count:,} rows before, {now.clients[name]:,} now)")
    told += [f"other numbers of rows: {some(others)}"] if others else []
    if not told and list(before.clients) != list(now.clients):
        told = ["the clients are in another order"]
    return told


def _value_changes(before: Identity, now: Identity) -> list[str]:
    pairs = zip(before.clients, before.samples, now.samples, strict=True)
    others = [name for name, old, new in pairs if old != new]
    return [f"samples with other values: {some(others)}"] if others else []


def check_same(folder: str, before: Identity, now: Identity) -> None:
    """Raise RunError where a run in a folder is of other data than today's."""
    told = changes(before, now)
    if told:
        refuse_changed_data(folder, told)


def refuse_changed_data(folder: str, told: Iterable[str]) -> None:
    """Raise RunError: the data of a run changed."""
    raise RunError(f"{folder!r} is a run of other data ({'; '.join(told)}): {OTHER_DATA}")


# Of a federation


def identified(
    federation: "Federation", sources: Sequence[Source] = (), drawn: bool = False
) -> "Federation":
    """The federation with its identity, unless it has one.

    Args:
        federation: Clients, with all parts of their samples.
        sources: The files that they were read from. Without any, the samples are fingerprinted.
        drawn: Whether the seed decides about clients or samples.
    """
    if federation.identity is not None:
        return federation
    parts: list[tuple[Sequence[str], Rows]] = []
    for rows in (federation.train, federation.validation, federation.test):
        if rows is not None:
            parts.append((federation.names, rows))
    if federation.held_out is not None:
        parts.append(federation.held_out)
    clients: dict[str, int] = {}
    for names, rows in parts:
        for name, size in zip(names, rows.sizes.tolist(), strict=True):
            clients[name] = clients.get(name, 0) + size
    identity = Identity(
        sources=tuple(sources), columns=_columns(federation), clients=clients, drawn=drawn
    )
    if not sources:
        labels = _fingerprints(parts, list(clients), only_labels=True)
        samples = labels if federation.pooled else _fingerprints(parts, list(clients))
        identity = replace(identity, samples=samples, labels=digest("".join(labels).encode()))
    return replace(federation, identity=identity)


def _columns(federation: "Federation") -> tuple[str, ...]:
    preprocessing = federation.preprocessing
    if preprocessing is None:
        return ()
    names = [column.name for column in preprocessing.columns]
    names += [name for name in (preprocessing.label, preprocessing.client) if name]
    return tuple(dict.fromkeys(names))


def _fingerprints(
    parts: "Sequence[tuple[Sequence[str], Rows]]", names: Sequence[str], only_labels: bool = False
) -> tuple[str, ...]:
    """A fingerprint of each client's samples, whatever their order and split.

    Of samples that are read when they are needed, which takes long, the labels count.
    """
    position = {name: k for k, name in enumerate(names)}
    totals = np.zeros(len(names), np.uint64)
    for owners, rows in parts:
        values = [rows.y.double()]
        if not only_labels and not isinstance(rows.inputs, Lazy):
            values += leaves(rows.inputs)
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(_row_hashes(values))])
        ends = sums[rows.offsets.numpy()]
        where = [position[name] for name in owners]
        totals[where] += ends[1:] - ends[:-1]
    return tuple(f"{total:016x}" for total in totals.tolist())


def _row_hashes(values: Sequence[Tensor]) -> np.ndarray:
    """A number for each row of several tensors (n, ...), modulo 2^64."""
    total = np.full(len(values[0]), len(values), np.uint64)
    for k, tensor in enumerate(values):
        words = _words(tensor)
        generator = np.random.default_rng(FACTORS + k)
        factors = generator.integers(1, 1 << 63, words.shape[1], np.uint64) | np.uint64(1)
        step = max(1, BLOCK // max(1, words.shape[1]))
        own = np.empty(len(words), np.uint64)
        for start in range(0, len(words), step):
            block = words[start : start + step].astype(np.uint64)
            own[start : start + step] = (_mixed(block + factors) * factors).sum(1)
        total = _mixed(total * np.uint64(31) + own)
    return total


def _words(tensor: Tensor) -> np.ndarray:
    """The bits of each row of a tensor (n, ...), as whole numbers (n, words)."""
    rows = tensor.detach().cpu().contiguous()
    values = rows.reshape(len(rows), -1) if len(rows) else rows.reshape(0, 1)
    bits: np.ndarray = values.view(torch.uint8).numpy()
    for width in (8, 4, 2):  # the fewest numbers
        if bits.shape[1] % width == 0:
            return bits.view(np.dtype(f"u{width}"))
    return bits


def _mixed(values: np.ndarray) -> np.ndarray:
    """Numbers whose bits all depend on all bits of the given ones (splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed
