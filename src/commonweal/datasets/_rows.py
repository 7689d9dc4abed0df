"""Rows gathered client by client, then written to the cache at once."""

from typing import Any

import numpy as np

from commonweal.datasets._cache import New
from commonweal.errors import DataError

__all__ = ["Gathered"]


class Gathered:
    """Grows by one client's rows at a time; a client may come several times."""

    def __init__(self) -> None:
        self.x: list[np.ndarray] = []
        self.y: list[np.ndarray] = []
        self.owner: list[np.ndarray] = []
        self.part: list[np.ndarray] = []
        self.number: dict[str, int] = {}

    def add(self, name: str, x: Any, y: Any, part: Any = "") -> None:
        """Rows of one client; `part` is "train", "test" or "", for all of them or for each."""
        who = self.number.setdefault(name, len(self.number))
        self.x.append(np.asarray(x))
        self.y.append(np.asarray(y))
        self.owner.append(np.full(len(x), who))
        self.part.append(np.broadcast_to(np.asarray(part, dtype="U5"), len(x)))

    def write(self, new: New) -> None:
        """The arrays x, y, owner, part and names, clients in the order of their names."""
        if not self.x or not sum(map(len, self.x)):
            raise DataError("the files hold no rows")
        names, order = np.unique(list(self.number), return_inverse=True)
        arrays = {"x": self.x, "y": self.y, "part": self.part}
        joined = {name: np.concatenate(parts) for name, parts in arrays.items()}
        for name, values in (joined | {"owner": order[np.concatenate(self.owner)], "names": names}).items():
            new(name, values.shape, values.dtype)[...] = values
