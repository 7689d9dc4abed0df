"""Whether a run's folder is as it was written, by the digests in its files."""

import tomllib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from commonweal.base.errors import RunError
from commonweal.base.files import digest, read_plain, reading
from commonweal.record.artifacts import BEST, MODEL, read_model, read_preprocessing, read_samples
from commonweal.record.checkpoint import Checkpoint, read_checkpoint
from commonweal.record.client_states import StateFiles, read_state, saved_rounds
from commonweal.record.columns import Chunks
from commonweal.record.facts import damaged_facts
from commonweal.record.final import read_final
from commonweal.record.record import Record, final_tables
from commonweal.record.rounds import ROUNDS, VALUES, parse_line, whole_lines


def problems(folder: str | Path) -> list[str]:
    """What is not as it was written; empty where a run is whole.

    Rounds after the last checkpoint have no digest yet: a resumed run computes them again.
    """
    folder = Path(folder)
    problems = [*_experiment(folder), *damaged_facts(folder)]
    try:
        problems += _checkpoint(folder)
        if (folder / MODEL).exists():
            read_model(folder)
            problems += _tables(folder)
            read_final(folder)
        if (folder / BEST).exists():
            read_model(folder, BEST)
        read_samples(folder)
        read_preprocessing(folder)
    except RunError as error:
        problems.append(str(error))
    except OSError as error:
        problems.append(f"{str(error.filename)!r} cannot be read ({error.strerror})")
    return problems


def _experiment(folder: Path) -> list[str]:
    path = folder / "experiment.toml"
    try:
        tomllib.loads(read_plain(path).decode())
    except (OSError, ValueError, RecursionError) as error:
        return [f"{str(path)!r} cannot be read ({error})"]
    return []


def _tables(folder: Path) -> Iterator[str]:
    """The last evaluation as CSV, which is made from the values of rounds."""
    for name, data in final_tables(folder).items():
        path = folder / name
        try:
            same = read_plain(path) == data
        except OSError as error:
            yield f"{str(path)!r} cannot be read ({error.strerror})"
            continue
        if not same:
            yield f"{str(path)!r} was changed after it was written: it is not the last evaluation"


def _checkpoint(folder: Path) -> Iterator[str]:
    """What is wrong with the checkpoint, and with what it stands for."""
    checkpoint = read_checkpoint(folder)
    if checkpoint is None:
        if (folder / ROUNDS).exists() and not Record.read(folder).is_public_part:
            yield f"{str(folder)!r} has rounds, but no checkpoint.safetensors"
        return
    experiment = folder / "experiment.toml"
    if experiment.is_file() and digest(read_plain(experiment)) != checkpoint.experiment:
        yield f"{str(experiment)!r} was changed after the run began: its digest differs"
    yield from damaged_rounds(folder, checkpoint, first_lines(folder / ROUNDS, checkpoint.last))
    files = StateFiles(folder / "client_states")
    for client, round in saved_rounds(checkpoint.state):
        try:
            read_state(files.path(client, round))
        except RunError as error:
            yield str(error)


def first_lines(path: Path, most: int) -> list[bytes]:
    """At most so many of the first complete lines of a file."""
    with reading(path):
        return list(islice(whole_lines(path), most))


def damaged_rounds(folder: Path, checkpoint: Checkpoint, lines: Sequence[bytes]) -> list[str]:
    """What is wrong with the rounds up to a checkpoint, and with the values of their clients."""
    name = repr(str(folder / ROUNDS))
    last = checkpoint.last
    if len(lines) < last:
        return [f"{name} has {len(lines)} rounds, but its checkpoint is of round {last}"]
    for number, line in enumerate(lines, start=1):
        if not line.startswith(b'{"round": %d,' % number):
            return [f"{name} is damaged: line {number} is not round {number}"]
    if digest(*lines) != checkpoint.rounds:
        return [f"{name} was changed after it was written: its digest differs"]
    try:
        places = [parse_line(line).chunk for line in lines]
    except ValueError as error:
        return [f"{name} is damaged ({error})"]
    problem = Chunks(folder / VALUES).damaged(place for place in places if place is not None)
    return [problem] if problem else []
