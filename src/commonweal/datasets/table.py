"""Your own rows from a CSV, Parquet or npz file: a column names the client that owns each row.

Texts become one column per level; numbers are standardised. An npz file holds arrays `x`, `y` and
`client`. A table without a column of clients is a pool, for a partition to deal.
"""

import zipfile
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from commonweal.datasets._build import standardize_columns
from commonweal.datasets._cache import Arrays, New, cached
from commonweal.datasets._shared import Pool, natural_federation
from commonweal.datasets._tables import CLIENT, Batches, fill_table, read_batches, to_labels
from commonweal.errors import ConfigError, DataError
from commonweal.federation import Federation, number_clients

__all__ = ["Contents", "Task", "federation_of", "read_table", "table"]

Task = Literal["auto", "classes", "values"]


class Contents(NamedTuple):
    x: np.ndarray  # (N, d), the numbers first
    y: np.ndarray  # (N,)
    owner: np.ndarray | None  # (N,) positions in `names`; None: the rows have no clients
    names: list[str]
    numeric: int  # how many of the columns are numbers


def table(
    path: str,
    label: str = "label",
    client: str | None = None,
    drop: tuple[str, ...] = (),
    task: Task = "auto",
    scale: bool = True,
    separator: str = ",",
    clients: int | None = None,
    test: float = 0.2,
    seed: int = 0,
) -> Federation | Pool:
    """Rows of a CSV (with a header), Parquet or npz file; score: accuracy, or R^2 for values

    path: the file; label: the column of labels; client: that of clients ("client" if there is one)
    drop: columns to leave out
    task: texts and up to 1000 different whole numbers are "classes", other labels "values"
    scale: numbers get mean 0 and standard deviation 1 over all training rows
    separator: between a CSV's values; clients: how many of the clients to use
    test: the share of each client's rows that is held out; seed: which rows and clients
    """
    file = Path(path).expanduser()
    if file.suffix == ".npz":
        contents = _read_npz(file, client)
    else:
        batches = partial(read_batches, file, separator)
        contents = read_table(file, batches, label, client, drop, task, separator)
    if not scale:
        contents = contents._replace(numeric=0)
    if contents.owner is not None:
        return federation_of(contents, clients, test, seed)
    if clients is not None:
        raise ConfigError(
            f"clients = {clients}: the table has no column 'client' to choose from; "
            "name the column, or give a partition"
        )
    return _pool_of(contents, test, seed)


ENTRIES = {"table": table}


def federation_of(contents: Contents, clients: int | None, test: float, seed: int) -> Federation:
    """The natural clients of a table, with its numbers standardised."""
    x, y, owner, names, numeric = contents
    assert owner is not None
    federation = natural_federation(x, y, owner, test, seed, clients, names)
    return standardize_columns(federation, numeric)


def _pool_of(contents: Contents, test: float, seed: int) -> Pool:
    x, y, _, _, numeric = contents
    official = np.zeros(len(y), dtype=bool)
    return Pool(x, y, official, test, seed, partition=None, numeric=numeric)


def read_table(
    file: Path,
    batches: Batches,
    label: str,
    client: str | None,
    drop: tuple[str, ...],
    task: Task,
    separator: str,
) -> Contents:
    """The contents of a table, from the cache if it was read before."""
    if not file.exists():
        raise DataError(f"there is no file {str(file)!r}: check the path")

    def parse(new: New) -> None:
        fill_table(new, batches, label, client, drop)

    arrays = cached("table", [file], parse, repr((label, client, drop, separator)))
    names = arrays["names"].tolist()
    return Contents(
        x=arrays["x"],
        y=to_labels(arrays["target"], task),
        owner=arrays["owner"] if names else None,
        names=names,
        numeric=int(arrays["numeric"][0]),
    )


def _read_npz(file: Path, client: str | None) -> Contents:
    needed = ["x", "y"] if client is None else ["x", "y", client]
    arrays = _load_npz(file, needed)
    x = arrays["x"]
    numeric = x.shape[1] if x.ndim == 2 and x.dtype.kind == "f" else 0
    owners = arrays.get(client or CLIENT)
    if owners is None:
        return Contents(x, arrays["y"], None, [], numeric)
    names, owner = number_clients(owners)
    return Contents(x, arrays["y"], owner, names, numeric)


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
