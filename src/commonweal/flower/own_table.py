"""Tables of clients that see no other client's rows: how their columns are agreed.

Each client describes its training rows by sums and counts. From all descriptions follows one
preprocessing, by which every client prepares its own rows.
"""

import inspect
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from commonweal.base.errors import DataError
from commonweal.data.federation import Features, Federation
from commonweal.data.plain_table import Column
from commonweal.data.preprocessing import Preprocessing, Summary, fit_sums, fit_text
from commonweal.data.split import Split, quota, split_rows
from commonweal.datasets._fit import Table
from commonweal.datasets._tables import separator_in
from commonweal.datasets.table import CLASSES, open_table, read_labels, table

__all__ = ["CommonSchema", "OwnTable", "check_table", "common_schema"]

SENT = 1000  # of a column's texts, the most frequent ones
KINDS = {"number": "numbers", "boolean": "yes or no", "date": "dates", "text": "texts"}


class OwnTable:
    """The file of one client.

    values: the parameters of the dataset `table`
    """

    def __init__(self, name: str, values: dict[str, Any]) -> None:
        bound = inspect.signature(table).bind(**values)
        bound.apply_defaults()
        self.name = name
        self.values: dict[str, Any] = bound.arguments

    @cached_property
    def contents(self) -> Table:
        names = ("label", "client", "drop", "keep", "separator", "encoding")
        return open_table(self.path, **{key: self.values[key] for key in names})

    @property
    def path(self) -> Path:
        return Path(self.values["path"]).expanduser()

    @cached_property
    def rows(self) -> np.ndarray:
        """The numbers of this client's rows. Raises DataError where there are others'."""
        rows = self.contents.complete()
        if self.contents.client is not None:
            names, owner = self.contents.texts(self.contents.client)
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
        labels = read_labels(self.contents, self.values["task"], self.rows)
        return labels.y, labels.class_names

    @cached_property
    def split(self) -> Split:
        """Training and test rows, by their numbers in the file."""
        owner = np.zeros(len(self.rows), dtype=np.int64)
        test, seed = self.values["test"], self.values["seed"]
        return split_rows(owner, self.labels[0], test, seed, [self.name]).within(self.rows)

    def training_rows(self, validation: float) -> int:
        """How many rows the client trains on, once a share of them is held out for validation."""
        sizes = np.array([len(self.split.train.rows)])
        return int((sizes - quota(sizes, validation))[0])

    def describe(self) -> dict[str, Any]:
        """What is told about the training rows: sums of numbers, counts of texts, classes."""
        rows = self.split.train.rows
        skipped = (self.contents.label, self.contents.client)
        names = [name for name in self.contents.profiles if name not in skipped]
        separator = self.values["separator"]
        if separator == "auto":
            separator = separator_in(self.path, self.values["encoding"])
        return {
            "columns": [self._describe(name, rows) for name in names],
            "label": self._describe_label(rows),
            "options": {key: self.values[key] for key in ("scale", "levels", "task", "encoding")},
            "separator": separator,
        }

    def _describe(self, name: str, rows: np.ndarray) -> dict[str, Any]:
        columns = self.contents
        column = columns.column(name)
        described = asdict(column) | {"ambiguous": columns.profiles[name].ambiguous}
        if column.becomes == "nothing":
            return described
        if column.becomes != "text":
            return described | {"sums": _sums(columns.numbers(name)[rows])}
        texts, codes = columns.texts(name)
        own = codes[rows]
        counts = np.bincount(own[own >= 0], minlength=len(texts)).tolist()
        pairs = zip(texts.tolist(), counts, strict=True)
        frequent = sorted(pairs, key=lambda each: (-each[1], each[0]))[:SENT]
        kept = {text: count for text, count in frequent if count}
        return described | {"texts": kept, "gaps": int((own < 0).sum())}

    def _describe_label(self, rows: np.ndarray) -> dict[str, Any]:
        column = self.contents.column(self.contents.label)
        described: dict[str, Any] = {
            "name": column.name,
            "becomes": column.becomes,
            "words": column.words,
        }
        if column.becomes != "number":
            return described | {"classes": list(self.labels[1])}
        values = self.contents.numbers(column.name)
        different = np.unique(values[self.rows])
        whole = bool((different == np.round(different)).all())
        few = whole and (len(different) <= CLASSES or self.values["task"] == "classes")
        classes = different.tolist() if few else None
        return described | {"classes": classes, "sums": _sums(values[rows])}

    def prepared(self, agreed: "CommonSchema") -> Federation:
        """The client's rows as all clients have agreed to prepare them."""
        names = agreed.preprocessing.class_names
        used = agreed.preprocessing.used
        split = self.split
        if agreed.loss == "squared":
            labels = self.contents.numbers(self.contents.label).astype(np.float32)
        else:
            labels = self._classes(names)
        return Federation.from_split(
            split,
            Features(
                train=self.contents.features(used, split.train.rows),
                test=self.contents.features(used, split.test.rows),
                preprocessing=agreed.preprocessing,
            ),
            torch.from_numpy(labels),
            outputs=agreed.outputs,
            loss=agreed.loss,
            score=agreed.score,
            class_names=names,
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


def _sums(values: np.ndarray) -> list[float]:
    summary = Summary.of(values)
    return [summary.count, summary.gaps, float(summary.total), summary.squares]


# What all clients share


@dataclass(frozen=True)
class CommonSchema:
    """How all clients prepare their rows, and what they learn."""

    preprocessing: Preprocessing
    outputs: int
    loss: str
    score: str
    target: tuple[float, float] | None  # mean and deviation of labels that are values

    @property
    def shape(self) -> tuple[int]:
        return (len(self.preprocessing.features),)

    def text(self) -> str:
        """As JSON, for messages."""
        return json.dumps(self.preprocessing.values())

    @classmethod
    def read(cls, text: str) -> "CommonSchema":
        """Invert `text`."""
        return cls.of(Preprocessing.read(text))

    @classmethod
    def of(cls, preprocessing: Preprocessing) -> "CommonSchema":
        """What follows from a preprocessing."""
        classes = len(preprocessing.class_names)
        if classes:
            return cls(preprocessing, classes, "cross-entropy", "accuracy", None)
        known = preprocessing.target
        target = (known["mean"], known["deviation"]) if known else None
        return cls(preprocessing, 1, "squared", "r2", target)


def common_schema(tables: Mapping[str, dict[str, Any]]) -> CommonSchema:
    """The preprocessing that follows from all clients' descriptions, by name.

    Raises DataError where they do not fit, with the clients' names.
    """
    first, *_ = sorted(tables)
    for name, described in tables.items():
        check_columns(first, tables[first], name, described)
    names = [column["name"] for column in tables[first]["columns"]]
    options = tables[first]["options"]
    columns = []
    for name in names:
        by_client = {client: _column(tables[client], name) for client in sorted(tables)}
        columns.append(_fitted(name, by_client, options))
    if not any(column.becomes != "nothing" for column in columns):
        left_out = "; ".join(f"{column.name!r}: {column.why}" for column in columns[:5])
        raise DataError(f"no column is left to learn from ({left_out})")
    labels = {client: tables[client]["label"] for client in sorted(tables)}
    classes = _class_names(labels, options["task"])
    preprocessing = Preprocessing(
        columns=tuple(columns),
        label=tables[first]["label"]["name"],
        class_names=classes,
        separator=tables[first]["separator"],
        encoding=options["encoding"],
        statistics="federated",
        target={} if classes else _target(labels),
    )
    return CommonSchema.of(preprocessing)


def check_columns(
    first: str, expected: dict[str, Any], name: str, described: dict[str, Any]
) -> None:
    """Raise DataError unless two clients' files have the same columns."""
    wanted, there = (
        {column["name"] for column in each["columns"]} for each in (expected, described)
    )
    for column in sorted(wanted ^ there):
        without, other = (name, first) if column in wanted else (first, name)
        raise DataError(
            f"the file of {without!r} has no column {column!r}, but that of {other!r} has: give "
            "all files the same columns"
        )


def check_table(agreed: CommonSchema, described: dict[str, Any]) -> None:
    """Raise DataError where the table of a client that joins late cannot be prepared as agreed."""
    for column in agreed.preprocessing.columns:
        found = [each for each in described["columns"] if each["name"] == column.name]
        if column.becomes == "nothing":
            continue
        if not found:
            raise DataError(f"its file has no column {column.name!r}")
        becomes = found[0]["becomes"]
        if becomes != column.becomes and not _is_empty(found[0]):
            raise DataError(
                f"its column {column.name!r} holds {KINDS.get(becomes, 'ids')}, but "
                f"{KINDS[column.becomes]} at the others"
            )
    known = set(agreed.preprocessing.class_names)
    label = described["label"]
    names = _names_of(label) if known else []
    unknown = [each for each in names if each not in known]
    if unknown:
        raise DataError(
            f"its label {unknown[0]!r} is not among the classes that were agreed on: start again "
            "with all clients"
        )


def _column(described: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        column for column in described["columns"] if column["name"] == name
    )
    return found


def _is_empty(column: dict[str, Any]) -> bool:
    """Whether no row has a value in it."""
    return column["becomes"] == "text" and not column["texts"]


def _fitted(name: str, by_client: Mapping[str, dict[str, Any]], options: dict[str, Any]) -> Column:
    for client, described in by_client.items():
        if described["becomes"] == "nothing":
            why = f"at {client!r} {described['why']}"
            return Column(name, "nothing", why, is_id=described["is_id"])
    filled = {client: c for client, c in by_client.items() if not _is_empty(c)}
    if not filled:
        return Column(name, "nothing", why="no training row has a value")
    _check_kinds(name, filled)
    first = next(iter(filled.values()))
    column = Column(**{key: first[key] for key in ("name", "becomes", "decimal", "words", "order")})
    if column.becomes == "text":
        total: Counter[str] = Counter()
        for each in filled.values():
            total.update(each["texts"])
        gaps = sum(each["gaps"] for each in by_client.values() if "gaps" in each)
        texts = sorted(total)
        counts = np.array([*(total[text] for text in texts), gaps])
        return fit_text(column, counts, texts, options["levels"])
    whole = sum((Summary(*each["sums"]) for each in filled.values()), Summary(0, 0, 0.0, 0.0))
    empty = sum(each["gaps"] for each in by_client.values() if _is_empty(each))
    whole = replace(whole, gaps=whole.gaps + empty)
    # The median would take further queries: the mean follows from the sums.
    middle = whole.mean
    if column.becomes == "boolean":
        middle = float(2 * whole.total > whole.count)
    return fit_sums(column, whole, middle, options["scale"])


def _check_kinds(name: str, by_client: Mapping[str, dict[str, Any]]) -> None:
    for key, said in (("becomes", KINDS), ("order", {})):
        clients: dict[str, str] = {}  # what it holds -> one of the clients
        for client, column in by_client.items():
            clients.setdefault(column[key], client)
        if len(clients) > 1:
            (one, here), (other, there) = list(clients.items())[:2]
            remedy = "correct the file" if key == "becomes" else "write dates as 2026-11-16"
            raise DataError(
                f"column {name!r} holds {said.get(one, one)} at {here!r}, but "
                f"{said.get(other, other)} at {there!r}: {remedy}, or leave it out with drop"
            )


def _names_of(label: dict[str, Any]) -> list[str]:
    if label["becomes"] != "number":
        return list(label["classes"])
    return [f"{value:.0f}" for value in label["classes"] or ()]


def _class_names(labels: Mapping[str, dict[str, Any]], task: str) -> tuple[str, ...]:
    """The names of all classes in the order of one table of all rows; empty: labels are values."""
    first = next(iter(labels.values()))
    _check_kinds(first["name"], {client: label | {"order": ""} for client, label in labels.items()})
    every = dict.fromkeys(name for label in labels.values() for name in _names_of(label))
    if first["becomes"] == "text":
        return tuple(sorted(every))
    if first["becomes"] == "boolean":
        words = {tuple(label["words"]) for label in labels.values()}
        if len(words) > 1:
            raise DataError(f"the label holds different words: {sorted(words)}: use the same")
        return tuple(word for word in first["words"] if word in every)
    few = all(label["classes"] is not None for label in labels.values()) and (
        len(every) <= CLASSES or task == "classes"
    )
    return tuple(sorted(every, key=int)) if few and task != "values" else ()


def _target(labels: Mapping[str, dict[str, Any]]) -> dict[str, float]:
    sums = [Summary(*label["sums"]) for label in labels.values()]
    whole = sum(sums, Summary(0, 0, 0.0, 0.0))
    if whole.deviation <= 1e-12 * abs(whole.mean):
        return {}
    return {"mean": whole.mean, "deviation": whole.deviation}
