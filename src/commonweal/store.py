"""A run is a folder of plain files that any tool reads, and that a kill never leaves damaged.

    experiment.toml         what determines the run, defaults included
    run.json                what it ran on: format, versions, clients, parameters, engine
    rounds.jsonl            one line per round: cohort, losses, scores, weights, dropped, metrics
    clients/000010.csv      every client's rows, loss and scores, per evaluated round
    synthetic.npz           synthetic rows (images, labels), where the algorithm makes some
    model.safetensors       the final model, by the module's own names
    checkpoint.safetensors  the server's state after some round: where a resumed run continues
    client_states/          clients' states, where they are too large for the checkpoint
    timings.jsonl           seconds per round; the only file that differs between two equal runs

Files are replaced as a whole, or appended to with a single write; a resumed run first cuts them
back to its checkpoint.
"""

import csv
import io
import json
import math
import os
import re
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from commonweal.errors import RunError
from commonweal.evaluation import Evaluation
from commonweal.tensors import State, Tensors, flatten, unflatten
from commonweal.values import Value, Values

if TYPE_CHECKING:
    from commonweal.report.plots import Plots

__all__ = ["FORMAT", "ClientTable", "Record", "RoundRecord", "Store", "to_json", "write_file"]

FORMAT = 1  # of the folder
STARTED = {"run.json", "run.json.part", "experiment.toml.part"}  # left by a kill at the very start


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failed write (no space, no permission) into a sentence."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write {str(path)!r}: {error.strerror}; what was saved before is intact: "
            "fix this, then continue with --resume"
        ) from error


def write_file(path: Path, data: bytes, durable: bool = True) -> None:
    """Write a file as a whole or not at all. A durable one also survives a power cut."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".part")
        with open(temporary, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)


def to_json(value: Value, indent: int | None = 2) -> bytes:
    """JSON with a line end. NaN and infinity become null."""
    text = json.dumps(_plain(value), ensure_ascii=False, indent=indent, allow_nan=False)
    return (text + "\n").encode()


def _plain(value: Value) -> Value:
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundRecord:
    """A round, as it is written and read. `losses` and `scores` are what the cohort reported."""

    number: int
    clients: tuple[str, ...]  # the cohort
    losses: tuple[float, ...]  # of the received model on training rows; NaN: not reported
    scores: tuple[float, ...]
    weights: dict[str, float]  # of the replies that were used
    dropped: dict[str, str] = field(default_factory=dict)  # client -> why its reply was not used
    capped: dict[str, str] = field(default_factory=dict)  # client -> why its reply was reduced
    warnings: tuple[str, ...] = ()
    bytes: dict[str, int] = field(default_factory=dict)  # sent down and up
    metrics: dict[str, float] = field(default_factory=dict)  # of test scores; empty: not evaluated
    personal: dict[str, float] = field(default_factory=dict)  # the same of the clients' own models
    more: dict[str, dict[str, float]] = field(default_factory=dict)  # metrics of further scores

    def line(self) -> Values:
        """The round as a JSON object. Empty optional fields are left out."""
        values = {each.name: getattr(self, each.name) for each in fields(RoundRecord)}
        del values["number"]
        for name in ("capped", "personal", "more"):
            if not values[name]:
                del values[name]
        return {"round": self.number, **values}

    @classmethod
    def parse(cls, line: Mapping[str, Value]) -> "RoundRecord":
        """Invert `line`."""
        known = {each.name for each in fields(RoundRecord)}
        values = {name: value for name, value in line.items() if name in known}
        for name in ("losses", "scores"):
            values[name] = tuple(math.nan if v is None else float(v) for v in line[name])
        for name in ("metrics", "personal"):
            values[name] = _numbers(line.get(name) or {})
        values["more"] = {name: _numbers(each) for name, each in (line.get("more") or {}).items()}
        values["clients"] = tuple(line["clients"])
        values["warnings"] = tuple(line.get("warnings", ()))
        return cls(number=line["round"], **values)


def _numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: math.nan if value is None else value for name, value in values.items()}


@dataclass(frozen=True)
class Store:
    """The folder of a run that is being written."""

    folder: Path

    def open(self, experiment: str, facts: Mapping[str, Value], resume: bool) -> tuple[int, State]:
        """Start or continue a run: the last saved round (0: none), and the state after it."""
        known = self.folder / "experiment.toml"
        difference = _difference(known, experiment) if known.exists() else ""
        self._check(known, difference, resume)
        saved = self.saved()
        last = 0 if saved is None else int(saved.pop("last"))
        self._cut(last)
        if difference or not known.exists():
            write_file(self.folder / "run.json", to_json({"format": FORMAT, **facts}))
            write_file(known, experiment.encode())
        return last, saved or {}

    def _check(self, known: Path, difference: str, resume: bool) -> None:
        """Raise RunError where the folder holds something else."""
        folder = repr(str(self.folder))
        # A run that failed before its first round, by a mistake in the experiment, is replaced.
        if difference and self._has_rounds:
            raise RunError(
                f"{folder} holds another experiment ({difference}): choose another folder"
            )
        if known.exists():
            if not difference and not resume:
                raise RunError(
                    f"{folder} holds this run already: continue with --resume, or choose another"
                )
            return
        if not self.folder.exists():
            return
        if self.folder.is_file() or {p.name for p in self.folder.iterdir()} - STARTED:
            raise RunError(f"{folder} is not empty and holds no run: choose another folder")

    @property
    def _has_rounds(self) -> bool:
        written = self.folder / "rounds.jsonl"
        has_lines = written.exists() and written.stat().st_size > 0
        return has_lines or (self.folder / "checkpoint.safetensors").exists()

    @property
    def client_states(self) -> Path:
        return self.folder / "client_states"

    def saved(self) -> State | None:
        """The last checkpoint, or None."""
        path = self.folder / "checkpoint.safetensors"
        if not path.exists():
            return None
        try:
            saved = unflatten(safetensors.torch.load(path.read_bytes()))
        except (OSError, safetensors.SafetensorError) as error:
            raise RunError(
                f"{str(path)!r} cannot be read ({error}): delete it to start the run again"
            ) from None
        if not {"last", "server"} <= saved.keys():
            raise RunError(f"{str(path)!r} is not a checkpoint: delete it to start the run again")
        return saved

    def _cut(self, last: int) -> None:
        """Remove what was written after the checkpoint; the same will be written again."""
        for name in ("rounds.jsonl", "timings.jsonl"):
            self._cut_lines(self.folder / name, last)
        for path in (self.folder / "clients").glob("*"):
            number = re.fullmatch(r"(\d{6,})\.csv(\.part)?", path.name)
            if number and (number[2] or int(number[1]) > last):
                path.unlink()
        for path in self.folder.glob("*.part"):
            path.unlink()

    def _cut_lines(self, path: Path, last: int) -> None:
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines[:last] if line.endswith(b"\n")]
        if len(whole) < last and path.name == "rounds.jsonl":
            raise RunError(
                f"{str(path)!r} has {len(whole)} rounds, but its checkpoint is of round {last}: "
                "delete checkpoint.safetensors to start the run again"
            )
        if len(lines) > len(whole):
            write_file(path, b"".join(whole))

    def append(self, record: RoundRecord, seconds: Mapping[str, float]) -> None:
        """Write a round and its timings."""
        self._append("rounds.jsonl", record.line())
        self._append("timings.jsonl", {"round": record.number, **seconds})

    def _append(self, name: str, line: Mapping[str, Value]) -> None:
        path = self.folder / name
        data = to_json(line, indent=None)
        with writing(path), open(path, "ab", buffering=0) as file:
            if file.write(data) != len(data):
                raise OSError(28, "no space left on device")

    def write_evaluation(self, round: int, names: Sequence[str], evaluation: Evaluation) -> None:
        """Write every client's rows, loss and scores; empty where there is no value."""
        columns = {"rows": evaluation.sizes, **_columns(evaluation)}
        if evaluation.personal is not None:
            personal = _columns(evaluation.personal)
            columns |= {f"personal_{name}": values for name, values in personal.items()}
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["client", *columns])
        cells = [[_cell(value) for value in column.tolist()] for column in columns.values()]
        writer.writerows(zip(names, *cells, strict=True))
        path = self.folder / "clients" / f"{round:06d}.csv"
        write_file(path, text.getvalue().encode(), durable=False)

    def write_samples(self, x: Tensor, y: Tensor) -> None:
        """Write synthetic rows. The entries have no date: equal rows give equal bytes."""
        data = io.BytesIO()
        np.savez(data, images=x.numpy(), labels=y.numpy())
        write_file(self.folder / "synthetic.npz", data.getvalue())

    def checkpoint(self, last: int, state: Mapping[str, Value]) -> None:
        flat = flatten({"last": torch.tensor(last), **state})
        rounds = self.folder / "rounds.jsonl"
        with writing(rounds), open(rounds, "ab") as file:
            os.fsync(file.fileno())  # a checkpoint must not outlive the rounds that it stands for
        copies = {name: value.detach().clone().contiguous() for name, value in flat.items()}
        write_file(self.folder / "checkpoint.safetensors", safetensors.torch.save(copies))

    def write_model(self, tensors: Tensors) -> None:
        copies = {name: value.clone() for name, value in tensors.items()}
        write_file(self.folder / "model.safetensors", safetensors.torch.save(copies))


def _columns(evaluation: Evaluation) -> Tensors:
    """The losses and scores by column: the main score is called "score", others by their names."""
    main, *others = evaluation.scores
    columns = {"score": evaluation.scores[main], "loss": evaluation.losses}
    return columns | {name: evaluation.scores[name] for name in others}


def _cell(value: float) -> str:
    return repr(value) if math.isfinite(value) else ""


def _difference(known: Path, experiment: str) -> str:
    """What the new experiment changes, as `key = value`; empty where they are the same."""
    try:
        old = known.read_text(encoding="utf-8")
        if old == experiment:
            return ""
        before = _flat_items(tomllib.loads(old))
        after = _flat_items(tomllib.loads(experiment))
    except ValueError:
        return "its experiment.toml cannot be read"
    changed = [f"{key} = {value!r}" for key, value in after.items() if before.get(key) != value]
    if changed:
        return f"not {changed[0]}"
    return "it has " + ", ".join(sorted(before.keys() - after.keys()))


def _flat_items(tables: Mapping[str, Value], prefix: str = "") -> Values:
    """Nested tables as one, with keys joined by dots."""
    flat: Values = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            flat |= _flat_items(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


@dataclass(frozen=True, eq=False)
class ClientTable:
    """Every client's evaluation after a round, by name."""

    names: tuple[str, ...]
    evaluation: Evaluation


@dataclass(frozen=True)
class Record:
    """A run read back from its folder."""

    folder: Path
    experiment: Values
    facts: Values
    rounds: list[RoundRecord]

    def __repr__(self) -> str:
        total = self.experiment.get("rounds")
        return f"<Record {str(self.folder)!r}: {self.title}, {len(self.rounds)} of {total} rounds>"

    @classmethod
    def read(cls, folder: str | Path) -> "Record":
        """Read a run, finished or not."""
        folder = Path(folder)
        try:
            experiment = tomllib.loads((folder / "experiment.toml").read_text(encoding="utf-8"))
            facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"{str(folder)!r} is not the folder of a run: {error}") from None
        if facts.get("format", FORMAT) > FORMAT:
            raise RunError(
                f"{str(folder)!r} was written by a newer version (format {facts['format']}): "
                "update commonweal"
            )
        return cls(folder, experiment, facts, _read_rounds(folder / "rounds.jsonl"))

    @classmethod
    def find(cls, root: str | Path) -> "list[Record]":
        """All runs in a folder and below it, by path. Folders that cannot be read are skipped."""
        found = []
        for path in sorted(Path(root).rglob("experiment.toml")):
            try:
                found.append(cls.read(path.parent))
            except RunError:
                continue
        return found

    def follow(
        self, interval: float = 0.5, stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[RoundRecord]:
        """Yield all rounds, and new ones as they are written, until the run is finished.

        stopped: checked between looks; where it is true, the iteration ends early
        """
        seen = 0
        while True:
            finished = self.finished
            rounds = _read_rounds(self.folder / "rounds.jsonl")
            yield from rounds[seen:]
            seen = max(seen, len(rounds))
            if finished or stopped():
                return
            time.sleep(interval)

    @property
    def title(self) -> str:
        """The rule, preceded by an algorithm other than averaging."""
        rule = _name(self.experiment.get("rule", "fedavg"))
        algorithm = _name(self.experiment.get("algorithm", "averaging"))
        if algorithm == "averaging":
            return rule
        return algorithm if rule == "fedavg" else f"{algorithm}-{rule}"

    @property
    def plot(self) -> "Plots":
        """Figures of this run: `plot.clients()`, `.rounds()`, `.weights()` and `.regret()`."""
        plots: Plots = import_module("commonweal.report.plots").Plots(self)
        return plots

    @property
    def finished(self) -> bool:
        return (self.folder / "model.safetensors").exists()

    @property
    def evaluated(self) -> list[RoundRecord]:
        """The rounds that were evaluated."""
        return [each for each in self.rounds if each.metrics]

    def clients(self, round: int | None = None) -> ClientTable:
        """Every client's evaluation after a round, by default the last evaluated one."""
        path = self._table(round)
        with open(path, encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
        if not lines:
            raise RunError(f"{str(path)!r} is empty: run again")
        columns = {name: [line[name] for line in lines] for name in lines[0]}
        names = tuple(columns.pop("client"))
        values = {name: _tensor(column) for name, column in columns.items()}
        return ClientTable(names, self._evaluation(values))

    def _table(self, round: int | None) -> Path:
        if round is None:
            if not self.evaluated:
                raise RunError(f"{str(self.folder)!r} has no evaluated round yet")
            round = self.evaluated[-1].number
        path = self.folder / "clients" / f"{round:06d}.csv"
        if not path.exists():
            raise RunError(f"{str(self.folder)!r}: round {round} was not evaluated")
        return path

    def _evaluation(self, columns: Tensors) -> Evaluation:
        sizes = columns.pop("rows")
        own = {
            n.removeprefix("personal_"): v for n, v in columns.items() if n.startswith("personal_")
        }
        shared = {n: v for n, v in columns.items() if not n.startswith("personal_")}
        personal = self._shared(own, sizes) if own else None
        return self._shared(shared, sizes, personal)

    def _shared(
        self, columns: Tensors, sizes: Tensor, personal: Evaluation | None = None
    ) -> Evaluation:
        losses = columns.pop("loss")
        scores = {self.facts["score"]: columns.pop("score"), **columns}
        undefined = (sizes > 0) & scores[self.facts["score"]].isnan()
        return Evaluation(losses, scores, sizes, undefined, personal)

    def timings(self) -> list[dict[str, float]]:
        """The seconds of every round, by what they were spent on."""
        path = self.folder / "timings.jsonl"
        lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def samples(self) -> tuple[Tensor, Tensor] | None:
        """Synthetic rows and their labels, where the algorithm makes some."""
        path = self.folder / "synthetic.npz"
        if not path.exists():
            return None
        with np.load(path, allow_pickle=False) as arrays:
            return torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"])

    def model(self) -> Tensors:
        """The final model's tensors, by the module's own names."""
        path = self.folder / "model.safetensors"
        if not path.exists():
            raise RunError(
                f"{str(self.folder)!r} is not finished: its model is written after the last round"
            )
        try:
            tensors = safetensors.torch.load(path.read_bytes())
        except (OSError, safetensors.SafetensorError) as error:
            raise RunError(f"{str(path)!r} cannot be read ({error})") from None
        return {name: value.clone() for name, value in tensors.items()}


def _name(part: Value) -> str:
    return part.get("name", "?") if isinstance(part, Mapping) else str(part)


def _tensor(column: list[str]) -> Tensor:
    return torch.tensor([float(cell) if cell else math.nan for cell in column], dtype=torch.float64)


def _read_rounds(path: Path) -> list[RoundRecord]:
    """The complete lines of rounds.jsonl."""
    if not path.exists():
        return []
    try:
        *lines, _unfinished = path.read_text(encoding="utf-8").split("\n")
        return [RoundRecord.parse(json.loads(line)) for line in lines]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"{str(path)!r} is damaged ({error}): delete it and checkpoint.safetensors, and run "
            "again"
        ) from None
