"""Division of rows into those that a client trains on and those it is tested on, by number."""

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from commonweal.base import randomness
from commonweal.base.arguments import expect_int, expect_names
from commonweal.base.errors import ConfigError, DataError, did_you_mean
from commonweal.base.shares import product

NEAR = 0.05  # how far 1 / share may be from a whole number that it stands for
PRECISION = 10**6  # of other shares
FIRST_CLASS = -8  # the position of its draw; those of rows are 0, 1, ...


class GroupedRows(NamedTuple):
    """Row numbers grouped by client: client k has rows[offsets[k] : offsets[k + 1]]."""

    rows: np.ndarray  # (n,) int64
    offsets: np.ndarray  # (K + 1,) int64

    def by_client(self) -> list[np.ndarray]:
        """The row numbers of each client."""
        return np.split(self.rows, self.offsets[1:-1])


class Split(NamedTuple):
    """The rows that each client trains on, and those it is tested on."""

    names: tuple[str, ...]
    train: GroupedRows
    test: GroupedRows
    share: float | None = None  # of each client's rows that is tested, where that was given

    def within(self, rows: np.ndarray) -> "Split":
        """The split with row i called rows[i], its number in a larger table."""
        train = GroupedRows(rows[self.train.rows], self.train.offsets)
        test = GroupedRows(rows[self.test.rows], self.test.offsets)
        return self._replace(train=train, test=test)


def split_rows(
    client: np.ndarray,
    y: np.ndarray,
    test: float | ArrayLike,
    seed: int,
    names: Sequence[str] | None = None,
) -> Split:
    """Split every client's rows into training and test rows.

    Args:
        client: Each row's client, by name or number (N,); with `names`, its position among them.
        y: The labels (N, ...). Test rows are stratified by class.
        test: The share of each client's rows that is tested, or a mask of the test rows (N,).
        seed: Which rows are tested depends on it and on the client's name only: see `tested_rows`.
        names: The clients' names; by default those in `client`, sorted.
    """
    expect_int("seed", seed, most=2**64 - 1)
    if names is None:
        names, client = number_clients(client)
    else:
        expect_names("names", names)
        _check_positions(client, names)
    check_names(names)
    is_test = _mask(test, client, y, names, seed)
    order = np.argsort(client, kind="stable")
    train_rows = order[~is_test[order]]
    test_rows = order[is_test[order]]
    return Split(
        tuple(names),
        _grouped(train_rows, client, len(names)),
        _grouped(test_rows, client, len(names)),
        float(test) if np.ndim(test) == 0 else None,  # type: ignore[arg-type]
    )


def _grouped(rows: np.ndarray, owner: np.ndarray, clients: int) -> GroupedRows:
    """Rows that are given client after client, with the clients' offsets."""
    sizes = np.bincount(owner[rows], minlength=clients)
    return GroupedRows(rows, np.concatenate([[0], sizes.cumsum()]).astype(np.int64))


def number_clients(client: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The clients' names in order, and each row's position among them."""
    if client.ndim != 1:
        raise DataError(f"client has shape {client.shape}: give one name or number per row")
    if client.dtype.kind == "f" and np.isnan(client).any():
        row = int(np.isnan(client).argmax())
        raise DataError(f"row {row} has no client (NaN): name the client, or leave the row out")
    try:
        owners, position = np.unique(client, return_inverse=True)
    except TypeError:
        types = {type(name).__name__ for name in client.tolist()}
        several = ", ".join(sorted(types))
        raise DataError(
            f"client has names of several types ({several}): give strings only, or numbers only"
        ) from None
    return list(map(str, owners.tolist())), position


def _check_positions(client: np.ndarray, names: Sequence[str]) -> None:
    if client.dtype.kind not in "iu":
        raise DataError(
            f"with names, client holds each row's position among them, not {client.dtype}: leave "
            "the names out, or give whole numbers"
        )
    if len(client) and not 0 <= client.min() <= client.max() < len(names):
        wrong = client.min() if client.min() < 0 else client.max()
        raise DataError(
            f"client has the position {wrong}, but there are {len(names)} names: positions are "
            f"from 0 to {len(names) - 1}"
        )


def check_without(without: Sequence[str], names: Sequence[str]) -> None:
    """Raise ConfigError unless these are clients, and others are left."""
    for name in without:
        if name not in names:
            raise ConfigError(f"without: no client is called {name!r}: {did_you_mean(name, names)}")
    if set(names) <= set(without):
        raise ConfigError(f"without: of {len(names)} clients none is left")


def check_names(names: Sequence[str]) -> None:
    """Raise DataError unless every client has a name of its own, in valid Unicode."""
    twice = repeated(names)
    if twice:
        raise DataError(f"two clients are called {some(twice)}: give every client its own name")
    for name in names:
        if not name.isascii() and any("\ud800" <= letter <= "\udfff" for letter in name):
            raise DataError(
                f"the client's name {name!r} is not valid Unicode: write names and files as UTF-8"
            )


def repeated(names: Iterable[str]) -> list[str]:
    """The names that occur more than once."""
    return sorted(name for name, times in Counter(names).items() if times > 1)


def draw_names(names: Sequence[str], count: int, seed: int, position: int) -> np.ndarray:
    """The positions of `count` of the names, in order.

    Whether one is drawn depends on (seed, name) and the others' draws only: more names include
    the fewer.
    """
    draws = randomness.uniforms(seed, _keys(names), np.full(len(names), position))
    return np.sort(np.argsort(draws, kind="stable")[:count])


def _keys(names: Sequence[str]) -> np.ndarray:
    return np.array(list(map(randomness.key, names)), dtype=np.uint64)


def some(names: Sequence[str], most: int = 5) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


# Test rows


def _mask(
    test: float | ArrayLike,
    owner: np.ndarray,
    y: np.ndarray,
    names: Sequence[str],
    seed: int,
) -> np.ndarray:
    """The test rows, where they are given by a share or by a mask."""
    try:
        mask = np.asarray(test)
        share = float(mask) if mask.ndim == 0 else 0.0
    except (TypeError, ValueError, OverflowError, RuntimeError):
        kind = type(test).__name__
        raise DataError(f"test is a {kind}: give a share, or true or false per row") from None
    if mask.ndim == 0:
        if not 0 <= share < 1:
            raise DataError(
                f"test = {test!r}: the share of test rows must be at least 0 and below 1"
            )
        return tested_rows(owner, y, names, share, seed)
    if mask.shape != owner.shape or mask.dtype != bool:
        raise DataError(
            f"test has shape {mask.shape} and type {mask.dtype}: "
            "give a share, or true or false per row"
        )
    return mask


class Fold(NamedTuple):
    """A seed's part of a repetition that divides every client's rows: these rows are tested."""

    part: int
    repetition: int

    @classmethod
    def of(cls, share: float, seed: int) -> "Fold":
        """The fold of a seed, where a share of the rows is tested.

        >>> Fold.of(0.2, 7)
        Fold(part=2, repetition=1)
        """
        period, width = _every(share)
        parts = period // width if width else 1
        return cls(seed % parts, seed // parts)


def _every(share: float) -> tuple[int, int]:
    """The share of test rows as whole numbers (period, width): so many of so many rows."""
    if share <= 0:
        return 1, 0
    share = max(share, 1 / PRECISION)
    parts = round(1 / share)
    if parts > 1 and abs(1 / share - parts) < NEAR:
        return parts, 1  # 0.33 means a third
    fraction = Fraction(share).limit_denominator(PRECISION)
    return fraction.denominator, fraction.numerator


def tested_rows(
    owner: np.ndarray, y: np.ndarray, names: Sequence[str], share: float, seed: int
) -> np.ndarray:
    """A mask of the test rows: seeds are the folds of a repeated cross-validation.

    With a share x, k = floor(1 / x) seeds in a row test parts that do not overlap; for x = 1 / k
    they test every row once. Every k-th seed divides the rows again. The rows of a client are
    ranked by class and shuffled within it; each class has its share within one row. A client of
    7 rows looks like this for x = 0.4, which is 2 of 5, so that k = 2:

        rank r                0    1    2    3    4    5    6
        2 r + phase 1         1    3    5    7    9   11   13  (15)
        divided by 5          0    0    1    1    1    2    2   (3)
        tested by seed 0     no  yes   no   no  yes   no  yes        where the next number is higher
        tested by seed 1    yes   no   no  yes   no  yes   no        as the next rank by seed 0

    The phase is drawn once per client and repetition, among those with which the first seed tests
    round(x n) rows, and at least one. Other seeds test as many or one less or more; a client of few
    rows is not tested by all of them. One row is always left for training.
    """
    fold = Fold.of(share, seed)
    period, width = _every(share)
    keys = _keys(names)
    ranked = _ranked(owner, y, keys, fold.repetition, mix=True)
    whole, rest = np.divmod(width * ranked.sizes, period)
    rounds_up = (2 * rest >= period) | ((whole == 0) & (width > 0))
    draws = randomness.uniforms(fold.repetition, keys, np.full(len(names), -1))
    # The phases that round up are the last ones, as many as the rest.
    phase = (draws * np.where(rounds_up, rest, period - rest)).astype(np.int64)
    phase += np.where(rounds_up, period - rest, 0)
    place = width * (ranked.rank + fold.part) + phase[ranked.client]
    chosen = (place + width) // period > place // period
    untested = np.bincount(ranked.client[~chosen], minlength=len(names))
    draws = randomness.uniforms(fold.repetition, keys, np.full(len(names), -3))
    spared = np.where(untested > 0, -1, (draws * ranked.sizes).astype(np.int64))
    chosen &= (ranked.sizes > 1)[ranked.client] & (ranked.rank != spared[ranked.client])
    mask = np.empty(len(owner), dtype=bool)
    mask[ranked.order] = chosen
    return mask


class _Ranked(NamedTuple):
    """Rows in the order of their clients, classes grouped, and shuffled within them."""

    order: np.ndarray  # (N,) the rows
    client: np.ndarray  # (N,) in this order
    rank: np.ndarray  # (N,) within the client, from 0
    sizes: np.ndarray  # (K,)


def _ranked(owner: np.ndarray, y: np.ndarray, keys: np.ndarray, seed: int, mix: bool) -> _Ranked:
    """Rank every client's rows. mix: the classes come in any order, not by number."""
    sizes = np.bincount(owner, minlength=len(keys))
    starts = sizes.cumsum() - sizes
    position = np.empty(len(owner), dtype=np.int64)  # of a row within its client
    position[np.argsort(owner, kind="stable")] = np.arange(len(owner)) - np.repeat(starts, sizes)
    draws = randomness.uniforms(seed, keys[owner], position)
    is_class = np.issubdtype(y.dtype, np.integer) or bool(((y == 0) | (y == 1)).all())
    strata = y if is_class and y.ndim == 1 else np.zeros(len(y), dtype=np.int64)
    if mix:
        strata = randomness.uniforms(seed, keys[owner], FIRST_CLASS - _class_numbers(owner, strata))
    order = np.lexsort((draws, strata, owner))
    client = owner[order]
    return _Ranked(order, client, np.arange(len(owner)) - starts[client], sizes)


def _class_numbers(owner: np.ndarray, strata: np.ndarray) -> np.ndarray:
    """Number each client's classes 0, 1, ...: others' classes change nothing."""
    order = np.lexsort((strata, owner))
    is_new = np.ones(len(owner), dtype=bool)
    is_new[1:] = (np.diff(owner[order]) != 0) | (np.diff(strata[order]) != 0)
    count = is_new.cumsum()
    first = np.searchsorted(owner[order], owner[order])  # row of the client
    numbers = np.empty(len(owner), dtype=np.int64)
    numbers[order] = count - count[first]
    return numbers


def systematic_sample(
    owner: np.ndarray, y: np.ndarray, names: Sequence[str], share: float, seed: int
) -> np.ndarray:
    """A mask of rows by systematic sampling, such as validation rows.

    Client k gives exactly round(share * n_k) rows (at least one, at most n_k - 1), and every class
    its share within one row. A client of 5 rows with classes 0 0 1 1 1 and share 0.4, so with a
    quota of 2 rows, looks like this:

        rows in order         class 0, shuffled, then class 1, shuffled
        rank                   0    1    2    3    4
        rank * quota / size   0.0  0.4  0.8  1.2  1.6  (2.0)
        + phase 0.3           0.3  0.7  1.1  1.5  1.9  (2.3)
        floor                  0    0    1    1    1     2
        is drawn              no  yes   no   no  yes       where the next floor is higher

    The phase is uniform in [0, 1), one number per client, so that every row has the same chance.
    """
    keys = _keys(names)
    ranked = _ranked(owner, y, keys, seed, mix=False)
    client, rank = ranked.client, ranked.rank
    count = quota(ranked.sizes, share)[client]
    size = ranked.sizes[client]
    phase = randomness.uniforms(seed, keys, np.full(len(names), -1))[client]
    before = np.floor(rank * count / size + phase)
    after = np.floor((rank + 1) * count / size + phase)
    mask = np.empty(len(owner), dtype=bool)
    mask[ranked.order] = after > before
    return mask


def quota(sizes: np.ndarray, share: float) -> np.ndarray:
    """Return the number of rows that are drawn of each client."""
    least = 1 if share > 0 else 0
    rounded = np.floor(product(share, sizes) + 0.5).clip(least)
    counts: np.ndarray = np.minimum(rounded, sizes - 1)
    return counts
