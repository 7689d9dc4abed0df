"""Continuing from a checkpoint, and reopening a run that is over."""

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from torch import Tensor

from commonweal.base.arguments import expect
from commonweal.base.errors import ConfigError, RunError
from commonweal.base.files import read_plain
from commonweal.base.tensors import State
from commonweal.config.catalog import trusting
from commonweal.config.experiment import read, renamed
from commonweal.data.federation import Federation
from commonweal.jobs.job import Job, job_from_experiment, job_from_parts
from commonweal.record.checkpoint import read_checkpoint
from commonweal.record.record import PRIVATE
from commonweal.record.store import Store
from commonweal.training.task import Task

__all__ = ["reopen", "restore"]


def restore(job: Job, saved: State, store: Store | None, resume: bool, last: int = 0) -> State:
    """The server's state of a checkpoint, or the initial one; the engine gets the clients'.

    last: the round of the checkpoint
    """
    if store is not None:
        job.engine.states.restore(saved, store.client_states, resume)
    initial = job.initial_state()
    if "server" not in saved:
        return initial
    state = _matching(initial, saved["server"], job.population.clients)
    if "round" in initial and int(state["round"]) != last + 1:
        _refuse(f"it is of round {last}, but the server would continue with {state['round']}")
    if "w" in initial and state["w"].shape != initial["w"].shape:  # also with as many clients
        _refuse("server/w")
    if job.local is not None:
        states = job.local.states
        # Files are read when they are needed, but for the first.
        _check_clients(job, states if "client_states" in saved else list(states)[:1])
    return state


def _check_clients(job: Job, clients: Iterable[int]) -> None:
    """Raise RunError where the states of these clients are not of this experiment."""
    assert job.local is not None
    expected = job.algorithm.init_client(0)
    for client in clients:
        if not 0 <= client < job.population.clients:
            _refuse(f"there is no client {client}")
        state = job.local.states[client]
        place = f"client_states/{client}"
        _matching(expected.saved(), state.saved(), 0, place)
        if state.method.keys() != expected.method.keys():
            _refuse(f"{place} has {sorted(state.method)}, not {sorted(expected.method)}")


def _refuse(what: str) -> NoReturn:
    raise RunError(
        f"checkpoint.safetensors does not fit this experiment ({what}): delete it to start again"
    )


def _matching(initial: State, saved: State, clients: int, where: str = "server") -> State:
    """The saved state, checked against this experiment's; empty dicts are put back."""
    known: State = dict(saved)
    for name, value in initial.items():
        place = f"{where}/{name}"
        if isinstance(value, dict):
            inner = saved.get(name, {})
            if not isinstance(inner, dict):
                _refuse(place)
            known[name] = _matching(value, inner, clients, place)
        elif not isinstance(saved.get(name), Tensor) or not _alike(value, saved[name], clients):
            _refuse(place)
    return known


def _alike(initial: Tensor, saved: Tensor, clients: int) -> bool:
    """Whether a saved tensor can be what this one became."""
    if saved.dtype != initial.dtype or saved.ndim != initial.ndim:
        return False
    # A dimension over clients has the population's size of when it was saved, which may be smaller
    # or larger than today's; one that begins empty has any.
    return all(
        now == then or then == 0 or (then == clients and now > 0)
        for now, then in zip(saved.shape, initial.shape, strict=True)
    )


def reopen(
    folder: str | Path,
    task: Task | None = None,
    federation: Federation | None = None,
    trust: bool = False,
) -> tuple[Job, State]:
    """The job of a run in a folder, with the states of its last checkpoint.

    For a run of your own Task and Federation pass the same two again; they are compared by hash.

    trust: import the programs that the run's experiment names (`package.module:callable`)
    """
    expect("folder", folder, str | Path, "the path of a run's folder")
    expect("trust", trust, bool, "True or False")
    store = Store(Path(folder))
    if (store.folder / PRIVATE).is_dir():
        raise RunError(
            f"{str(folder)!r} is what a private run publishes, which is its global model: the "
            f"states of clients are private, in {str(store.folder / PRIVATE)!r}"
        )
    with trusting(trust):
        job = _reopened(store.folder, task, federation)
    checkpoint = read_checkpoint(store.folder)
    if checkpoint is None:
        raise RunError(f"{str(folder)!r} has no checkpoint yet")
    return job, restore(job, checkpoint.state, store, resume=False, last=checkpoint.last)


def _reopened(folder: Path, task: Task | None, federation: Federation | None) -> Job:
    path = folder / "experiment.toml"
    try:
        if task is None or federation is None:
            return job_from_experiment(read(path))
        text = read_plain(path).decode()
        tables = renamed(tomllib.loads(text))
        given = {key: value for key, value in tables.items() if key not in ("dataset", "model")}
        job = job_from_parts(task, federation, **given)
    except (ConfigError, OSError, ValueError) as error:
        raise RunError(
            f"{str(folder)!r} cannot be built again from its experiment.toml: {error}; a run of "
            "your own Task and Federation is reopened by reopen(folder, task, federation)"
        ) from None
    if renamed(tomllib.loads(job.text)) != tables:
        raise RunError(f"{str(folder)!r} is a run of another task or federation")
    return job
