"""Tables of clients that see no other client's rows: how their columns are agreed.

Each client describes its training rows by sums and counts. From all descriptions follows one
preprocessing, by which every client prepares its own rows.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from commonweal.base.errors import DataError, PolicyError
from commonweal.data.federation import Features, Federation
from commonweal.data.split import Split, quota, split_rows
from commonweal.data.tables.columns import Roles, Table, names_in
from commonweal.data.tables.files import read_batches, separator_in
from commonweal.data.tables.fit import make_features, on_lacking
from commonweal.data.tables.plain_table import PlainColumn
from commonweal.data.tables.preprocessing import (
    Preprocessing,
    Summary,
    described,
    fit_sums,
    fit_text,
    middle,
    often,
)
from commonweal.datasets.table import CLASSES, TableLabels, open_table, read_labels

SENT = 1000  # categories of a column, the most frequent ones
KINDS = {"number": "numbers", "boolean": "yes or no", "date": "dates", "text": "words"}


@dataclass(frozen=True)
class ColumnSchema:
    """A client's description of a column: sums of its numbers, or counts of its categories."""

    column: PlainColumn
    sums: Summary | None = None
    categories: dict[str, int] = field(default_factory=dict)
    gaps: int = 0  # of a column of categories

    @property
    def empty(self) -> bool:
        """True if no training row has a value in it."""
        return self.column.becomes == "text" and not self.categories


@dataclass(frozen=True)
class TableSchema:
    """A client's description of its table, given once."""

    columns: dict[str, ColumnSchema]
    label: ColumnSchema  # without the counts of its categories
    classes: tuple[str, ...] | None  # the names of the labels; None: they are values
    scale: bool
    levels: int
    task: str
    encoding: str
    separator: str
    rows: int = 0  # for training
    union: bool = False  # clients may have different columns


class OwnTable:
    """The file of one client.

    Args:
        name: The client's name.
        path: The file.
        options: The parameters of the dataset `table`.
    """

    def __init__(self, name: str, path: str, options: Mapping[str, Any]) -> None:
        self.name = name
        self.path = Path(path).expanduser()
        self.options = options
        unused = [key for key in ("order", "split") if options[key]]
        if unused or options["test"] == "last":
            given = unused or ["test = 'last'"]
            raise DataError(f"{', '.join(given)} does not work on nodes: remove it")

    @cached_property
    def contents(self) -> Table:
        separator, encoding = self.options["separator"], self.options["encoding"]
        present = next(read_batches(self.path, separator, encoding), {})
        # Files may differ in columns that no client uses.
        roles = Roles(
            label=self.options["label"],
            client=self.options["client"],
            drop=tuple(name for name in names_in(self.options["drop"]) if name in present),
            keep=self._present("keep", present),
            categories=self._present("categories", present),
            missing=self._present("missing", present),
        )
        return open_table(self.path, roles, separator, encoding)

    def _present(self, option: str, present: Collection[str]) -> tuple[str, ...]:
        """The columns of an option, with columns = "union" as far as this file has them."""
        entries = names_in(self.options[option])
        if self.options["columns"] != "union":
            return entries
        return tuple(entry for entry in entries if {entry, entry.rpartition("=")[0]} & {*present})

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
    def labels(self) -> TableLabels:
        """Labels and classes as this file alone would have them."""
        return read_labels(self.contents, self.options["task"], self.rows)

    @cached_property
    def split(self) -> Split:
        """Training and test rows, by their numbers in the file."""
        owner = np.zeros(len(self.rows), dtype=np.int64)
        test, seed = self.options["test"], self.options["seed"]
        return split_rows(owner, self.labels.y, test, seed, [self.name]).within(self.rows)

    def training_rows(self, validation: float) -> int:
        """The number of rows the client trains on, without the share that is for validation."""
        sizes = np.array([len(self.split.train.rows)])
        return int((sizes - quota(sizes, validation))[0])

    def describe(self) -> TableSchema:
        """Describe the training rows: sums of numbers, counts of categories, classes."""
        options = self.options
        skipped = (*self.contents.facts.no_features, *names_in(options["drop"]))
        names = [name for name in self.contents.profiles if name not in skipped]
        separator = options["separator"]
        if separator == "auto":
            separator = separator_in(self.path, options["encoding"])
        label = self.contents.column(self.contents.label)
        least = options["least_count"]
        classes = self._classes(least)
        sums = None
        if label.becomes == "number" and (least == 1 or not classes):
            sums = self._sums(label.name)
        return TableSchema(
            columns={name: self._describe(name) for name in names},
            label=ColumnSchema(label, sums),
            classes=classes,
            scale=options["scale"],
            levels=options["levels"],
            task=options["task"],
            encoding=options["encoding"],
            separator=separator,
            rows=len(self.split.train.rows),
            union=options["columns"] == "union",
        )

    def _classes(self, least: int) -> tuple[str, ...] | None:
        """The names of the classes, of those that are frequent enough. None: labels are values."""
        names = self.labels.class_names
        counts = np.bincount(self.labels.y, minlength=len(names)) if names else ()
        known = tuple(name for name, count in zip(names, counts, strict=True) if count >= least)
        if names and not known:
            raise PolicyError(f"no class has {least} rows here (min_count)")
        return known or None

    def _sums(self, name: str) -> Summary | None:
        values = self.contents.numbers(name)[self.split.train.rows]
        least: int = self.options["least_count"]
        return Summary.of(values) if least == 1 else described(values, least)

    def _describe(self, name: str) -> ColumnSchema:
        column = self.contents.column(name)
        least: int = self.options["least_count"]
        rows = len(self.split.train.rows)
        if column.becomes == "nothing" and least > 1:  # the reason may quote a value
            return ColumnSchema(PlainColumn(name, "nothing", why="it cannot be used"))
        if column.becomes == "nothing":
            return ColumnSchema(column)
        if column.becomes != "text":
            sums = self._sums(name)
            if sums is None:  # as if the client did not have the column
                return ColumnSchema(PlainColumn(name, "text"), gaps=rows)
            return ColumnSchema(column, sums)
        categories, codes = self.contents.texts(name)
        own = codes[self.split.train.rows]
        counts = np.bincount(own[own >= 0], minlength=len(categories))
        counts = often(counts, least).tolist()
        gaps = int((own < 0).sum())
        pairs = zip(categories.tolist(), counts, strict=True)
        frequent = sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:SENT]
        known = {category: count for category, count in frequent if count}
        return ColumnSchema(column, categories=known, gaps=gaps if gaps >= least else 0)

    def prepared(self, agreed: Preprocessing) -> Federation:
        """The client's rows as all clients have agreed to prepare them."""
        names = agreed.class_names
        if names:
            labels = np.full(self.contents.rows, -1, dtype=np.int64)
            written = {name: k for k, name in enumerate(names)}
            if self.contents.column(self.contents.label).becomes == "boolean":
                written = {name.lower(): k for name, k in written.items()}  # Yes here, yes there
            own = self.labels.class_names
            for name in own:  # a rare class that no other client has named either
                if name not in written and name.lower() not in written:
                    raise PolicyError("a class has too few rows everywhere (min_count)")
            positions = np.array([written.get(name, written.get(name.lower())) for name in own])
            labels[self.rows] = positions[self.labels.y]
        else:
            labels = self.contents.numbers(self.contents.label).astype(np.float32)
        train, test = self.split.train.rows, self.split.test.rows
        features = Features(
            train=make_features(self.contents, agreed.used, train),
            test=make_features(self.contents, agreed.used, test),
            preprocessing=agreed,
        )
        y = torch.from_numpy(labels)
        outputs = len(names) or None
        return Federation.from_split(self.split, features, y, outputs=outputs, class_names=names)


# What all clients share


def merged(tables: Mapping[str, TableSchema]) -> Preprocessing:
    """The preprocessing that follows from all clients' tables, by name.

    Raises DataError where they do not fit, with the clients' names.
    """
    tables = {client: tables[client] for client in sorted(tables)}
    name, first = next(iter(tables.items()))
    for client, table in tables.items():
        if not first.union:
            _check_columns(name, first, client, table)
    columns = []
    lacking: dict[str, list[str]] = {}
    for name in dict.fromkeys(chain(*(table.columns for table in tables.values()))):
        by_client = {}
        for client, table in tables.items():
            nothing = ColumnSchema(PlainColumn(name, "text"), gaps=table.rows)
            by_client[client] = table.columns.get(name, nothing)
        column = _fitted(name, by_client, first)
        lacking[name] = [client for client, table in tables.items() if name not in table.columns]
        columns.append(replace(column, optional=bool(lacking[name])))
    classes = _class_names(tables)
    preprocessing = Preprocessing(
        columns=tuple(columns),
        label=first.label.column.name,
        class_names=classes,
        separator=first.separator,
        encoding=first.encoding,
        statistics="federated",
        target={} if classes else _target(tables.values()),
        notes=on_lacking(lacking),
    )
    if not preprocessing.used:
        left_out = "; ".join(f"{column.name!r}: {column.why}" for column in columns[:5])
        raise DataError(f"no column is left to learn from ({left_out})")
    return preprocessing


def _check_columns(first: str, expected: TableSchema, name: str, given: TableSchema) -> None:
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
        if column.name not in given.columns and given.union:
            continue
        if column.name not in given.columns:
            raise DataError(f"its file has no column {column.name!r}")
        own = given.columns[column.name]
        becomes = own.column.becomes
        if becomes != column.becomes and not own.empty:
            raise DataError(
                f"its column {column.name!r} holds {KINDS.get(becomes, 'ids')}, but "
                f"{KINDS[column.becomes]} at the others"
            )
        if column.unit and own.column.unit not in ("", column.unit):
            raise DataError(
                f"its column {column.name!r} holds {own.column.unit}, but {column.unit} at the "
                "others: use one unit"
            )
    known = common.class_names
    if known and given.classes is None:
        raise DataError(f"its labels are values, but the clients have agreed on {known[:5]}")
    unknown = [name for name in given.classes or () if known and name not in known]
    if unknown:
        raise DataError(
            f"its label {unknown[0]!r} is not among the classes that were agreed on: start again "
            "with all clients"
        )


def _fitted(name: str, by_client: Mapping[str, ColumnSchema], options: TableSchema) -> PlainColumn:
    for client, schema in by_client.items():
        if schema.column.becomes == "nothing":
            why = f"at {client!r} {schema.column.why}"
            return PlainColumn(name, "nothing", why, is_id=schema.column.is_id)
    filled = {client: schema.column for client, schema in by_client.items() if not schema.empty}
    if not filled:
        return PlainColumn(name, "nothing", why="no training row has a value")
    _check_same(name, {client: column.becomes for client, column in filled.items()})
    orders = {client: column.order for client, column in filled.items()}
    _check_same(name, orders, "write dates as 2026-11-16")
    first = next(iter(filled.values()))
    column = PlainColumn(
        name,
        first.becomes,
        decimal=first.decimal,
        unit=_unit(name, filled),
        missing_as=tuple(dict.fromkeys(chain(*(own.missing_as for own in filled.values())))),
        words=first.words,
        order=first.order,
    )
    gaps = sum(schema.gaps for schema in by_client.values())  # where it holds categories
    if column.becomes == "text":
        total: Counter[str] = Counter()
        for schema in by_client.values():
            total.update(schema.categories)
        categories = sorted(total)
        counts = np.array([*map(total.__getitem__, categories), gaps])
        return fit_text(column, counts, categories, options.levels)
    whole = _whole(by_client.values())
    whole = replace(whole, gaps=whole.gaps + gaps)
    return fit_sums(column, whole, middle(column, whole), options.scale)


def _unit(name: str, by_client: Mapping[str, PlainColumn]) -> str:
    """The unit of a column's numbers, which some clients may leave out."""
    units = {client: column.unit for client, column in by_client.items() if column.unit}
    _check_same(name, units, "use one unit")
    return next(iter(units.values()), "")


def _whole(schemas: Iterable[ColumnSchema]) -> Summary:
    sums = [schema.sums for schema in schemas if schema.sums is not None]
    return sum(sums, Summary(0, 0, 0.0, 0.0))


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


def _class_names(tables: Mapping[str, TableSchema]) -> tuple[str, ...]:
    """The names of all classes in the order of one table of all rows; empty: regression."""
    labels = {client: table.label.column for client, table in tables.items()}
    first = next(iter(labels.values()))
    _check_same(first.name, {client: label.becomes for client, label in labels.items()})
    _unit(first.name, labels)
    every: set[str] = set().union(*(table.classes or () for table in tables.values()))
    if first.becomes == "text":
        return tuple(sorted(every))
    if first.becomes == "boolean":
        words = {tuple(map(str.lower, label.words)) for label in labels.values()}
        if len(words) > 1:
            raise DataError(f"the label holds different words: {sorted(words)}: use the same")
        present = {name.lower() for name in every}
        return tuple(word for word in first.words if word.lower() in present)
    task = next(iter(tables.values())).task
    few = task == "classes" or (task == "auto" and len(every) <= CLASSES)
    if not few or any(table.classes is None for table in tables.values()):
        return ()
    return tuple(sorted(every, key=int))


def _target(tables: Iterable[TableSchema]) -> dict[str, float]:
    whole = _whole(table.label for table in tables)
    if whole.deviation <= 1e-12 * abs(whole.mean):
        return {}
    return {"mean": whole.mean, "deviation": whole.deviation}
