"""A Commonweal experiment as the ServerApp and the ClientApp of a Flower app."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import platformdirs
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from commonweal.base.errors import ConfigError, DataError
from commonweal.base.tensors import Tensors
from commonweal.config.experiment import Experiment, read
from commonweal.config.policy import read_policy
from commonweal.data.federation import Federation
from commonweal.data.rows import usual_loss
from commonweal.data.tables.preprocessing import Preprocessing
from commonweal.flower.app_folder import check_experiment
from commonweal.flower.content import settings_of
from commonweal.flower.engine import FlowerEngine
from commonweal.flower.messages import to_record, to_tensors
from commonweal.flower.node import (
    Finish,
    Node,
    Parts,
    RequestKey,
    Schema,
    folder_of,
    parts_of,
    schema_of,
    to_settings,
)
from commonweal.flower.own_table import OwnTable
from commonweal.flower.secure import answer_masked
from commonweal.flower.sent import Entry, refusals
from commonweal.jobs import job as jobs
from commonweal.jobs import rounds
from commonweal.protocols.algorithm import Algorithm
from commonweal.record.record import Record
from commonweal.task.task import Task

Config = Mapping[str, str | int | float | bool]  # of a node, or of a run
STATES = "state-dir"  # where a node keeps its client's states
SETTINGS: dict[str, Callable[[Any], Any]] = {  # of a run, which may be given as strings
    "out": str,
    "resume": bool,
    "nodes": int,
    "wait": float,
    "timeout": float,
    "bind_names": bool,
}


def _read(experiment: Experiment | str | Path) -> Experiment:
    return experiment if isinstance(experiment, Experiment) else read(experiment)


def _task(experiment: Experiment, schema: Schema) -> Task:
    return jobs.build_task(
        experiment,
        shape=schema.shape,
        labels=schema.labels,
        outputs=schema.outputs,
        loss=usual_loss(schema.kind),
        score=schema.score,
        target=(schema.target[0], schema.target[1]) if schema.target else None,
    )


# The client's side


def make_client_app(experiment: Experiment | str | Path) -> ClientApp:
    """A ClientApp that takes part in an experiment with the samples of its own client.

    The node's configuration says who it is and where its files are:

        client       the client's name
        data         a CSV or Parquet file with this client's rows (dataset "table" only)
        state-dir    where the client's state is kept, by default a folder of the user
        policy       a TOML file of what may leave this node, by default anything

    Without `client`, `partition-id` (a number) chooses one of the dataset's clients.

    Args:
        experiment: The experiment, or the path of its TOML file.
    """
    app = ClientApp()
    nodes: dict[int, Node] = {}

    def opened(context: Context) -> Node:
        if context.node_id not in nodes:
            # Not the run's configuration: its submitter must not choose files on this machine.
            nodes[context.node_id] = open_node(experiment, context.node_config)
        return nodes[context.node_id]

    def received(message: Message, context: Context) -> tuple[Node, Schema, RequestKey]:
        node = opened(context)
        records = message.content.config_records
        key = RequestKey.read(records.get("request"))
        return node, node.setting(key.run, records.get("setting")), key

    @app.query()
    def query(message: Message, context: Context) -> Message:
        node = opened(context)
        settings = settings_of(message.content)
        reply = RecordDict()
        if settings.get("purpose") == "finish":
            over = Finish.read(settings)
            node.finish(over.run, over.keep)
        else:
            reply["schema"] = ConfigRecord(to_settings(node.describe()))
        return Message(reply, reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        node, setting, key = received(message, context)
        records = message.content.array_records

        def answer() -> Tensors:
            each = to_tensors(records["each"]) if "each" in records else {}
            return node.answer(setting, to_tensors(records["message"]), key, each)

        if key.purpose in node.algorithm(setting).masked:
            return answer_masked(message, context, answer)
        return Message(RecordDict({"reply": to_record(answer())}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        node, setting, key = received(message, context)
        model = to_tensors(message.content.array_records["message"])
        values = node.evaluate(setting, model, key)
        return Message(RecordDict({"reply": to_record(values)}), reply_to=message)

    return app


def open_node(experiment: Experiment | str | Path, config: Config) -> Node:
    """The node that a configuration names."""
    given = _read(experiment)
    check_experiment(given)
    policy = read_policy(str(config["policy"])) if "policy" in config else None
    states = Path(str(config.get(STATES, state_folder()))).expanduser()
    name = str(config.get("client", config.get("partition-id")))
    if policy is not None and given.dataset["name"] == "table":
        given = given.change(dataset=jobs.within(policy, given.dataset))
    with refusals(folder_of(states, name), Entry("describe"), policy):
        schema, parts = (_own_file if "data" in config else _shared)(given, config)

    @cache
    def build(schema: Schema) -> Algorithm:
        return jobs.build_algorithm(given, _task(given, schema), schema.population)

    return Node(schema, parts, build, given.seed, folder_of(states, schema.name), policy)


def state_folder() -> Path:
    """The folder in which a node keeps what it has to keep, by client."""
    return platformdirs.user_state_path("commonweal") / "flower"


Opened = tuple[Schema, Callable[[str], Parts]]


def _shared(experiment: Experiment, config: Config) -> Opened:
    """A client of the experiment's dataset."""
    federation = jobs.with_validation(jobs.build_dataset(experiment), experiment)
    number = _number(federation, config)

    @cache
    def parts(preprocessing: str) -> Parts:
        return parts_of(federation, number, experiment.seed)

    return schema_of(federation, number), parts


def _number(federation: Federation, config: Config) -> int:
    if "client" in config:
        name, names = str(config["client"]), federation.names
        if name not in names:
            raise DataError(
                f"no client is called {name!r}: this node's client must be one of "
                f"{list(names[:5])}, ..."
            )
        return names.index(name)
    number = config.get("partition-id")
    if number is None:
        raise ConfigError("a node needs client=NAME in its --node-config: who is it?")
    if not 0 <= int(number) < federation.clients:
        raise DataError(f"partition-id = {number}, but there are {federation.clients} clients")
    return int(number)


def _own_file(experiment: Experiment, config: Config) -> Opened:
    """A client with its own file."""
    if "client" not in config:
        raise ConfigError("a node with its own data needs client=NAME in its --node-config")
    if experiment.dataset["name"] != "table":
        raise ConfigError(
            f"data = {config['data']!r}: only the dataset 'table' reads a node's own file, not "
            f"{experiment.dataset['name']!r}"
        )
    table = OwnTable(str(config["client"]), str(config["data"]), experiment.dataset)

    @cache
    def parts(preprocessing: str) -> Parts:
        federation = table.prepared(Preprocessing.read(preprocessing))
        return parts_of(jobs.with_validation(federation, experiment), 0, experiment.seed)

    samples = table.training_rows(experiment.validation)
    return Schema(table.name, samples, table=json.dumps(asdict(table.describe()))), parts


# The server's side


def make_server_app(
    experiment: Experiment | str | Path, **settings: str | int | float | bool
) -> ServerApp:
    """A ServerApp that runs an experiment on the nodes that are connected.

    Args:
        experiment: The experiment, or the path of its TOML file.
        settings: Arguments of `run_on`. The run's configuration (`flwr run --run-config`)
            overrides them.
    """
    unknown = settings.keys() - set(SETTINGS)
    if unknown:
        raise ConfigError(f"{sorted(unknown)} are no settings of a run: give {', '.join(SETTINGS)}")
    given = _read(experiment)
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        chosen = dict(settings)
        for key in SETTINGS:
            if context.run_config.get(key, "") != "":
                chosen[key] = context.run_config[key]
        run_on(grid, given, **{key: SETTINGS[key](value) for key, value in chosen.items()})

    return app


def job_of(experiment: Experiment, engine: FlowerEngine) -> jobs.Job:
    """The job of an experiment on the nodes of an engine."""
    return jobs.job_on(experiment, _task(experiment, engine.schema), engine)


def run_on(
    grid: Grid,
    experiment: Experiment,
    out: str | Path = "",
    resume: bool = False,
    nodes: int = 1,
    wait: float = 120.0,
    timeout: float = 120.0,
    bind_names: bool = True,
) -> None:
    """Run an experiment on a grid and write it to a folder.

    Args:
        grid: Flower's connection to the nodes.
        experiment: What to run.
        out: The run's folder.
        resume: Continue the run in it.
        nodes: How many nodes must be connected at the start.
        wait: Seconds to wait for them.
        timeout: Seconds to wait for replies.
        bind_names: Refuse a node that gives the name of a client with another key.
    """
    check_experiment(experiment)
    folder = Path(out or Path("runs") / f"flower-{experiment.title}-{experiment.seed}")
    begun = resume and (folder / "rounds.jsonl").exists()
    record = Record.read(folder) if begun else None
    preprocessing = None if record is None else record.preprocessing()
    names: tuple[str, ...] = ()
    if record is not None and record.whole().evaluated:
        names = tuple(record.whole().clients().names)
    engine = FlowerEngine(grid, nodes, wait, timeout, preprocessing, bind_names, names)
    job = job_of(experiment, engine)
    for done in rounds.run(job, out=folder, resume=resume):
        shown = {name: round(value, 4) for name, value in list(done.metrics.items())[:3]}
        print(f"round {done.number} of {job.rounds}: {shown}", flush=True)
        for client, reason in done.dropped.items():
            print(f"round {done.number}: client {client}: {reason}", flush=True)
    engine.finish(keep=job.algorithm.personalizes)
