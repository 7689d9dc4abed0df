"""Your own rows from a CSV, Parquet or npz file: a column names the client that owns each row.

Numbers are standardised, strings become one column per level, dates numbers, and gaps are filled;
ids and constants are left out. The preprocessing is saved with the run. An npz file holds arrays
`x`, `y` and `client`. A table without a column of clients is a pool that a partition divides.
"""

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch

from commonweal.base.arguments import check_bounds
from commonweal.base.errors import ConfigError, DataError, did_you_mean
from commonweal.data.federation import Federation
from commonweal.data.sources.files import read_npz
from commonweal.data.split import number_clients, some
from commonweal.data.tables.columns import (
    CLIENT,
    Names,
    Roles,
    Survey,
    Table,
    names_in,
    read_survey,
    read_table,
)
from commonweal.data.tables.files import read_batches, separator_in
from commonweal.data.tables.fit import Options, fit_columns
from commonweal.data.tables.plain_table import PlainColumn
from commonweal.data.tables.used_rows import Test, divide_rows
from commonweal.datasets.pools import Pool, TaskOptions, natural_federation, standardized

if TYPE_CHECKING:
    import pyarrow

Task = Literal["auto", "classes", "values"]
CLASSES = 20  # different whole numbers, beyond which labels are values
EVENT_VALUE = re.compile(r"\b(dead|died|deceased|death|event|relapse\w*|recur\w*)\b", re.I)
IMBALANCE = 0.8  # the share of a class, from which accuracy says little


def table(
    path: str,
    label: str = "label",
    client: str | None = None,
    drop: Names = (),
    keep: Names = (),
    categories: Names = (),
    missing: Names = (),
    task: Task = "auto",
    scale: bool = True,
    levels: int = 50,
    columns: Literal["same", "union"] = "same",
    statistics: Literal["pooled", "federated"] = "pooled",
    public: str = "",
    separator: str = "auto",
    encoding: str = "utf-8",
    clients: int | None = None,
    least_rows: int = 1,
    least_count: int = 1,
    without: Names = (),
    test: Test = 0.2,
    order: str = "",
    split: str = "",
    seed: int = 0,
) -> Federation | Pool:
    """Rows of a CSV (with a header), Parquet or npz file; score: accuracy, or pooled R^2 for values

    path: the file; label: the column of labels, or "time,event": survival times and whether there
        was an event, for Cox's loss ("time,status=dead" says which value is one)
    client: the column of clients ("client" if there is one), or several (country,hospital)
    drop: columns to leave out (a,b); keep: columns that look like ids, but are not
    categories: columns of numbers that are codes: each is a category, not an amount
    missing: numbers and words that mean a missing value, by column (age=999,pupil=None)
    task: texts and up to 20 different whole numbers are "classes", other labels "values"
    scale: numbers get mean 0 and standard deviation 1 over all training rows
    levels: of a text, the most frequent ones; the others become level "other"
    columns: of clients, the "same", or the "union": what a client lacks is a missing value there
    statistics: of training rows, "pooled", or "federated": combined from each client's own sums
    public: a preparation.json of another run, made from public rows: nothing is fitted then
    separator: between a CSV's values; encoding: of a CSV, such as latin-1
    clients: how many of the clients to use; least_rows: clients with fewer rows are left out
    least_count: categories and classes that no client has so often are not named; above 1, numbers
        are fitted by sums only
    without: clients whose rows are not read, as if the file did not have them
    test: the share of each client's rows that is tested, or "last", a fifth, its last rows
    order: the column, such as a date, by which rows are the last; test rows are the last ones then
    split: a column that says which rows are test rows ("test"), or folds, of which the highest is
        tested; "fold=2": another one
    seed: which rows and clients
    """
    file = Path(path).expanduser()
    if file.suffix == ".npz":
        if without:
            raise ConfigError("an npz file has no columns: leave out without")
        if order or split or isinstance(test, str):
            raise ConfigError("an npz file has no columns: leave order, split and test = 'last'")
        return _from_npz(file, client, scale, clients, test, seed)
    roles, fold = _roles(label, client, drop, keep, categories, missing, without, order, split)
    opened = open_table(file, roles, separator, encoding)
    if separator == "auto":
        separator = separator_in(file, encoding)
    union = columns == "union"
    options = Options(scale, levels, statistics, separator, encoding, public, union, least_count)
    return load_table(opened, task, options, clients, test, seed, least_rows=least_rows, fold=fold)


def _roles(
    label: str,
    client: str | None,
    drop: Names,
    keep: Names,
    categories: Names,
    missing: Names,
    without: Names,
    order: str,
    split: str,
) -> tuple[Roles, str]:
    """The roles of columns, and the fold that is tested."""
    column, _, fold = split.partition("=")
    roles = Roles(
        label=label,
        client=client,
        drop=names_in(drop),
        keep=names_in(keep),
        categories=names_in(categories),
        missing=names_in(missing),
        without=names_in(without),
        order=order,
        split=column.strip(),
    )
    return roles, fold.strip()


ENTRIES = {"table": table}


class FileColumns(NamedTuple):
    """Columns of a table's file as they are there, and the rows that a federation has of it."""

    rows: np.ndarray  # (n,) their numbers in the file, from 0
    values: dict[str, "pyarrow.Array"]  # (n,)


def _check_classes(labels: "TableLabels", owner: np.ndarray | None, least: int) -> None:
    """Raise DataError for a class that no client has so often."""
    if least == 1:
        return
    owner = np.zeros(len(labels.y), np.int64) if owner is None else owner
    for k, name in enumerate(labels.class_names):
        if np.bincount(owner[labels.y == k]).max() < least:
            raise DataError(
                f"no client has {least} rows of the class {name!r} (least_count, or min_count of "
                "the policy), so that it cannot be named: leave these rows out"
            )


def file_columns(parameters: Mapping[str, Any], names: Sequence[str]) -> FileColumns:
    """Read columns of the file of a dataset `table`, in the order of the federation's row numbers.

    parameters: of `table`; names: of the columns, whether or not they are features
    """
    import pyarrow

    given = inspect.signature(table).bind(**parameters)
    given.apply_defaults()
    file = Path(given.arguments["path"]).expanduser()
    if file.suffix == ".npz":
        raise ConfigError(f"{str(file)!r} holds arrays, which have no columns: leave them out")
    keys = ("label", "client", "drop", "keep", "categories", "missing", "without", "order", "split")
    roles, fold = _roles(*(given.arguments[key] for key in keys))
    separator, encoding = given.arguments["separator"], given.arguments["encoding"]
    opened = open_table(file, roles, separator, encoding)
    least_rows, test = given.arguments["least_rows"], given.arguments["test"]
    rows = divide_rows(opened, test, fold, least_rows).rows
    if roles.without:
        whole = open_table(file, replace(roles, without=()), separator, encoding)
        rows = np.flatnonzero(whole.others(roles.without))[rows]
    parts: dict[str, list[pyarrow.Array]] = {name: [] for name in names}
    for batch in read_batches(file, separator, encoding):
        for name, values in parts.items():
            if name not in batch:
                raise ConfigError(
                    f"{str(file)!r} has no column {name!r}: {did_you_mean(name, batch)}"
                )
            values.append(batch[name])
    return FileColumns(
        rows, {name: pyarrow.concat_arrays(values).take(rows) for name, values in parts.items()}
    )


def survey_table(file: Path, separator: str, encoding: str) -> Survey:
    """Survey the columns of a CSV or Parquet file."""
    batches = partial(read_batches, file, separator, encoding)
    return read_survey(file, batches, f"{separator} {encoding}")


def open_table(file: Path, roles: Roles, separator: str, encoding: str) -> Table:
    """Open a CSV or Parquet file."""
    batches = partial(read_batches, file, separator, encoding)
    return read_table(file, batches, roles, f"{separator} {encoding}")


def load_table(
    table: Table,
    task: Task,
    options: Options,
    clients: int | None,
    test: Test,
    seed: int,
    least_rows: int = 1,
    fold: str = "",
) -> Federation | Pool:
    """A federation of a table's own clients, or a pool where no column names them.

    The columns are fitted once it is known which rows are for training. The parameters are those
    of `table`; fold: the value of `split` that is tested.
    """
    check_bounds("least_rows", least_rows, least=1)
    parts = divide_rows(table, test, fold, least_rows)
    rows = parts.rows
    labels = read_times(table, rows) if table.facts.event else read_labels(table, task, rows)
    _check_classes(labels, parts.owner, options.least_count)
    features = partial(fit_columns, table, options, rows, labels.class_names)
    learned: TaskOptions = {
        "outputs": len(labels.class_names) or None,
        "loss": labels.loss,
        "score": labels.score,
        "notes": (*labels.notes, *parts.notes),
        "class_names": labels.class_names,
    }
    if table.facts.client:
        return natural_federation(
            features, labels.y, parts.owner, parts.test, seed, clients, parts.names, **learned
        )
    if clients is not None:
        raise ConfigError(_no_clients(clients))
    official = np.zeros(len(rows), dtype=bool)
    if not isinstance(parts.test, np.ndarray):
        return Pool(features, labels.y, official, parts.test, seed, partition=None, **learned)
    if not labels.class_names:
        raise ConfigError(
            "a split by order or column needs classes, or a column of clients: name it (client)"
        )
    return Pool(features, labels.y, parts.test, "official", seed, partition=None, **learned)


def _no_clients(clients: int) -> str:
    return (
        f"clients = {clients}: the table has no column 'client' to choose from; "
        "name the column, or give a partition"
    )


# Labels


class TableLabels(NamedTuple):
    """The labels of some rows: classes 0, 1, ... with their names, numbers, or survival times."""

    y: np.ndarray  # (n,), or (n, 2) times and events
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    loss: str | None = None  # None: as the labels suggest
    score: str | None = None


def read_labels(table: Table, task: Task, rows: np.ndarray) -> TableLabels:
    """The labels of some rows.

    Raises:
        DataError: The column does not hold what `task` asks for.
    """
    label = table.label
    column = table.column(label)
    if column.becomes != "number":
        if task == "values":
            raise DataError(
                f"task = 'values', but the label {label!r} holds strings: use task = 'classes'"
            )
        return _named_classes(table, column, rows)
    values = table.numbers(label)[rows]
    fractions = values[values != np.round(values)]
    if task == "classes" and len(fractions):
        raise DataError(
            f"task = 'classes', but a label is {float(fractions[0])}, neither a string nor a whole "
            "number: use task = 'values'"
        )
    different = np.unique(values)
    few = len(fractions) == 0 and len(different) <= CLASSES
    if task == "classes" or (task == "auto" and few):
        y = np.searchsorted(different, values)
        names = tuple(f"{value:.0f}" for value in different.tolist())
        return TableLabels(y, names, _imbalance(y, names))
    notes: tuple[str, ...] = ()
    if task == "auto" and len(fractions) == 0:
        notes = (
            f"the label {label!r} has {len(different)} different whole numbers, so this is a "
            "regression; if they are classes, set task = 'classes'",
        )
    return TableLabels(values.astype(np.float32), notes=notes)


def read_times(table: Table, rows: np.ndarray) -> TableLabels:
    """Survival times and events, for Cox's loss."""
    if table.column(table.label).becomes != "number":
        raise DataError(
            f"the column {table.label!r} holds no numbers: label = 'time,event' needs a time and "
            "whether there was an event"
        )
    event = table.facts.event
    assert event is not None
    values = table.strings(event, rows)
    happened = _event_value(table, event, np.unique(values).tolist())
    y = np.stack([table.numbers(table.label)[rows], values == happened], 1)
    notes: tuple[str, ...] = ()
    if happened not in ("1", "true"):
        notes = (f"an event is {event} = {happened}; others are censored",)
    return TableLabels(y.astype(np.float32), notes=notes, loss="cox", score="concordance")


def _event_value(table: Table, event: str, present: Sequence[str]) -> str:
    """The value of the column of events that means that there was one."""
    given = table.facts.happened
    matching = [value for value in present if value.lower() == given.lower()]
    if not given and "cens" not in event.lower():
        matching = [value for value in present if EVENT_VALUE.search(value)]
        if table.column(event).becomes == "boolean":
            matching = [table.column(event).words[1]]
        elif set(present) <= {"0", "1"}:
            matching = ["1"]
        elif set(present) == {"1", "2"}:  # as in R
            matching = ["2"]
    if len(matching) != 1:
        label = f"{table.label},{event}={present[-1]}"
        raise DataError(
            f"the events {event!r} hold {some(present)}: say which value means that there was an "
            f"event, such as label = {label!r}"
        )
    return matching[0]


def _named_classes(table: Table, column: PlainColumn, rows: np.ndarray) -> TableLabels:
    """Classes that the strings or truth values of a column name."""
    if column.becomes == "text":
        texts, codes = table.texts(column.name)
        used, y = np.unique(codes[rows], return_inverse=True)
        names = tuple(texts[used].tolist())
    elif column.becomes == "boolean":
        used, y = np.unique(table.numbers(column.name)[rows], return_inverse=True)
        names = tuple(column.words[int(value)] for value in used)
    else:
        raise DataError(f"the label {column.name!r} holds dates: name another column")
    return TableLabels(y, names, _imbalance(y, names))


def _imbalance(y: np.ndarray, names: Sequence[str]) -> tuple[str, ...]:
    counts = np.bincount(y)
    most = int(counts.argmax())
    share = counts[most] / len(y)
    if share < IMBALANCE or len(counts) < 2:
        return ()
    better = "auroc" if len(counts) == 2 else "likelihood"
    return (
        f"{100 * share:.1f} % of the rows are {names[most]!r}, so a model that always predicts it "
        f"has that accuracy: score = {better!r} tells more",
    )


# Arrays


def _from_npz(
    file: Path, client: str | None, scale: bool, clients: int | None, test: float, seed: int
) -> Federation | Pool:
    needed = ["x", "y"] if client is None else ["x", "y", client]
    arrays = read_npz(file, needed)
    x, y = arrays["x"], arrays["y"]
    if x.size == 0 or x.ndim == 0:
        raise DataError(f"{str(file)!r} has x of shape {x.shape}: there is nothing to learn from")
    numeric = x.shape[1] if scale and x.ndim == 2 and x.dtype.kind == "f" else 0
    features = partial(standardized, torch.from_numpy(x), numeric) if numeric else x
    owners = arrays.get(client or CLIENT)
    if owners is None:
        if clients is not None:
            raise ConfigError(_no_clients(clients))
        official = np.zeros(len(y), dtype=bool)
        return Pool(features, y, official, test, seed, partition=None)
    names, owner = number_clients(owners)
    return natural_federation(features, y, owner, test, seed, clients, names)
