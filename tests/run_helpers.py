"""What the tests of runs share: small data, engines that lose replies, the bytes of a folder."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from torch import nn

from commonweal.base.tensors import Tensors, select
from commonweal.data.federation import Federation
from commonweal.data.rows import Rows
from commonweal.engines.engine import Engine, LocalEngine
from commonweal.engines.simulator import Simulator
from commonweal.jobs.job import Job, job_from_parts
from commonweal.jobs.rounds import Run
from commonweal.protocols.algorithm import Algorithm, Replies, Request
from commonweal.record.record import Record
from commonweal.record.rounds import RoundRecord
from commonweal.task.task import Task

Lost = Callable[[Request], dict[int, str]]  # which replies to a request never come, and why


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but the one that may differ between two equal runs."""
    files = (f for f in sorted(folder.rglob("*")) if f.is_file() and f.name != "timings.jsonl")
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in files}


def lines(record: Record) -> list[dict[str, Any]]:
    """All values of a record's rounds."""
    return [all_of(each) for each in record.rounds]


def all_of(done: RoundRecord) -> dict[str, Any]:
    """All values of a round."""
    return {entry.name: getattr(done, entry.name) for entry in fields(RoundRecord)}


def as_documented(folder: Path) -> list[dict[str, Any]]:
    """The lines of rounds.jsonl with the values of their clients, read as docs/reading.md says."""
    data = (folder / "clients.chunks").read_bytes()
    names: list[str] = []
    found = []
    for text in (folder / "rounds.jsonl").read_text(encoding="utf-8").split("\n")[:-1]:
        line = json.loads(text)
        names += line["new"]
        at, size, _ = line["chunk"]
        columns = safetensors.numpy.load(data[at : at + size])
        for name in [each for each in columns if each.endswith(".values")]:
            values = columns.pop(name)
            codes = name.removesuffix(".values")
            columns[codes] = values[columns[codes]]
        found.append(line | {name: column.tolist() for name, column in columns.items()})
        for name in ("client", "weighted", "mixed", "test.client", "unseen.client"):
            if name in found[-1]:
                found[-1][name] = [names[k] for k in found[-1][name]]
    return found


def weights_of(line: dict[str, Any]) -> dict[str, float]:
    """The weights of a line that was read as documented."""
    return dict(zip(line.get("weighted", line["client"]), line["weight"], strict=True))


def stop(rounds: Run) -> None:
    """Stop a run, as a caller does who leaves the loop."""
    rounds.close()


def stop_after(number: int, rounds: Run) -> None:
    for done in rounds:
        if done.number == number:
            break
    stop(rounds)


def federation(
    clients: int = 4, rows: int = 20, test: float = 0.25, scale: dict[int, float] | None = None
) -> Federation:
    """Three classes in a plane, clients c0, c1, ...; `scale` multiplies a client's rows."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(clients * rows, 2))
    y = (x[:, 0] > 0).astype(int) + (x[:, 1] > 0.3)
    owner = np.repeat(np.arange(clients), rows)
    for client, factor in (scale or {}).items():
        x[owner == client] *= factor
    names = np.array([f"c{k}" for k in owner])
    return Federation.from_arrays(x.astype(np.float32), y, names, test=test)


def task(outputs: int = 3, **what: Any) -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return Task(nn.Linear(2, outputs), **what)


def first_clients(f: Federation, clients: int) -> Federation:
    """The federation before the other clients joined it."""

    def cut(rows: Rows) -> Rows:
        end = int(rows.offsets[clients])
        return Rows(rows.x[:end], rows.y[:end], rows.offsets[: clients + 1])

    groups = None if f.groups is None else f.groups[:clients]
    return replace(f, train=cut(f.train), test=cut(f.test), names=f.names[:clients], groups=groups)


def a_round(number: int, **more: Any) -> RoundRecord:
    """A record of a round of two clients."""
    values: dict[str, Any] = {
        "clients": ("a", "b"),
        "losses": (1.5, 2.5),
        "scores": (0.25, 0.75),
        "weights": {"a": 0.5, "b": 0.5},
        "metrics": {"mean": 0.5},
    }
    return RoundRecord(number=number, **(values | more))


def states_of(engine: Engine) -> dict[int, Tensors]:
    """What the client method keeps of each client now, of an engine that has it."""
    assert isinstance(engine, LocalEngine)
    return {client: state.method for client, state in engine.states.items()}


class Lossy(Simulator):
    """A simulator of a network that loses replies. Clients whose replies are lost have trained."""

    def __init__(self, federation: Federation, lost: Lost, **options: Any) -> None:
        super().__init__(federation, **options)
        self.lost = lost

    def collect(self, algorithm: Algorithm, request: Request) -> Replies:
        return without(super().collect(algorithm, request), self.lost(request))


def without(replies: Replies, lost: dict[int, str]) -> Replies:
    """The replies that are left, with the reasons of those that are not."""
    asked = replies.clients.tolist()
    arrived = torch.tensor([client not in lost for client in asked], dtype=torch.bool)
    failed = {client: why for client, why in lost.items() if client in asked}
    return Replies(replies.clients[arrived], select(replies.values, arrived), failed)


class Growing(Simulator):
    """A simulator whose clients join between rounds.

    joined: the clients that are there before round 1, 2, ...; from then on the last number
    """

    def __init__(self, federation: Federation, joined: tuple[int, ...], **options: Any) -> None:
        super().__init__(first_clients(federation, joined[0]), **options)
        self.everyone = federation
        self.joined = joined

    def digest(self) -> str:
        return ""  # the rows change during a run

    def collect(self, algorithm: Algorithm, request: Request) -> Replies:
        replies = super().collect(algorithm, request)
        round = int(request.message["round"])
        self.federation = first_clients(
            self.everyone, self.joined[min(round, len(self.joined) - 1)]
        )
        self.population = self.federation.population
        return replies


def job(t: Task, f: Federation, engine: Engine | None = None, **parts: Any) -> Job:
    """A job of given parts, with another engine than the simulator."""
    built = job_from_parts(t, f, **parts)
    return built if engine is None else replace(built, engine=engine)
