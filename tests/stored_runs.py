"""Runs in folders, finished or stopped, with clients' states in files."""

from pathlib import Path
from typing import Any

from commonweal.engines.simulator import Simulator
from commonweal.jobs.job import Job
from commonweal.jobs.rounds import run
from commonweal.record.client_states import ClientStates
from run_helpers import federation, job, stop_after, task

PARTS: dict[str, Any] = {"rule": "aaggff-s", "server": "sgd(momentum=0.5)", "rounds": 5}


def finish(folder: Path, **how: Any) -> None:
    list(run(task(), federation(), out=folder, **(PARTS | how)))


def files_job() -> Job:
    """A job of a personal method, whose clients' states are in files."""
    f = federation()
    engine = Simulator(f)
    engine.states = ClientStates(f.clients, 0, 0)
    return job(task(), f, engine, client="ditto", **PARTS)


def stop_in_round_three(folder: Path) -> Path:
    """A run with states in files, stopped after three of five rounds."""
    stop_after(3, run(files_job(), out=folder))
    return folder
