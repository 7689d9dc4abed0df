"""A client on a machine of its own: its samples, its dataset schema, and its state on disk.

Nothing here imports flwr.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import pydantic
import torch

from commonweal.algorithms.algorithm import Algorithm, Group, Request, first_state
from commonweal.base import randomness
from commonweal.base.errors import DataError
from commonweal.base.files import write_file
from commonweal.base.tensors import Tensors
from commonweal.clients._local_model import hold_out
from commonweal.data.federation import Federation
from commonweal.data.population import Population
from commonweal.data.preprocessing import Preprocessing
from commonweal.data.rows import Rows
from commonweal.engines.engine import sample_parts
from commonweal.flower.messages import Settings
from commonweal.flower.own_table import TableSchema, check_table, goal_of, merged
from commonweal.record.client_states import StateFiles
from commonweal.training.client_state import stack_states
from commonweal.training.evaluation import evaluate, evaluate_models
from commonweal.training.uses import Uses
from commonweal.training.vectorize import single

Value = TypeVar("Value")
STEPS = 1000  # more than a round has requests
CLIENT = 0  # the number of a node's only client


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


@dataclass(frozen=True)
class Schema:
    """What a client says about its dataset, once; or what is the same for all clients of a run."""

    name: str
    samples: int  # for training
    shape: tuple[int, ...] = ()  # of a sample
    labels: tuple[int, ...] = ()  # of a sample's label, () for one class or value
    outputs: int = 0
    loss: str = ""
    score: str = ""
    group: str = ""
    position: int = -1  # among all clients, where the data has an order
    target: tuple[float, ...] = ()  # mean and deviation of a regression's labels
    # JSON. Of a client: what its own file holds, from which all before follows. Of a run: the
    # preprocessing.
    table: str = ""

    @classmethod
    def read(cls, record: Mapping[str, object]) -> "Schema":
        """Read a schema that arrived. Raises DataError where it is not one."""
        schema = parsed(cls, record)
        if schema.samples < 1 or (schema.outputs < 1 and not schema.table):
            raise DataError(f"it has {schema.samples} samples and {schema.outputs} outputs")
        return schema

    @property
    def population(self) -> Population:
        """What this client knows of the population: itself, and the outputs of the model."""
        return Population(
            (self.name,), torch.tensor([self.samples]), self.shape, self.outputs, self.loss
        )


def agreed(clients: Sequence[Schema]) -> Preprocessing | None:
    """How clients with own files prepare them; None where they have none."""
    tables = {}
    without = ""
    for client in clients:
        if client.table:
            tables[client.name] = parsed(TableSchema, client.table)
        else:
            without = client.name
    if tables and without:
        raise DataError(
            f"{next(iter(tables))!r} has its own file, but {without!r} has none: give each node "
            "data= in its --node-config, or none of them"
        )
    return merged(tables) if tables else None


def fits(client: Schema, common: Preprocessing | None) -> Schema:
    """A client with what follows from a preprocessing. Raises DataError where it does not fit."""
    if common is None or not client.table:
        return client
    check_table(common, parsed(TableSchema, client.table))
    goal = goal_of(common)
    target = (common.target["mean"], common.target["deviation"]) if common.target else ()
    shape = (len(common.features),)
    return replace(client, shape=shape, target=target, **goal._asdict())


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
class RequestKey:
    """Which request of which run this is: states are kept by it."""

    run: str  # distinguishes runs
    round: int
    step: int  # of the round's requests
    saved: int = 0  # the round of the server's last checkpoint: a resumed run continues there

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

    def setting(self, run: str, record: Mapping[str, object] | None) -> Schema:
        """What is the same for all clients of a run: a node gets it once, and keeps it."""
        path = self.folder / run / "setting.json"
        if record is not None:
            setting = Schema.read(record)
            write_file(path, json.dumps(to_settings(setting)).encode())
            return setting
        if not path.exists():
            raise DataError(f"this node has no setting of run {run}: the server will send it again")
        return Schema.read(json.loads(path.read_bytes()))

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


@dataclass(frozen=True, eq=False)
class NodeClient:
    """A client of a federation, alone on its node.

    Args:
        federation: Which has its samples, and may have others'.
        name: Of the client.
        seed: Of the run.
        states: A folder with the states of clients, by client and run.
    """

    federation: Federation
    name: str
    seed: int
    states: Path

    @cached_property
    def number(self) -> int:
        """Of the client in the federation."""
        names = self.federation.names
        if self.name not in names:
            raise DataError(
                f"no client is called {self.name!r}: this node's client must be one of "
                f"{list(names[:5])}, ..."
            )
        return names.index(self.name)

    @cached_property
    def schema(self) -> Schema:
        federation, number = self.federation, self.number
        return Schema(
            name=self.name,
            samples=int(federation.train.sizes[number]),
            shape=tuple(federation.train.inputs.shape[1:]),
            labels=tuple(federation.train.y.shape[1:]),
            outputs=federation.outputs,
            loss=federation.loss,
            score=federation.score,
            group="" if federation.groups is None else federation.groups[number],
            position=number if federation.clients > 1 else -1,
            target=federation.target or (),
        )

    @cached_property
    def _parts(self) -> dict[str, Rows]:
        """The client's samples by what they are for; parts that do not exist are left out."""
        inner = hold_out(self.federation, self.seed)
        parts = {
            "train": self.federation.train,
            "test": self.federation.test,
            "validation": self.federation.validation,
            "everything": self.federation.undivided,
            "kept": inner.train,
            "held": inner.validation,
        }
        own = {}
        for name, rows in parts.items():
            if rows is not None:
                own[name] = rows.client(self.number)
        return own

    def _samples(self, algorithm: Algorithm) -> dict[str, Rows]:
        """The samples to train on, and those that a method holds out, as in the simulator."""
        parts = sample_parts(algorithm, "validation" in self._parts)
        return {name: self._parts[part] for name, part in parts.items()}

    # Requests

    def answer(self, algorithm: Algorithm, request: Request, key: RequestKey) -> Tensors:
        """Answer a request from the client's own samples; its state stays here."""
        client = randomness.key(self.name)
        files = StateFiles(states_folder(self.states, self.name) / key.run)
        state = files.newest(CLIENT, key.version) or first_state(algorithm, self.seed, client)
        states = stack_states([state])
        purpose = randomness.purpose(request.purpose)
        stream = randomness.stream(self.seed, key.round, client, purpose)
        group = Group(
            ids=torch.tensor([CLIENT]),
            states=states,
            streams=[stream],
            vectorize=single,
            each=request.each,
            at_once=None,
            **self._samples(algorithm),
        )
        replies, after = algorithm.answer(request._replace(clients=group.ids), group)
        if after and after is not states:
            files.write(CLIENT, key.version, after.row(0))
            files.prune(CLIENT, (key.saved + 1) * STEPS)  # no resumed run can need older ones
        return replies

    def evaluate(
        self, algorithm: Algorithm, message: Tensors, key: RequestKey, part: str
    ) -> Tensors:
        """The loss and the scores of the global model, and of this client's personal model."""
        if part not in self._parts:
            raise DataError(f"there are no {part} samples here")
        rows = self._parts[part]
        task = algorithm.task
        shared = evaluate(task, message["w"], rows)
        undefined = len(task.undefined(rows.y, rows.offsets)) > 0
        values = {"size": shared.sizes, "undefined": torch.tensor([undefined])}
        values["loss"] = shared.losses
        values |= {f"score/{name}": value for name, value in shared.scores.items()}
        if not algorithm.personalizes:
            return values
        own = shared
        files = StateFiles(states_folder(self.states, self.name) / key.run)
        state = files.newest(CLIENT, (key.round + 1) * STEPS)
        if state is not None and len(rows.y):
            uses = Uses(*(value[None] for value in algorithm.uses(message, state)))
            own = evaluate_models(task, uses, rows, torch.tensor([0]), single)
        values["own_loss"] = own.losses
        return values | {f"own_score/{name}": value for name, value in own.scores.items()}
