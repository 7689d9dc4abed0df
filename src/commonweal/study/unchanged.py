"""Comparison of a plan's finished runs with the data that are there today.

Only their files are read, not the samples: a federation is built where a program of the user's own
makes it, and to say what changed.
"""

from collections.abc import Iterable
from pathlib import Path

from commonweal.base.errors import CommonwealError, RunError
from commonweal.base.files import locked
from commonweal.config.experiment import Experiment, part_name
from commonweal.data.identity import (
    SOME_VALUE,
    Identity,
    changes,
    content_changes,
    refuse_changed_data,
)
from commonweal.jobs.job import Job, build_dataset
from commonweal.record.checkpoint import CHECKPOINT
from commonweal.record.identity import changed_files, read_data
from commonweal.record.removal import remove_run
from commonweal.record.store import EXPERIMENT, changed_keys
from commonweal.study.plan import Cell, Planned


def check_unchanged(plan: Iterable[Planned], force: bool = False) -> None:
    """Check that runs which are there already are of today's data.

    Args:
        plan: The runs.
        force: Delete runs of other data, and those of other settings, so that they start again.

    Raises:
        RunError: A run is of other data.
        DataError: There are no data to start again with.
    """
    own: dict[str, Identity] = {}  # of datasets that programs of the user's own make
    is_there = False  # today's data
    for cell in plan:
        if not isinstance(cell, Cell):
            continue  # whether its data changed is seen when it is run
        is_other = force and _is_other(cell)
        told = [] if is_other else _told(cell, own)
        if told and not force:
            refuse_changed_data(str(cell.folder), told)
        if told or is_other:
            if not is_there:
                _identity(cell.experiment)  # raises DataError: nothing is deleted without new data
                is_there = True
            _remove(cell.folder)


def _remove(folder: Path) -> None:
    """Delete a run that no other process is at."""
    with locked(folder):
        remove_run(folder)


def remove_other(folder: Path, job: Job) -> None:
    """Delete the run in a folder, unless it is of a job's settings and data."""
    experiment = folder / EXPERIMENT
    if not experiment.exists():
        return
    stored = read_data(folder)
    told = bool(changed_keys(experiment, job.text))
    if stored is not None and job.data is not None:
        told = told or bool(changes(stored.identity, job.data.identity))
    if told:
        _remove(folder)


def _is_other(cell: Cell) -> bool:
    """Return whether a folder holds a run of other settings."""
    path = cell.folder / EXPERIMENT
    return path.exists() and bool(changed_keys(path, cell.experiment.toml()))


def _told(cell: Cell, own: dict[str, Identity]) -> list[str]:
    """Describe the changes since a run that is there; empty: none, or there is no such run."""
    if not (cell.folder / CHECKPOINT).exists() or _is_other(cell):
        return []
    told = changed_files(cell.folder)
    if told:
        return told + _rows_told(cell)
    if ":" not in part_name(cell.experiment.dataset):
        return []
    stored = read_data(cell.folder)
    if stored is None:
        return []
    key = repr((cell.experiment.dataset, cell.experiment.seed, cell.experiment.partition))
    if key not in own:
        own[key] = _identity(cell.experiment)
    return changes(stored.identity, own[key])


def _rows_told(cell: Cell) -> list[str]:
    """Describe changes besides files: columns, rows and clients, where the data can be built."""
    stored = read_data(cell.folder)
    if stored is None:
        return []
    try:
        now = _identity(cell.experiment)
    except CommonwealError as error:
        return [str(error)]
    return content_changes(stored.identity, now) or [SOME_VALUE]


def _identity(experiment: Experiment) -> Identity:
    identity = build_dataset(experiment).identity
    if identity is None:
        raise RunError(f"the data of {part_name(experiment.dataset)!r} have no identity")
    return identity
