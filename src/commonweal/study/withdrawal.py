"""Withdrawal of a client: a run without it, and what is left of the run that had it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from commonweal.base.errors import ConfigError, RunError, did_you_mean
from commonweal.base.files import write_file
from commonweal.config.experiment import Experiment, read
from commonweal.record.artifacts import MODEL, PREPARATION, read_model
from commonweal.record.checkpoint import CHECKPOINT
from commonweal.record.identity import read_data
from commonweal.record.record import Record
from commonweal.record.removal import FILES
from commonweal.record.verify import problems

NAME = "withdrawal.json"
STATES = "client_states"
LARGEST = 1 << 28  # bytes of a file that is searched
PIECE = 64  # bytes of a tensor by which a copy of the model is found
SMALLEST = 16  # bytes of a tensor that distinguishes models


@dataclass(frozen=True)
class Withdrawal:
    """A finished withdrawal, as it is written to the new run's folder."""

    client: str
    run: str  # the folder of the run that had the client
    deleted: tuple[str, ...]  # files of states
    derived: tuple[str, ...]  # files that hold or name the old run


def experiment_without(folder: Path, client: str) -> Experiment:
    """A run's experiment without a client. Raises ConfigError where it has no such client."""
    experiment = read(folder / "experiment.toml")
    if Record.read(folder).facts.engine == "flower":
        raise ConfigError("the samples are at nodes: stop the client's node, and run again")
    data = read_data(folder)
    names = () if data is None else data.clients
    if client not in names:
        raise ConfigError(
            f"{str(folder)!r} has no client {client!r}: {did_you_mean(client, names)}"
        )
    return experiment.change(without=(*experiment.left_out, client))


def withdraw(client: str, old: Path, new: Path, places: Sequence[Path]) -> Withdrawal:
    """Delete the old run's states, once the new run is finished, and list what is derived from it.

    Args:
        client: The client.
        old: The run that had it.
        new: The run without it.
        places: The folders that are searched.
    """
    check_without(client, new)
    derived = {path for place in places for path in _derived(old, new, place)}
    # Exports have their own preprocessing, which is of all clients' rows, next to the model.
    preprocessing = {path.with_name(PREPARATION) for path in derived}
    derived |= {path for path in preprocessing if path.is_file()}
    deleted = []
    for path in (old / CHECKPOINT, *sorted((old / STATES).glob("*"))):
        if path.is_file():
            path.unlink()
            deleted.append(str(path))
    done = Withdrawal(client, str(old), tuple(deleted), tuple(sorted(map(str, derived))))
    write_file(new / NAME, (json.dumps(asdict(done), indent=1) + "\n").encode())
    return done


def check_without(client: str, new: Path) -> None:
    """Raise RunError unless a run is finished and intact, and never had a client."""
    record = Record.read(new)
    damage = problems(new)
    if damage:
        raise RunError("; ".join(damage))
    data = read_data(new)
    if not (new / MODEL).exists() or data is None:
        raise RunError(f"{str(new)!r} is not finished: run the command again")
    known = {*data.clients, *dict(data.identity.clients), *record.clients().names}
    if client in known:
        raise RunError(f"{str(new)!r} has a client {client!r}")


def verify_withdrawal(new: Path) -> Withdrawal:
    """Verify a finished withdrawal. Raises RunError where something is left or was changed."""
    path = new / NAME
    if not path.exists():
        raise RunError(f"{str(path)!r} does not exist: this is not the run of a withdrawal")
    try:
        values = json.loads(path.read_bytes())
        done = Withdrawal(
            values["client"], values["run"], tuple(values["deleted"]), tuple(values["derived"])
        )
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{str(path)!r} is damaged: {error}") from None
    check_without(done.client, new)
    left = [name for name in (*done.deleted, *done.derived) if Path(name).exists()]
    if left:
        raise RunError(f"{len(left)} files are left of the run that had {done.client!r}: {left[0]}")
    return done


def _derived(old: Path, new: Path, place: Path) -> Iterator[Path]:
    """Yield the files below a folder that name the old run's folder, or hold of its files."""
    pieces = ["/".join(old.resolve().parts[-2:]).encode()]
    if (old / MODEL).exists():
        for tensor in read_model(old).values():
            values = np.ascontiguousarray(tensor.numpy()).tobytes()
            if len(values) >= SMALLEST and any(values):
                pieces.append(values[:PIECE])
    own = {path: path.read_bytes() for path in map(old.joinpath, FILES) if path.is_file()}
    copies = {content for content in own.values() if len(content) >= PIECE}
    for path in sorted(place.rglob("*")):
        if path.is_symlink() or not path.is_file() or path.is_relative_to(new):
            continue
        if path == old / CHECKPOINT or path.parent == old / STATES:
            continue
        if path in own:
            yield path
        elif path.stat().st_size <= LARGEST:
            content = path.read_bytes()
            if content in copies or any(piece in content for piece in pieces):
                yield path
