"""Your own rows from a folder per client: tables (CSV, Parquet), arrays (npz) or images by class.

`<path>/<client>/*.csv` (or .parquet, .npz with x and y), or `<path>/<client>/<class>/*.png` (or
.jpg).
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np

from commonweal.base.arguments import check_bounds
from commonweal.base.errors import DataError
from commonweal.data.federation import Federation
from commonweal.data.sources.cache import New, cached
from commonweal.data.sources.files import read_npz
from commonweal.data.tables.columns import Names, Roles, names_in, read_table
from commonweal.data.tables.files import Batch, read_batches
from commonweal.data.tables.fit import Options
from commonweal.datasets.images import match_images, write_images
from commonweal.datasets.pools import natural_federation
from commonweal.datasets.table import Task, load_table

MOST_SIDE = 1 << 14  # of an image
TABLES = (".csv", ".csv.gz", ".parquet")
CLIENT = "the client's folder"  # a column that no file has


def folder(
    path: str,
    label: str = "label",
    drop: Names = (),
    task: Task = "auto",
    scale: bool = True,
    separator: str = "auto",
    columns: Literal["same", "union"] = "same",
    size: int = 32,
    clients: int | None = None,
    test: float = 0.2,
    seed: int = 0,
) -> Federation:
    """A client for each folder in `path`; score: accuracy for classes, pooled R^2 for values

    path: the folder of folders; label, drop, task, scale, separator, columns: of tables, as in
    dataset 'table'
    size: images are resized to (3, size, size); clients: how many of the clients to use
    test: the share of each client's rows that is tested; seed: which rows and clients
    """
    check_bounds("folder size", size, least=1, most=MOST_SIDE)
    root = Path(path).expanduser()
    files = _files(root)
    tables = [file for file in files if file.name.endswith(TABLES)]
    archives = [file for file in files if file.suffix == ".npz"]
    if tables:

        def batches() -> Iterator[Batch]:
            return _read_tables(tables, separator, columns == "union")

        roles = Roles(label, CLIENT, names_in(drop))
        contents = read_table(root, batches, roles, f"{separator} {columns}")
        options = Options(scale, union=columns == "union")
        federation = load_table(contents, task, options, clients, test, seed)
        assert isinstance(federation, Federation)
        return federation
    if archives:
        return _from_arrays(archives, clients, test, seed)
    return _from_images(root, size, clients, test, seed)


ENTRIES = {"folder": folder}


def _files(root: Path) -> list[Path]:
    """The files in the clients' folders."""
    folders = [path for path in root.glob("*") if path.is_dir()]
    if not folders:
        raise DataError(f"{str(root)!r} has no folders in it: it must hold one folder per client")
    return sorted(file for place in folders for file in place.iterdir() if file.is_file())


def _read_tables(files: list[Path], separator: str, union: bool) -> Iterator[Batch]:
    """The rows of all tables, with a column that names the client.

    union: tables get the columns of the others, without values
    """
    import pyarrow

    every: dict[str, None] = {}
    for file in files if union else []:
        every |= dict.fromkeys(next(read_batches(file, separator), {}))
    for file in files:
        for batch in read_batches(file, separator):
            rows = len(next(iter(batch.values())))
            nothing = pyarrow.nulls(rows, pyarrow.string())
            whole = {name: batch.get(name, nothing) for name in every or batch}
            yield whole | {CLIENT: pyarrow.array([file.parent.name] * rows)}


def _from_arrays(files: list[Path], clients: int | None, test: float, seed: int) -> Federation:
    x = []
    y = []
    owner: list[str] = []
    for file in files:
        arrays = read_npz(file, ("x", "y"))
        samples, labels = arrays["x"], arrays["y"]
        if samples.shape[:1] != labels.shape[:1] or samples.ndim == 0:
            raise DataError(
                f"{str(file)!r} needs as many labels y as samples x; got x of shape "
                f"{samples.shape} and y of shape {labels.shape}"
            )
        x.append(samples)
        y.append(labels)
        owner += [file.parent.name] * len(labels)
    return natural_federation(np.concatenate(x), np.concatenate(y), owner, test, seed, clients)


def _from_images(root: Path, size: int, clients: int | None, test: float, seed: int) -> Federation:
    def parse(new: New) -> None:
        write_images(new, root, match_images(root, _describe), size, ("client", "label"))

    arrays = cached("folder", [root], parse, str(size))
    classes, y = np.unique(arrays["label"], return_inverse=True)
    return natural_federation(
        arrays["x"],
        y,
        arrays["client"],
        test,
        seed,
        clients,
        outputs=len(classes),
        notes=("classes: " + ", ".join(classes),),
        class_names=tuple(classes.tolist()),
    )


def _describe(name: str) -> tuple[str, str] | None:
    """An image's client and class, by its folders."""
    parts = PurePosixPath(name).parts
    return (parts[0], parts[1]) if len(parts) == 3 else None
