"""Tables of clients that see no other client's rows: how their columns are agreed.

Each client describes its training rows by sums and counts. From all descriptions follows one
preprocessing, by which every client prepares its own rows.
"""

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pydantic
import torch

from commonweal.base.errors import DataError
from commonweal.data.federation import Features, Federation
from commonweal.data.plain_table import Column
from commonweal.data.preprocessing import Preprocessing, Summary, fit_sums, fit_text
from commonweal.data.split import Split, quota, split_rows
from commonweal.datasets._fit import make_features
from commonweal.datasets._table_files import read_batches, separator_in
from commonweal.datasets._tables import Names, Roles, Table, names_in
from commonweal.datasets.table import CLASSES, Task, open_table, read_labels, table

SENT = 1000  # categories of a column, the most frequent ones
KINDS = {"number": "numbers", "boolean": "yes or no", "date": "dates", "text": "words"}
Sums = tuple[int, int, float, float]  # of numbers: count, gaps, total, total of squares
NOTHING = Summary(0, 0, 0.0, 0.0)


@dataclass(frozen=True)
class ColumnSchema:
    """What a client says about a column: sums of its numbers, or counts of its categories."""

    column: Column
    ambiguous: bool
    sums: Sums | None = None
    categories: dict[str, int] = field(default_factory=dict)
    gaps: int = 0  # of a column of categories

    @property
    def empty(self) -> bool:
        """Whether no training row has a value in it."""
        return self.column.becomes == "text" and not self.categories


@dataclass(frozen=True)
class LabelSchema:
    """What a client says about its labels."""

    name: str
    becomes: str
    words: tuple[str, str]
    classes: tuple[str, ...] | None  # by name; None: the labels are values
    sums: Sums | None = None


@dataclass(frozen=True)
class TableSchema:
    """What a client says about its table, once."""

    columns: dict[str, ColumnSchema]
    label: LabelSchema
    scale: bool
    levels: int
    task: str
    encoding: str
    separator: str


@dataclass(frozen=True)
class TableOptions:
    """The parameters of the dataset `table` that matter for one client's file."""

    path: Path
    label: str
    client: str | None
    drop: Names
    keep: Names
    categories: Names
    missing: Names
    task: Task
    scale: bool
    levels: int
    separator: str
    encoding: str
    test: float
    seed: int

    @classmethod
    def read(cls, values: Mapping[str, object]) -> "TableOptions":
        """Read the parameters of an experiment's dataset; the others have their defaults."""
        bound = inspect.signature(table).bind(**values)
        bound.apply_defaults()
        unused = [key for key in ("order", "split") if bound.arguments[key]]
        if unused or bound.arguments["test"] == "last":
            given = unused or ["test = 'last'"]
            raise DataError(f"{', '.join(given)} does not work on nodes: remove it")
        return pydantic.TypeAdapter(cls).validate_python(bound.arguments)


class OwnTable:
    """The file of one client.

    Args:
        name: The client's name.
        options: How its file is read.
    """

    def __init__(self, name: str, options: TableOptions) -> None:
        self.name = name
        self.options = options
        self.path = options.path.expanduser()

    @cached_property
    def contents(self) -> Table:
        options = self.options
        separator, encoding = options.separator, options.encoding
        present = next(read_batches(self.path, separator, encoding), {})
        # Files may differ in columns that no client uses.
        roles = Roles(
            label=options.label,
            client=options.client,
            drop=tuple(name for name in names_in(options.drop) if name in present),
            keep=names_in(options.keep),
            categories=names_in(options.categories),
            missing=names_in(options.missing),
        )
        return open_table(self.path, roles, separator, encoding)

    @cached_property
    def rows(self) -> np.ndarray:
        """The numbers of this client's rows. Raises DataError where there are others'."""
        rows = self.contents.complete()
        clients = self.contents.clients()
        if clients is not None:
            names, owner = clients
            present = names[np.unique(owner[rows])].tolist()
            if present != [self.name]:
                raise DataError(
                    f"the file has rows of {present[:5]}, but this node is {self.name!r}: give the "
                    "node a file of its own rows"
                )
        return rows

    @cached_property
    def labels(self) -> tuple[np.ndarray, tuple[str, ...]]:
        """Labels and classes as this file alone would have them."""
        labels = read_labels(self.contents, self.options.task, self.rows)
        return labels.y, labels.class_names

    @cached_property
    def split(self) -> Split:
        """Training and test rows, by their numbers in the file."""
        owner = np.zeros(len(self.rows), dtype=np.int64)
        test, seed = self.options.test, self.options.seed
        return split_rows(owner, self.labels[0], test, seed, [self.name]).within(self.rows)

    def training_rows(self, validation: float) -> int:
        """How many rows the client trains on, once a share of them is held out for validation."""
        sizes = np.array([len(self.split.train.rows)])
        return int((sizes - quota(sizes, validation))[0])

    def describe(self) -> TableSchema:
        """Describe the training rows: sums of numbers, counts of categories, classes."""
        rows = self.split.train.rows
        options = self.options
        skipped = (*self.contents.facts.no_features, *names_in(options.drop))
        names = [name for name in self.contents.profiles if name not in skipped]
        separator = options.separator
        if separator == "auto":
            separator = separator_in(self.path, options.encoding)
        return TableSchema(
            columns={name: self._describe(name, rows) for name in names},
            label=self._describe_label(rows),
            scale=options.scale,
            levels=options.levels,
            task=options.task,
            encoding=options.encoding,
            separator=separator,
        )

    def _describe(self, name: str, rows: np.ndarray) -> ColumnSchema:
        column = self.contents.column(name)
        schema = ColumnSchema(column, self.contents.profiles[name].ambiguous)
        if column.becomes == "nothing":
            return schema
        if column.becomes != "text":
            return replace(schema, sums=_sums(self.contents.numbers(name)[rows]))
        categories, codes = self.contents.texts(name)
        own = codes[rows]
        counts = np.bincount(own[own >= 0], minlength=len(categories)).tolist()
        pairs = zip(categories.tolist(), counts, strict=True)
        frequent = sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:SENT]
        known = {category: count for category, count in frequent if count}
        return replace(schema, categories=known, gaps=int((own < 0).sum()))

    def _describe_label(self, rows: np.ndarray) -> LabelSchema:
        column = self.contents.column(self.contents.label)
        sums = None
        if column.becomes == "number":
            sums = _sums(self.contents.numbers(column.name)[rows])
        classes = self.labels[1] or None
        return LabelSchema(column.name, column.becomes, column.words, classes, sums)

    def prepared(self, agreed: Preprocessing) -> Federation:
        """The client's rows as all clients have agreed to prepare them."""
        split = self.split
        goal = goal_of(agreed)
        if agreed.class_names:
            labels = self._classes(agreed.class_names)
        else:
            labels = self.contents.numbers(self.contents.label).astype(np.float32)
        return Federation.from_split(
            split,
            Features(
                train=make_features(self.contents, agreed.used, split.train.rows),
                test=make_features(self.contents, agreed.used, split.test.rows),
                preprocessing=agreed,
            ),
            torch.from_numpy(labels),
            class_names=agreed.class_names,
            **goal._asdict(),
        )

    def _classes(self, names: Sequence[str]) -> np.ndarray:
        """The agreed class of every row of the file; -1 where it has no label."""
        y, own = self.labels
        if not own:
            raise DataError(
                f"its labels are values, but the clients have agreed on {len(names)} classes"
            )
        unknown = [name for name in own if name not in names]
        if unknown:
            raise DataError(
                f"its label {unknown[0]!r} is not among the classes that were agreed on "
                f"({', '.join(names[:5])}): start again with all clients"
            )
        classes = np.full(self.contents.rows, -1, dtype=np.int64)
        classes[self.rows] = np.array([names.index(name) for name in own])[y]
        return classes


def _sums(values: np.ndarray) -> Sums:
    summary = Summary.of(values)
    return summary.count, summary.gaps, float(summary.total), summary.squares


# What all clients share


class Goal(NamedTuple):
    """What is learned from prepared rows."""

    outputs: int
    loss: str
    score: str


def goal_of(preprocessing: Preprocessing) -> Goal:
    """What follows from the labels' names."""
    classes = len(preprocessing.class_names)
    return Goal(classes, "cross-entropy", "accuracy") if classes else Goal(1, "squared", "r2")


def merged(tables: Mapping[str, TableSchema]) -> Preprocessing:
    """The preprocessing that follows from all clients' tables, by name.

    Raises DataError where they do not fit, with the clients' names.
    """
    clients = sorted(tables)
    first = tables[clients[0]]
    for client in tables:
        check_columns(clients[0], first, client, tables[client])
    columns = []
    for name in first.columns:
        by_client = {client: tables[client].columns[name] for client in clients}
        columns.append(_fitted(name, by_client, first))
    labels = {client: tables[client].label for client in clients}
    classes = _class_names(labels, first.task)
    preprocessing = Preprocessing(
        columns=tuple(columns),
        label=first.label.name,
        class_names=classes,
        separator=first.separator,
        encoding=first.encoding,
        statistics="federated",
        target={} if classes else _target(labels),
    )
    if not preprocessing.used:
        left_out = "; ".join(f"{column.name!r}: {column.why}" for column in columns[:5])
        raise DataError(f"no column is left to learn from ({left_out})")
    return preprocessing


def check_columns(first: str, expected: TableSchema, name: str, given: TableSchema) -> None:
    """Raise DataError unless two clients' files have the same columns."""
    for column in sorted(expected.columns.keys() ^ given.columns.keys()):
        without, other = (name, first) if column in expected.columns else (first, name)
        raise DataError(
            f"the file of {without!r} has no column {column!r}, but that of {other!r} has: give "
            f"all files the same columns, or leave it out everywhere with drop = [{column!r}]"
        )


def check_table(common: Preprocessing, given: TableSchema) -> None:
    """Raise DataError where the table of a client that joins late cannot be prepared as others."""
    for column in common.used:
        if column.name not in given.columns:
            raise DataError(f"its file has no column {column.name!r}")
        own = given.columns[column.name]
        becomes = own.column.becomes
        if becomes != column.becomes and not own.empty:
            raise DataError(
                f"its column {column.name!r} holds {KINDS.get(becomes, 'ids')}, but "
                f"{KINDS[column.becomes]} at the others"
            )
    known = common.class_names
    unknown = [name for name in given.label.classes or () if known and name not in known]
    if unknown:
        raise DataError(
            f"its label {unknown[0]!r} is not among the classes that were agreed on: start again "
            "with all clients"
        )


def _fitted(name: str, by_client: Mapping[str, ColumnSchema], options: TableSchema) -> Column:
    for client, schema in by_client.items():
        if schema.column.becomes == "nothing":
            why = f"at {client!r} {schema.column.why}"
            return Column(name, "nothing", why, is_id=schema.column.is_id)
    filled = {client: schema for client, schema in by_client.items() if not schema.empty}
    if not filled:
        return Column(name, "nothing", why="no training row has a value")
    _check_same(name, {client: schema.column.becomes for client, schema in filled.items()})
    orders = {client: schema.column.order for client, schema in filled.items()}
    _check_same(name, orders, "write dates as 2026-11-16")
    first = next(iter(filled.values())).column
    column = Column(
        name, first.becomes, decimal=first.decimal, words=first.words, order=first.order
    )
    total: Counter[str] = Counter()
    whole = NOTHING
    gaps = 0  # of clients that describe categories
    for schema in by_client.values():
        total.update(schema.categories)
        gaps += schema.gaps
        if schema.sums is not None:
            whole += Summary(*schema.sums)
    if column.becomes == "text":
        categories = sorted(total)
        counts = np.array([*map(total.__getitem__, categories), gaps])
        return fit_text(column, counts, categories, options.levels)
    whole = replace(whole, gaps=whole.gaps + gaps)
    # The median would take further queries: the mean follows from the sums.
    middle = whole.mean
    if column.becomes == "boolean":
        middle = float(2 * whole.total > whole.count)
    return fit_sums(column, whole, middle, options.scale)


def _check_same(name: str, by_client: Mapping[str, str], remedy: str = "correct the file") -> None:
    """Raise DataError where a column holds one thing at a client and another at the next."""
    clients: dict[str, str] = {}  # what it holds -> one of the clients
    for client, kind in by_client.items():
        clients.setdefault(kind, client)
    if len(clients) > 1:
        (one, here), (other, there) = list(clients.items())[:2]
        raise DataError(
            f"column {name!r} holds {KINDS.get(one, one)} at {here!r}, but "
            f"{KINDS.get(other, other)} at {there!r}: {remedy}, or leave it out with drop"
        )


def _class_names(labels: Mapping[str, LabelSchema], task: str) -> tuple[str, ...]:
    """The names of all classes in the order of one table of all rows; empty: regression."""
    first = next(iter(labels.values()))
    _check_same(first.name, {client: label.becomes for client, label in labels.items()})
    every: set[str] = set()
    few = True  # numbers are few enough to be classes at all clients
    for label in labels.values():
        every.update(label.classes or ())
        few = few and label.classes is not None
    if first.becomes == "text":
        return tuple(sorted(every))
    if first.becomes == "boolean":
        words = {label.words for label in labels.values()}
        if len(words) > 1:
            raise DataError(f"the label holds different words: {sorted(words)}: use the same")
        return tuple(word for word in first.words if word in every)
    few = few and task != "values" and (len(every) <= CLASSES or task == "classes")
    return tuple(sorted(every, key=int)) if few else ()


def _target(labels: Mapping[str, LabelSchema]) -> dict[str, float]:
    whole = NOTHING
    for label in labels.values():
        if label.sums is not None:
            whole += Summary(*label.sums)
    if whole.deviation <= 1e-12 * abs(whole.mean):
        return {}
    return {"mean": whole.mean, "deviation": whole.deviation}
