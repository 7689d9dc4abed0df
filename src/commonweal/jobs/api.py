"""Parts by name, for Python: `commonweal.rule("aaggff-s", cdf="frechet")`."""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from torch import nn

from commonweal.base.arguments import expect, expect_int
from commonweal.config import catalog
from commonweal.config.experiment import Experiment, read
from commonweal.data.federation import Federation
from commonweal.jobs.job import build_dataset
from commonweal.protocols.channels.channel import Channel
from commonweal.protocols.samplers.sampler import Sampler
from commonweal.protocols.servers.server import ServerOptimizer
from commonweal.record.record import Record
from commonweal.rules.rule import Rule
from commonweal.training.client import Client

T = TypeVar("T")


def _part(kind: str, name: str, parameters: Mapping[str, object]) -> dict[str, object]:
    expect("name", name, str, f"the name of a {catalog.KINDS[kind].label}")
    return {**catalog.parse_part(name), **parameters}


def _built(
    interface: type[T], kind: str, name: str, parameters: Mapping[str, object], **supplied: object
) -> T:
    built: T = catalog.build(kind, _part(kind, name, parameters), **supplied)
    return built


def rule(name: str, **parameters: object) -> Rule:
    """A rule by name: `rule("aaggff-s", cdf="frechet")`."""
    return _built(Rule, "rules", name, parameters)


def client(name: str, **parameters: object) -> Client:
    """A client method by name: `client("sgd", lr=0.01)`."""
    return _built(Client, "clients", name, parameters)


def server(name: str, **parameters: object) -> ServerOptimizer:
    """A server optimizer by name: `server("sgd", momentum=0.9)`."""
    return _built(ServerOptimizer, "servers", name, parameters)


def sampler(name: str, **parameters: object) -> Sampler:
    """A sampler of cohorts by name: `sampler("size")`."""
    return _built(Sampler, "samplers", name, parameters)


def channel(name: str, **parameters: object) -> Channel:
    """A channel, which changes replies on their way, by name: `channel("clip", norm=1.0)`."""
    return _built(Channel, "channels", name, parameters)


def dataset(name: str, **parameters: object) -> Federation:
    """A federation by name: `dataset("digits", partition="iid", seed=1)`."""
    return build_dataset(Experiment(dataset=_part("datasets", name, parameters)))


def model(
    name: str,
    *,
    shape: tuple[int, ...],
    outputs: int,
    labels: tuple[int, ...] = (),
    rounds: int = 100,
    **parameters: object,
) -> nn.Module:
    """A module by name, for rows of a shape: `model("mlp", shape=(10,), outputs=11)`.

    rounds: of the run; "trees" grow in each of them, other models do not use it
    """
    expect_int("outputs", outputs, least=1)
    expect_int("rounds", rounds, least=1)
    for key, sizes in (("shape", shape), ("labels", labels)):
        expect(key, sizes, list | tuple, "a tuple of sizes")
        for size in sizes:
            expect_int(key, size, least=1)
    supplied = {"shape": tuple(shape), "outputs": outputs, "labels": tuple(labels)}
    supplied["rounds"] = rounds
    return _built(nn.Module, "models", name, parameters, **supplied)


def load_run(folder: str | Path) -> Record:
    """The record of a run in a folder, finished or not."""
    expect("folder", folder, str | Path, "the path of a run's folder")
    return Record.read(folder)


def load_experiment(path: str | Path, *changes: str) -> Experiment:
    """The experiment in a TOML file, changed by `key=value` (`rule=term`, `client.lr=0.01`)."""
    expect("path", path, str | Path, "the path of a TOML file")
    return read(path, changes)


def load(path: str | Path, *changes: str) -> Experiment | Record:
    """Deprecated: use `load_run` for a folder, `load_experiment` for a TOML file."""
    expect("path", path, str | Path, "the path of a folder or of a TOML file")
    new = "load_run" if os.path.isdir(path) else "load_experiment"
    warnings.warn(f"commonweal.load is now commonweal.{new}", DeprecationWarning, stacklevel=2)
    return Record.read(path) if new == "load_run" else read(path, changes)
