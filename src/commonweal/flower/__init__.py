"""Commonweal in Flower: `from commonweal.flower import FairStrategy`.

Needs the extra [flower]: pip install 'commonweal[flower]'.
"""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commonweal.base.errors import ConfigError, DataError
from commonweal.base.values import Value, Values

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

    from commonweal.algorithms.algorithm import Algorithm
    from commonweal.config.experiment import Experiment
    from commonweal.data.federation import Federation
    from commonweal.flower.engine import FairStrategy, FlowerEngine, loss_before_training
    from commonweal.flower.node import About, Member, Node
    from commonweal.jobs.job import Job
    from commonweal.training.task import Task

__all__ = ["FairStrategy", "FlowerEngine", "loss_before_training"]
__all__ += ["make_client_app", "make_server_app"]

STATES = "state-dir"  # where a node keeps its client's states


def __getattr__(name: str) -> Any:
    if name not in ("FairStrategy", "FlowerEngine", "loss_before_training"):
        raise AttributeError(f"module 'commonweal.flower' has no attribute {name!r}")
    return vars(_engine())[name]


def _engine() -> Any:
    try:
        from commonweal.flower import engine
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "flwr":
            raise
        raise ConfigError(
            f"Flower is not installed (no module {error.name!r}): install it with pip install "
            "'commonweal[flower]'"
        ) from None
    return engine


def _read(experiment: "Experiment | str | Path") -> "Experiment":
    from commonweal.config.experiment import Experiment, read

    return experiment if isinstance(experiment, Experiment) else read(experiment)


# The client's side


def make_client_app(experiment: "Experiment | str | Path") -> "ClientApp":
    """A ClientApp that takes part in an experiment with the rows of its own client.

    The node's configuration says who it is and where its files are:

        client       the client's name
        data         a CSV, Parquet or npz file with this client's rows (dataset "table" only)
        state-dir    where the client's state is kept, by default a folder of the user

    Without `client`, `partition-id` (a number) chooses one of the dataset's clients.
    """
    app: ClientApp = _engine().client_app(partial(member, experiment))
    return app


def member(experiment: "Experiment | str | Path", config: Values) -> "Member":
    """The client that a node's configuration names."""
    from commonweal.flower.export import check_experiment
    from commonweal.flower.node import Member
    from commonweal.jobs.job import build_algorithm

    opened = _read(experiment)
    check_experiment(opened)
    if "data" in config:
        about, node = _own(opened, config)
    else:
        node = _dealt(opened, config)
        about = node("").about

    @cache
    def algorithm(about: "About") -> "Algorithm":
        return build_algorithm(opened, _task(opened, about), about.population)

    return Member(about, node, algorithm)


def _dealt(experiment: "Experiment", config: Values) -> "Callable[[str], Node]":
    """A client of the experiment's dataset."""
    from commonweal.flower.node import Node
    from commonweal.jobs.job import build_dataset, with_validation

    federation = with_validation(build_dataset(experiment), experiment)
    name = _client(federation, config)
    node = Node.of(federation, name, experiment.seed, _states(config))
    return lambda agreement: node


def _own(experiment: "Experiment", config: Values) -> "tuple[About, Callable[[str], Node]]":
    """A client with a file of its own."""
    from commonweal.flower.node import Node, described
    from commonweal.flower.own_table import Agreement, OwnTable
    from commonweal.jobs.job import with_validation

    if "client" not in config:
        raise ConfigError("a node with data of its own needs client=NAME in its --node-config")
    if experiment.dataset["name"] != "table":
        raise ConfigError(
            f"data = {config['data']!r}: only the dataset 'table' reads a node's own file, not "
            f"{experiment.dataset['name']!r}"
        )
    values = {key: value for key, value in experiment.dataset.items() if key != "name"}
    table = OwnTable(str(config["client"]), values | {"path": str(config["data"])})

    @cache
    def node(agreement: str) -> "Node":
        federation = with_validation(table.prepared(Agreement.read(agreement)), experiment)
        return Node.of(federation, table.name, experiment.seed, _states(config))

    return described(table, table.training_rows(experiment.validation)), node


def _task(experiment: "Experiment", about: "About") -> "Task":
    from commonweal.jobs.job import build_task

    return build_task(
        experiment,
        shape=about.shape,
        labels=about.labels,
        outputs=about.outputs,
        loss=about.loss,
        score=about.score,
        target=about.target,
    )


def _client(federation: "Federation", config: Values) -> str:
    if "client" in config:
        return str(config["client"])
    number = config.get("partition-id")
    if number is None:
        raise ConfigError("a node needs client=NAME in its --node-config: who is it?")
    if not 0 <= int(number) < federation.clients:
        raise DataError(f"partition-id = {number}, but there are {federation.clients} clients")
    return federation.names[int(number)]


def _states(config: Values) -> Path:
    import platformdirs

    default = platformdirs.user_state_path("commonweal") / "flower"
    return Path(str(config.get(STATES, default))).expanduser()


# The server's side


def make_server_app(experiment: "Experiment | str | Path", **settings: Value) -> "ServerApp":
    """A ServerApp that runs an experiment on the nodes that are connected.

    Settings may be overridden by the run's configuration (`flwr run --run-config`):

        out        the run's folder; resume: continue the run in it
        nodes      how many nodes must be there at the start; wait: seconds to wait for them
        timeout    seconds to wait for replies
    """
    opened = _read(experiment)

    def main(grid: "Grid", config: Values) -> None:
        chosen = settings | {key: config[key] for key in KEYS if config.get(key) not in (None, "")}
        run_on(grid, opened, **chosen)

    app: ServerApp = _engine().server_app(main)
    return app


KEYS = ("out", "resume", "nodes", "wait", "timeout")


def job_of(experiment: "Experiment", engine: "FlowerEngine") -> "Job":
    """The job of an experiment on the nodes of an engine."""
    from commonweal.jobs.job import job_on

    return job_on(experiment, _task(experiment, engine.about), engine)


def run_on(
    grid: "Grid",
    experiment: "Experiment",
    out: str | Path = "",
    resume: bool = False,
    nodes: int = 1,
    wait: float = 120.0,
    timeout: float = 120.0,
) -> None:
    """Run an experiment on a grid and write it to a folder."""
    from commonweal.flower.export import check_experiment
    from commonweal.jobs import rounds
    from commonweal.record.record import Record

    check_experiment(experiment)
    folder = Path(out or Path("runs") / f"flower-{experiment.title}-{experiment.seed}")
    begun = resume and (folder / "rounds.jsonl").exists()
    preprocessing = Record.read(folder).preprocessing() if begun else None
    engine = _engine().FlowerEngine(grid, nodes, wait, timeout, preprocessing)
    job = job_of(experiment, engine)
    for done in rounds.run(job, out=folder, resume=resume):
        shown = {name: round(value, 4) for name, value in list(done.metrics.items())[:3]}
        print(f"round {done.number} of {job.rounds}: {shown}", flush=True)
        for client, why in done.dropped.items():
            print(f"round {done.number}: client {client}: {why}", flush=True)
