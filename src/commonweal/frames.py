"""Columns as a data frame of pandas or polars, whichever is installed."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec

from commonweal.values import Value

__all__ = ["frame"]


def frame(columns: Mapping[str, Sequence[object]]) -> Value:
    """A pandas DataFrame, else a polars one; a dict of lists where neither is installed."""
    plain = {name: list(values) for name, values in columns.items()}
    for library in ("pandas", "polars"):
        if find_spec(library) is not None:
            return import_module(library).DataFrame(plain)
    return plain
