"""checkpoint.safetensors: the state after a round, with digests of what it stands for."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from commonweal.base.errors import RunError
from commonweal.base.files import read_plain, reading, write_file
from commonweal.base.tensors import State, flatten, unflatten
from commonweal.record.checksums import from_bytes, to_bytes

CHECKPOINT = "checkpoint.safetensors"
START_AGAIN = f"restore it, or delete {CHECKPOINT} to start the run again"


class Checkpoint(NamedTuple):
    """The server's state and the clients' after a round."""

    last: int  # the round
    state: State  # "server", and what the engine saved
    experiment: str  # the digest of experiment.toml
    rounds: str  # that of the lines of rounds.jsonl up to the round


def write_checkpoint(
    folder: Path, last: int, state: Mapping[str, State | Tensor], experiment: str, rounds: str
) -> None:
    flat = flatten({"last": torch.tensor(last), **state})
    write_file(folder / CHECKPOINT, to_bytes(flat, experiment=experiment, rounds=rounds))


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """The last checkpoint of a run, or None."""
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    name = repr(str(path))
    try:
        with reading(path):
            data = read_plain(path)
        tensors, digests = from_bytes(data, name)
        state = unflatten(tensors)
        last = state.pop("last")
        server = state["server"]
        is_number = last.shape == () and last.dtype == torch.int64 and int(last) > 0
        if not is_number or not isinstance(server, dict) or not server:
            raise KeyError
    except RunError as error:
        raise RunError(f"{error}: {START_AGAIN}") from None
    except (KeyError, TypeError, ValueError, AttributeError):
        raise RunError(f"{name} is not a checkpoint: {START_AGAIN}") from None
    return Checkpoint(int(last), state, str(digests.get("experiment")), str(digests.get("rounds")))


def refuse_checkpoint(what: str) -> NoReturn:
    """Raise RunError for a checkpoint that this run cannot have written."""
    raise RunError(f"{CHECKPOINT} does not fit this experiment ({what}): delete it to start again")


def matching(initial: State, saved: State, where: str, clients: int = 0) -> State:
    """The saved state, checked against that of an experiment; empty dicts are put back.

    Args:
        initial: The state before the first round.
        saved: The state that a file holds.
        where: What an error calls it.
        clients: The size of dimensions over clients, which may have changed.
    """
    state: State = dict(saved)
    for name, value in initial.items():
        place = f"{where}/{name}"
        if isinstance(value, dict):
            inner = saved.get(name, {})
            if not isinstance(inner, dict):
                refuse_checkpoint(place)
            state[name] = matching(value, inner, place, clients)
        elif not isinstance(saved.get(name), Tensor) or not _alike(value, saved[name], clients):
            refuse_checkpoint(place)
    return state


def _alike(initial: Tensor, saved: Tensor, clients: int) -> bool:
    """Return whether a saved tensor can be what this one became.

    A dimension over clients has the population's size of when it was saved, which may be smaller or
    larger than today's; one that begins empty has any.
    """
    if saved.dtype != initial.dtype or saved.ndim != initial.ndim:
        return False
    sizes = zip(saved.shape, initial.shape, strict=True)
    return all(now == then or then == 0 or (then == clients and now > 0) for now, then in sizes)
