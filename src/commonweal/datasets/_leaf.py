"""LEAF's json: users with lists x and y, spread over files; one reader serves all its sets.

Caldas et al. 2018. `{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}`; a file is a
training or a test file by its folder or name. Sample counts are not trusted (Reddit's are wrong): rows are counted.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from commonweal.datasets import _sources
from commonweal.datasets._files import data_root, read
from commonweal.errors import DataError
from commonweal.federation import Federation

__all__ = ["User", "federation", "files", "users"]


class User(NamedTuple):
    """One user's rows in one file."""

    name: str
    x: list[Any]
    y: list[Any]
    part: str  # "train", "test", or "" where the file does not say


def files(dataset: str, folder: str, dir: str | None) -> list[Path]:
    """The json files of a set, validation files left out."""
    place = Path(dir) if dir is not None else data_root() / folder
    place = place / folder if (place / folder).is_dir() else place
    found = sorted(p for p in place.rglob("*.json*") if p.name.endswith((".json", ".json.gz")))
    if not found:
        raise DataError(f"dataset {dataset!r}: no json files in {str(place)!r}: {_sources.advice(dataset)}")
    return [p for p in found if _part(p) != "val"]


def _part(path: Path) -> str:
    words = [path.parent.name, *re.split("[^a-z]+", path.name.lower())]
    return next((word for word in words if word in ("train", "test", "val")), "")


def users(paths: list[Path]) -> Iterator[User]:
    """All users of all files."""
    for path in paths:
        try:
            held = json.loads(read(path))
            for name in held["users"]:
                rows = held["user_data"][name]
                if len(rows["x"]) != len(rows["y"]):
                    raise DataError(f"{str(path)!r}: user {name!r} has {len(rows['x'])} x and {len(rows['y'])} y")
                yield User(str(name), rows["x"], rows["y"], _part(path))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{str(path)!r} is not LEAF's json: {type(error).__name__} {error}") from None


def federation(found: dict[str, np.ndarray], test: float, seed: int, **what: Any) -> Federation:
    """A federation of cached arrays x, y, owner, names, part: LEAF's own split where it has one, else a share."""
    part, owner, names = found["part"], found["owner"], found["names"].tolist()
    held: Any = test if (part == "").any() or (part == "train").all() else part == "test"
    notes: tuple[str, ...] = ()
    if not np.isscalar(held):
        trained = np.zeros(len(names), dtype=bool)
        trained[owner[~held]] = True
        keep = trained[owner]
        if not trained.all():
            notes = (f"{int((~trained).sum())} users without training rows are left out",)
        number = trained.cumsum() - 1
        names = [name for name, yes in zip(names, trained, strict=True) if yes]
        x, y = found["x"][keep], found["y"][keep]
        return Federation.from_arrays(x, y, number[owner[keep]], held[keep], seed, names, notes=notes, **what)
    return Federation.from_arrays(found["x"], found["y"], owner, held, seed, names, **what)
