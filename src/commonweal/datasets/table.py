"""Your own rows from a CSV, Parquet or npz file: a column names the client that owns each row.

Numbers are standardised, texts become one column per level, dates numbers, and gaps are filled; ids
and constants are left out. The preprocessing is saved with the run. An npz file holds `x`, `y`
and `client`. A table without a column of clients is a pool, for a partition to deal.
"""

import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import numpy as np

from commonweal.base.errors import ConfigError, DataError
from commonweal.data import plain_table
from commonweal.data.federation import Federation, number_clients
from commonweal.data.preprocessing import Column, Statistics
from commonweal.datasets._build import standardize_columns
from commonweal.datasets._cache import Arrays, New, cached, checksum
from commonweal.datasets._fit import Columns, Options, fit
from commonweal.datasets._shared import Pool, natural_federation
from commonweal.datasets._tables import CLIENT, Batches, fill_table, read_batches, separator_in

__all__ = ["CLASSES", "Contents", "Task", "labels_of", "load_table", "names_in"]
__all__ += ["open_table", "read_table", "table"]

Task = Literal["auto", "classes", "values"]
Names = str | tuple[str, ...]
CLASSES = 20  # different whole numbers, beyond which labels are values
IMBALANCE = 0.8  # the share of a class, from which accuracy says little


def table(
    path: str,
    label: str = "label",
    client: str | None = None,
    drop: Names = (),
    keep: Names = (),
    task: Task = "auto",
    scale: bool = True,
    levels: int = 50,
    statistics: Statistics = "pooled",
    separator: str = "auto",
    encoding: str = "utf-8",
    clients: int | None = None,
    test: float = 0.2,
    seed: int = 0,
) -> Federation | Pool:
    """Rows of a CSV (with a header), Parquet or npz file; score: accuracy, or R^2 for values

    path: the file; label: the column of labels, or "time,event": survival times and whether there
        was an event, for Cox's loss; client: the column of clients ("client" if there is one)
    drop: columns to leave out (a,b); keep: columns that look like ids, but are not
    task: texts and up to 20 different whole numbers are "classes", other labels "values"
    scale: numbers get mean 0 and standard deviation 1 over all training rows
    levels: of a text, the most frequent ones; the others become level "other"
    statistics: of training rows, "pooled", or "federated": combined from each client's own sums
    separator: between a CSV's values; encoding: of a CSV, such as latin-1
    clients: how many of the clients to use
    test: the share of each client's rows that is held out; seed: which rows and clients
    """
    file = Path(path).expanduser()
    if file.suffix == ".npz":
        return _from_npz(file, client, scale, clients, test, seed)
    label, event = _survival(label)
    contents = open_table(file, label, client, drop, keep, separator, encoding)
    if separator == "auto":
        separator = separator_in(file, encoding)
    options = Options(scale, levels, statistics, separator, encoding)
    return load_table(contents, task, options, clients, test, seed, event)


ENTRIES = {"table": table}


def _survival(label: str) -> tuple[str, str | None]:
    """The column of labels and, where two are named, that of events."""
    names = names_in(label)
    if len(names) > 2:
        raise ConfigError(f"label = {label!r}: name one column, or two, time and event")
    return (names[0], names[1]) if len(names) == 2 else (label, None)


def open_table(
    file: Path,
    label: str,
    client: str | None,
    drop: Names,
    keep: Names,
    separator: str,
    encoding: str,
) -> "Contents":
    """The contents of a CSV or Parquet file; the parameters are those of `table`."""
    batches = partial(read_batches, file, separator, encoding)
    names = (names_in(drop), names_in(keep))
    return read_table(file, batches, label, client, *names, f"{separator} {encoding}")


def names_in(names: Names) -> tuple[str, ...]:
    """Names in a list, or in a text with commas."""
    if not isinstance(names, str):
        return tuple(names)
    parts = names.strip().removeprefix("[").removesuffix("]").split(",")
    return tuple(part.strip().strip("'\"") for part in parts if part.strip())


@dataclass(frozen=True)
class Contents:
    """A table's columns as numbers and codes, from the cache."""

    arrays: Arrays
    label: str

    @cached_property
    def facts(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.arrays["facts"].tobytes())
        return found

    @property
    def client(self) -> str | None:
        name = self.facts["client"]
        return None if name is None else str(name)

    @cached_property
    def columns(self) -> Columns:
        described = self.facts["columns"]
        assert isinstance(described, list)
        return Columns(self.arrays, described)

    def texts(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The levels and codes of a column of texts."""
        i = self.columns.position(name)
        return self.arrays[f"text{i}"], self.arrays[f"code{i}"]

    @cached_property
    def complete(self) -> np.ndarray:
        """The numbers of the rows that have a label and, where there are any, a client."""
        keep = ~self.columns.gaps(self.label)
        if self.client is not None:
            keep &= ~self.columns.gaps(self.client)
        return np.flatnonzero(keep)


def load_table(
    contents: Contents,
    task: Task,
    options: Options,
    clients: int | None,
    test: float,
    seed: int,
    event: str | None = None,
) -> Federation | Pool:
    """The natural clients of a table, or a pool, its columns fitted on the training rows."""
    rows = contents.complete
    if event is not None:
        rows = rows[~_event_gaps(contents, event)[rows]]
    if len(rows) == 0:
        raise DataError(f"no row has a label in column {contents.label!r}: check the file")
    loss, score = (None, None) if event is None else ("cox", "concordance")
    if event is None:
        y, class_names, notes = labels_of(contents, task, rows)
    else:
        y, class_names, notes = _times(contents, event, rows), (), []
    lost = int(str(contents.facts["rows"])) - len(rows)
    if lost:
        notes.append(f"{lost} rows without a label or client are left out")
    names_of = (contents.label, contents.client)
    prepare = partial(fit, contents.columns, *names_of, options, event=event)
    numbers = rows[:, None]  # stand for the rows until the training rows are known
    outputs = len(class_names) or None
    if contents.client is not None:
        names, owner = contents.texts(contents.client)
        return prepare(
            natural_federation(
                numbers,
                y,
                owner[rows],
                test,
                seed,
                clients,
                names.tolist(),
                outputs=outputs,
                loss=loss,
                score=score,
                notes=notes,
                class_names=class_names,
            )
        )
    if clients is not None:
        raise ConfigError(_no_clients(clients))
    return Pool(
        numbers,
        y,
        np.zeros(len(rows), dtype=bool),
        test,
        seed,
        partition=None,
        outputs=outputs,
        loss=loss,
        score=score,
        notes=tuple(notes),
        class_names=class_names,
        prepare=prepare,
    )


def _no_clients(clients: int) -> str:
    return (
        f"clients = {clients}: the table has no column 'client' to choose from; "
        "name the column, or give a partition"
    )


def read_table(
    file: Path,
    batches: Batches,
    label: str,
    client: str | None,
    drop: Sequence[str],
    keep: Sequence[str],
    options: str,
) -> Contents:
    """The contents of a table, from the cache if it was read before."""
    if not file.is_file():
        next(batches())  # says what is wrong with it
    parsed_by = checksum(Path(plain_table.__file__))

    def parse(new: New) -> None:
        fill_table(new, batches, label, client, drop, keep)

    arrays = cached("table", [file], parse, repr((label, client, drop, keep, options, parsed_by)))
    return Contents(arrays, label)


# Labels


def labels_of(
    contents: Contents, task: Task, rows: np.ndarray
) -> tuple[np.ndarray, tuple[str, ...], list[str]]:
    """Labels as classes 0, 1, ... with their names, or as values without; and what to note."""
    label = contents.label
    column = contents.columns.column(label)
    if column.becomes != "number":
        if task == "values":
            raise DataError(
                f"task = 'values', but the label {label!r} holds texts: use task = 'classes'"
            )
        names, y = _text_classes(contents, column, rows)
        return y, names, _imbalance(y, names)
    values = contents.columns.numbers(label)[rows]
    fractions = values[values != np.round(values)]
    if task == "classes" and len(fractions):
        raise DataError(
            f"task = 'classes', but a label is {float(fractions[0])}, neither text nor a whole "
            "number: use task = 'values'"
        )
    different = np.unique(values)
    few = len(fractions) == 0 and len(different) <= CLASSES
    if task == "classes" or (task == "auto" and few):
        y = np.searchsorted(different, values)
        names = tuple(f"{value:.0f}" for value in different.tolist())
        return y, names, _imbalance(y, names)
    notes = []
    if task == "auto" and len(fractions) == 0:
        notes.append(
            f"the label {label!r} has {len(different)} different whole numbers: taken as a value "
            "to predict; if they are classes, say task = 'classes'"
        )
    return values.astype(np.float32), (), notes


def _event_gaps(contents: Contents, event: str) -> np.ndarray:
    if event not in contents.columns.names:
        raise DataError(
            f"label names the events {event!r}, which is no column: {contents.columns.names[:10]}"
        )
    return contents.columns.gaps(event)


def _times(contents: Contents, event: str, rows: np.ndarray) -> np.ndarray:
    """Times and events (N, 2), for Cox's loss."""
    for name in (contents.label, event):
        if contents.columns.column(name).becomes not in ("number", "boolean"):
            raise DataError(
                f"the column {name!r} holds no numbers: label = 'time,event' needs a time and "
                "whether there was an event, 1 or 0"
            )
    both = [contents.columns.numbers(name)[rows] for name in (contents.label, event)]
    return np.stack(both, 1).astype(np.float32)


def _text_classes(
    contents: Contents, column: Column, rows: np.ndarray
) -> tuple[tuple[str, ...], np.ndarray]:
    if column.becomes == "text":
        texts, codes = contents.texts(column.name)
        used, y = np.unique(codes[rows], return_inverse=True)
        return tuple(texts[used].tolist()), y
    if column.becomes == "boolean":
        used, y = np.unique(contents.columns.numbers(column.name)[rows], return_inverse=True)
        return tuple(column.words[int(value)] for value in used), y
    raise DataError(f"the label {column.name!r} holds dates: name another column")


def _imbalance(y: np.ndarray, names: Sequence[str]) -> list[str]:
    counts = np.bincount(y)
    most = int(counts.argmax())
    share = counts[most] / len(y)
    if share < IMBALANCE or len(counts) < 2:
        return []
    better = "auroc" if len(counts) == 2 else "likelihood"
    return [
        f"{100 * share:.1f} % of the rows are {names[most]!r}, so a model that always says so has "
        f"that accuracy: score = {better!r} tells more"
    ]


# Arrays


def _from_npz(
    file: Path, client: str | None, scale: bool, clients: int | None, test: float, seed: int
) -> Federation | Pool:
    needed = ["x", "y"] if client is None else ["x", "y", client]
    arrays = _load_npz(file, needed)
    x, y = arrays["x"], arrays["y"]
    numeric = x.shape[1] if scale and x.ndim == 2 and x.dtype.kind == "f" else 0
    owners = arrays.get(client or CLIENT)
    if owners is None:
        if clients is not None:
            raise ConfigError(_no_clients(clients))
        official = np.zeros(len(y), dtype=bool)
        prepare = partial(standardize_columns, columns=numeric)
        return Pool(x, y, official, test, seed, partition=None, prepare=prepare)
    names, owner = number_clients(owners)
    federation = natural_federation(x, y, owner, test, seed, clients, names)
    return standardize_columns(federation, numeric)


def _load_npz(file: Path, needed: list[str]) -> Arrays:
    try:
        with np.load(file) as opened:
            arrays = {name: opened[name] for name in opened.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{str(file)!r} is not an npz file of plain arrays: {error}") from None
    missing = [name for name in needed if name not in arrays]
    if missing:
        raise DataError(
            f"{str(file)!r} holds {sorted(arrays)}: it needs {' and '.join(missing)} too"
        )
    return arrays
