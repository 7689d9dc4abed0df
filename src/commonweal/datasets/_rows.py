"""Rows collected client by client, then written to the cache."""

import numpy as np
from numpy.typing import ArrayLike

from commonweal.base.errors import DataError
from commonweal.datasets._cache import New, write

__all__ = ["RowCollector"]


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
