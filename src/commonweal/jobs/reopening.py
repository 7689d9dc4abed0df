"""Continuing from a checkpoint, and reopening a run that is over."""

import tomllib
import warnings
from pathlib import Path

from commonweal.base.arguments import expect
from commonweal.base.errors import ConfigError, ResumeWarning, RunError
from commonweal.base.files import read_plain
from commonweal.base.tensors import State
from commonweal.config.catalog import trusting
from commonweal.config.experiment import read
from commonweal.data.federation import Federation
from commonweal.jobs.job import Job, job_from_experiment, job_from_parts
from commonweal.record.checkpoint import matching, read_checkpoint, refuse_checkpoint
from commonweal.record.identity import check_data
from commonweal.record.record import PRIVATE
from commonweal.record.store import Store
from commonweal.task.own import function_name, is_importable
from commonweal.task.task import Task


def restore(job: Job, saved: State, store: Store | None, resume: bool, last: int = 0) -> State:
    """The server's state of a checkpoint, or the initial one; the engine gets the clients'.

    last: the round of the checkpoint
    """
    if store is not None:
        job.engine.states.restore(saved, store.client_states, resume)
    initial = job.initial_state()
    if "server" not in saved:
        return initial
    state = matching(initial, saved["server"], "server", job.population.clients)
    if "round" in initial and int(state["round"]) != last + 1:
        refuse_checkpoint(
            f"it is of round {last}, but the server would continue with {state['round']}"
        )
    if "w" in initial and state["w"].shape != initial["w"].shape:  # also with as many clients
        refuse_checkpoint("server/w")
    if job.local is not None:
        job.local.states.expect(job.algorithm.init_client(0))
    return state


def reopen(
    folder: str | Path,
    task: Task | None = None,
    federation: Federation | None = None,
    trust: bool = False,
) -> tuple[Job, State]:
    """The job of a run in a folder, with the states of its last checkpoint.

    The data are built again, and must be those of the run. To use its models without the data,
    see `Record.module` and `commonweal predict`.

    Args:
        folder: Of the run.
        task: For a run of your own Task and Federation, the same two again.
        federation: It is compared by a hash of its samples.
        trust: Import the programs that the run's experiment names (`package.module:callable`).

    Raises:
        RunError: The data changed, or the run cannot be built again.
    """
    expect("folder", folder, str | Path, "the path of a run's folder")
    expect("task", task, Task | None, "the Task of the run")
    expect("federation", federation, Federation | None, "the Federation of the run")
    expect("trust", trust, bool, "True or False")
    store = Store(Path(folder))
    check_has_clients(store.folder)
    with trusting(trust):
        job = _reopened(store.folder, task, federation)
    if job.data is not None:
        check_data(store.folder, job.data.identity)
    checkpoint = read_checkpoint(store.folder)
    if checkpoint is None:
        raise RunError(f"{str(folder)!r} has no checkpoint yet")
    warn_of_functions(job, store.folder)
    return job, restore(job, checkpoint.state, store, resume=False, last=checkpoint.last)


def check_has_clients(folder: Path) -> None:
    """Raise RunError where a folder is what a private run publishes, without its clients."""
    if (folder / PRIVATE).is_dir():
        raise RunError(
            f"{str(folder)!r} is what a private run publishes, which is its global model: the "
            f"states of clients are private, in {str(folder / PRIVATE)!r}"
        )


def warn_of_functions(job: Job, folder: Path) -> None:
    """Warn where a run has functions of its user's that only he can give again."""
    functions = job.task.functions
    if job.local is not None and job.local.federation.train.transform is not None:
        functions["transform"] = job.local.federation.train.transform
    others = [f"{k} = {function_name(f)}" for k, f in functions.items() if not is_importable(f)]
    if others:
        warnings.warn(
            f"the run in {str(folder)!r} has {', '.join(others)}, which cannot be imported again: "
            "whether it is the same now as when the run began is not checked",
            ResumeWarning,
            stacklevel=4,
        )


def _reopened(folder: Path, task: Task | None, federation: Federation | None) -> Job:
    path = folder / "experiment.toml"
    try:
        if task is None or federation is None:
            return job_from_experiment(read(path))
        text = read_plain(path).decode()
        tables = tomllib.loads(text)
        given = {key: value for key, value in tables.items() if key not in ("dataset", "model")}
        job = job_from_parts(task, federation, **given)
    except (ConfigError, OSError, ValueError) as error:
        raise RunError(
            f"{str(folder)!r} cannot be built again from its experiment.toml: {error}; a run of "
            "your own Task and Federation is reopened by reopen(folder, task, federation)"
        ) from None
    if tomllib.loads(job.text) != tables:
        if job.data is not None:
            check_data(folder, job.data.identity)  # which says what changed
        raise RunError(f"{str(folder)!r} is a run of another task or federation")
    return job
