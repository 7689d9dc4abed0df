"""Federated learning that leaves no client behind.

>>> import commonweal
>>> weights, state = commonweal.rule("fedavg")(reports, {})  # doctest: +SKIP
"""

from pathlib import Path
from typing import Any

from commonweal import catalog, metrics
from commonweal.errors import CommonwealError
from commonweal.experiment import Experiment, read
from commonweal.federation import Federation
from commonweal.rule import Reports, Rule
from commonweal.run import Round, run
from commonweal.store import Record
from commonweal.task import Task

__version__ = "0.1.0"

__all__ = [
    "CommonwealError",
    "Experiment",
    "Federation",
    "Record",
    "Reports",
    "Round",
    "Rule",
    "Task",
    "client",
    "dataset",
    "load",
    "metrics",
    "model",
    "rule",
    "run",
    "server",
]


def rule(name: str, **parameters: Any) -> Any:
    """A rule by name: `rule("aaggff-s", cdf="frechet")`."""
    return catalog.build("rules", {"name": name, **parameters})


def client(name: str, **parameters: Any) -> Any:
    """A local objective by name: `client("sgd", lr=0.01)`."""
    return catalog.build("clients", {"name": name, **parameters})


def server(name: str, **parameters: Any) -> Any:
    """A server step by name: `server("sgd", momentum=0.9)`."""
    return catalog.build("servers", {"name": name, **parameters})


def dataset(name: str, **parameters: Any) -> Federation:
    """A federation by name: `dataset("vowel", seed=1)`."""
    federation: Federation = catalog.build("datasets", {"name": name, **parameters})
    return federation


def model(name: str, *, shape: tuple[int, ...], outputs: int, labels: tuple[int, ...] = (), **parameters: Any) -> Any:
    """A module by name, for rows of a shape: `model("mlp", shape=(10,), outputs=11, hidden=[32])`."""
    given = {"shape": tuple(shape), "outputs": outputs, "labels": tuple(labels)}
    return catalog.build("models", {"name": name, **parameters}, **given)


def load(path: str | Path, *overrides: str) -> Experiment | Record:
    """The experiment in a TOML file (with `key=value` overrides), or the record of a run in a folder."""
    return Record.read(path) if Path(path).is_dir() else read(path, overrides)
