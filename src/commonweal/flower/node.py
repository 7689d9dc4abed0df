"""A client on a machine of its own: its samples, its dataset schema, and its state on disk.

Nothing here imports flwr.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from urllib.parse import quote

import pydantic
import torch

from commonweal.algorithms.algorithm import Algorithm, Group, Request, first_state
from commonweal.base import randomness
from commonweal.base.errors import DataError
from commonweal.base.files import write_file
from commonweal.base.tensors import Tensors
from commonweal.clients._local_model import hold_out
from commonweal.data.federation import Federation, Rows
from commonweal.data.population import Population
from commonweal.flower.own_table import (
    CommonSchema,
    OwnTable,
    TableSchema,
    check_table,
    common_schema,
)
from commonweal.flower.reports import Settings
from commonweal.record.client_states import StateFiles
from commonweal.training.client_state import stack_states
from commonweal.training.evaluation import evaluate, evaluate_models
from commonweal.training.local import single
from commonweal.training.uses import Uses

__all__ = ["Node", "NodeClient", "RequestKey", "RunSetting", "Schema"]
__all__ += ["agreed", "described", "fits", "joined"]

STEPS = 1000  # more than a round has requests
CLIENT = 0  # the number of a node's only client


@dataclass(frozen=True)
class Schema:
    """What a client says about its dataset, once."""

    name: str
    samples: int  # for training
    shape: tuple[int, ...]  # of a sample
    labels: tuple[int, ...]  # of a sample's label, () for one class or value
    outputs: int
    loss: str
    score: str
    group: str = ""
    position: int = -1  # among all clients, where the data has an order
    target: tuple[float, ...] = ()  # mean and deviation of a regression's labels
    table: str = ""  # JSON: what an own file holds; all before follows from all clients' tables

    @classmethod
    def read(cls, record: Mapping[str, object]) -> "Schema":
        """Read a schema that arrived. Raises DataError where it is not one."""
        try:
            schema = _reader().validate_python(dict(record))
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            what = f"{first['loc'][0]}: {first['msg']}" if first["loc"] else first["msg"]
            raise DataError(f"it does not describe its data as Commonweal does ({what})") from None
        if schema.samples < 1 or (schema.outputs < 1 and not schema.table):
            raise DataError(f"it has {schema.samples} samples and {schema.outputs} outputs")
        return schema

    @property
    def population(self) -> Population:
        """What this client knows of the population: itself, and the outputs of the model."""
        return Population(
            (self.name,), torch.tensor([self.samples]), self.shape, self.outputs, self.loss
        )

    def record(self) -> Settings:
        """The schema as a message holds it."""
        return {
            "name": self.name,
            "samples": self.samples,
            "shape": list(self.shape),
            "labels": list(self.labels),
            "outputs": self.outputs,
            "loss": self.loss,
            "score": self.score,
            "group": self.group,
            "position": self.position,
            "target": list(self.target),
            "table": self.table,
        }


@cache
def _reader() -> pydantic.TypeAdapter[Schema]:
    return pydantic.TypeAdapter(Schema)


def agreed(clients: Sequence[Schema]) -> CommonSchema | None:
    """How clients with own files prepare them; None where they have none."""
    with_table = [client for client in clients if client.table]
    if not with_table:
        return None
    if len(with_table) < len(clients):
        without = next(client.name for client in clients if not client.table)
        raise DataError(
            f"{with_table[0].name!r} has its own file, but {without!r} has none: give each node "
            "data= in its --node-config, or none of them"
        )
    return common_schema({client.name: TableSchema.read(client.table) for client in clients})


def fits(client: Schema, common: CommonSchema | None) -> Schema:
    """A client with what follows from the common schema. Raises DataError where it does not fit."""
    if common is None or not client.table:
        return client
    check_table(common, TableSchema.read(client.table))
    return replace(
        client,
        shape=common.shape,
        outputs=common.outputs,
        loss=common.loss,
        score=common.score,
        target=common.target or (),
    )


def joined(clients: Sequence[Schema]) -> tuple[Population, Schema]:
    """The population of these clients, and what is common to their data. Outputs: the most."""
    first = clients[0]
    outputs = max(client.outputs for client in clients)
    for client in clients:
        for key in ("shape", "labels", "loss"):
            if vars(client)[key] != vars(first)[key]:
                raise DataError(
                    f"clients have different data: {key} is {vars(first)[key]} at {first.name!r}, "
                    f"but {vars(client)[key]} at {client.name!r}"
                )
    groups = tuple(client.group for client in clients)
    population = Population(
        names=tuple(client.name for client in clients),
        sizes=torch.tensor([client.samples for client in clients]),
        shape=first.shape,
        outputs=outputs,
        loss=first.loss,
        groups=groups if all(groups) else None,
    )
    return population, replace(first, outputs=outputs, target=_target(clients))


def _target(clients: Sequence[Schema]) -> tuple[float, ...]:
    """The mean and deviation over all clients' samples, for regression."""
    targets = {client.target for client in clients}
    if () in targets or len(targets) == 1:
        return targets.pop() if len(targets) == 1 else ()
    samples = torch.tensor([client.samples for client in clients], dtype=torch.float64)
    means, deviations = torch.tensor([client.target for client in clients], dtype=torch.float64).T
    mean = (samples * means).sum() / samples.sum()
    variance = (samples * (deviations**2 + (means - mean) ** 2)).sum() / samples.sum()
    return mean.item(), variance.sqrt().item()


@dataclass(frozen=True)
class RunSetting:
    """What is the same for all clients of a run. A node gets it once, and keeps it."""

    outputs: int
    score: str
    target: tuple[float, ...]  # mean and deviation of a regression's labels
    preprocessing: str  # JSON, of clients with own files

    @classmethod
    def of(cls, schema: Schema, preprocessing: str) -> "RunSetting":
        """The setting of a run whose clients share a schema."""
        return cls(schema.outputs, schema.score, schema.target, preprocessing)

    def record(self) -> Settings:
        """The setting as a message holds it."""
        return {
            "outputs": self.outputs,
            "score": self.score,
            "target": list(self.target),
            "preprocessing": self.preprocessing,
        }

    @classmethod
    def read(cls, record: Mapping[str, object]) -> "RunSetting":
        """Read a setting that arrived, or that was kept."""
        return pydantic.TypeAdapter(cls).validate_python(dict(record))

    def schema(self, client: Schema) -> Schema:
        """A client's schema with what is the same for all."""
        return replace(client, outputs=self.outputs, score=self.score, target=self.target)


@dataclass(frozen=True)
class RequestKey:
    """Which request of which run this is: states are kept by it."""

    run: str  # distinguishes runs
    round: int
    step: int  # of the round's requests
    saved: int = 0  # the round of the server's last checkpoint: a resumed run continues there

    def record(self) -> Settings:
        """The key as a message holds it."""
        return asdict(self)

    @classmethod
    def read(cls, record: Mapping[str, object]) -> "RequestKey":
        """Read a key that arrived."""
        fields = {name: record[name] for name in ("run", "round", "step", "saved")}
        return pydantic.TypeAdapter(cls).validate_python(fields)

    @property
    def version(self) -> int:
        """The number of the state after this request."""
        return self.round * STEPS + self.step


@dataclass(frozen=True, eq=False)
class Node:
    """What a node has before the clients have agreed on how tables are prepared."""

    schema: Schema
    client: "Callable[[str], NodeClient]"  # from the preprocessing, empty where there is none
    algorithm: Callable[[Schema], Algorithm]
    folder: Path  # of its client's states, by run

    def setting(self, run: str, record: Mapping[str, object] | None) -> RunSetting:
        """The run's setting: what arrived, which is kept, or what was kept before."""
        path = self.folder / run / "setting.json"
        if record is not None:
            setting = RunSetting.read(record)
            write_file(path, json.dumps(setting.record()).encode())
            return setting
        if not path.exists():
            raise DataError(f"this node has no setting of run {run}: the server will send it again")
        return RunSetting.read(json.loads(path.read_bytes()))

    def finish(self, run: str, keep: bool) -> None:
        """Delete the states of a run that is over.

        Args:
            run: The run's key.
            keep: Keep the last state, which holds the client's personal model.
        """
        if keep:
            StateFiles(self.folder / run).prune(CLIENT)
        elif run:
            shutil.rmtree(self.folder / run, ignore_errors=True)


def states_folder(folder: Path, client: str) -> Path:
    """Where a client's states are, by run."""
    return folder / quote(client, safe="")


def described(own: OwnTable, samples: int) -> Schema:
    """The schema of a client with its own file.

    Args:
        own: The file.
        samples: How many samples the client trains on.
    """
    return Schema(own.name, samples, (), (), 0, "", "", table=own.describe().text())


@dataclass(frozen=True, eq=False)
class NodeClient:
    """A node's client: its samples, and a folder for its states."""

    schema: Schema
    train: Rows
    test: Rows
    seed: int
    folder: Path  # of its states, by run
    validation: Rows | None = None
    everything: Rows | None = None  # training and validation samples, where there are both
    divided: tuple[Rows, Rows] | None = None  # the training samples, as a method may divide them

    @classmethod
    def of(cls, federation: Federation, name: str, seed: int, folder: Path) -> "NodeClient":
        """One client of a federation."""
        if name not in federation.names:
            raise DataError(
                f"no client is called {name!r}: this node's client must be one of "
                f"{list(federation.names[:5])}, ..."
            )
        k = federation.names.index(name)
        schema = Schema(
            name=name,
            samples=int(federation.train.sizes[k]),
            shape=tuple(federation.train.inputs.shape[1:]),
            labels=tuple(federation.train.y.shape[1:]),
            outputs=federation.outputs,
            loss=federation.loss,
            score=federation.score,
            group="" if federation.groups is None else federation.groups[k],
            position=k if federation.clients > 1 else -1,
            target=federation.target or (),
        )
        validation = None if federation.validation is None else federation.validation.client(k)
        undivided = federation.undivided
        everything = None if undivided is None else undivided.client(k)
        train, test = federation.train.client(k), federation.test.client(k)
        place = states_folder(folder, name)
        inner = hold_out(federation, seed)
        assert inner.validation is not None
        divided = (inner.train.client(k), inner.validation.client(k))
        return cls(schema, train, test, seed, place, validation, everything, divided)

    # Requests

    def answer(self, algorithm: Algorithm, request: Request, key: RequestKey) -> Tensors:
        """Answer a request from the client's own samples; its state stays here."""
        client = randomness.key(self.schema.name)
        files = StateFiles(self.folder / key.run)
        state = files.newest(CLIENT, key.version) or first_state(algorithm, self.seed, client)
        states = stack_states([state])
        purpose = randomness.purpose(request.purpose)
        stream = randomness.stream(self.seed, key.round, client, purpose)
        me = torch.tensor([0])
        group = Group(me, self.train, states, [stream], single, request.each)
        holds_out = "nothing" if algorithm.client is None else algorithm.client.holds_out
        if holds_out == "validation":
            group = group._replace(validation=self.validation, everything=self.everything)
        elif holds_out == "training" and self.divided is not None:
            kept, held = self.divided
            group = group._replace(rows=kept, validation=held, everything=self.train)
            group = group._replace(reserved=self.validation)
        replies, after = algorithm.answer(request._replace(clients=me), group)
        if after and after is not states:
            files.write(CLIENT, key.version, after.row(0))
            files.prune(CLIENT, (key.saved + 1) * STEPS)  # no resumed run can need older ones
        return replies

    def evaluate(
        self, algorithm: Algorithm, message: Tensors, key: RequestKey, part: str
    ) -> Tensors:
        """The loss and the scores of the global model, and of this client's personal model."""
        rows = {"train": self.train, "test": self.test, "validation": self.validation}[part]
        if rows is None:
            raise DataError(f"there are no {part} samples here")
        task = algorithm.task
        shared = evaluate(task, message["w"], rows)
        undefined = len(task.undefined(rows.y, rows.offsets)) > 0
        values = {"size": shared.sizes, "undefined": torch.tensor([undefined])}
        values["loss"] = shared.losses
        values |= {f"score/{name}": value for name, value in shared.scores.items()}
        if not algorithm.personalizes:
            return values
        own = shared
        state = StateFiles(self.folder / key.run).newest(CLIENT, (key.round + 1) * STEPS)
        if state is not None and len(rows.y):
            uses = Uses(*(value[None] for value in algorithm.uses(message, state)))
            own = evaluate_models(task, uses, rows, torch.tensor([0]), single)
        values["own_loss"] = own.losses
        return values | {f"own_score/{name}": value for name, value in own.scores.items()}
