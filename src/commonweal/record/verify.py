"""Whether a run's folder is as it was written, by the digests in its files."""

import tomllib
from itertools import islice
from pathlib import Path

from commonweal.base.errors import RunError
from commonweal.base.files import digest, read_plain, reading
from commonweal.record.artifacts import BEST, MODEL, read_model, read_preprocessing, read_samples
from commonweal.record.checkpoint import Checkpoint, read_checkpoint
from commonweal.record.client_states import StateFiles, read_state, saved_rounds
from commonweal.record.columns import Chunks
from commonweal.record.facts import checked_facts
from commonweal.record.final import read_final
from commonweal.record.record import Record, final_tables
from commonweal.record.rounds import ROUNDS, VALUES, parse_line, whole_lines


def problems(folder: str | Path) -> list[str]:
    """What is not as it was written, at most one problem of each kind of file.

    Rounds after the last checkpoint have no digest yet: a resumed run computes them again.
    """
    problems = []
    checks = (_check_experiment, checked_facts, _check_rounds, _check_states, _check_models)
    for check in (*checks, _check_tables, read_final, read_samples, read_preprocessing):
        try:
            check(Path(folder))
        except RunError as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"{str(error.filename)!r} cannot be read ({error.strerror})")
    return list(dict.fromkeys(problems))


def _check_experiment(folder: Path) -> None:
    path = folder / "experiment.toml"
    try:
        tomllib.loads(read_plain(path).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{str(path)!r} cannot be read ({error})") from None


def _check_rounds(folder: Path) -> None:
    """Check what the checkpoint stands for."""
    checkpoint = read_checkpoint(folder)
    experiment = folder / "experiment.toml"
    if checkpoint is not None:
        checked_lines(folder, checkpoint)
        if experiment.is_file() and digest(read_plain(experiment)) != checkpoint.experiment:
            name = repr(str(experiment))
            raise RunError(f"{name} was changed after the run began: its digest differs")
    elif (folder / ROUNDS).exists() and not Record.read(folder).is_public_part:
        raise RunError(f"{str(folder)!r} has rounds, but no checkpoint.safetensors")


def _check_states(folder: Path) -> None:
    checkpoint = read_checkpoint(folder)
    files = StateFiles(folder / "client_states")
    for client, round in () if checkpoint is None else saved_rounds(checkpoint.state):
        read_state(files.path(client, round))


def _check_models(folder: Path) -> None:
    for name in (MODEL, BEST):
        if (folder / name).exists():
            read_model(folder, name)


def _check_tables(folder: Path) -> None:
    """Compare the CSV files of a finished run with the last evaluation."""
    tables = final_tables(folder) if (folder / MODEL).exists() else {}
    for name, data in tables.items():
        if read_plain(folder / name) != data:
            path = repr(str(folder / name))
            raise RunError(
                f"{path} was changed after it was written: it is not the last evaluation"
            )


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
