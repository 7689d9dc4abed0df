"""The rows of a table that are used, and the test rows among them."""

from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from commonweal.base.errors import ConfigError, DataError
from commonweal.data.split import quota, some
from commonweal.data.tables.columns import Table
from commonweal.data.tables.plain_table import PlainColumn, is_number, parse_number

Test = float | Literal["last"]
TEST_WORDS = ("test", "testing", "tst", "holdout", "hold-out", "true", "yes")
LAST = 0.2  # the share of test rows with test = "last"


class UsedRows(NamedTuple):
    """The rows of a table that are used."""

    rows: np.ndarray  # (n,) their numbers in the table
    names: list[str]  # of the clients; where no column names them, they are one
    owner: np.ndarray  # (n,) positions among the names
    test: float | np.ndarray  # the share that is tested, drawn at random, or a mask (n,)
    notes: tuple[str, ...]


def divide_rows(table: Table, test: Test, fold: str, least: int) -> UsedRows:
    """The rows with a label whose clients have enough of them.

    fold: the value of the column `split` that is tested; least: the rows that a client needs
    """
    rows = table.complete()
    notes = []
    if len(rows) < table.rows:
        notes.append(f"{table.rows - len(rows)} rows without a label or client are left out")
    if table.repeated:
        notes.append(
            f"{table.repeated} rows are the same as an earlier row in all columns: if they were "
            "entered twice, delete them, as the copy of a test row may be in training"
        )
    notes += _on_names(list(table.profiles))
    split = table.facts.roles.split
    tested, others = _tested(table, rows, fold) if split else ([], [])
    if split:
        notes.append(f"tested: rows with {split} = {some(tested)}; trained on: {some(others)}")
    names, codes = table.clients() or (np.array(["all"]), np.zeros(table.rows, np.int64))
    owner = codes[rows]
    mask = _test_rows(table, rows, owner, test, tested)
    is_train = ~mask if isinstance(mask, np.ndarray) else np.ones(len(rows), dtype=bool)
    sizes = np.bincount(owner, minlength=len(names))
    trained = np.bincount(owner[is_train], minlength=len(names))
    enough = (sizes >= least) & (trained > 0)
    if not enough.any():
        raise DataError(f"no client has {least} labelled rows: lower least_rows")
    if not enough.all():
        few = f"with fewer than {least} labelled rows"
        why = few if least > 1 else "without a labelled training row"
        count = len(names) - int(enough.sum())
        left_out = some(names[~enough].tolist(), 10)
        notes.append(f"{count} of {len(names)} clients {why} are left out: {left_out}")
    chosen = enough[owner]
    used, owner = np.unique(owner[chosen], return_inverse=True)
    if isinstance(mask, np.ndarray):
        mask = mask[chosen]
    return UsedRows(rows[chosen], names[used].tolist(), owner, mask, tuple(notes))


def _on_names(names: list[str]) -> list[str]:
    """A note where the first line seems to be a row, as names are numbers in no order."""
    values = [parse_number(PlainColumn("", "number"), name) for name in names if is_number(name)]
    numbers = [value for value in values if not np.isnan(value)]  # "nan" and "inf" are words
    if all(after - before == 1 for before, after in pairwise(numbers)) and len(numbers) != 1:
        return []
    return [f"columns are named {some(names)}: if this is a row, add a line of names above it"]


def _test_rows(
    table: Table, rows: np.ndarray, owner: np.ndarray, test: Test, tested: list[str]
) -> float | np.ndarray:
    """The share of test rows that are drawn at random, or a mask (n,)."""
    order, split = table.facts.roles.order, table.facts.roles.split
    if split and (order or test == "last"):
        given = f"split = {split!r}, order = {order!r}, test = {test!r}"
        raise ConfigError(f"{given}: give split or the others, as both say which rows are tested")
    if split:
        mask: np.ndarray = np.isin(table.strings(split, rows), tested)
        return mask
    share = LAST if isinstance(test, str) else test
    if not order and not isinstance(test, str):
        return share
    if not 0 < share < 1:
        raise ConfigError(f"test = {share} with order: give a share between 0 and 1")
    if order and table.is_text(order):
        raise DataError(
            f"order = {order!r} holds strings, which have no order in time: name a column of "
            "numbers or dates"
        )
    return _last(owner, table.numbers(order)[rows] if order else rows, share)


def _last(owner: np.ndarray, values: np.ndarray, share: float) -> np.ndarray:
    """A mask of the rows with the highest values of each client; of equal ones, the later."""
    order = np.lexsort((np.arange(len(values)), values, owner))
    sizes = np.bincount(owner)
    first = sizes.cumsum() - quota(sizes, share)  # test rows end a client's block
    mask = np.empty(len(values), dtype=bool)
    mask[order] = np.arange(len(values)) >= first[owner[order]]
    return mask


def _tested(table: Table, rows: np.ndarray, fold: str) -> tuple[list[str], list[str]]:
    """The values of the column `split` that are tested, and those of training rows."""
    name = table.facts.roles.split
    present = np.unique(table.strings(name, rows)).tolist()
    tested = [fold] if fold else [value for value in present if value.lower() in TEST_WORDS]
    if not tested and all(map(str.isdigit, present)):
        tested = [max(present, key=int)]
    if not tested or not set(tested) < set(present):
        raise DataError(
            f"split = {name!r} holds {some(present)}: it needs rows called 'test' and others, or "
            f"folds; or say which value is tested, such as split = '{name}={present[0]}'"
        )
    return tested, [value for value in present if value not in tested]
