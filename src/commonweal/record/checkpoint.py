"""checkpoint.safetensors: the state after a round, with digests of what it stands for."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from commonweal.base.errors import RunError
from commonweal.base.files import read_plain, write_file
from commonweal.base.tensors import State, flatten, unflatten
from commonweal.record.checksums import pack, unpack

__all__ = ["CHECKPOINT", "START_AGAIN", "Checkpoint", "read_checkpoint", "write_checkpoint"]

CHECKPOINT = "checkpoint.safetensors"
START_AGAIN = f"restore it, or delete {CHECKPOINT} to start the run again"


class Checkpoint(NamedTuple):
    """The server's state and the clients' after a round."""

    last: int  # the round
    state: State  # "server", and what the engine saved
    experiment: str  # the digest of experiment.toml
    rounds: str  # that of the lines of rounds.jsonl up to the round


def write_checkpoint(
    folder: Path, last: int, state: Mapping[str, State | torch.Tensor], experiment: str, rounds: str
) -> None:
    flat = flatten({"last": torch.tensor(last), **state})
    write_file(folder / CHECKPOINT, pack(flat, experiment=experiment, rounds=rounds))


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """The last checkpoint of a run, or None."""
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    name = repr(str(path))
    try:
        tensors, digests = unpack(read_plain(path), name)
        state = unflatten(tensors)
        last = state.pop("last")
        server = state["server"]
        is_number = last.shape == () and last.dtype == torch.int64 and int(last) > 0
        if not is_number or not isinstance(server, dict) or not server:
            raise KeyError
    except OSError as error:
        raise RunError(f"{name} cannot be read ({error.strerror}): {START_AGAIN}") from None
    except RunError as error:
        raise RunError(f"{error}: {START_AGAIN}") from None
    except (KeyError, TypeError, ValueError, AttributeError):
        raise RunError(f"{name} is not a checkpoint: {START_AGAIN}") from None
    return Checkpoint(int(last), state, str(digests.get("experiment")), str(digests.get("rounds")))
