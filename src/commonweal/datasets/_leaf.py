"""LEAF's json: users with lists x and y, spread over files. One reader serves all its sets.

Caldas et al. 2018: `{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y":
[...]}}}`. A file is a training or a test file by its folder or name. Sample counts are not used
(Reddit's are wrong).
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from commonweal.base.errors import DataError
from commonweal.data.federation import Federation
from commonweal.datasets._cache import Arrays
from commonweal.datasets._files import data_root, read_bytes
from commonweal.datasets._shared import natural_federation
from commonweal.datasets._sources import advice

__all__ = ["User", "leaf_federation", "leaf_files", "leaf_users"]

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


def leaf_federation(
    arrays: Arrays,
    test: float,
    seed: int,
    clients: int | None = None,
    *,
    outputs: int,
    loss: str | None = None,
    score: str | None = None,
) -> Federation:
    """A federation of the arrays x, y, owner, names and part: LEAF's own split, or a share."""
    part = arrays["part"]
    unsplit = bool((part == "").any() or (part == "train").all())
    if unsplit:
        part = np.full(len(part), "train")
    rows, owner, names = _with_training_rows(arrays, part == "train")
    left_out = len(arrays["names"]) - len(names)
    notes = [f"{left_out} users without training rows are left out"] if left_out else []
    return natural_federation(
        arrays["x"][rows],
        arrays["y"][rows],
        owner,
        test if unsplit else part[rows] == "test",
        seed,
        clients,
        names,
        outputs=outputs,
        loss=loss,
        score=score,
        notes=notes,
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
