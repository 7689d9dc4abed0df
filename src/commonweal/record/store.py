"""A run is a folder of plain files that any tool reads, and that a kill never leaves damaged.

    experiment.toml         what determines the run, defaults included
    run.json                what it ran on: format, versions, clients, parameters, engine
    rounds.jsonl            one line per round: metrics, who was dropped and why, bytes, warnings
    clients.chunks          the values of clients by round: cohort, losses, weights, test scores
    clients.csv             every client's rows, loss and scores at the end of the run
    synthetic.npz           synthetic rows (images, labels), where the algorithm makes some
    preparation.json        how a table's columns became features, where the rows are a table's
    model.safetensors       the final model, by the module's own names
    best.safetensors        that of the best round by validation rows, where there are any
    unseen.csv              the same of clients that were held out, where there are any
    checkpoint.safetensors  the server's state after some round: where a resumed run continues
    client_states/          clients' states, where they are too large for the checkpoint
    timings.jsonl           seconds per round; the only file that differs between two equal runs
    lock                    there while a process writes to the folder

Files are replaced as a whole, or appended to with a single write; a resumed run first cuts them
back to its checkpoint. The tensor files hold digests of themselves, the checkpoint one of the
rounds that it stands for, a round's line one of its clients' values, and run.json one of itself.

A line of rounds.jsonl has the place of its values in clients.chunks (`chunk`: first byte, length,
digest; a safetensors file, see chunks.py) and the names of clients that were not named before
(`new`): a client's number is its position among all of them.

    client, loss, score     (S,) the cohort, and what it reported
    weighted, weight        (W,) whose replies were used; `weighted` only if it is not `client`
    mixed, mixture          (K,) the mixture that was learnt, in evaluated rounds of some algorithms
    test.client, test.rows, test.score, test.loss, test.NAME, test.personal_score, ...  (K,)
    unseen.client, ...      the same of clients that are held out
"""

import csv
import hashlib
import io
import json
import math
import os
import re
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from commonweal.base.errors import RunError
from commonweal.base.files import LOCK, append, digest, locked, read_plain, write_file, writing
from commonweal.base.frames import frame
from commonweal.base.tensors import State, Tensors, flatten, unflatten
from commonweal.base.text import quoted
from commonweal.base.values import Value, Values
from commonweal.config import catalog
from commonweal.data.preprocessing import Preprocessing
from commonweal.record.checksums import pack, unpack
from commonweal.record.columns import Chunks, Columns, Place
from commonweal.training.evaluation import Evaluation
from commonweal.training.scores import find
from commonweal.training.task import InUnits

if TYPE_CHECKING:
    from commonweal.report.plots import Plots

__all__ = [
    "best_round",
    "FORMAT",
    "ClientTable",
    "Record",
    "RoundRecord",
    "Store",
    "StoredRound",
    "to_json",
]

FORMAT = 2  # of the folder
FACTS = {"format": int, "score": str, "clients": int, "unscored": list, "notes": list}
PER_CLIENT = ("clients", "losses", "scores", "weights", "mixture")  # of a round, in clients.chunks
STARTED = ("run.json", LOCK)  # left by a kill at the very start
PART = r"(\.\d+)?\.part"  # the end of a temporary name, with the id of the process
# What is replaced as a whole.
WHOLE = (
    r"(run|experiment|rounds|timings|model|best|checkpoint|synthetic|preparation|clients|unseen)"
    r"\.[a-z]+"
)
START_AGAIN = "restore it, or delete checkpoint.safetensors to start the run again"


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
    validation: dict[str, float] = field(default_factory=dict)  # of the models that clients use
    unseen: dict[str, float] = field(default_factory=dict)  # of clients that are held out
    mixture: dict[str, float] = field(default_factory=dict)  # that was learnt, a mean over rounds

    def line(self) -> Values:
        """The round as a JSON object. Empty optional fields are left out."""
        values = {each.name: getattr(self, each.name) for each in fields(RoundRecord)}
        del values["number"]
        for name in ("capped", "personal", "more", "validation", "unseen", "mixture"):
            if not values[name]:
                del values[name]
        return {"round": self.number, **values}


class StoredRound(RoundRecord):
    """A round of a folder. The values of its clients are read when they are asked for."""

    def __init__(self, line: Mapping[str, Value], names: Sequence[str], chunks: Chunks) -> None:
        """Raises ValueError, KeyError or TypeError where the line is not one of a round."""
        if type(line["round"]) is not int:
            raise ValueError(f"round = {line['round']!r}")
        values: Values = {"number": line["round"]}
        for name in ("metrics", "personal", "validation", "unseen"):
            values[name] = _numbers(line.get(name) or {})
        values["more"] = {name: _numbers(each) for name, each in (line.get("more") or {}).items()}
        for name in ("dropped", "capped", "bytes"):
            values[name] = dict(line.get(name) or {})
        values["warnings"] = tuple(line.get("warnings", ()))
        values |= {"place": Place.parse(line["chunk"]), "names": names, "_chunks": chunks}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    place: Place
    names: Sequence[str]  # of all clients, by number
    _chunks: Chunks

    def __repr__(self) -> str:
        return f"<StoredRound {self.number}: {len(self.columns()['client'])} clients>"

    @property
    def clients(self) -> tuple[str, ...]:
        return self._named(self.columns()["client"])

    @property
    def mixture(self) -> dict[str, float]:
        columns = self.columns()
        if "mixture" not in columns:
            return {}
        return dict(zip(self._named(columns["mixed"]), columns["mixture"].tolist(), strict=True))

    @property
    def losses(self) -> tuple[float, ...]:
        return tuple(self.columns()["loss"].tolist())

    @property
    def scores(self) -> tuple[float, ...]:
        return tuple(self.columns()["score"].tolist())

    @property
    def weights(self) -> dict[str, float]:
        columns = self.columns()
        names = self._named(columns.get("weighted", columns["client"]))
        return dict(zip(names, columns["weight"].tolist(), strict=True))

    def columns(self) -> Columns:
        """The values of clients as arrays, by the names that the module lists."""
        return self._chunks.read(self.place)

    def table(self, part: str) -> "tuple[tuple[str, ...], Columns] | None":
        """Names and columns of the evaluation on test rows, or of clients that are held out.

        part: "test" or "unseen"
        """
        start = f"{part}."
        found = {n.removeprefix(start): v for n, v in self.columns().items() if n.startswith(start)}
        if not found:
            return None
        names = self._named(found.pop("client"))
        return names, {name: found[name] for name in sorted(found, key=_order)}

    def _named(self, numbers: np.ndarray[tuple[int], np.dtype[np.generic]]) -> tuple[str, ...]:
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(self.names):
            raise RunError(f"{str(self._chunks.path)!r} names clients that no round does")
        return tuple(self.names[k] for k in numbers.tolist())


def _order(column: str) -> tuple[bool, int, str]:
    """Rows, score and loss stand first, personal models last."""
    own = column.startswith("personal_")
    name = column.removeprefix("personal_")
    first = ("rows", "score", "loss")
    return own, first.index(name) if name in first else len(first), name


def _numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: math.nan if value is None else float(value) for name, value in values.items()}


class _Progress:
    """What was written since a run was opened, for the next checkpoint."""

    def __init__(self) -> None:
        self.experiment = ""  # its digest
        self.lines = hashlib.blake2b(digest_size=16)  # of rounds.jsonl
        self.digests: dict[int, str] = {}  # of the lines up to a round
        self.clients: dict[str, int] = {}  # their numbers


@dataclass(frozen=True)
class Store:
    """The folder of a run that is being written."""

    folder: Path
    _progress: _Progress = field(default_factory=_Progress, repr=False, compare=False)

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes from writing to the folder."""
        return locked(self.folder)

    def open(self, experiment: str, facts: Mapping[str, Value], resume: bool) -> tuple[int, State]:
        """Start or continue a run: the last saved round (0: none), and the state after it."""
        check_format(self.folder)
        known = self.folder / "experiment.toml"
        difference = _difference(known, experiment) if known.exists() else ""
        self._check(known, difference, resume)
        last, saved = self._resumed(facts)
        self._progress.experiment = digest(experiment.encode())
        self._cut(last)
        if difference or not known.exists():
            write_file(self.folder / "run.json", _sealed_json({"format": FORMAT, **facts}))
            write_file(known, experiment.encode())
        return last, saved

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
        if self.folder.is_file() or any(not _starts(p.name) for p in self.folder.iterdir()):
            raise RunError(f"{folder} is not empty and holds no run: choose another folder")

    @property
    def _has_rounds(self) -> bool:
        written = self.folder / "rounds.jsonl"
        has_lines = written.exists() and written.stat().st_size > 0
        return has_lines or (self.folder / "checkpoint.safetensors").exists()

    @property
    def values(self) -> Chunks:
        """The values of clients by round."""
        return Chunks(self.folder / "clients.chunks")

    @property
    def client_states(self) -> Path:
        return self.folder / "client_states"

    def saved(self) -> State | None:
        """The last checkpoint, or None."""
        checkpoint = self.read_checkpoint()
        return None if checkpoint is None else checkpoint[0]

    def read_checkpoint(self) -> tuple[State, Values] | None:
        """The last checkpoint's state, and the digests of what it stands for."""
        path = self.folder / "checkpoint.safetensors"
        if not path.exists():
            return None
        name = repr(str(path))
        try:
            tensors, facts = unpack(read_plain(path), name)
            saved = unflatten(tensors)
            if saved["last"].shape != () or not saved["server"]:
                raise KeyError
        except OSError as error:
            raise RunError(f"{name} cannot be read ({error.strerror}): {START_AGAIN}") from None
        except RunError as error:
            raise RunError(f"{error}: {START_AGAIN}") from None
        except (KeyError, TypeError, ValueError, AttributeError):
            raise RunError(f"{name} is not a checkpoint: {START_AGAIN}") from None
        return saved, facts

    def _resumed(self, facts: Mapping[str, Value]) -> tuple[int, State]:
        """The last checkpoint, if everything that it stands for is as it was written."""
        checkpoint = self.read_checkpoint()
        self._progress.lines = hashlib.blake2b(digest_size=16)
        self._progress.clients.clear()
        if checkpoint is None:
            return 0, {}
        saved, about = checkpoint
        last = int(saved.pop("last"))
        lines = whole_lines(self.folder / "rounds.jsonl", last)
        self._progress.lines.update(b"".join(lines))
        problems = [
            *damaged_rounds(self.folder, lines, last, about.get("rounds")),
            *damaged_facts(self.folder),
            *damaged_values(self.folder, lines),
        ]
        if problems:
            raise RunError(f"{problems[0]}: {START_AGAIN}")
        for name in (name for line in lines for name in json.loads(line).get("new", ())):
            self._progress.clients[name] = len(self._progress.clients)
        self._check_data(facts)
        return last, saved

    def _check_data(self, facts: Mapping[str, Value]) -> None:
        """Raise RunError where the rows are not those with which the run began."""
        before = read_facts(self.folder)
        if before.get("data") == facts.get("data"):
            return
        counts = ("clients", "train_rows", "test_rows")
        changed = [
            f"{key} was {before.get(key)} and is {facts.get(key)}"
            for key in counts
            if before.get(key) != facts.get(key)
        ]
        what = ", ".join(changed) or "the numbers of clients and rows are the same, some value not"
        raise RunError(
            f"the data changed since the run in {str(self.folder)!r} began ({what}): restore the "
            "data, or choose another folder"
        )

    def _cut(self, last: int) -> None:
        """Remove what was written after the checkpoint; the same will be written again."""
        for name in ("rounds.jsonl", "timings.jsonl"):
            path = self.folder / name
            lines = _lines(path)
            whole = [line for line in lines[:last] if line.endswith(b"\n")]
            if len(lines) > len(whole):
                write_file(path, b"".join(whole))
        places = _places(whole_lines(self.folder / "rounds.jsonl", last))
        with writing(self.values.path):
            self.values.cut(places[-1].end if places else 0)
        for path in (*self.folder.glob("*.part"), *(self.folder / "pictures").glob("*.part")):
            if re.fullmatch(rf"({WHOLE}|\d{{6,}}\.png){PART}", path.name) and path.is_file():
                path.unlink()

    def remove_model(self) -> None:
        """Delete the model of a run that starts again: it would be taken for a finished one."""
        for name in ("model.safetensors", "clients.csv", "unseen.csv"):
            path = self.folder / name
            with writing(path):
                path.unlink(missing_ok=True)

    def append(
        self,
        record: RoundRecord,
        seconds: Mapping[str, float],
        **tables: "ClientTable | None",
    ) -> None:
        """Write a round, and its timings.

        tables: the evaluation on test rows (`test`) and of held-out clients (`unseen`)
        """
        given = {part: table for part, table in tables.items() if table is not None}
        columns, new = self._values(record, given)
        place = self.values.append(columns)  # before the line that speaks of it
        values = record.line()
        for name in PER_CLIENT:
            values.pop(name, None)
        line = {"round": values.pop("round"), "chunk": place, "new": new, **values}
        self._progress.lines.update(self._append("rounds.jsonl", line))
        for name in new:
            self._progress.clients[name] = len(self._progress.clients)
        self._progress.digests[record.number] = self._progress.lines.hexdigest()
        self._append("timings.jsonl", {"round": record.number, **seconds})

    def _append(self, name: str, line: Mapping[str, Value]) -> bytes:
        data = to_json(line, indent=None)
        append(self.folder / name, data)
        return data

    def _values(
        self, record: RoundRecord, tables: "Mapping[str, ClientTable]"
    ) -> tuple[Columns, list[str]]:
        """The columns of a round, and the names of clients that have no number yet."""
        known = self._progress.clients
        named = (
            record.clients,
            record.weights,
            record.mixture,
            *(table.names for table in tables.values()),
        )
        new = [n for n in dict.fromkeys(n for names in named for n in names) if n not in known]
        numbers = known | {name: len(known) + k for k, name in enumerate(new)}

        def ids(names: Iterable[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
            return np.array([numbers[name] for name in names], dtype=np.int64)

        columns: Columns = {
            "client": ids(record.clients),
            "loss": np.array(record.losses, dtype=np.float64),
            "score": np.array(record.scores, dtype=np.float64),
            "weight": np.array(list(record.weights.values()), dtype=np.float64),
        }
        if tuple(record.weights) != tuple(record.clients):
            columns["weighted"] = ids(record.weights)
        if record.mixture:
            columns["mixed"] = ids(record.mixture)
            columns["mixture"] = np.array(list(record.mixture.values()), dtype=np.float64)
        for part, table in tables.items():
            columns[f"{part}.client"] = ids(table.names)
            columns |= {f"{part}.{name}": v.numpy() for name, v in table.columns().items()}
        return columns, new

    def write_samples(self, x: Tensor, y: Tensor) -> None:
        """Write synthetic rows. The entries have no date: equal rows give equal bytes."""
        data = io.BytesIO()
        np.savez(data, images=x.numpy(), labels=y.numpy())
        write_file(self.folder / "synthetic.npz", data.getvalue())

    def checkpoint(self, last: int, state: Mapping[str, Value]) -> None:
        """Write the state after a round. It never outlives the rounds that it stands for."""
        flat = flatten({"last": torch.tensor(last), **state})
        for path in (self.values.path, self.folder / "rounds.jsonl"):
            with writing(path), open(path, "ab") as file:
                os.fsync(file.fileno())
        about = {"experiment": self._progress.experiment, "rounds": self._progress.digests[last]}
        data = pack(flat, **about)
        write_file(self.folder / "checkpoint.safetensors", data)
        self._progress.digests.clear()

    def write_preprocessing(self, preprocessing: Preprocessing) -> None:
        write_file(self.folder / "preparation.json", _sealed_json(preprocessing.values()))

    def write_model(self, tensors: Tensors) -> None:
        """Write the final model, and the last evaluation as CSV."""
        record = Record.read(self.folder)
        for name, data in record.final_tables().items():
            write_file(self.folder / name, data)
        write_file(self.folder / "model.safetensors", pack(tensors))

    def write_best(self, tensors: Tensors) -> None:
        """Write the model of the best round so far, by validation rows."""
        write_file(self.folder / "best.safetensors", pack(tensors))


def _starts(name: str) -> bool:
    """Whether a kill before the first round can have left a file of that name."""
    return name in STARTED or re.fullmatch(WHOLE + PART, name) is not None


# What was changed after it was written


def _sealed_json(facts: Mapping[str, Value]) -> bytes:
    """Facts as JSON, with a digest of themselves at the end."""
    return to_json({**facts, "digest": digest(to_json(facts))})


def read_facts(folder: Path) -> Values:
    """What run.json says. Raises OSError or ValueError."""
    facts = json.loads(read_plain(folder / "run.json").decode())
    if not isinstance(facts, dict):
        raise ValueError("run.json is not a table")
    for key, kind in FACTS.items():
        if key in facts and not isinstance(facts[key], kind):
            raise ValueError(f"run.json says {key} = {facts[key]!r}")
    return facts


def damaged_facts(folder: Path) -> list[str]:
    """What is wrong with run.json."""
    name = repr(str(folder / "run.json"))
    try:
        facts = read_facts(folder)
        facts.pop("digest", None)
        changed = read_plain(folder / "run.json") != _sealed_json(facts)
    except (OSError, ValueError, RecursionError) as error:
        return [f"{name} cannot be read ({error})"]
    if changed:
        return [f"{name} was changed after it was written: its digest differs"]
    return []


def _lines(path: Path) -> list[bytes]:
    """The lines of a file with their ends, the last one perhaps without."""
    data = read_plain(path) if path.exists() else b""
    *lines, rest = data.split(b"\n")
    return [line + b"\n" for line in lines] + ([rest] if rest else [])


def whole_lines(path: Path, last: int) -> list[bytes]:
    """At most the first `last` complete lines of a file."""
    try:
        return [line for line in _lines(path)[:last] if line.endswith(b"\n")]
    except OSError as error:
        raise RunError(f"{str(path)!r} cannot be read: {error.strerror}") from None


def damaged_rounds(
    folder: Path, lines: Sequence[bytes], last: int, expected: Value = None
) -> list[str]:
    """What is wrong with the lines of the first `last` rounds.

    expected: the digest of these lines in a checkpoint
    """
    name = repr(str(folder / "rounds.jsonl"))
    if len(lines) < last:
        return [f"{name} has {len(lines)} rounds, but its checkpoint is of round {last}"]
    for number, line in enumerate(lines, start=1):
        if not line.startswith(b'{"round": %d,' % number):
            return [f"{name} is damaged: line {number} is not round {number}"]
    if digest(*lines) != expected:
        return [f"{name} was changed after it was written: its digest differs"]
    return []


def damaged_values(folder: Path, lines: Sequence[bytes]) -> list[str]:
    """What is wrong with the values of clients that the lines of rounds speak of."""
    if not lines:
        return []
    try:
        places = _places(lines)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return [f"{str(folder / 'rounds.jsonl')!r} is damaged ({error})"]
    problem = Store(folder).values.damaged(places)
    return [problem] if problem else []


def _places(lines: Sequence[bytes]) -> list[Place]:
    return [Place.parse(json.loads(line)["chunk"]) for line in lines]


def check_format(folder: Path, facts: Values | None = None) -> None:
    """Raise RunError where a run was written by another version that writes other files."""
    if facts is None:
        try:
            facts = read_facts(folder)
        except (OSError, ValueError, RecursionError):
            return  # said elsewhere
    found = facts.get("format", FORMAT)
    if found == FORMAT:
        return
    age, remedy = ("a newer", "update commonweal") if found > FORMAT else ("an older", "run again")
    raise RunError(
        f"{str(folder)!r} was written by {age} version (format {found}, this one reads {FORMAT}): "
        f"{remedy}"
    )


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
        old = read_plain(known).decode()
        if old == experiment:
            return ""
        before = _flat_items(tomllib.loads(old))
        after = _flat_items(tomllib.loads(experiment))
    except (OSError, ValueError, RecursionError):
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

    names: Sequence[str]
    evaluation: Evaluation

    def columns(self) -> Tensors:
        """Rows, scores and losses, those of personal models with `personal_` before their names."""
        columns = {"rows": self.evaluation.sizes, **_columns(self.evaluation)}
        if self.evaluation.personal is not None:
            personal = _columns(self.evaluation.personal)
            columns |= {f"personal_{name}": values for name, values in personal.items()}
        return columns

    def csv(self) -> bytes:
        """A line per client; empty where there is no value."""
        columns = self.columns()
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["client", *columns])
        cells = [[_cell(value) for value in column.tolist()] for column in columns.values()]
        writer.writerows(zip(map(quoted, self.names), *cells, strict=True))
        return text.getvalue().encode()


@dataclass(frozen=True)
class Record:
    """A run read back from its folder."""

    folder: Path
    experiment: Values
    facts: Values
    rounds: list[StoredRound]

    def __repr__(self) -> str:
        total = self.experiment.get("rounds")
        return f"<Record {str(self.folder)!r}: {self.title}, {len(self.rounds)} of {total} rounds>"

    @classmethod
    def read(cls, folder: str | Path) -> "Record":
        """Read a run, finished or not."""
        folder = Path(folder)
        try:
            experiment = tomllib.loads(read_plain(folder / "experiment.toml").decode())
            facts = read_facts(folder)
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"{str(folder)!r} is not the folder of a run: {error}") from None
        rounds = experiment.get("rounds", 0)
        if not isinstance(rounds, int):
            raise RunError(f"{str(folder)!r} is not the folder of a run: rounds = {rounds!r}")
        check_format(folder, facts)
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
    ) -> Iterator[StoredRound]:
        """Yield all rounds, and new ones as they are written, until the run is finished.

        stopped: checked between looks; where it is true, the iteration ends early
        """
        seen = 0
        while True:
            has_model = self._has_model
            rounds = _read_rounds(self.folder / "rounds.jsonl")
            yield from rounds[seen:]
            seen = max(seen, len(rounds))
            if (has_model and self._are_all(rounds)) or stopped():
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
        """Whether all rounds are there, and the model."""
        return self._has_model and self._are_all(self.rounds)

    @property
    def _has_model(self) -> bool:
        return (self.folder / "model.safetensors").exists()

    def _are_all(self, rounds: Sequence[RoundRecord]) -> bool:
        patience = self.experiment.get("patience")
        if patience is not None and rounds:  # the run may have stopped early
            watch = str(self.experiment.get("watch", "mean"))
            best = best_round(rounds, watch, find(self.facts["score"]).lower_is_better)
            if best is not None and rounds[-1].number - best.number >= patience:
                return True
        last = rounds[-1].number if rounds else 0
        return last >= int(self.experiment.get("rounds", 0))

    @property
    def evaluated(self) -> list[StoredRound]:
        """The rounds that were evaluated."""
        return [each for each in self.rounds if each.metrics]

    def clients(self, round: int | None = None) -> ClientTable:
        """Every client's evaluation after a round, by default the last evaluated one."""
        where = repr(str(self.folder))
        if round is None:
            if not self.evaluated:
                raise RunError(f"{where} has no evaluated round yet")
            round = self.evaluated[-1].number
        found = [each for each in self.rounds if each.number == round]
        table = self._client_table(found[0], "test") if found else None
        if table is None:
            raise RunError(f"{where}: round {round} was not evaluated")
        return table

    def _client_table(self, each: StoredRound, part: str) -> ClientTable | None:
        table = each.table(part)
        if table is None:
            return None
        names, columns = table
        try:
            tensors = {name: torch.from_numpy(values) for name, values in columns.items()}
            return ClientTable(names, self._evaluation(tensors))
        except KeyError as error:
            raise RunError(f"{str(self.folder)!r} has a damaged evaluation ({error})") from None

    def final_tables(self) -> dict[str, bytes]:
        """The last evaluation as CSV files, by name."""
        found = {}
        if self.evaluated:
            for name, part in (("clients.csv", "test"), ("unseen.csv", "unseen")):
                table = self._client_table(self.evaluated[-1], part)
                if table is not None:
                    found[name] = table.csv()
        return found

    def history(self, client: str) -> dict[str, list[float]]:
        """A client's values by round: NaN where it took no part, or was not evaluated.

        `loss`, `score` and `weight` are what it reported and how much its reply counted; those
        of the evaluation on test rows are called `test.score`, `test.loss` and so on.
        """
        columns: dict[str, list[float]] = {"round": [each.number for each in self.rounds]}
        if not self.rounds or client not in self.rounds[0].names:
            raise RunError(f"no client of this run is called {client!r}")
        number = list(self.rounds[0].names).index(client)
        keys = self._keys()
        columns |= {name: [] for name in keys}
        places = (each.place for each in self.rounds)
        for entries in Chunks(self.folder / "clients.chunks").entries(places, keys, number):
            for name in keys:
                columns[name].append(entries.get(name, math.nan))
        return columns

    def _keys(self) -> dict[str, tuple[str, ...]]:
        """Columns of clients.chunks, with those that hold their clients' numbers, if they exist."""
        keys = {"loss": ("client",), "score": ("client",), "weight": ("weighted", "client")}
        tables = (each.table("test") for each in self.evaluated)
        _, columns = next((table for table in tables if table is not None), ((), {}))
        return keys | {f"test.{name}": ("test.client",) for name in columns}

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

    def unseen(self) -> ClientTable | None:
        """The last evaluation of the clients that are held out of training, if there are any."""
        return self._client_table(self.evaluated[-1], "unseen") if self.evaluated else None

    @property
    def best(self) -> RoundRecord | None:
        """The round that is best on validation rows, whose model is in best.safetensors."""
        watch = str(self.experiment.get("watch", "mean"))
        lower = find(self.facts["score"]).lower_is_better
        return best_round(self.rounds, watch, lower)

    def frame(self) -> Value:
        """A line per evaluated round and client: round, client, rows, score, loss, ...

        A pandas DataFrame, or a polars one; where neither is installed, a dict of lists.
        """
        parts: list[Values] = []
        for each in self.evaluated:
            table = each.table("test")
            if table is not None:
                names, columns = table
                numbers = np.full(len(names), each.number)
                parts.append({"round": numbers, "client": np.array(names, object), **columns})
        keys = parts[0] if parts else ()
        return frame({name: np.concatenate([part[name] for part in parts]) for name in keys})

    def timings(self) -> list[dict[str, float]]:
        """The seconds of every round, by what they were spent on."""
        path = self.folder / "timings.jsonl"
        try:
            lines = read_plain(path).decode().split("\n") if path.exists() else []
            return [json.loads(line) for line in lines if line.endswith("}")]
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"{str(path)!r} is damaged ({error}): delete it") from None

    def samples(self) -> tuple[Tensor, Tensor] | None:
        """Synthetic rows and their labels, where the algorithm makes some."""
        path = self.folder / "synthetic.npz"
        if not path.exists():
            return None
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"])
        except Exception as error:  # of the file system, zip, zlib or numpy
            raise RunError(f"{str(path)!r} is damaged ({error})") from None

    def model(self) -> Tensors:
        """The final model's tensors, by the module's own names."""
        path = self.folder / "model.safetensors"
        if not path.exists():
            raise RunError(
                f"{str(self.folder)!r} is not finished: its model is written after the last round"
            )
        try:
            data = read_plain(path)
        except OSError as error:
            raise RunError(f"{str(path)!r} cannot be read ({error.strerror})") from None
        tensors, _ = unpack(data, repr(str(path)), sealed=False)
        return {name: value.clone() for name, value in tensors.items()}

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a row."""
        return tuple(self._task["shape"])

    @property
    def loss(self) -> str:
        return str(self._task["loss"])

    @property
    def _task(self) -> Values:
        task: Values = self.facts.get("task") or {}
        if not task:
            raise RunError(f"{str(self.folder)!r} was written by an older version: run it again")
        return task

    def module(self, trust: bool = False) -> nn.Module:
        """The final model as a module in evaluation mode; values are in the labels' units.

        trust: import the program that makes the module, where the run names one
        """
        module = self.raw_module(trust)
        target = self.facts.get("target")
        return module if not target else InUnits(module, target["mean"], target["deviation"]).eval()

    def raw_module(self, trust: bool = False) -> nn.Module:
        """The final model as the module that was trained."""
        part = self.experiment["model"]
        if part["name"] == "given":
            raise RunError(
                f"{str(self.folder)!r} is a run of your own module: load the tensors into it, "
                "module.load_state_dict(record.model(), strict=False)"
            )
        facts = {key: self._task[key] for key in ("outputs", "labels")}
        with torch.random.fork_rng(devices=[]), catalog.trusting(trust):
            torch.manual_seed(self.experiment["seed"])  # for parameters that are not trained
            module: nn.Module = catalog.build(
                "models", part, **facts | {"labels": tuple(facts["labels"])}, shape=self.shape
            )
        module.load_state_dict(self.model(), strict=False)
        return module.eval()

    def preprocessing(self) -> Preprocessing | None:
        """How a table's rows become features, where the run was trained on a table."""
        path = self.folder / "preparation.json"
        if not path.exists():
            return None
        try:
            values = json.loads(read_plain(path))
            seal = values.pop("digest")
            found = Preprocessing.parse(values)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{str(path)!r} cannot be read ({error}): run again") from None
        if seal != digest(to_json(values)):
            raise RunError(f"{str(path)!r} was changed after it was written: run again")
        return found


def _name(part: Value) -> str:
    return part.get("name", "?") if isinstance(part, Mapping) else str(part)


def best_round(
    rounds: Sequence[RoundRecord], watch: str, lower_is_better: bool
) -> RoundRecord | None:
    """The first of the rounds with the best mean or worst score on validation rows."""
    sign = -1 if lower_is_better else 1
    evaluated = [each for each in rounds if each.validation]
    return max(evaluated, key=lambda each: sign * each.validation[watch], default=None)


def _read_rounds(path: Path) -> list[StoredRound]:
    """The complete lines of rounds.jsonl."""
    if not path.exists():
        return []
    try:
        *lines, _unfinished = read_plain(path).decode().split("\n")
        names: list[str] = []
        chunks = Chunks(path.with_name("clients.chunks"))
        rounds = []
        for line in lines:
            values = json.loads(line)
            names += map(str, values.get("new", ()))
            rounds.append(StoredRound(values, names, chunks))
        return rounds
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(
            f"{str(path)!r} is damaged ({error}): delete it and checkpoint.safetensors, and run "
            "again"
        ) from None
