"""What one node reports, and why a report cannot be used. Nothing here imports flwr."""

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

__all__ = ["Problem", "Report", "Settings"]

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
