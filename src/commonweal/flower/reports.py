"""What one node reports, and why a report cannot be used. Nothing here imports flwr."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, NoReturn, TypeVar

import pydantic
import torch
from torch import Tensor

from commonweal.base.errors import DataError, RunError
from commonweal.config import catalog
from commonweal.rules.rule import Rule

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
    settings: Settings = {}
    for name, item in vars(value).items():
        settings[name] = list(item) if isinstance(item, tuple) else item
    return settings


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
    name: str = ""
    size: float = math.nan
    loss: float | None = None  # of the received model; None: not known
    score: float = math.nan  # of the received model
    loss_after: float = math.nan  # of the trained model
    statistics: Numbers = field(default_factory=list)  # of a private round
    weight: float = math.nan  # by which the client weighed itself, in a private round
    problem: Problem | None = None  # why the reply cannot be used


@dataclass(frozen=True)
class Evaluated:
    """What one node reported of the global model."""

    size: float = 0.0
    loss: float | None = None
    score: float = math.nan


def column(records: Sequence[Report | Evaluated], name: str) -> Tensor:
    """One number of all reports (S,), in float64. NaN: not known."""
    numbers = []
    for record in records:
        value = vars(record)[name]
        numbers.append(math.nan if value is None else value)
    return torch.tensor(numbers, dtype=torch.float64)


def client_ids(reports: Sequence[Report]) -> Tensor:
    """The clients' ids (S,)."""
    return torch.tensor([report.client for report in reports], dtype=torch.int64)


def check_trained(reports: Sequence[Report]) -> None:
    """Raise RunError where all clients are refused for the same reason: no round will train."""
    first = reports[0].problem if reports else None
    if first is None or first.passing:
        return
    for report in reports:
        if report.problem is None or report.problem.kind != first.kind:
            return
    raise RunError(
        f"nothing can be trained: all {len(reports)} clients are refused; of the first: "
        f"{first.text}"
    )


def no_losses(rule: Rule, what: str, sent: Iterable[str]) -> NoReturn:
    """Raise RunError for a rule that needs losses.

    Args:
        rule: The rule.
        what: What is missing.
        sent: The keys that clients reported.
    """
    name = catalog.describe(rule)["name"]
    raise RunError(
        f"the rule {name!r} decides by the clients' losses of the received model, but {what} "
        f"(they reported {', '.join(sorted(sent)) or 'nothing'}). Add the loss in the "
        "ClientApp, @app.train(mods=[loss_before_training(my_loss)]) with "
        "commonweal.flower.loss_before_training, or use those of each client's last "
        'evaluation, FairStrategy(..., losses="evaluate"). strict=False goes on with the '
        "weights of FedAvg"
    )


def listed(names: Sequence[str]) -> str:
    """Some names, and how many more there are.

    >>> listed(["c", "a"]), listed([str(k) for k in range(7)])
    ('a, c', '0, 1, 2, 3, 4 and 2 more')
    """
    shown = ", ".join(sorted(names)[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"
