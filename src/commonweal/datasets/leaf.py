"""Rows by client: LEAF's json, users with lists x and y, and the federations made of such rows.

Caldas et al. 2018: `{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y":
[...]}}}`. A file is a training or a test file by its folder or name. Sample counts are not used
(Reddit's are wrong).
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import ArrayLike

from commonweal.base.errors import DataError
from commonweal.data.federation import Federation
from commonweal.data.sources.cache import Arrays, New, cached, write_arrays
from commonweal.data.sources.files import data_root, read_bytes
from commonweal.data.sources.opened import note
from commonweal.data.sources.origins import how_to_get
from commonweal.datasets.pools import TaskOptions, natural_federation

SUFFIXES = (".json", ".json.gz")
Values = list[Any]  # of json: numbers, texts or lists, by the dataset
# A client, its x and y, and their part: "train", "test" or "", for all of them or per row
ClientRows = tuple[str, np.ndarray, np.ndarray, ArrayLike]


class User(NamedTuple):
    """One user's rows in one file."""

    name: str
    x: Values
    y: Values
    part: str  # "train", "test", or "" where the file does not say


def leaf_files(dataset: str, folder: str, dir: str | None, manual: str = "") -> list[Path]:
    """The json files of a dataset, without those of a validation part.

    manual: what to put there, for a dataset that is not the package's
    """
    place = Path(dir) if dir is not None else data_root() / folder
    if (place / folder).is_dir():
        place = place / folder
    files = sorted(path for path in place.rglob("*.json*") if path.name.endswith(SUFFIXES))
    note(place)  # a file may be added
    if not files:
        remedy = f"put there {manual}" if manual else how_to_get(dataset)
        raise DataError(f"dataset {dataset!r}: no json files in {str(place)!r}: {remedy}")
    return [path for path in files if _part(path) != "val"]


def _part(path: Path) -> str:
    words = [path.parent.name, *re.split("[^a-z]+", path.name.lower())]
    return next((word for word in words if word in ("train", "test", "val")), "")


def leaf_users(paths: list[Path]) -> Iterator[User]:
    """All users of all files."""
    for path in paths:
        try:
            content = json.loads(read_bytes(path))
            for name in content["users"]:
                x, y = content["user_data"][name]["x"], content["user_data"][name]["y"]
                if len(x) != len(y):
                    counts = f"{len(x)} x and {len(y)} y"
                    raise DataError(f"{str(path)!r}: user {name!r} has {counts}: get it again")
                yield User(str(name), x, y, _part(path))
        except (ValueError, KeyError, TypeError) as error:
            reason = f"{type(error).__name__} {error}"
            raise DataError(f"{str(path)!r} is not LEAF's json: {reason}") from None


def cached_rows(
    name: str, sources: Sequence[Path], read: Callable[[], Iterable[ClientRows]], options: str = ""
) -> Arrays:
    """The arrays x, y, owner, part and names of rows that are read once, client by client.

    A client may come several times. Clients are in the order of their names.
    """

    def parse(new: New) -> None:
        rows = list(read())
        sizes = [len(y) for _, _, y, _ in rows]
        if not sum(sizes):
            raise DataError("the files hold no rows: get them again")
        clients, x, y, parts = zip(*rows, strict=True)
        names, position = np.unique(clients, return_inverse=True)
        write_arrays(
            new,
            x=np.concatenate(x),
            y=np.concatenate(y),
            owner=np.repeat(position, sizes),
            part=np.concatenate(list(map(np.broadcast_to, parts, sizes))),
            names=names,
        )

    parts = [_part(source) for source in sources]  # by the names of files and folders
    return cached(name, sources, parse, f"{options} {parts}")


def leaf_federation(
    arrays: Arrays,
    test: float,
    seed: int,
    clients: int | None = None,
    **task: Unpack[TaskOptions],
) -> Federation:
    """A federation of the arrays x, y, owner, names and part: LEAF's own split, or a share."""
    part, owner = arrays["part"], arrays["owner"]
    unsplit = bool((part == "").any() or (part == "train").all())
    trains = np.zeros(len(arrays["names"]), dtype=bool)
    trains[owner if unsplit else owner[part == "train"]] = True
    left_out = int((~trains).sum())
    if left_out:
        task["notes"] = (f"{left_out} users without training rows are left out",)
    rows = np.flatnonzero(trains[owner])
    return natural_federation(
        arrays["x"][rows],
        arrays["y"][rows],
        (trains.cumsum() - 1)[owner[rows]],
        test if unsplit else part[rows] == "test",
        seed,
        clients,
        arrays["names"][trains].tolist(),
        **task,
    )
