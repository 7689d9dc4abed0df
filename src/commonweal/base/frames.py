"""Columns as a data frame of pandas or polars, whichever is installed."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

Column = Sequence[object] | np.ndarray[tuple[int], np.dtype[np.generic]]


def frame(columns: Mapping[str, Column]) -> Any:
    """A pandas DataFrame, else a polars one; a dict of lists where neither is installed."""
    for library in ("pandas", "polars"):
        if find_spec(library) is not None:
            return import_module(library).DataFrame(dict(columns))
    return {name: _list(values) for name, values in columns.items()}


def _list(values: Column) -> list[object]:
    return list(values.tolist() if isinstance(values, np.ndarray) else values)
