"""One client's own file, on a machine that sees no other client's rows."""

import numpy as np

from commonweal.datasets._shared import Pool
from commonweal.datasets.table import table
from commonweal.errors import DataError
from commonweal.federation import Federation
from commonweal.values import Values

__all__ = ["own_table"]


def own_table(name: str, values: Values) -> Federation:
    """The rows of one client: those of its name, or all where the file names no clients.

    values: the parameters of the dataset `table`. Classes are whole numbers from 0 that mean the
    same in every client's file, since nobody sees all of them; columns are prepared from this
    client's training rows.
    """
    loaded = table(**values)
    if isinstance(loaded, Federation):
        return _one(loaded, name)
    prepared = Federation.from_arrays(
        loaded.x,
        _labels(loaded),
        np.zeros(len(loaded.y), dtype=np.int64),
        values.get("test", 0.2),
        values.get("seed", 0),
        [name],
        notes=loaded.notes,
    )
    return prepared if loaded.prepare is None else loaded.prepare(prepared)


def _one(federation: Federation, name: str) -> Federation:
    if federation.names != (name,):
        raise DataError(
            f"the file has rows of {list(federation.names[:5])}, but this node is {name!r}: give "
            "the node a file of its own rows"
        )
    return federation


def _labels(pool: Pool) -> np.ndarray:
    """Labels as they are in the file, where `table` has numbered the classes that occur in it."""
    names = pool.class_names
    if not names:
        return np.asarray(pool.y)
    if not all(name.isdecimal() for name in names):
        raise DataError(
            f"the labels are texts ({', '.join(names[:3])}), which every node would number "
            "differently: write them as 0, 1, ..., the same in all files"
        )
    numbers = np.array([int(name) for name in names])
    labels: np.ndarray = numbers[pool.y]
    return labels
