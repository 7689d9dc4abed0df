"""The interface of trackers: numbers by round, per-client values as distributions and one table."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from commonweal.base.errors import ConfigError, install
from commonweal.base.plain import Plain, Table


class Moment(NamedTuple):
    """The metrics of a round."""

    round: int
    numbers: dict[str, float]  # by name, such as test/mean; all finite
    clients: dict[str, list[float]]  # one value per client, shown as a distribution


@dataclass
class Tracker(ABC):
    """One run at a tracker. Making one raises ConfigError where its library is missing."""

    run: Path  # the run's folder
    name: str  # of the run
    project: str
    to: Path | None  # where the tracker writes; None: its default

    @abstractmethod
    def __post_init__(self) -> None:
        """Import the tracker's library."""

    @abstractmethod
    def open(self, known: str | None, settings: Table, toml: str) -> str:
        """Begin a run, or continue the one with a known id if it is still there.

        Args:
            known: The id of the run that was written before, if any.
            settings: The experiment's keys, joined by dots.
            toml: The experiment as text.

        Returns:
            The run's id at the tracker.
        """

    @abstractmethod
    def log(self, moments: Sequence[Moment]) -> None:
        """Write rounds."""

    @abstractmethod
    def table(self, round: int, columns: Mapping[str, Sequence[object]]) -> None:
        """Write every client's values after a round."""

    @abstractmethod
    def close(self, finished: bool) -> None:
        """Write what is left. `finished`: the run has all its rounds."""

    @property
    @abstractmethod
    def place(self) -> str:
        """The address at which a person finds it."""


def library(name: str, extra: str) -> ModuleType:
    """Import a module that an extra of commonweal installs. Raises ConfigError without it."""
    try:
        return import_module(name)
    except ImportError as error:
        missing = error.name or name
        raise ConfigError(
            f"--to {extra} needs {missing}: install it with {install(extra)}"
        ) from None


def plain(settings: Table) -> dict[str, Plain]:
    """Settings as numbers and strings: trackers take no lists."""
    values: dict[str, Plain] = {}
    for key, value in settings.items():
        values[key] = value if isinstance(value, int | float | str) else str(value)
    return values
