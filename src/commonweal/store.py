"""A run is a folder of plain files that any tool reads, and that a kill at any instant leaves whole.

    experiment.toml         what determines the run, defaults included
    run.json                what it ran on: versions, clients, parameters, engine and why
    rounds.jsonl            one line a round: cohort, losses, scores, weights, dropped reports, metrics
    clients/000010.csv      every client's name, score and loss, for each evaluated round
    synthetic.npz           the rows made so far (images, labels), where the algorithm makes some
    pictures/000010.png     these rows, a class a line, for each evaluated round
    model.safetensors       the final model, by the module's own names
    checkpoint.safetensors  the server after some round: where a resumed run goes on
    timings.jsonl           seconds a round took; the only file that differs between two equal runs

Files are replaced whole, or appended to with a single write that a resumed run first cuts back to its checkpoint.
"""

import csv
import io
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from commonweal.errors import RunError

__all__ = ["Record", "Store", "flatten", "unflatten"]


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Tensor]:
    """Nested dicts of tensors as one dict, names joined by '/'.

    >>> list(flatten({"a": {"b": torch.zeros(1)}, "c": torch.ones(1)}))
    ['a/b', 'c']
    """
    flat: dict[str, Tensor] = {}
    for name, value in nested.items():
        flat |= flatten(value, f"{prefix}{name}/") if isinstance(value, Mapping) else {prefix + name: value}
    return flat


def unflatten(flat: Mapping[str, Tensor]) -> dict[str, Any]:
    """The inverse of `flatten`; empty dicts are lost."""
    nested: dict[str, Any] = {}
    for path, value in flat.items():
        *above, name = path.split("/")
        place = nested
        for part in above:
            place = place.setdefault(part, {})
        # A copy, because a tensor inside the file's buffer lies at another alignment, and sums may round differently.
        place[name] = value.clone()
    return nested


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failed write (no space, no permission) into a sentence."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write {str(path)!r}: {error.strerror}; what was saved before is whole: "
            "mend this, then go on with --resume"
        ) from error


def replace(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".part")
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


@dataclass(frozen=True)
class Store:
    """The folder of a run that is being written."""

    folder: Path

    def open(self, experiment: str, facts: Mapping[str, Any], resume: bool) -> tuple[int, dict[str, Any]]:
        """Begin or go on: the last round that is saved (0 for none), and the server and clients after it."""
        known = self.folder / "experiment.toml"
        if known.exists():
            if known.read_text(encoding="utf-8") != experiment:
                what = f"another experiment ({_difference(known, experiment)})"
                raise RunError(f"{str(self.folder)!r} holds {what}: choose another folder")
            if not resume:
                raise RunError(f"{str(self.folder)!r} holds this run already: go on with --resume, or choose another")
        elif self.folder.exists() and (self.folder.is_file() or any(self.folder.iterdir())):
            raise RunError(f"{str(self.folder)!r} is not empty and holds no run: choose another folder")
        saved = self._checkpoint()
        last = 0 if saved is None else int(saved.pop("last"))
        self._cut(last)
        if not known.exists():
            replace(self.folder / "run.json", _json(facts))
            replace(known, experiment.encode())
        return last, saved or {}

    def _checkpoint(self) -> dict[str, Any] | None:
        path = self.folder / "checkpoint.safetensors"
        if not path.exists():
            return None
        try:
            return unflatten(safetensors.torch.load(path.read_bytes()))
        except (OSError, safetensors.SafetensorError) as error:
            raise RunError(f"{str(path)!r} cannot be read ({error}): delete it to begin the run anew") from None

    def _cut(self, last: int) -> None:
        """Forget what was written after the checkpoint; the same will be written again."""
        for name in ("rounds.jsonl", "timings.jsonl"):
            path = self.folder / name
            if path.exists():
                lines = path.read_bytes().splitlines(keepends=True)
                kept = [line for line in lines[:last] if line.endswith(b"\n")]
                replace(path, b"".join(kept))
        for path in [*(self.folder / "clients").glob("*"), *(self.folder / "pictures").glob("*")]:
            if path.suffix == ".part" or int(path.stem) > last:
                path.unlink()

    def append(self, name: str, line: Mapping[str, Any]) -> None:
        path = self.folder / name
        with writing(path), open(path, "ab", buffering=0) as file:
            data = _json(line, indent=None)
            if file.write(data) != len(data):
                raise OSError(28, "no space left on device")

    def table(self, round: int, names: tuple[str, ...], scores: Tensor, losses: Tensor) -> None:
        """Every client's score and loss; empty where a client has no test rows."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(["client", "score", "loss"])
        cells = ([repr(v) if math.isfinite(v) else "" for v in column.tolist()] for column in (scores, losses))
        rows.writerows(zip(names, *cells, strict=True))
        replace(self.folder / "clients" / f"{round:06d}.csv", text.getvalue().encode())

    def samples(self, round: int, x: Tensor, y: Tensor, picture: bytes) -> None:
        """Synthetic rows, and a picture of them where they are images."""
        data = io.BytesIO()
        np.savez(data, images=x.numpy(), labels=y.numpy())  # its entries bear no date: equal rows are equal bytes
        replace(self.folder / "synthetic.npz", data.getvalue())
        if picture:
            replace(self.folder / "pictures" / f"{round:06d}.png", picture)

    def checkpoint(self, last: int, state: Mapping[str, Any]) -> None:
        flat = flatten({"last": torch.tensor(last), **state})
        data = safetensors.torch.save({name: value.detach().clone().contiguous() for name, value in flat.items()})
        replace(self.folder / "checkpoint.safetensors", data)

    def model(self, tensors: Mapping[str, Tensor]) -> None:
        replace(self.folder / "model.safetensors", safetensors.torch.save({n: t.clone() for n, t in tensors.items()}))


def _json(value: Mapping[str, Any], indent: int | None = 2) -> bytes:
    return (json.dumps(_plain(value), ensure_ascii=False, indent=indent, allow_nan=False) + "\n").encode()


def _plain(value: Any) -> Any:
    """Numbers that JSON does not know (NaN, infinity) become null."""
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _difference(known: Path, experiment: str) -> str:
    old = set(known.read_text(encoding="utf-8").splitlines())
    new = [line for line in experiment.splitlines() if line not in old]
    return f"not {new[0]!r}" if new else "other keys"


@dataclass(frozen=True)
class Record:
    """A run read back from its folder."""

    folder: Path
    experiment: dict[str, Any]
    facts: dict[str, Any]
    rounds: list[dict[str, Any]]

    @classmethod
    def read(cls, folder: str | Path) -> "Record":
        import tomllib

        folder = Path(folder)
        try:
            experiment = tomllib.loads((folder / "experiment.toml").read_text(encoding="utf-8"))
            facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
            path = folder / "rounds.jsonl"
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        except (OSError, ValueError) as error:
            raise RunError(f"{str(folder)!r} is not the folder of a run: {error}") from None
        return cls(folder, experiment, facts, [json.loads(line) for line in lines if line.endswith("\n")])

    @property
    def finished(self) -> bool:
        return (self.folder / "model.safetensors").exists()

    @property
    def evaluated(self) -> list[dict[str, Any]]:
        return [line for line in self.rounds if line.get("metrics")]

    def clients(self, round: int | None = None) -> list[tuple[str, float, float]]:
        """Every client's name, score and loss after a round (the last evaluated by default)."""
        if round is None:
            if not self.evaluated:
                raise RunError(f"{str(self.folder)!r} has no evaluated round yet")
            round = self.evaluated[-1]["round"]
        with open(self.folder / "clients" / f"{round:06d}.csv", encoding="utf-8", newline="") as file:
            return [(r["client"], float(r["score"] or "nan"), float(r["loss"] or "nan")) for r in csv.DictReader(file)]

    def model(self) -> dict[str, Tensor]:
        """The final model's tensors, by the module's own names."""
        path = self.folder / "model.safetensors"
        if not path.exists():
            raise RunError(f"{str(self.folder)!r} is not finished: its model comes with the last round")
        return {name: value.clone() for name, value in safetensors.torch.load(path.read_bytes()).items()}
