"""A client on a machine of its own: its samples, its dataset schema, and its state on disk."""

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import quote

import pydantic
import torch

import commonweal
from commonweal.base import randomness, typed
from commonweal.base.errors import DataError
from commonweal.base.files import digest, write_file
from commonweal.base.randomness import Streams
from commonweal.base.tensors import Tensors
from commonweal.clients.local_model import with_own_validation
from commonweal.config.policy import Policy
from commonweal.data.federation import Federation
from commonweal.data.population import Population
from commonweal.data.rows import Labels, Rows
from commonweal.data.tables.preprocessing import Preprocessing
from commonweal.flower import sent
from commonweal.flower.content import Settings
from commonweal.flower.own_table import TableSchema, check_table, merged
from commonweal.protocols.algorithm import Algorithm, Group, Request, answer_within, first_state
from commonweal.record.client_states import StateFiles
from commonweal.task.vectorize import single
from commonweal.training.ask import Samples
from commonweal.training.client_state import stack_states
from commonweal.training.evaluation import evaluate, evaluate_models

Value = TypeVar("Value")
VERSION = ".".join(commonweal.__version__.split(".")[:2])
STEPS = 1000  # more than a round has requests
CLIENT = 0  # the number of a node's only client
RUN = r"[0-9a-f]{16}"  # keys of runs: they name folders on the nodes
LONGEST_NAME = 150  # bytes of a client's name as that of a folder
NO_SCHEMA = "it does not describe its data as Commonweal does"


def to_settings(value: object) -> Settings:
    """The fields of a dataclass as the settings of a message."""
    settings: Settings = {}
    for name, item in vars(value).items():
        settings[name] = list(item) if isinstance(item, tuple) else item
    return settings


def parsed(
    kind: type[Value], settings: Mapping[str, object] | str, problem: str = NO_SCHEMA
) -> Value:
    """Invert `to_settings`, or read JSON. Raises DataError where the other side sent another thing.

    Args:
        kind: A dataclass.
        settings: What was sent.
        problem: The beginning of the error.
    """
    adapter: pydantic.TypeAdapter[Value] = typed.adapter(kind)
    try:
        if isinstance(settings, str):
            return adapter.validate_json(settings)
        return adapter.validate_python(dict(settings))
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        what = f"{first['loc'][0]}: {first['msg']}" if first["loc"] else first["msg"]
        raise DataError(f"{problem} ({what})") from None


@dataclass(frozen=True)
class Schema:
    """A client's description of its dataset, or the one that all clients of a run share."""

    name: str
    samples: int  # for training
    shape: tuple[int, ...] = ()  # of a sample
    labels: tuple[int, ...] = ()  # of a sample's label, () for one class or value
    outputs: int = 0
    kind: Labels = "classes"  # of labels
    score: str = ""
    group: str = ""
    position: int = -1  # among all clients, where the data has an order
    target: tuple[float, ...] = ()  # mean and deviation of a regression's labels
    # JSON. Of a client: what its own file holds, from which all before follows. Of a run: the
    # preprocessing.
    table: str = ""
    version: str = VERSION  # of Commonweal: others may send other messages

    @classmethod
    def read(cls, record: Mapping[str, object]) -> "Schema":
        """Read a schema that arrived. Raises DataError where it is not one."""
        version = record.get("version", "of an older version")
        if version != VERSION:
            raise DataError(
                f"one side runs Commonweal {version}, the other {VERSION}: install the same "
                "version at the server and at all nodes"
            )
        schema = parsed(cls, record)
        if schema.samples < 1 or (schema.outputs < 1 and not schema.table):
            raise DataError(f"it has {schema.samples} samples and {schema.outputs} outputs")
        return schema

    @property
    def population(self) -> Population:
        """The population as this client knows it: itself, and the outputs of the model."""
        return Population((self.name,), torch.tensor([self.samples]), self.shape, self.outputs)


def schema_of(federation: Federation, number: int) -> Schema:
    """The schema of a client of a federation."""
    return Schema(
        name=federation.names[number],
        samples=int(federation.train.sizes[number]),
        shape=tuple(federation.train.inputs.shape[1:]),
        labels=tuple(federation.train.y.shape[1:]),
        outputs=federation.outputs,
        kind=federation.labels,
        score=federation.score,
        group="" if federation.groups is None else federation.groups[number],
        position=number if federation.clients > 1 else -1,
        target=federation.target or (),
    )


def agreed(clients: Sequence[Schema]) -> Preprocessing | None:
    """The preprocessing that clients with own files share; None where they have none."""
    tables = {}
    for client in clients:
        if client.table:
            tables[client.name] = parsed(TableSchema, client.table)
    without = [client.name for client in clients if not client.table]
    if tables and without:
        raise DataError(
            f"{next(iter(tables))!r} has its own file, but {without[0]!r} has none: give each node "
            "data= in its --node-config, or none of them"
        )
    return merged(tables) if tables else None


def fitted_schema(client: Schema, common: Preprocessing | None) -> Schema:
    """A client with what follows from a preprocessing. Raises DataError where it does not fit."""
    if common is None or not client.table:
        return client
    check_table(common, parsed(TableSchema, client.table))
    outputs = len(common.class_names)
    client = replace(client, shape=(len(common.features),))
    if outputs:
        return replace(client, outputs=outputs, kind="classes", score="accuracy")
    target = (common.target["mean"], common.target["deviation"]) if common.target else ()
    return replace(client, outputs=1, kind="values", score="r2-pooled", target=target)


def joined_schema(clients: Sequence[Schema]) -> tuple[Population, Schema]:
    """The population of these clients, and what is common to their data. Outputs: the most."""
    first = clients[0]
    outputs = max(client.outputs for client in clients)
    for client in clients:
        for key in ("shape", "labels", "kind"):
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


Number = Annotated[int, pydantic.Field(ge=0)]


@dataclass(frozen=True)
class RequestKey:
    """The run and the number of a request: states are kept by it."""

    run: str  # distinguishes runs
    round: Number
    step: Number  # of the round's requests
    saved: Number  # the round of the server's last checkpoint: a resumed run continues there
    purpose: str  # of a request, or the part of the samples that is evaluated

    @classmethod
    def read(cls, record: Mapping[str, object] | None) -> "RequestKey":
        """Read the key of a request that arrived. Raises DataError where it is none."""
        return parsed(cls, record or {}, "the server sent no request of Commonweal")

    @property
    def version(self) -> int:
        """The number of the state after this request."""
        return self.round * STEPS + self.step


@dataclass(frozen=True)
class Finish:
    """The server's message that a run is over."""

    run: str
    keep: pydantic.StrictBool

    @classmethod
    def read(cls, record: Mapping[str, object]) -> "Finish":
        """Read a message that arrived. Raises DataError where it is another one."""
        sent = {"run": record.get("run"), "keep": record.get("keep")}
        return parsed(cls, sent, "the server did not say which run is over")


def folder_of(states: Path, client: str) -> Path:
    """The folder of a client within that of all states on a machine. Names may be any text."""
    name = quote(client, safe="")
    if not name.strip("."):  # "..", which means another folder; "" has none of its own
        name = name.replace(".", "%2E") or "%"
    if len(name) > LONGEST_NAME:
        name = f"{name[:LONGEST_NAME]}~{digest(client.encode())}"
    return states / name


def _described(schema: Schema) -> tuple[str, ...]:
    """What a schema says, in words."""
    words = [f"the number of its training samples: {schema.samples}"]
    if not schema.table:
        return (*words, "the shape of a sample and the number of outputs")
    table = parsed(TableSchema, schema.table)
    if table.classes:
        words.append(f"classes: {', '.join(table.classes)}")
    for name, column in table.columns.items():
        if column.sums is not None:
            words.append(
                f"column {name!r}: the number, sum and squares of {column.sums.count} values"
            )
        elif column.categories:
            counted = (f"{word} {count}" for word, count in column.categories.items())
            words.append(f"column {name!r}: {', '.join(counted)}")
        else:
            words.append(f"column {name!r}: its name")
    return tuple(words)


Parts = dict[str, Rows]  # a client's samples by what they are for


def parts_of(federation: Federation, number: int, seed: int) -> Parts:
    """The samples of a client of a federation; parts that do not exist are left out."""
    inner = with_own_validation(federation, seed)
    parts = {
        "train": federation.train,
        "test": federation.test,
        "validation": federation.validation,
        "everything": federation.undivided,
        "kept": inner.train,
        "held": inner.validation,
    }
    return {name: rows.client(number) for name, rows in parts.items() if rows is not None}


@dataclass(frozen=True, eq=False)
class Node:
    """A client, alone on its node.

    Args:
        schema: What it says about its dataset.
        parts: Its samples, given the preprocessing of the run (JSON, empty where there is none).
        build: The algorithm, given what is common to all clients of the run.
        seed: Of the run.
        folder: Of its states, by run.
        policy: What may leave it.
    """

    schema: Schema
    parts: Callable[[str], Parts]
    build: Callable[[Schema], Algorithm]
    seed: int
    folder: Path
    policy: Policy | None = None

    def run_folder(self, run: str) -> Path:
        """The folder of a run. Raises DataError for a path that is none: servers send the key."""
        path = self.folder / run
        is_key = re.fullmatch(RUN, run) is not None
        if not is_key or path.is_symlink() or path.resolve() != self.folder.resolve() / run:
            raise DataError(
                f"the server named {run[:80]!r} as a run: a run is 16 of the digits 0-9 and a-f, "
                "and no link; nothing was read, written or deleted"
            )
        return path

    def setting(self, run: str, record: Mapping[str, object] | None) -> Schema:
        """The settings that all clients of a run share: a node gets them once, and keeps them."""
        path = self.run_folder(run) / "setting.json"
        if record is not None:
            setting = Schema.read(record)
            write_file(path, json.dumps(to_settings(setting)).encode())
            return setting
        if not path.exists():
            raise DataError(f"this node has no setting of run {run}: the server will send it again")
        return Schema.read(json.loads(path.read_bytes()))

    def algorithm(self, setting: Schema) -> Algorithm:
        """The algorithm of a run, for this client."""
        return self.build(replace(setting, name=self.schema.name, samples=self.schema.samples))

    def describe(self) -> Schema:
        """What the node says about its dataset."""
        entry = sent.Entry("describe", _described(self.schema))
        with sent.refusals(self.folder, entry, self.policy):
            if self.policy is not None:
                self.policy.check_request("describe", (), 0)
                self.policy.check_reply(self.schema.samples, ())
        sent.append(self.folder, entry)
        return self.schema

    def answer(self, setting: Schema, message: Tensors, key: RequestKey, each: Tensors) -> Tensors:
        """Answer a request, and keep a list of what leaves the node."""
        entry = sent.Entry(key.purpose[:80], run=key.run[:16], round=key.round)
        with sent.refusals(self.folder, entry, self.policy):
            replies = self._answer(setting, message, key, each)
        words = sent.in_words(replies)
        if key.purpose in self.algorithm(setting).masked:
            words = tuple(f"{word}, masked" for word in words)
        sent.append(self.folder, replace(entry, what=words))
        return replies

    def _answer(self, setting: Schema, message: Tensors, key: RequestKey, each: Tensors) -> Tensors:
        """Answer a request from the client's own samples; its state stays here."""
        algorithm = self.algorithm(setting)
        own = self.parts(setting.table)
        client = randomness.key(self.schema.name)
        files = StateFiles(self.run_folder(key.run))
        state = files.newest(CLIENT, key.version) or first_state(algorithm, self.seed, client)
        states = stack_states([state])
        purpose = randomness.purpose(key.purpose)
        group = Group(
            ids=torch.tensor([CLIENT]),
            samples=Samples.of(**own),
            states=states,
            streams=Streams(self.seed, key.round, [client], purpose),
            vectorize=single,
            each=each,
        )
        request = Request(group.ids, message, key.purpose, each)
        rounds = self._rounds_today(key)
        replies, after = answer_within(self.policy, algorithm, request, group, rounds)
        if after and after is not states:
            files.write(CLIENT, key.version, after.row(0))
            files.prune(CLIENT, (key.saved + 1) * STEPS)  # no resumed run can need older ones
        return replies

    def _rounds_today(self, key: RequestKey) -> int:
        if self.policy is None or self.policy.rounds_per_day == "all":
            return 0
        return sent.rounds_today(self.folder, key.run, key.round)

    def evaluate(self, setting: Schema, message: Tensors, key: RequestKey) -> Tensors:
        """The loss and the scores of the global model, and of this client's personal model."""
        what = f"evaluate on {key.purpose[:80]} samples"
        entry = sent.Entry(what, run=key.run[:16], round=key.round)
        with sent.refusals(self.folder, entry, self.policy):
            values = self._evaluate(setting, message, key)
        sent.append(self.folder, replace(entry, what=sent.in_words(values)))
        return values

    def _evaluate(self, setting: Schema, message: Tensors, key: RequestKey) -> Tensors:
        algorithm = self.algorithm(setting)
        rows = self.parts(setting.table).get(key.purpose)
        if rows is None:
            raise DataError(f"there are no {key.purpose} samples here")
        task = algorithm.task
        if self.policy is not None:
            self.policy.check_request("evaluate", task.scores, self._rounds_today(key))
            self.policy.check_reply(len(rows.y), ())
        shared = evaluate(task, message["w"], rows)
        undefined = len(task.undefined(rows.y, rows.offsets)) > 0
        values = {"size": shared.sizes, "undefined": torch.tensor([undefined])}
        values["loss"] = shared.losses
        values |= {f"score/{name}": value for name, value in shared.scores.items()}
        if not algorithm.personalizes:
            return values
        own = shared
        state = StateFiles(self.run_folder(key.run)).newest(CLIENT, (key.round + 1) * STEPS)
        if state is not None and len(rows.y):
            uses = algorithm.uses(message, state).map(lambda value: value[None])
            own = evaluate_models(task, uses, rows, torch.tensor([0]), single)
        values["own_loss"] = own.losses
        return values | {f"own_score/{name}": value for name, value in own.scores.items()}

    def finish(self, run: str, keep: bool) -> None:
        """Delete the states of a run that is over.

        Args:
            run: The run's key.
            keep: Keep the last state, which holds the client's personal model.
        """
        folder = self.run_folder(run)
        if keep:
            StateFiles(folder).prune(CLIENT)
        else:
            shutil.rmtree(folder, ignore_errors=True)
