"""Your own rows from a folder per client: tables (CSV, Parquet), arrays (npz) or pictures sorted by class.

`<path>/<client>/*.csv` (or .parquet, .npz with x and y), or `<path>/<client>/<class>/*.png` (or .jpg).
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from commonweal.datasets._cache import New, cached
from commonweal.datasets._images import SUFFIXES, by_name, filled, write
from commonweal.datasets._shared import noisy
from commonweal.datasets._tables import Batch, batches
from commonweal.datasets.table import Task, read, scaled
from commonweal.errors import DataError
from commonweal.federation import Federation
from commonweal.noise import Noise

__all__ = ["folder"]

TABLES = (".csv", ".csv.gz", ".parquet")


def folder(
    path: str,
    label: str = "label",
    drop: tuple[str, ...] = (),
    task: Task = "auto",
    scale: bool = True,
    separator: str = ",",
    size: int = 32,
    noise: Noise | None = None,
    test: float = 0.2,
    seed: int = 0,
) -> Federation:
    """A client for each folder in `path`; score: accuracy for classes, R^2 for values

    path: the folder of folders; label, drop, task, scale, separator: of tables, as in dataset 'table'
    size: pictures are scaled to (3, size, size)
    noise: wrong labels in training rows; test: the share of each client's rows that is held out; seed: of all draws
    """
    root = Path(path).expanduser()
    clients = sorted(p for p in root.iterdir() if p.is_dir()) if root.is_dir() else []
    if not clients:
        raise DataError(f"{str(root)!r} has no folders in it: it must hold one folder per client")
    files = sorted(p for c in clients for p in c.iterdir() if p.is_file())
    if any(p.name.endswith(TABLES) for p in files):
        return _from_tables(root, files, label, drop, task, separator, scale, noise, test, seed)
    if any(p.suffix == ".npz" for p in files):
        return noisy(_from_arrays([p for p in files if p.suffix == ".npz"], test, seed), noise, seed)
    return noisy(_from_pictures(root, size, test, seed), noise, seed)


def _from_tables(
    root: Path,
    files: list[Path],
    label: str,
    drop: tuple[str, ...],
    task: Task,
    separator: str,
    scale: bool,
    noise: Noise | None,
    test: float,
    seed: int,
) -> Federation:
    def every() -> Iterator[Batch]:
        for file in files:
            if file.name.endswith(TABLES):
                for batch in batches(file, separator):
                    yield batch | {CLIENT: [file.parent.name] * len(next(iter(batch.values())))}

    x, y, owner, names, numeric = read(root, every, label, CLIENT, drop, task, separator)
    found = noisy(Federation.from_arrays(x, y, owner, test, seed, names), noise, seed)
    return scaled(found, numeric) if scale else found


CLIENT = "the client's folder"  # a column that no file has


def _from_arrays(files: list[Path], test: float, seed: int) -> Federation:
    x, y, owner = [], [], []
    for file in files:
        try:
            with np.load(file) as held:
                x.append(held["x"])
                y.append(held["y"])
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{str(file)!r} is not an npz file with arrays x and y: {error}") from None
        owner += [file.parent.name] * len(y[-1])
    return Federation.from_arrays(np.concatenate(x), np.concatenate(y), owner, test, seed)


def _from_pictures(root: Path, size: int, test: float, seed: int) -> Federation:
    def parse(new: New) -> None:
        found = filled(new, root, by_name(root, _meaning), size)
        write(new, client=[client for client, _ in found], label=[label for _, label in found])

    arrays = cached("folder", [root], parse, str(size))
    classes, y = np.unique(arrays["label"], return_inverse=True)
    note = "classes: " + ", ".join(classes.tolist())
    return Federation.from_arrays(arrays["x"], y, arrays["client"], test, seed, outputs=len(classes), notes=(note,))


def _meaning(name: str) -> tuple[str, str] | None:
    parts = PurePosixPath(name).parts
    return (parts[0], parts[1]) if len(parts) == 3 and name.endswith(SUFFIXES) else None
