"""The states of clients that have taken part: in memory up to a budget, else in files.

Small states are part of the checkpoint itself. Of large ones the checkpoint says which file is each
client's. A file is named by its client and round and never written twice, so that a kill at any
instant leaves the files of the last checkpoint complete, and equal runs end with equal files.
"""

import math
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from commonweal.base.errors import RunError
from commonweal.base.files import read_plain, reading, write_file
from commonweal.base.tensors import State, flatten, unflatten
from commonweal.record.checkpoint import matching, refuse_checkpoint
from commonweal.record.checksums import from_bytes, to_bytes
from commonweal.training.client_state import NO_STATE, ClientState

MEMORY = 1 << 30  # bytes of states that are held in memory
INSIDE = 1 << 26  # bytes up to which all clients' states go into the checkpoint itself
OURS = r"\d{6,}-\d{6,}\.safetensors((\.\d+)?\.part)?"  # names of files that may be deleted


class StateFiles:
    """The states of clients in a folder: a file per client and version, with a checksum.

    Args:
        folder: Where the files are.
        durable: Whether files must survive a power cut.
    """

    def __init__(self, folder: Path, durable: bool = True) -> None:
        self.folder = folder
        self.durable = durable

    def path(self, client: int, version: int) -> Path:
        """The file of a client's state."""
        return self.folder / f"{client:06d}-{version:06d}.safetensors"

    def write(self, client: int, version: int, state: ClientState) -> Path:
        """Write a client's state. Returns its file."""
        path = self.path(client, version)
        write_file(path, to_bytes(flatten(state.saved()), file=path.name), durable=self.durable)
        return path

    def newest(self, client: int, before: int) -> ClientState | None:
        """Read a client's newest state before a version. None: there is none.

        Raises:
            RunError: It is not the one that was written.
        """
        earlier = self._versions(client, before)
        return read_state(self.path(client, earlier[-1])) if earlier else None

    def prune(self, client: int, before: float = math.inf) -> None:
        """Of the versions of a client's state before this one, delete all but the newest."""
        for version in self._versions(client, before)[:-1]:
            self.path(client, version).unlink(missing_ok=True)

    def _versions(self, client: int, before: float) -> list[int]:
        """The versions of a client's state before this one, oldest first."""
        paths = self.folder.glob(f"{client:06d}-*.safetensors")
        versions = sorted(int(path.stem.split("-")[1]) for path in paths)
        return [version for version in versions if version < before]


class StateStore:
    """Keeps clients' states over a run. This one keeps none: the clients have them."""

    def reset(self) -> None:
        """Forget all client states."""

    def save(self, last: int) -> State:
        """Return the clients' part of a checkpoint after round `last`."""
        return {}

    def confirm(self) -> None:
        """The checkpoint is written."""

    def restore(self, saved: State, folder: Path, resume: bool = True) -> None:
        """Take over the clients' states of a checkpoint.

        Args:
            saved: the checkpoint's state
            folder: of files with clients' states
            resume: the run continues, so that files of later rounds are deleted
        """


class ClientStates(Mapping[int, ClientState], StateStore):
    """The state of every client that has taken part, by id.

    The states of a round are pending until the next round begins or a checkpoint is taken: a round
    that was interrupted leaves no trace.
    """

    def __init__(self, clients: int, memory: int = MEMORY, inside: int = INSIDE) -> None:
        self.clients = clients
        self.memory = memory
        self.inside = inside
        self.reset()

    def reset(self) -> None:
        self.folder: Path | None = None  # of the run, or a temporary one
        self._in_memory: dict[int, ClientState] = {}
        self._files: dict[int, Path] = {}
        self._rounds: dict[int, int] = {}  # the round of each state, by which its file is named
        self._pending: dict[int, ClientState] = {}
        self._round = 0
        self._saved: set[Path] = set()  # the files of the last checkpoint
        self._expected: ClientState | None = None  # a state of this experiment
        self._durable = False  # whether files must survive a power cut
        self._bytes = 0

    def __getitem__(self, client: int) -> ClientState:
        if client in self._pending:
            return self._pending[client]
        if client in self._in_memory:
            return self._in_memory[client]
        return self._checked(client, read_state(self._files[client]))

    @property
    def last_round(self) -> int:
        """The last round in which a client's state changed."""
        return self._round if self._pending else max(self._rounds.values(), default=0)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._rounds.keys() | self._pending.keys()))

    def __len__(self) -> int:
        return len(self._rounds.keys() | self._pending.keys())

    def __contains__(self, client: object) -> bool:
        return client in self._rounds or client in self._pending

    def put(self, client: int, state: ClientState, round: int) -> None:
        """Set a client's state after a round."""
        if round != self._round:
            self._commit()
            self._round = round
        self._pending[client] = state

    def save(self, last: int) -> State:
        if self._round > last:
            self._pending.clear()  # that round was interrupted
        self._commit()
        if not self._large:
            return {"client_states": {str(client): self[client].saved() for client in self}}
        for client, state in self._in_memory.items():
            if client not in self._files:
                self._write(client, state)
        rounds = [[client, self._rounds[client]] for client in self]
        return {"client_rounds": torch.tensor(rounds, dtype=torch.int64)}

    def confirm(self) -> None:
        """Delete the files that the checkpoint, now written, does not name."""
        for path in self._saved - set(self._files.values()):
            path.unlink(missing_ok=True)
        self._saved = set(self._files.values())

    def restore(self, saved: State, folder: Path, resume: bool = True) -> None:
        self.reset()
        self.folder = folder
        self._durable = True
        inside = saved.get("client_states", {})
        if not isinstance(inside, dict):
            refuse_checkpoint("client_states are not by client")
        for client, state in inside.items():
            if not client.isascii() or not client.isdecimal():
                refuse_checkpoint("client_states are not by client")
            if not isinstance(state, dict):
                refuse_checkpoint(f"client_states/{client} is a tensor")
            self._hold(int(client), ClientState.read(state))
        for client, round in saved_rounds(saved):
            path = StateFiles(folder).path(client, round)
            if not path.exists():
                raise RunError(f"{str(path)!r} is missing: this run cannot be resumed")
            self._rounds[client] = round
            self._files[client] = path
        self._saved = set(self._files.values())
        # Files of rounds after the checkpoint: the rounds will be computed again.
        for path in set(folder.glob("*.safetensors*")) - self._saved if resume else ():
            if re.fullmatch(OURS, path.name) and path.is_file():
                path.unlink()

    def expect(self, expected: ClientState) -> None:
        """Check that states are like one of this experiment, or raise RunError.

        Those in files, but for the first, are checked when they are read.
        """
        self._expected = expected
        clients = list(self)
        for client in clients:
            if not 0 <= client < self.clients:
                refuse_checkpoint(f"there is no client {client}")
        for client in [*self._in_memory, *clients[:1]]:
            self._checked(client, self[client])

    def _checked(self, client: int, state: ClientState) -> ClientState:
        """The state; raises RunError where it is not of this experiment."""
        if self._expected is not None:
            place = f"client_states/{client}"
            matching(self._expected.saved(), state.saved(), place)
            if state.method.keys() != self._expected.method.keys():
                refuse_checkpoint(
                    f"{place} has {sorted(state.method)}, not {sorted(self._expected.method)}"
                )
        return state

    @property
    def _large(self) -> bool:
        """Decided by the size of all clients' states, so that it never changes during a run."""
        first = next(iter(self.values()), NO_STATE)
        return self.clients * first.num_bytes > min(self.inside, self.memory)

    def _commit(self) -> None:
        for client, state in self._pending.items():
            self._rounds[client] = self._round
            outdated = self._files.pop(client, None)
            if outdated is not None and outdated not in self._saved:
                outdated.unlink(missing_ok=True)
            full = self._bytes + state.num_bytes > self.memory
            if full and client not in self._in_memory:
                self._write(client, state)
            else:
                self._hold(client, state)
        self._pending.clear()

    def _hold(self, client: int, state: ClientState) -> None:
        if client not in self._in_memory:
            self._bytes += state.num_bytes
        self._in_memory[client] = state
        self._rounds.setdefault(client, 0)

    def _write(self, client: int, state: ClientState) -> None:
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="commonweal-"))
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        files = StateFiles(self.folder, self._durable)
        self._files[client] = files.write(client, self._rounds[client], state)


def saved_rounds(saved: State) -> list[tuple[int, int]]:
    """The clients whose states a checkpoint left in files, with the round of each.

    Raises:
        RunError: It does not name them so.
    """
    named = saved.get("client_rounds", torch.empty(0, 2, dtype=torch.int64))
    is_numbers = isinstance(named, Tensor) and named.dtype == torch.int64 and named.ndim == 2
    if not is_numbers or named.shape[1] != 2 or bool((named < 0).any()):
        refuse_checkpoint("client_rounds are not pairs of numbers")
    return [(client, round) for client, round in named.tolist()]


def read_state(path: Path) -> ClientState:
    """The state in a file. Raises RunError where it is not the one that was written there."""
    name = repr(str(path))
    with reading(path):
        data = read_plain(path)
    tensors, facts = from_bytes(data, name)
    if facts.get("file") != path.name:
        raise RunError(f"{name} is the file {facts.get('file')!r} under another name")
    try:
        return ClientState.read(unflatten(tensors))
    except ValueError as error:
        raise RunError(f"{name} is not a state of a client ({error})") from None
