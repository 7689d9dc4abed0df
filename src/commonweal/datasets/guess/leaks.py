"""Columns of a table that give its label away, or name its clients again.

A column that predicts the label almost perfectly on its own was often recorded after the outcome:
a date of death, a cause, a second form of the label. A person has to decide; this module points.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from commonweal.data.tables.columns import Table
from commonweal.datasets.guess.roles import names_clients, words

BINS = 20  # of a column of numbers, at least; in long tables up to MOST_BINS
MOST_BINS = 100
CLEAR = 0.9  # of the label's variance or uncertainty that a column explains
RELATED = 0.5  # the same, of a column whose name shares a word with the label's
PURE = 0.995  # the share of a class among the rows with some value
FREQUENT = 30  # rows with such a value
SURE = 0.5  # the class is not one that most rows have anyway


class Leak(NamedTuple):
    """The evidence that a column gives the label away."""

    why: str
    explained: float  # the part of the label that the column explains alone


def find_leaks(
    table: Table, rows: np.ndarray, y: np.ndarray, class_names: tuple[str, ...]
) -> dict[str, Leak]:
    """The columns of which a single one predicts the label almost perfectly, and what shows it.

    rows: those with a label y, which is a class, or without class names a value
    """
    leaks = {}
    label = set(words(table.label))
    for name in table.profiles:
        if name in table.facts.no_features or table.column(name).becomes == "nothing":
            continue
        values, shown = _bins(table, name, rows)
        explained = _explained(values, y, bool(class_names))
        related = bool(label.intersection(words(name)))
        if explained >= CLEAR or (related and explained >= RELATED):
            why = f"alone it explains {100 * explained:.0f} % of the label"
            leaks[name] = Leak(why, explained)
        elif class_names:
            why = _pure_value(values, shown, y, class_names)
            if why:
                leaks[name] = Leak(why, explained)
    return leaks


def _bins(table: Table, name: str, rows: np.ndarray) -> tuple[np.ndarray, Mapping[int, str]]:
    """The values of a column as small numbers, missing ones too, and how single values are shown.

    Numbers with many values are binned by quantiles; such bins are not shown.
    """
    if table.is_text(name):
        texts, codes = table.texts(name)
        own = codes[rows].astype(np.int64)
        shown = dict(enumerate(texts.tolist()))
        return np.where(own < 0, len(texts), own), shown | {len(texts): "(missing)"}
    numbers = table.numbers(name)[rows]
    different = np.unique(numbers[~np.isnan(numbers)])
    if len(different) <= BINS:
        values = np.searchsorted(different, numbers)  # NaN comes after all
        shown = {i: f"{value:g}" for i, value in enumerate(different.tolist())}
        return values, shown | {len(different): "(missing)"}
    bins = int(np.clip(len(rows) / 20, BINS, MOST_BINS))
    edges = np.quantile(numbers[~np.isnan(numbers)], np.linspace(0, 1, bins + 1)[1:-1])
    values = np.where(np.isnan(numbers), len(edges) + 1, np.searchsorted(edges, numbers))
    return values, {len(edges) + 1: "(missing)"}


def _explained(values: np.ndarray, y: np.ndarray, classes: bool) -> float:
    """The part of the label's variance, or of its errors, that goes away, on the other half.

    A random half predicts the other: by the mean label, or the most frequent class, of the rows
    with the same value.
    """
    first, second = np.array_split(np.random.default_rng(0).permutation(len(y)), 2)
    size = int(values.max()) + 1
    if classes:
        counts = np.zeros((size, int(y.max()) + 1))
        np.add.at(counts, (values[first], y[first]), 1)
        total = counts.sum(0)
        counts += 1e-3 * total / max(total.sum(), 1)  # unknown values get the most frequent class
        wrong = (counts.argmax(1)[values[second]] != y[second]).mean()
        usual = (total.argmax() != y[second]).mean()
        return 1 - float(wrong / usual) if usual > 0 else 0.0
    sums = np.bincount(values[first], y[first], size)
    known = np.bincount(values[first], minlength=size)
    mean = y[first].mean()
    predicted = np.where(known > 0, sums / np.maximum(known, 1), mean)
    variance = ((y[second] - mean) ** 2).mean()
    return 1 - float(((y[second] - predicted[values[second]]) ** 2).mean() / variance)


def _pure_value(
    values: np.ndarray, shown: Mapping[int, str], y: np.ndarray, class_names: tuple[str, ...]
) -> str:
    """A value whose rows all have one class that is not the usual one; empty: there is none."""
    shares = np.bincount(y, minlength=len(class_names)) / len(y)
    counts = np.zeros((int(values.max()) + 1, len(class_names)))
    np.add.at(counts, (values, y), 1)
    rows = counts.sum(1)
    for value, text in shown.items():
        if value >= len(rows) or rows[value] < FREQUENT:
            continue
        best = int(counts[value].argmax())
        if counts[value, best] >= PURE * rows[value] and shares[best] <= SURE:
            return f"all {int(rows[value])} rows with {text} are {class_names[best]!r}"
    return ""


def same_as_client(table: Table) -> list[str]:
    """The features that name the clients once more: strings or numbers, one for each."""
    coded = table.clients()
    names = []
    for name in table.profiles:
        if coded is None or name in table.facts.no_features:
            continue
        if table.column(name).becomes == "nothing" or table.gaps(name).any():
            continue
        if not table.is_text(name) and not names_clients(name):
            continue  # the age of a person is a feature
        values = table.texts(name)[1] if table.is_text(name) else table.numbers(name)
        different, position = np.unique(values, return_inverse=True)
        pairs = np.unique(coded[1].astype(np.int64) * len(different) + position)
        if len(different) == len(pairs) == len(coded[0]):
            names.append(name)
    return names
