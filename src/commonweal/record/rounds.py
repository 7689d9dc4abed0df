"""Rounds and the values of their clients, as they are written and read.

A line of rounds.jsonl has the place of its values in clients.chunks (`chunk`: first byte, length,
digest; a safetensors file, see columns.py) and the names of clients that were not named before
(`new`): a client's number is its position among all of them.

    client, loss, score     (S,) the cohort, and what it reported
    weighted, weight        (W,) whose replies were used; `weighted` only if it is not `client`
    rate                    (W,) their rates of descent, of rules that choose a direction
    mixed, mixture          (K,) the mixture that was learnt, in evaluated rounds of some algorithms
    test.client, test.rows, test.score, test.loss, test.NAME, test.personal_score, ...  (K,)
    unseen.client, ...      the same of clients that are held out
"""

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, Required, TypeAlias, TypedDict

import numpy as np
import torch
from torch import Tensor

from commonweal.algorithms.algorithm import Outcome
from commonweal.base.errors import RunError
from commonweal.base.files import check_plain, read_plain
from commonweal.base.tensors import Tensors
from commonweal.base.text import quoted, shown
from commonweal.record.columns import Array, Chunks, Columns, Place
from commonweal.training.evaluation import Evaluation

__all__ = [
    "ClientTable",
    "Progress",
    "RoundRecord",
    "StoredRound",
    "best_round",
    "decided",
    "last_lines",
    "last_round",
    "numbered",
    "progress_after",
    "read_rounds",
    "round_columns",
    "sample_rounds",
    "spaced",
    "tail",
]

ROUNDS = "rounds.jsonl"
VALUES = "clients.chunks"
PERSONAL = "personal_"  # begins the names of columns of the clients' personal models
TAIL = 1 << 14  # bytes at the end of rounds.jsonl in which the last evaluation is looked for
BUFFER = 1 << 22  # bytes that are read at once: lines may be long
EVALUATED = b'"metrics": {"'  # in a line with metrics
NAMING = b'"new": ["'  # in a line with new clients
OPTIONAL = (
    "capped",
    "personal",
    "more",
    "validation",
    "unseen",
    "mixture",
    "fallback",
    "length",
    "public",
)
Metrics: TypeAlias = dict[str, float | None]
Part: TypeAlias = Literal["test", "unseen"]
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)  # of a line


class Line(TypedDict, total=False):
    """A line of rounds.jsonl."""

    round: Required[int]
    chunk: tuple[int, int, str]  # where the values of clients are in clients.chunks
    new: list[str]  # clients that were not named before
    dropped: dict[str, str]
    capped: dict[str, str]
    warnings: list[str]
    bytes: dict[str, int]
    metrics: Metrics
    personal: Metrics
    more: dict[str, Metrics]
    validation: Metrics
    unseen: Metrics
    fallback: str
    public: Metrics
    length: float


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundRecord:
    """A round, as it is written and read. `losses` and `scores` are what the cohort reported."""

    number: int
    clients: tuple[str, ...]  # the cohort
    losses: tuple[float, ...]  # of the received model on training samples; NaN: not reported
    scores: tuple[float, ...]
    weights: dict[str, float]  # of the replies that were used
    dropped: dict[str, str] = field(default_factory=dict)  # client -> why its reply was not used
    capped: dict[str, str] = field(default_factory=dict)  # client -> why its reply was reduced
    warnings: tuple[str, ...] = ()
    bytes: dict[str, int] = field(default_factory=dict)  # sent down and up
    metrics: dict[str, float] = field(default_factory=dict)  # of test scores; empty: not evaluated
    personal: dict[str, float] = field(default_factory=dict)  # the same of personal models
    more: dict[str, dict[str, float]] = field(default_factory=dict)  # metrics of further scores
    validation: dict[str, float] = field(default_factory=dict)  # of the models that clients use
    unseen: dict[str, float] = field(default_factory=dict)  # of clients that are held out
    mixture: dict[str, float] = field(default_factory=dict)  # that was learnt, a mean over rounds
    public: dict[str, float] = field(default_factory=dict)  # released with noise, if it is private
    fallback: str = ""  # the rule that decided instead of the run's, which had no losses
    length: float | None = None  # |d|, of the direction taken, where the rule chooses one
    rates: dict[str, float] = field(default_factory=dict)  # of descent along it: <u_k, d>

    def line(self) -> dict[str, object]:
        """The round as a JSON object. Empty optional fields are left out."""
        values: dict[str, object] = {
            "round": self.number,
            "clients": self.clients,
            "losses": self.losses,
            "scores": self.scores,
            "weights": self.weights,
            "dropped": self.dropped,
            "capped": self.capped,
            "warnings": self.warnings,
            "bytes": self.bytes,
            "metrics": self.metrics,
            "personal": self.personal,
            "more": self.more,
            "validation": self.validation,
            "unseen": self.unseen,
            "mixture": self.mixture,
            "fallback": self.fallback,
            "public": self.public,
            "length": self.length,
        }
        empty = (None, "", dict[str, object]())
        return {n: value for n, value in values.items() if n not in OPTIONAL or value not in empty}


class Decided(TypedDict):
    """The part of a round's record that follows from its outcome."""

    weights: dict[str, float]
    capped: dict[str, str]
    length: float | None
    rates: dict[str, float]


def decided(outcome: Outcome, names: Mapping[int, str] | Sequence[str]) -> Decided:
    """What a round's record says of its outcome.

    Args:
        outcome: What the round did, by client id.
        names: The clients' names, by id.
    """
    weights = zip(outcome.clients.tolist(), outcome.weights.tolist(), strict=True)
    return {
        "weights": {names[client]: weight for client, weight in weights},
        "capped": {names[client]: reason for client, reason in outcome.capped.items()},
        "length": None if outcome.descent is None else outcome.descent.length,
        "rates": {names[client]: rate for client, rate in outcome.rates().items()},
    }


def round_columns(record: RoundRecord, numbers: Mapping[str, int]) -> Columns:
    """The values of a round's clients as arrays, by the names that the module lists.

    Args:
        record: the round
        numbers: the number of each client's name
    """
    columns: Columns = {
        "client": numbered(record.clients, numbers),
        "loss": np.array(record.losses, dtype=np.float64),
        "score": np.array(record.scores, dtype=np.float64),
        "weight": np.array(list(record.weights.values()), dtype=np.float64),
    }
    if tuple(record.weights) != tuple(record.clients):
        columns["weighted"] = numbered(record.weights, numbers)
    if record.rates:
        columns["rate"] = np.array([record.rates[name] for name in record.weights])
    if record.mixture:
        columns["mixed"] = numbered(record.mixture, numbers)
        columns["mixture"] = np.array(list(record.mixture.values()), dtype=np.float64)
    return columns


def numbered(names: Iterable[str], numbers: Mapping[str, int]) -> Array:
    """The numbers of clients."""
    return np.array([numbers[name] for name in names], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class ClientTable:
    """Every client's evaluation after a round, by name."""

    names: Sequence[str]
    evaluation: Evaluation

    def columns(self) -> Tensors:
        """Sizes, scores and losses; the names of personal models' columns begin with PERSONAL."""
        columns = {"rows": self.evaluation.sizes, **_columns(self.evaluation)}
        if self.evaluation.personal is not None:
            personal = _columns(self.evaluation.personal)
            columns |= {PERSONAL + name: values for name, values in personal.items()}
        return columns

    @classmethod
    def parse(cls, names: Sequence[str], columns: Columns, score: str) -> "ClientTable":
        """Build the table from its columns. Raises KeyError where one is missing.

        Args:
            names: of the clients
            columns: as `columns` gives them
            score: the name of the main score
        """
        tensors = {name: torch.from_numpy(values) for name, values in columns.items()}
        sizes = tensors.pop("rows")
        of_personal = {n: tensors.pop(n) for n in list(tensors) if n.startswith(PERSONAL)}
        personal = None
        if of_personal:
            stripped = {n.removeprefix(PERSONAL): value for n, value in of_personal.items()}
            personal = _evaluation(stripped, score, sizes)
        return cls(names, _evaluation(tensors, score, sizes, personal))

    def csv(self) -> bytes:
        """A line per client; empty where there is no value."""
        columns = self.columns()
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["client", *columns])
        names = [quoted(shown(name)) for name in self.names]  # `cat` shows them without effects
        cells = [[_cell(value) for value in column.tolist()] for column in columns.values()]
        writer.writerows(zip(names, *cells, strict=True))
        return text.getvalue().encode()


def _columns(evaluation: Evaluation) -> Tensors:
    """The losses and scores by column: the main score is called "score", others by their names."""
    main, *others = evaluation.scores
    columns = {"score": evaluation.scores[main], "loss": evaluation.losses}
    if evaluation.partners is not None:
        columns["partners"] = evaluation.partners
    return columns | {name: evaluation.scores[name] for name in others}


def _evaluation(
    columns: Tensors, score: str, sizes: Tensor, personal: Evaluation | None = None
) -> Evaluation:
    """The evaluation that `_columns` made columns of."""
    losses = columns.pop("loss")
    main = columns.pop("score")
    partners = columns.pop("partners", None)
    undefined = (sizes > 0) & main.isnan()
    return Evaluation(losses, {score: main, **columns}, sizes, undefined, personal, partners)


def _cell(value: float) -> str:
    return repr(value) if math.isfinite(value) else ""


# Reading


class StoredRound(RoundRecord):
    """A round of a folder. The values of its clients are read when they are asked for."""

    place: Place | None  # None: the round was published without them
    names: Sequence[str]  # of all clients, by number
    _chunks: Chunks

    def __init__(self, line: Line, names: Sequence[str], chunks: Chunks) -> None:
        """Raises ValueError, KeyError or TypeError where the line is not one of a round."""
        values = {
            "number": _number(line),
            "dropped": dict(line.get("dropped") or {}),
            "capped": dict(line.get("capped") or {}),
            "warnings": tuple(line.get("warnings", ())),
            "bytes": dict(line.get("bytes") or {}),
            "metrics": _metrics(line.get("metrics")),
            "personal": _metrics(line.get("personal")),
            "more": {name: _metrics(each) for name, each in (line.get("more") or {}).items()},
            "validation": _metrics(line.get("validation")),
            "unseen": _metrics(line.get("unseen")),
            "fallback": str(line.get("fallback", "")),
            "public": _metrics(line.get("public")),
            "length": line.get("length"),
            "place": None if is_published(line) else Place.parse(line["chunk"]),
            "names": names,
            "_chunks": chunks,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"<StoredRound {self.number}: {len(self.columns()['client'])} clients>"

    @property
    def clients(self) -> tuple[str, ...]:
        return self._named(self.columns()["client"])

    @property
    def losses(self) -> tuple[float, ...]:
        return tuple(self.columns()["loss"].tolist())

    @property
    def scores(self) -> tuple[float, ...]:
        return tuple(self.columns()["score"].tolist())

    @property
    def weights(self) -> dict[str, float]:
        return self._of_used("weight")

    @property
    def rates(self) -> dict[str, float]:
        return self._of_used("rate") if "rate" in self.columns() else {}

    def _of_used(self, column: str) -> dict[str, float]:
        """The values of the clients whose replies were used."""
        columns = self.columns()
        names = self._named(columns.get("weighted", columns["client"]))
        return dict(zip(names, columns[column].tolist(), strict=True))

    @property
    def mixture(self) -> dict[str, float]:
        columns = self.columns()
        if "mixture" not in columns:
            return {}
        return dict(zip(self._named(columns["mixed"]), columns["mixture"].tolist(), strict=True))

    def columns(self) -> Columns:
        """The values of clients as arrays, by the names that the module lists."""
        if self.place is None:
            return dict.fromkeys(("client", "loss", "score", "weight"), np.empty(0, np.int64))
        return self._chunks.read(self.place)

    def table(self, part: Part) -> tuple[tuple[str, ...], Columns] | None:
        """Names and columns of the evaluation on test samples, or of clients that are held out."""
        start = f"{part}."
        columns = {
            n.removeprefix(start): v for n, v in self.columns().items() if n.startswith(start)
        }
        if not columns:
            return None
        names = self._named(columns.pop("client"))
        return names, {name: columns[name] for name in sorted(columns, key=_order)}

    def _named(self, numbers: Array) -> tuple[str, ...]:
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(self.names):
            raise RunError(f"{str(self._chunks.path)!r} names clients that no round does")
        return tuple(self.names[k] for k in numbers.tolist())


def _order(column: str) -> tuple[bool, int, str]:
    """Sizes, score and loss stand first, personal models last."""
    name = column.removeprefix(PERSONAL)
    first = ("rows", "score", "loss")
    return name != column, first.index(name) if name in first else len(first), name


def is_published(line: Line) -> bool:
    """Whether a line is of what a private run publishes, without the values of its clients."""
    return "public" in line and "chunk" not in line


def _number(line: Line) -> int:
    number = line["round"]
    if type(number) is not int:
        raise ValueError(f"round = {number!r}")
    return number


def _metrics(values: Metrics | None) -> dict[str, float]:
    known = values or {}
    return {name: math.nan if value is None else float(value) for name, value in known.items()}


def best_round(
    rounds: Sequence[RoundRecord], monitor: str, lower_is_better: bool
) -> RoundRecord | None:
    """The first of the rounds with the best mean or worst score on validation samples."""
    sign = -1 if lower_is_better else 1
    evaluated = [each for each in rounds if each.validation]
    return max(evaluated, key=lambda each: sign * each.validation[monitor], default=None)


def read_rounds(folder: Path) -> list[StoredRound]:
    """The complete lines of rounds.jsonl."""
    path = folder / ROUNDS
    if not path.exists():
        return []
    names: list[str] = []
    chunks = Chunks(folder / VALUES)
    rounds = []
    try:
        *lines, _unfinished = read_plain(path).decode().split("\n")
        for line in lines:
            rounds.append(_stored(line, names, chunks))
    except (OSError, *MALFORMED) as error:
        raise RunError(_damaged(path, error)) from None
    return rounds


def _stored(line: str | bytes, names: list[str], chunks: Chunks) -> StoredRound:
    """The round of a line, which adds its new clients to the names."""
    values = json.loads(line)
    names += map(str, values.get("new", ()))
    return StoredRound(values, names, chunks)


def sample_rounds(folder: Path, most: int) -> list[StoredRound]:
    """Rounds to draw: all of a short run; of a long one evenly spaced ones, and the last.

    They are at most `most` rounds, as many evaluated ones, and the round after each of them. One
    line at a time is in memory.
    """
    path = folder / ROUNDS
    if not path.exists():
        return []
    names: list[str] = []
    chunks = Chunks(folder / VALUES)
    rounds = []
    try:
        is_evaluated = [EVALUATED in line for line in _whole_lines(path)]
        evaluated = [k for k, has_metrics in enumerate(is_evaluated) if has_metrics]
        chosen = {evaluated[k] for k in spaced(len(evaluated), most)}
        chosen |= set(spaced(len(is_evaluated), most))
        chosen |= {k + 1 for k in chosen}
        for k, line in enumerate(_whole_lines(path)):
            if k in chosen:
                rounds.append(_stored(line, names, chunks))
            elif NAMING in line:
                names += map(str, json.loads(line)["new"])
    except (OSError, *MALFORMED) as error:
        raise RunError(_damaged(path, error)) from None
    return rounds


def _whole_lines(path: Path) -> Iterator[bytes]:
    check_plain(path)
    with open(path, "rb", buffering=BUFFER) as file:
        yield from (line for line in file if line.endswith(b"\n"))


def spaced(size: int, most: int) -> list[int]:
    """Evenly spaced indices, at most `most`, with the first and the last."""
    if size == 0:
        return []
    indices = np.linspace(0, size - 1, min(size, most)).astype(int)
    return sorted(set(indices.tolist()))


def _damaged(path: Path, error: Exception) -> str:
    return (
        f"{str(path)!r} is damaged ({error}): delete it and checkpoint.safetensors, and run again"
    )


class Progress(NamedTuple):
    """How far a run is: a round's number, and the metrics of the models that clients use."""

    number: int
    metrics: dict[str, float]  # empty: not evaluated

    @classmethod
    def parse(cls, data: bytes) -> "Progress":
        """Raises one of MALFORMED where the line is not one of a round."""
        line = json.loads(data)
        return cls(_number(line), _metrics(line.get("personal") or line.get("metrics")))


def progress_after(folder: Path, offset: int) -> tuple[list[Progress], int]:
    """The rounds that were written after some byte of rounds.jsonl, and where the next begins."""
    path = folder / ROUNDS
    rounds: list[Progress] = []
    try:
        check_plain(path)
        with open(path, "rb", buffering=BUFFER) as file:
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):  # it is being written
                    break
                rounds.append(Progress.parse(line))
                offset += len(line)
    except FileNotFoundError:
        return [], 0
    except (OSError, *MALFORMED) as error:
        raise RunError(_damaged(path, error)) from None
    return rounds, offset


def last_round(folder: Path) -> Progress:
    """The last round's number, and the last metrics, from the end of rounds.jsonl."""
    path = folder / ROUNDS
    number = 0
    try:
        for line in reversed(last_lines(path)):
            progress = Progress.parse(line)
            number = number or progress.number
            if progress.metrics:
                return Progress(number, progress.metrics)
    except (OSError, *MALFORMED) as error:
        raise RunError(_damaged(path, error)) from None
    return Progress(number, {})


def tail(folder: Path) -> int:
    """Where the first of the last rounds begins in rounds.jsonl: they are some megabytes."""
    path = folder / ROUNDS
    try:
        check_plain(path)
        with open(path, "rb") as file:
            begin = max(0, file.seek(0, os.SEEK_END) - BUFFER)
            file.seek(begin)
            return begin + (len(file.readline()) if begin else 0)
    except OSError:
        return 0


def last_lines(path: Path) -> list[bytes]:
    """The complete lines in the last bytes of a file, at least one where there is one."""
    if not path.exists():
        return []
    check_plain(path)
    size = TAIL
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        while True:
            begin = max(0, end - size)
            file.seek(begin)
            *lines, _unfinished = file.read(end - begin).split(b"\n")
            whole = lines if begin == 0 else lines[1:]
            if whole or begin == 0:
                return whole
            size *= 4
