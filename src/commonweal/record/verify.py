"""Whether a run's folder is as it was written, by the digests in its files."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

import torch

from commonweal.base.errors import RunError
from commonweal.base.files import digest, read_plain
from commonweal.record.checksums import unpack
from commonweal.record.client_states import read_state
from commonweal.record.store import (
    Record,
    Store,
    damaged_facts,
    damaged_rounds,
    damaged_values,
    whole_lines,
)

__all__ = ["problems"]


def problems(folder: str | Path) -> list[str]:
    """What is not as it was written, in sentences; empty where a run is whole.

    Rounds after the last checkpoint have no digest yet: a resumed run computes them again.
    """
    folder = Path(folder)
    found = [*_experiment(folder), *damaged_facts(folder)]
    try:
        found += _checkpoint(folder)
        if (folder / "model.safetensors").exists():
            Record(folder, {}, {}, []).model()
            found += _tables(folder)
        if (folder / "best.safetensors").exists():
            unpack(read_plain(folder / "best.safetensors"), repr(str(folder / "best.safetensors")))
        Record(folder, {}, {}, []).samples()
        Record(folder, {}, {}, []).preprocessing()
    except RunError as error:
        found.append(str(error))
    except OSError as error:
        found.append(f"{str(error.filename)!r} cannot be read ({error.strerror})")
    return found


def _experiment(folder: Path) -> list[str]:
    path = folder / "experiment.toml"
    try:
        tomllib.loads(read_plain(path).decode())
    except (OSError, ValueError, RecursionError) as error:
        return [f"{str(path)!r} cannot be read ({error})"]
    return []


def _tables(folder: Path) -> Iterator[str]:
    """The last evaluation as CSV, which is made from the values of rounds."""
    for name, data in Record.read(folder).final_tables().items():
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
    store = Store(folder)
    checkpoint = store.read_checkpoint()
    if checkpoint is None:
        if (folder / "rounds.jsonl").exists():
            yield f"{str(folder)!r} has rounds, but no checkpoint.safetensors"
        return
    saved, about = checkpoint
    last = int(saved["last"])
    lines = whole_lines(folder / "rounds.jsonl", last)
    experiment = folder / "experiment.toml"
    if experiment.is_file() and digest(read_plain(experiment)) != about.get("experiment"):
        yield f"{str(experiment)!r} was changed after the run began: its digest differs"
    yield from damaged_rounds(folder, lines, last, about.get("rounds"))
    yield from damaged_values(folder, lines)
    for client, round in saved.get("client_rounds", torch.empty(0, 2)).tolist():
        try:
            read_state(folder / "client_states" / f"{client:06d}-{round:06d}.safetensors")
        except RunError as error:
            yield str(error)
