"""Verification of a run's folder by the digests in its files."""

import tomllib
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TypeVar

from commonweal.base.errors import RunError
from commonweal.base.files import digest, read_plain, reading
from commonweal.record.artifacts import BEST, MODEL, read_model, read_preprocessing, read_samples
from commonweal.record.checkpoint import CHECKPOINT, Checkpoint, read_checkpoint
from commonweal.record.client_states import StateFiles, read_state, saved_rounds
from commonweal.record.columns import Chunks
from commonweal.record.facts import checked_facts
from commonweal.record.final import read_final
from commonweal.record.identity import read_data
from commonweal.record.record import Record, final_tables
from commonweal.record.rounds import ROUNDS, VALUES, parse_line, whole_lines
from commonweal.record.test_scores import read_test_scores

EXPERIMENT = "experiment.toml"
T = TypeVar("T")


def problems(folder: str | Path) -> list[str]:
    """Return all differences from what was written; empty where a run is whole.

    Rounds after the last checkpoint have no digest yet: a resumed run computes them again.
    """
    folder = Path(folder)
    problems: dict[str, None] = {}

    def check(reader: Callable[..., T], *arguments: object) -> T | None:
        try:
            return reader(*arguments)
        except RunError as error:
            problems[str(error)] = None
        except OSError as error:
            problems[f"{str(error.filename)!r} cannot be read ({error.strerror})"] = None
        return None

    check(_check_experiment, folder)
    check(checked_facts, folder)
    checkpoint = check(read_checkpoint, folder)
    if checkpoint is not None:
        check(_check_digest, folder / EXPERIMENT, checkpoint)
        check(checked_lines, folder, checkpoint)
        files = StateFiles(folder / "client_states")
        for client, round in check(saved_rounds, checkpoint.state) or ():
            check(read_state, files.path(client, round))
    elif (folder / ROUNDS).exists() and not (folder / CHECKPOINT).exists():
        check(_check_public, folder)
    for name in (MODEL, BEST):
        if (folder / name).exists():
            check(read_model, folder, name)
    tables = check(final_tables, folder) if (folder / MODEL).exists() else None
    for name, data in (tables or {}).items():
        check(_check_table, folder / name, data)
    for reader in (read_data, read_final, read_samples, read_preprocessing, read_test_scores):
        check(reader, folder)
    return list(problems)


def _check_experiment(folder: Path) -> None:
    path = folder / EXPERIMENT
    try:
        tomllib.loads(read_plain(path).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{str(path)!r} cannot be read ({error})") from None


def _check_digest(path: Path, checkpoint: Checkpoint) -> None:
    if path.is_file() and digest(read_plain(path)) != checkpoint.experiment:
        raise RunError(f"{str(path)!r} was changed after the run began: its digest differs")


def _check_public(folder: Path) -> None:
    if not Record.read(folder).is_public_part:
        raise RunError(f"{str(folder)!r} has rounds, but no {CHECKPOINT}")


def _check_table(path: Path, data: bytes) -> None:
    """Compare a CSV file of a finished run with the last evaluation."""
    if read_plain(path) != data:
        name = repr(str(path))
        raise RunError(f"{name} was changed after it was written: it is not the last evaluation")


def first_lines(path: Path, most: int) -> list[bytes]:
    """At most so many of the first complete lines of a file."""
    with reading(path):
        return list(islice(whole_lines(path), most))


def checked_lines(folder: Path, checkpoint: Checkpoint) -> list[bytes]:
    """The lines of the rounds up to a checkpoint.

    Raises RunError where they, or the values of their clients, are not as they were written.
    """
    name = repr(str(folder / ROUNDS))
    last = checkpoint.last
    lines = first_lines(folder / ROUNDS, last)
    if len(lines) < last:
        raise RunError(f"{name} has {len(lines)} rounds, but its checkpoint is of round {last}")
    for number, line in enumerate(lines, start=1):
        if not line.startswith(b'{"round": %d,' % number):
            raise RunError(f"{name} is damaged: line {number} is not round {number}")
    if digest(*lines) != checkpoint.rounds:
        raise RunError(f"{name} was changed after it was written: its digest differs")
    try:
        places = [parse_line(line).chunk for line in lines]
    except ValueError as error:
        raise RunError(f"{name} is damaged ({error})") from None
    Chunks(folder / VALUES).check([place for place in places if place is not None])
    return lines
