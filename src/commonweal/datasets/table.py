"""Your own rows from a CSV, Parquet or npz file: a column names the client that owns each row.

Texts become one column a level; numbers are put on a common scale. An npz file holds arrays `x`, `y` and `client`.
"""

import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from commonweal.datasets._cache import New, cached
from commonweal.datasets._shared import Pool, noisy, partitioned
from commonweal.datasets._tables import Batch, batches, fill, target_of
from commonweal.errors import DataError
from commonweal.federation import Federation, Rows
from commonweal.noise import Noise
from commonweal.partition import Partition

__all__ = ["table"]

Task = Literal["auto", "classes", "values"]


def table(
    path: str,
    label: str = "label",
    client: str = "client",
    partition: Partition | None = None,
    drop: tuple[str, ...] = (),
    task: Task = "auto",
    score: str | None = None,
    scale: bool = True,
    separator: str = ",",
    noise: Noise | None = None,
    test: float = 0.2,
    seed: int = 0,
) -> Federation:
    """Rows of a CSV (with a header), Parquet or npz file; score: accuracy for classes, R^2 for values

    path: the file; label, client: the columns that hold them; drop: columns to leave out
    partition: deals the rows instead of the client column, which is then not used
    task: texts and up to 1000 whole numbers are "classes", others "values"; score: another than the usual one
    scale: numbers get mean 0 and deviation 1 over all training rows; separator: between a CSV's values
    noise: wrong labels in training rows; test: the share of each client's rows that is held out; seed: of all draws
    """
    file, owned = Path(path).expanduser(), partition is None
    if file.suffix == ".npz":
        x, y, owner, names, numeric = _arrays(file, owned)
    else:
        every: Callable[[], Iterator[Batch]] = partial(batches, file, separator)
        x, y, owner, names, numeric = read(file, every, label, client if owned else "", drop, task, separator)
    what = {} if score is None else {"score": score}
    if partition is not None:
        found = partitioned(Pool(x, y, np.zeros(len(y), dtype=bool)), partition, noise, test, seed, **what)
    else:
        found = noisy(Federation.from_arrays(x, y, owner, test, seed, names, **what), noise, seed)
    return scaled(found, numeric) if scale else found


class Found(NamedTuple):
    x: np.ndarray  # (N, d), the numbers first
    y: np.ndarray  # (N,)
    owner: np.ndarray  # (N,) numbers among `names`, or the names themselves where it is None
    names: list[str] | None
    numeric: int  # how many of the columns are numbers


def read(
    file: Path,
    every: Callable[[], Iterator[Batch]],
    label: str,
    client: str,
    drop: tuple[str, ...],
    task: Task,
    separator: str,
) -> Found:
    """What a table holds, from the cache where it was read before."""
    if not file.exists():
        raise DataError(f"there is no file {str(file)!r}")

    def parse(new: New) -> None:
        fill(every, label, client, drop, new)

    found = cached("table", [file], parse, repr((label, client, drop, separator)))
    names, y = found["names"].tolist(), target_of(found["target"], task)
    return Found(found["x"], y, found["owner"], names, int(found["numeric"][0]))


def _arrays(file: Path, owned: bool) -> Found:
    try:
        with np.load(file) as held:
            arrays = {name: held[name] for name in held.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{str(file)!r} is not an npz file of plain arrays: {error}") from None
    missing = [name for name in ("x", "y", *(["client"] if owned else [])) if name not in arrays]
    if missing:
        raise DataError(f"{str(file)!r} holds {sorted(arrays)}: it needs {' and '.join(missing)} too")
    x = arrays["x"]
    numeric = x.shape[1] if x.ndim == 2 and x.dtype.kind == "f" else 0
    return Found(x, arrays["y"], arrays.get("client", np.zeros(len(x), dtype=np.int64)), None, numeric)


def scaled(federation: Federation, numeric: int) -> Federation:
    """The first columns with mean 0 and deviation 1 over all training rows: two sums a client, no row, are shared."""
    if numeric == 0:
        return federation
    columns = federation.train.x[:, :numeric].double()
    mean, spread = columns.mean(0), columns.std(0, correction=0)
    spread = torch.where(spread > 0, spread, 1.0)

    def part(rows: Rows) -> Rows:
        numbers = ((rows.x[:, :numeric].double() - mean) / spread).float()
        return Rows(torch.cat([numbers, rows.x[:, numeric:]], 1), rows.y, rows.offsets)

    return replace(federation, train=part(federation.train), test=part(federation.test))
