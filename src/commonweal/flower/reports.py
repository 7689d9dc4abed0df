"""What one node reports, and why a report cannot be used. Nothing here imports flwr."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar

import pydantic

from commonweal.base.errors import DataError, RunError

__all__ = ["Problem", "Report", "Settings", "check_trained", "listed", "parsed", "to_settings"]

SHOWN = 5  # clients or nodes that a message names

Numbers = list[int] | list[float]
Texts = list[str] | list[bytes] | list[bool]
Settings = dict[str, int | float | str | bytes | bool | Numbers | Texts]  # of a message
Value = TypeVar("Value")


class Problem(NamedTuple):
    """Why a node's reply cannot be used."""

    kind: Literal["silent", "unavailable", "app", "name", "size", "loss", "arrays", "schema"]
    text: str

    @property
    def passing(self) -> bool:
        """Whether the node may answer the next time without a change."""
        return self.kind in ("silent", "unavailable")


def to_settings(value: object) -> Settings:
    """The fields of a dataclass as the settings of a message."""
    fields = vars(value).items()
    return {name: list(field) if isinstance(field, tuple) else field for name, field in fields}


def parsed(kind: type[Value], settings: Mapping[str, object] | str) -> Value:
    """Invert `to_settings`, or read JSON. Raises DataError where a node sent something else."""
    adapter = pydantic.TypeAdapter(kind)
    try:
        if isinstance(settings, str):
            return adapter.validate_json(settings)
        return adapter.validate_python(dict(settings))
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        what = f"{first['loc'][0]}: {first['msg']}" if first["loc"] else first["msg"]
        raise DataError(f"it does not describe its data as Commonweal does ({what})") from None


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


def check_trained(reports: Sequence[Report]) -> None:
    """Raise RunError where all clients are refused for the same reason: no round will train."""
    problems = [report.problem for report in reports if report.problem is not None]
    if not problems or len(problems) < len(reports) or problems[0].passing:
        return
    if len({problem.kind for problem in problems}) == 1:
        raise RunError(
            f"nothing can be trained: all {len(problems)} clients are refused; of the first: "
            f"{problems[0].text}"
        )


def listed(names: Sequence[str]) -> str:
    """Some names, and how many more there are.

    >>> listed(["c", "a"]), listed([str(k) for k in range(7)])
    ('a, c', '0, 1, 2, 3, 4 and 2 more')
    """
    shown = ", ".join(sorted(names)[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"
