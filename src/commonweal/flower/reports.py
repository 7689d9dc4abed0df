"""What one node reports, and why a report cannot be used. Nothing here imports flwr."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

__all__ = ["Problem", "Report", "Settings", "listed"]

SHOWN = 5  # clients or nodes that a message names

Numbers = list[int] | list[float]
Texts = list[str] | list[bytes] | list[bool]
Settings = dict[str, int | float | str | bytes | bool | Numbers | Texts]  # of a message


class Problem(NamedTuple):
    """Why a node's reply cannot be used."""

    kind: Literal["silent", "unavailable", "app", "name", "size", "loss", "arrays", "schema"]
    text: str

    @property
    def passing(self) -> bool:
        """Whether the node may answer the next time without a change."""
        return self.kind in ("silent", "unavailable")


@dataclass
class Report:
    """What one node replied to a request for training."""

    node: int
    client: int = 0  # the id by which rules know it
    size: float = math.nan
    loss: float | None = None  # of the received model; None: not known
    score: float = math.nan  # of the received model
    loss_after: float = math.nan  # of the trained model
    statistics: list[float] = field(default_factory=list)  # of a private round
    weight: float = math.nan  # by which the client weighed itself, in a private round
    problem: Problem | None = None  # why the reply cannot be used


def listed(names: Sequence[str]) -> str:
    """Some names, and how many more there are.

    >>> listed(["c", "a"]), listed([str(k) for k in range(7)])
    ('a, c', '0, 1, 2, 3, 4 and 2 more')
    """
    shown = ", ".join(sorted(names)[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"
