"""Parts by name, for Python: `commonweal.rule("aaggff-s", cdf="frechet")`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from commonweal.base.arguments import expect, expect_int
from commonweal.base.errors import renamed_method
from commonweal.channels.channel import Channel
from commonweal.config import catalog
from commonweal.config.experiment import Experiment, read
from commonweal.data.federation import Federation
from commonweal.jobs.job import build_dataset
from commonweal.record.record import Record
from commonweal.rules.rule import Rule
from commonweal.samplers.sampler import Sampler
from commonweal.servers.server import ServerOptimizer
from commonweal.training.client import Client

__all__ = ["channel", "client", "dataset", "load", "load_experiment", "load_run", "model"]
__all__ += ["rule", "sampler", "server"]


def _build(kind: str, name: str, parameters: Mapping[str, object], **facts: object) -> Any:
    """A part of a kind by name; the functions below say of which type."""
    expect("name", name, str, f"the name of a {catalog.KINDS[kind].label}")
    return catalog.build(kind, {**catalog.parse(name), **parameters}, **facts)


def rule(name: str, **parameters: object) -> Rule:
    """A rule by name: `rule("aaggff-s", cdf="frechet")`."""
    built: Rule = _build("rules", name, parameters)
    return built


def client(name: str, **parameters: object) -> Client:
    """A client method by name: `client("sgd", lr=0.01)`."""
    built: Client = _build("clients", name, parameters)
    return built


def server(name: str, **parameters: object) -> ServerOptimizer:
    """A server optimizer by name: `server("sgd", momentum=0.9)`."""
    built: ServerOptimizer = _build("servers", name, parameters)
    return built


def sampler(name: str, **parameters: object) -> Sampler:
    """A sampler of cohorts by name: `sampler("size")`."""
    built: Sampler = _build("samplers", name, parameters)
    return built


def channel(name: str, **parameters: object) -> Channel:
    """A channel, which changes replies on their way, by name: `channel("clip", norm=1.0)`."""
    built: Channel = _build("channels", name, parameters)
    return built


def dataset(name: str, **parameters: object) -> Federation:
    """A federation by name: `dataset("digits", partition="iid", seed=1)`."""
    expect("name", name, str, "the name of a dataset")
    return build_dataset(Experiment(dataset={**catalog.parse(name), **parameters}))


def model(
    name: str,
    *,
    shape: tuple[int, ...],
    outputs: int,
    labels: tuple[int, ...] = (),
    **parameters: object,
) -> nn.Module:
    """A module by name, for rows of a shape: `model("mlp", shape=(10,), outputs=11)`."""
    expect_int("outputs", outputs, least=1)
    for key, sizes in (("shape", shape), ("labels", labels)):
        expect(key, sizes, list | tuple, "a tuple of sizes")
        for size in sizes:
            expect_int(key, size, least=1)
    facts = {"shape": tuple(shape), "outputs": outputs, "labels": tuple(labels)}
    module: nn.Module = _build("models", name, parameters, **facts)
    return module


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
    new = "load_run" if Path(path).is_dir() else "load_experiment"
    renamed_method("commonweal.load", f"commonweal.{new}")
    return Record.read(path) if Path(path).is_dir() else read(path, changes)
