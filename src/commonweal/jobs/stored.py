"""The models of a run by its folder alone: the data that it was trained on are not needed.

Clients are found by the names that the folder holds, whatever became of the data since.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from commonweal.base.errors import ConfigError, RunError, did_you_mean
from commonweal.base.files import read_plain
from commonweal.base.tensors import State, Tensors
from commonweal.config.catalog import trusting
from commonweal.config.experiment import Experiment, part_name
from commonweal.jobs.job import build_algorithm, build_task
from commonweal.jobs.reopening import check_has_clients
from commonweal.protocols.algorithm import Algorithm
from commonweal.record.checkpoint import read_checkpoint, refuse_checkpoint
from commonweal.record.client_states import ClientStates
from commonweal.record.facts import RunFacts
from commonweal.record.identity import StoredData, read_data
from commonweal.task.losses import LOSSES
from commonweal.task.task import Task
from commonweal.task.uses import Uses, mixed_module, one_model

OF_DATA = ("dataset", "partition", "label_noise")  # keys that no model depends on
NO_MODEL = {"name": "logistic"}  # in place of a user's module, which is given
NO_DATASET = {"name": "synthetic"}  # in place of the one of the run, which need not be there


@dataclass(frozen=True)
class StoredModels:
    """The models that each client of a run uses, according to its last checkpoint."""

    task: Task
    algorithm: Algorithm
    state: State  # the server's
    ids: dict[str, int]  # of the clients, by name
    states: ClientStates

    @property
    def names(self) -> tuple[str, ...]:
        """The clients that took part."""
        return tuple(self.ids)

    @property
    def personalizes(self) -> bool:
        """True if clients use models of their own."""
        return self.algorithm.personalizes

    def uses(self, client: str) -> Uses:
        """Return the models and weights that a client uses."""
        own = self.states.get(self.ids[client])
        if own is None:  # it was never asked
            return one_model(self.algorithm.model(self.state))
        return self.algorithm.uses(self._message, own)

    def module(self, client: str) -> nn.Module:
        """The personal model of a client as a module in evaluation mode, in the labels' units."""
        if client not in self.ids:
            raise ConfigError(
                f"client {client!r} is not in this run: {did_you_mean(client, self.ids)}"
            )
        if not self.personalizes:
            raise ConfigError(
                "the client method trains one model for all: leave client out, or run with a "
                "personal method such as client='ditto'"
            )
        module = mixed_module(self.task, self.task.module, self.uses(client))
        return self.task.module_in_units(module)

    @property
    def _message(self) -> Tensors:
        return self.algorithm.message(self.state)


def stored_models(
    folder: Path, facts: RunFacts, trust: bool = False, module: nn.Module | None = None
) -> StoredModels:
    """Read the models of a run from its folder.

    Args:
        folder: Of the run.
        facts: Its run.json.
        trust: Import the programs that the run's experiment names.
        module: Of the task; None: the one that the experiment names.

    Raises:
        RunError: The folder does not have them.
    """
    check_has_clients(folder)
    where = repr(str(folder))
    data = read_data(folder)
    checkpoint = read_checkpoint(folder)
    if data is None or facts.task is None:
        raise RunError(f"{where} does not say who its clients are: run it again")
    if checkpoint is None:
        raise RunError(f"{where} has no checkpoint, in which the clients' models are: run it again")
    with trusting(trust):
        experiment = _experiment(folder, is_given=module is not None)
        task, algorithm = _built(experiment, facts, data, module)
    server = _with_empty(algorithm, data, checkpoint.state["server"], facts)
    if "w" in server and server["w"].shape != task.initial.shape:
        refuse_checkpoint("server/w")
    states = ClientStates(len(data.clients))
    states.restore(checkpoint.state, folder / "client_states", resume=False)
    states.expect(algorithm.init_client(0))
    ids = {name: client for client, name in enumerate(data.clients)}
    return StoredModels(task, algorithm, server, ids, states)


def _experiment(folder: Path, is_given: bool) -> Experiment:
    """The experiment of a run, but for its data. is_given: whether the module is known"""
    path = folder / "experiment.toml"
    try:
        tables = tomllib.loads(read_plain(path).decode())
    except (OSError, ValueError) as error:
        raise RunError(f"{str(path)!r} cannot be read ({error})") from None
    if part_name(tables.get("model", "")) == "given":
        if not is_given:
            raise RunError(
                f"{str(folder)!r} is a run of your own module: record.module(own, client=...) has "
                "its clients' models"
            )
        tables["model"] = NO_MODEL
    kept = {key: value for key, value in tables.items() if key not in OF_DATA}
    return Experiment(**kept, dataset=NO_DATASET)


def _built(
    experiment: Experiment, facts: RunFacts, data: StoredData, module: nn.Module | None
) -> tuple[Task, Algorithm]:
    about = facts.task
    assert about is not None
    target = facts.target
    scale = None if target is None else (target.mean, target.deviation)
    if module is None:
        task = build_task(
            experiment,
            shape=about.shape,
            labels=about.labels,
            outputs=about.outputs,
            loss=about.loss,
            score=facts.score,
            target=scale,
        )
    else:  # predictions under a loss of the user's own are mixed as they are, as under any other
        task = Task(module, about.loss if about.loss in LOSSES else nn.MSELoss(), target=scale)
    if target is not None and target.log:
        task = task.replace(log_target=True, variance=target.variance)
    return task, build_algorithm(experiment, task, data.population(about), reads_runs=False)


def _with_empty(algorithm: Algorithm, data: StoredData, saved: State, facts: RunFacts) -> State:
    """The server's state with its empty parts, of which a file holds nothing."""
    assert facts.task is not None
    empty: State = {"rule": {}, "server": {}, "shared": {}}
    if "labels" not in algorithm.needs:  # without them there is no initial state
        initial = algorithm.init(data.population(facts.task))
        empty |= {name: {} for name, value in initial.items() if isinstance(value, dict)}
    return empty | saved
