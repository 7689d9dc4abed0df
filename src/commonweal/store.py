"""A run is a folder of plain files that any tool reads, and that a kill at any instant leaves whole.

    experiment.toml         what determines the run, defaults included
    run.json                what it ran on: versions, clients, parameters, engine and why
    rounds.jsonl            one line a round: cohort, losses, scores, weights, dropped reports, metrics
    clients/000010.csv      every client's name, score and loss, for each evaluated round; by its own model too, if any
    synthetic.npz           the rows made so far (images, labels), where the algorithm makes some
    pictures/000010.png     these rows, a class a line, for each evaluated round
    model.safetensors       the final model, by the module's own names
    checkpoint.safetensors  the server after some round: where a resumed run goes on
    kept/                   what clients keep for themselves, where that is too much for the checkpoint
    timings.jsonl           seconds a round took; the only file that differs between two equal runs

Files are replaced whole, or appended to with a single write that a resumed run first cuts back to its checkpoint.
"""

import csv
import io
import json
import math
import os
import re
import tomllib
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

__all__ = ["Record", "Store", "flatten", "to_json", "unflatten"]


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


def replace(path: Path, data: bytes, durable: bool = True) -> None:
    """Write a file whole or not at all; a durable one also survives a power cut."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".part")
        with open(temporary, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)


BEGUN = {"run.json", "run.json.part", "experiment.toml.part"}  # all that a run killed at its very start leaves


@dataclass(frozen=True)
class Store:
    """The folder of a run that is being written."""

    folder: Path

    def open(self, experiment: str, facts: Mapping[str, Any], resume: bool) -> tuple[int, dict[str, Any]]:
        """Begin or go on: the last round that is saved (0 for none), and the server and clients after it."""
        known = self.folder / "experiment.toml"
        difference = _difference(known, experiment) if known.exists() else ""
        # What failed before its first round, as with a mistake in the experiment, may be written over.
        if difference and self._holds_rounds:
            what = f"another experiment ({difference})"
            raise RunError(f"{str(self.folder)!r} holds {what}: choose another folder")
        if known.exists():
            if not difference and not resume:
                raise RunError(f"{str(self.folder)!r} holds this run already: go on with --resume, or choose another")
        elif self.folder.exists() and (self.folder.is_file() or {p.name for p in self.folder.iterdir()} - BEGUN):
            raise RunError(f"{str(self.folder)!r} is not empty and holds no run: choose another folder")
        saved = self.saved()
        last = 0 if saved is None else int(saved.pop("last"))
        self._cut(last)
        if difference or not known.exists():
            replace(self.folder / "run.json", to_json(facts))
            replace(known, experiment.encode())
        return last, saved or {}

    @property
    def _holds_rounds(self) -> bool:
        written = self.folder / "rounds.jsonl"
        return (self.folder / "checkpoint.safetensors").exists() or (written.exists() and written.stat().st_size > 0)

    def saved(self) -> dict[str, Any] | None:
        """The last checkpoint, or None."""
        path = self.folder / "checkpoint.safetensors"
        if not path.exists():
            return None
        try:
            saved = unflatten(safetensors.torch.load(path.read_bytes()))
        except (OSError, safetensors.SafetensorError) as error:
            raise RunError(f"{str(path)!r} cannot be read ({error}): delete it to begin the run anew") from None
        if not {"last", "server"} <= saved.keys():
            raise RunError(f"{str(path)!r} is not a run's checkpoint: delete it to begin the run anew")
        return saved

    def _cut(self, last: int) -> None:
        """Forget what was written after the checkpoint; the same will be written again."""
        for name in ("rounds.jsonl", "timings.jsonl"):
            path = self.folder / name
            lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
            kept = [line for line in lines[:last] if line.endswith(b"\n")]
            if len(kept) < last and name == "rounds.jsonl":
                what = f"{len(kept)} rounds, but its checkpoint is of round {last}"
                raise RunError(f"{str(path)!r} has {what}: delete checkpoint.safetensors to begin the run anew")
            if len(lines) > len(kept):
                replace(path, b"".join(kept))
        for path in [*(self.folder / "clients").glob("*"), *(self.folder / "pictures").glob("*")]:
            number = re.fullmatch(r"(\d{6,})\.(?:csv|png)(\.part)?", path.name)
            if number and (number[2] or int(number[1]) > last):
                path.unlink()
        for path in self.folder.glob("*.part"):
            path.unlink()

    def append(self, name: str, line: Mapping[str, Any]) -> None:
        path = self.folder / name
        with writing(path), open(path, "ab", buffering=0) as file:
            data = to_json(line, indent=None)
            if file.write(data) != len(data):
                raise OSError(28, "no space left on device")

    def table(
        self,
        round: int,
        names: tuple[str, ...],
        scores: Tensor,
        losses: Tensor,
        personal: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """Every client's score and loss, and those of its own model; empty where a client has no test rows."""
        columns = {"score": scores, "loss": losses}
        if personal is not None:
            columns |= {"personal_score": personal[1], "personal_loss": personal[0]}
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(["client", *columns])
        cells = ([repr(v) if math.isfinite(v) else "" for v in column.tolist()] for column in columns.values())
        rows.writerows(zip(names, *cells, strict=True))
        replace(self.folder / "clients" / f"{round:06d}.csv", text.getvalue().encode(), durable=False)

    def samples(self, round: int, x: Tensor, y: Tensor, picture: bytes) -> None:
        """Synthetic rows, and a picture of them where they are images."""
        data = io.BytesIO()
        np.savez(data, images=x.numpy(), labels=y.numpy())  # its entries bear no date: equal rows are equal bytes
        replace(self.folder / "synthetic.npz", data.getvalue())
        if picture:
            replace(self.folder / "pictures" / f"{round:06d}.png", picture)

    def checkpoint(self, last: int, state: Mapping[str, Any]) -> None:
        flat = flatten({"last": torch.tensor(last), **state})
        rounds = self.folder / "rounds.jsonl"
        with writing(rounds), open(rounds, "ab") as file:
            os.fsync(file.fileno())  # the checkpoint must not outlive the rounds that it stands for
        data = safetensors.torch.save({name: value.detach().clone().contiguous() for name, value in flat.items()})
        replace(self.folder / "checkpoint.safetensors", data)

    def model(self, tensors: Mapping[str, Tensor]) -> None:
        replace(self.folder / "model.safetensors", safetensors.torch.save({n: t.clone() for n, t in tensors.items()}))


def to_json(value: Any, indent: int | None = 2) -> bytes:
    """JSON with a line end; NaN and infinity become null."""
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
    """What the new experiment has and the old has not, as `key = value`; empty where they are the same."""
    try:
        old = known.read_text(encoding="utf-8")
        if old == experiment:
            return ""
        before, after = (flat_items(tomllib.loads(text)) for text in (old, experiment))
    except ValueError:
        return "its experiment.toml cannot be read"
    changed = [f"{key} = {value!r}" for key, value in after.items() if before.get(key) != value]
    return "not " + changed[0] if changed else "it has " + ", ".join(sorted(before.keys() - after.keys()))


def flat_items(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, keys joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        flat |= flat_items(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


@dataclass(frozen=True)
class Record:
    """A run read back from its folder."""

    folder: Path
    experiment: dict[str, Any]
    facts: dict[str, Any]
    rounds: list[dict[str, Any]]

    @classmethod
    def read(cls, folder: str | Path) -> "Record":
        folder = Path(folder)
        try:
            experiment = tomllib.loads((folder / "experiment.toml").read_text(encoding="utf-8"))
            facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
            path = folder / "rounds.jsonl"
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        except (OSError, ValueError) as error:
            raise RunError(f"{str(folder)!r} is not the folder of a run: {error}") from None
        try:
            rounds = [json.loads(line) for line in lines if line.endswith("\n")]
        except ValueError as error:
            raise RunError(
                f"{str(path)!r} is spoilt ({error}): delete it and checkpoint.safetensors, and run again"
            ) from None
        return cls(folder, experiment, facts, rounds)

    @property
    def finished(self) -> bool:
        return (self.folder / "model.safetensors").exists()

    @property
    def evaluated(self) -> list[dict[str, Any]]:
        return [line for line in self.rounds if line.get("metrics")]

    def clients(self, round: int | None = None) -> list[tuple[str, float, float]]:
        """Every client's name, score and loss after a round (the last evaluated by default)."""
        return [(r["client"], float(r["score"] or "nan"), float(r["loss"] or "nan")) for r in self._table(round)]

    def personal(self, round: int | None = None) -> list[tuple[str, float, float]]:
        """The same with each client's own model; empty where the method has none."""
        return [
            (r["client"], float(r["personal_score"] or "nan"), float(r["personal_loss"] or "nan"))
            for r in self._table(round)
            if "personal_score" in r
        ]

    def _table(self, round: int | None) -> list[dict[str, str]]:
        if round is None:
            if not self.evaluated:
                raise RunError(f"{str(self.folder)!r} has no evaluated round yet")
            round = self.evaluated[-1]["round"]
        path = self.folder / "clients" / f"{round:06d}.csv"
        if not path.exists():
            raise RunError(f"{str(self.folder)!r}: round {round} was not evaluated")
        with open(path, encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def model(self) -> dict[str, Tensor]:
        """The final model's tensors, by the module's own names."""
        path = self.folder / "model.safetensors"
        if not path.exists():
            raise RunError(f"{str(self.folder)!r} is not finished: its model comes with the last round")
        try:
            return {name: value.clone() for name, value in safetensors.torch.load(path.read_bytes()).items()}
        except (OSError, safetensors.SafetensorError) as error:
            raise RunError(f"{str(path)!r} cannot be read ({error})") from None
