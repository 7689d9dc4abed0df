"""Rows by client: LEAF's json, users with lists x and y, and the federations made of such rows.

Caldas et al. 2018: `{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y":
[...]}}}`. A file is a training or a test file by its folder or name. Sample counts are not used
(Reddit's are wrong).
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import ArrayLike

from commonweal.base.errors import DataError
from commonweal.data.federation import Federation
from commonweal.datasets._cache import Arrays, New, write
from commonweal.datasets._files import data_root, read_bytes
from commonweal.datasets._shared import TaskOptions, natural_federation
from commonweal.datasets._sources import advice

SUFFIXES = (".json", ".json.gz")
Values = list[Any]  # of json: numbers, texts or lists, by the dataset


class User(NamedTuple):
    """One user's rows in one file."""

    name: str
    x: Values
    y: Values
    part: str  # "train", "test", or "" where the file does not say


def leaf_files(dataset: str, folder: str, dir: str | None) -> list[Path]:
    """The json files of a dataset, without those of a validation part."""
    place = Path(dir) if dir is not None else data_root() / folder
    if (place / folder).is_dir():
        place = place / folder
    files = sorted(path for path in place.rglob("*.json*") if path.name.endswith(SUFFIXES))
    if not files:
        raise DataError(f"dataset {dataset!r}: no json files in {str(place)!r}: {advice(dataset)}")
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
                rows = content["user_data"][name]
                yield _user(path, str(name), rows["x"], rows["y"])
        except (ValueError, KeyError, TypeError) as error:
            reason = f"{type(error).__name__} {error}"
            raise DataError(f"{str(path)!r} is not LEAF's json: {reason}") from None


def _user(path: Path, name: str, x: Values, y: Values) -> User:
    if len(x) != len(y):
        raise DataError(f"{str(path)!r}: user {name!r} has {len(x)} x and {len(y)} y: get it again")
    return User(name, x, y, _part(path))


class RowCollector:
    """Grows by some rows of one client at a time. A client may come several times."""

    def __init__(self) -> None:
        self.x: list[np.ndarray] = []
        self.y: list[np.ndarray] = []
        self.owner: list[np.ndarray] = []
        self.part: list[np.ndarray] = []
        self.ids: dict[str, int] = {}

    def add(self, name: str, x: ArrayLike, y: ArrayLike, part: ArrayLike = "") -> None:
        """Rows of one client; `part` is "train", "test" or "", for all of them or per row."""
        rows = np.asarray(x)
        client = self.ids.setdefault(name, len(self.ids))
        self.x.append(rows)
        self.y.append(np.asarray(y))
        self.owner.append(np.full(len(rows), client))
        self.part.append(np.broadcast_to(np.asarray(part, dtype="U5"), len(rows)))

    def write(self, new: New) -> None:
        """Write the arrays x, y, owner, part and names, with the clients in the order of names."""
        if not any(len(rows) for rows in self.x):
            raise DataError("the files hold no rows: get them again")
        names, position = np.unique(list(self.ids), return_inverse=True)
        write(
            new,
            x=np.concatenate(self.x),
            y=np.concatenate(self.y),
            part=np.concatenate(self.part),
            owner=position[np.concatenate(self.owner)],
            names=names,
        )


def leaf_federation(
    arrays: Arrays,
    test: float,
    seed: int,
    clients: int | None = None,
    **task: Unpack[TaskOptions],
) -> Federation:
    """A federation of the arrays x, y, owner, names and part: LEAF's own split, or a share."""
    part = arrays["part"]
    unsplit = bool((part == "").any() or (part == "train").all())
    if unsplit:
        part = np.full(len(part), "train")
    rows, owner, names = _with_training_rows(arrays, part == "train")
    left_out = len(arrays["names"]) - len(names)
    if left_out:
        task["notes"] = (f"{left_out} users without training rows are left out",)
    return natural_federation(
        arrays["x"][rows],
        arrays["y"][rows],
        owner,
        test if unsplit else part[rows] == "test",
        seed,
        clients,
        names,
        **task,
    )


def _with_training_rows(
    arrays: Arrays, is_train: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """The rows of users who have training rows, their owners, and these users' names."""
    owner = arrays["owner"]
    trains = np.zeros(len(arrays["names"]), dtype=bool)
    trains[owner[is_train]] = True
    position = trains.cumsum() - 1
    rows = np.flatnonzero(trains[owner])
    return rows, position[owner[rows]], arrays["names"][trains].tolist()
