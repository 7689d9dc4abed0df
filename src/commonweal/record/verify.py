"""Whether a run's folder is as it was written, by the digests in its files."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

import torch

from commonweal.base.errors import RunError
from commonweal.base.files import digest, read_plain
from commonweal.record.artifacts import BEST, MODEL, read_model, read_preprocessing, read_samples
from commonweal.record.checkpoint import read_checkpoint
from commonweal.record.client_states import read_state
from commonweal.record.facts import damaged_facts
from commonweal.record.lines import damaged_rounds, damaged_values, whole_lines
from commonweal.record.record import Record, final_tables
from commonweal.record.rounds import ROUNDS

__all__ = ["problems"]


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
    for name, data in final_tables(Record.read(folder)).items():
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
    lines = whole_lines(folder / ROUNDS, checkpoint.last)
    experiment = folder / "experiment.toml"
    if experiment.is_file() and digest(read_plain(experiment)) != checkpoint.experiment:
        yield f"{str(experiment)!r} was changed after the run began: its digest differs"
    yield from damaged_rounds(folder, lines, checkpoint.last, checkpoint.rounds)
    yield from damaged_values(folder, lines)
    for client, round in checkpoint.state.get("client_rounds", torch.empty(0, 2)).tolist():
        try:
            read_state(folder / "client_states" / f"{client:06d}-{round:06d}.safetensors")
        except RunError as error:
            yield str(error)
