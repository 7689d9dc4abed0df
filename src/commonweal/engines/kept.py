"""What clients keep for themselves, for those that have taken part: in memory up to a budget, else in mapped files.

A checkpoint holds a small store itself. Of a large one it holds only which file is each client's, and writes the rows
that changed since the last: a file is named by its client and round and never written twice, so that a kill at any
instant leaves those of the last checkpoint whole, and equal runs end with equal files.
"""

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from commonweal.errors import RunError
from commonweal.local import Tensors

__all__ = ["Kept"]

MEMORY = 1 << 30  # bytes of rows that are held in memory
INSIDE = 1 << 26  # bytes up to which all clients' rows go into the checkpoint itself


class Kept(Mapping[int, Tensors]):
    """A row of tensors for every client that has taken part.

    The rows of a round wait aside until the next one begins or a checkpoint is taken: a round that was interrupted
    leaves no trace.
    """

    def __init__(self, clients: int, memory: int = MEMORY, inside: int = INSIDE) -> None:
        self.clients, self.memory, self.inside = clients, memory, inside
        self.clear()

    def clear(self) -> None:
        """Nobody has taken part: so a run begins."""
        self.folder: Path | None = None  # where files go: a run's folder, or one of this object's own
        self._rows: dict[int, Tensors] = {}
        self._files: dict[int, Path] = {}
        self._rounds: dict[int, int] = {}  # each row's round, by which its file is named
        self._waiting: dict[int, Tensors] = {}
        self._round = 0
        self._saved: set[Path] = set()  # the files of the last checkpoint
        self._saving = False  # whether checkpoints are taken, and files must outlive a power cut
        self._bytes = 0

    def __getitem__(self, client: int) -> Tensors:
        if client in self._waiting:
            return self._waiting[client]
        return self._rows[client] if client in self._rows else _read(self._files[client])

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._rounds.keys() | self._waiting.keys()))

    def __len__(self) -> int:
        return len(self._rounds.keys() | self._waiting.keys())

    def __contains__(self, client: object) -> bool:
        return client in self._rounds or client in self._waiting

    def put(self, client: int, row: Tensors, round: int) -> None:
        """A client's row after its visit in a round."""
        if round != self._round:
            self._settle()
            self._round = round
        self._waiting[client] = row

    def checkpoint(self, last: int) -> dict[str, Any]:
        """What a checkpoint after round `last` says of the rows; `confirm` when it is written."""
        if self._round > last:
            self._waiting.clear()  # that round was interrupted
        self._settle()
        if not self._large:
            return {"kept": {str(i): self[i] for i in self}}
        for client, row in self._rows.items():
            if client not in self._files:
                self._write(client, row)
        return {"kept_rounds": torch.tensor([[i, self._rounds[i]] for i in self], dtype=torch.int64)}

    def confirm(self) -> None:
        """The checkpoint is written: what it does not name is of no use any more."""
        for path in self._saved - set(self._files.values()):
            path.unlink(missing_ok=True)
        self._saved = set(self._files.values())

    def restore(self, saved: Mapping[str, Any], folder: Path) -> None:
        """What a checkpoint says, with files in `folder`, and nothing else."""
        self.clear()
        self.folder, self._saving = folder, True
        for client, row in saved.get("kept", {}).items():
            self._hold(int(client), row)
        for client, round in saved.get("kept_rounds", torch.empty(0, 2)).tolist():
            self._rounds[client] = round
            self._files[client] = self._path(client, round)
            if not self._files[client].exists():
                raise RunError(f"{str(self._files[client])!r} is missing: this run cannot go on, begin it anew")
        self._saved = set(self._files.values())

    def tidy(self) -> None:
        """Delete the files that the checkpoint does not name: of rounds that will be computed again."""
        for path in set(self.folder.glob("*") if self.folder else ()) - self._saved:
            path.unlink()

    @property
    def _large(self) -> bool:
        """Decided by what all clients would keep, so that a run does it one way from beginning to end."""
        first = next(iter(self.values()), {})
        return self.clients * _size(first) > min(self.inside, self.memory)

    def _settle(self) -> None:
        for client, row in self._waiting.items():
            self._rounds[client] = self._round
            self._forget(client)
            if client not in self._rows and self._bytes + _size(row) > self.memory:
                self._write(client, row)
            else:
                self._hold(client, row)
        self._waiting.clear()

    def _hold(self, client: int, row: Tensors) -> None:
        self._bytes += 0 if client in self._rows else _size(row)
        self._rows[client] = row
        self._rounds.setdefault(client, 0)

    def _forget(self, client: int) -> None:
        """The client's file is out of date: delete it, unless the last checkpoint needs it."""
        old = self._files.pop(client, None)
        if old is not None and old not in self._saved:
            old.unlink(missing_ok=True)

    def _write(self, client: int, row: Tensors) -> None:
        path = self._path(client, self._rounds[client])
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:
                file.write(safetensors.torch.save({n: v.detach().contiguous() for n, v in row.items()}))
                file.flush()
                if self._saving:
                    os.fsync(file.fileno())
        except OSError as error:
            raise RunError(
                f"cannot write {str(path)!r}: {error.strerror}; mend this, then go on with --resume"
            ) from error
        self._files[client] = path

    def _path(self, client: int, round: int) -> Path:
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="commonweal-"))
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        return self.folder / f"{client:06d}-{round:06d}.safetensors"


def _size(row: Tensors) -> int:
    return sum(value.numel() * value.element_size() for value in row.values())


def _read(path: Path) -> Tensors:
    # load_file maps the file; the copy lets go of it, and is aligned as a row in memory is.
    return {name: value.clone() for name, value in safetensors.torch.load_file(path).items()}
