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
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from commonweal.base.errors import RunError
from commonweal.base.files import check_plain
from commonweal.base.tensors import Tensors
from commonweal.base.text import quoted, shown
from commonweal.base.typed import parse_json
from commonweal.protocols.algorithm import Outcome
from commonweal.record.columns import Array, Chunks, Columns, Place
from commonweal.training.evaluation import Evaluation

ROUNDS = "rounds.jsonl"
VALUES = "clients.chunks"
PERSONAL = "personal_"  # begins the names of columns of the clients' personal models
TAIL = 1 << 14  # bytes at the end of rounds.jsonl in which the last evaluation is looked for
BUFFER = 1 << 22  # bytes that are read at once: lines may be long
EVALUATED = b'"metrics": {"'  # in a line with metrics
NAMING = b'"new": ["'  # in a line with new clients
ALWAYS = ("dropped", "warnings", "bytes", "metrics")  # in a line also where they are empty
Part: TypeAlias = Literal["test", "unseen"]
# JSON has no NaN: it is written as null.
Metric = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
Metrics: TypeAlias = dict[str, Metric]


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundSummary:
    """A round as a line of rounds.jsonl has it, without the values of single clients."""

    dropped: dict[str, str] = field(default_factory=dict)  # client -> why its reply was not used
    capped: dict[str, str] = field(default_factory=dict)  # client -> why its reply was reduced
    warnings: tuple[str, ...] = ()
    bytes: dict[str, int] = field(default_factory=dict)  # sent down and up
    metrics: Metrics = field(default_factory=dict)  # of test scores; empty: not evaluated
    personal: Metrics = field(default_factory=dict)  # the same of personal models
    more: dict[str, Metrics] = field(default_factory=dict)  # metrics of further scores
    validation: Metrics = field(default_factory=dict)  # of the models that clients use
    unseen: Metrics = field(default_factory=dict)  # of clients that are held out
    fallback: str = ""  # the rule that decided instead of the run's, which had no losses
    public: Metrics = field(default_factory=dict)  # released with noise, if it is private
    length: float | None = None  # |d|, of the direction taken, where the rule chooses one

    def line(self) -> dict[str, object]:
        """The fields by name. Most of what is empty is left out."""
        values: dict[str, object] = {}
        for entry in fields(RoundSummary):
            value = vars(self)[entry.name]
            if entry.name in ALWAYS or value not in (None, "", {}):
                values[entry.name] = value
        return values


@dataclass(frozen=True, eq=False, kw_only=True)
class Line(RoundSummary):
    """A line of rounds.jsonl."""

    round: Annotated[int, Field(ge=1, lt=1 << 31)]
    chunk: Place | None = None  # where the values of clients are; None: they were not published
    new: tuple[str, ...] = ()  # clients that were not named before

    def __post_init__(self) -> None:
        if self.chunk is None and not self.public:
            raise ValueError("chunk is missing")


def parse_line(data: bytes) -> Line:
    """A line of rounds.jsonl. Raises ValueError where it is none."""
    return parse_json(Line, data)


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundRecord(RoundSummary):
    """A round, as it is written and read. `losses` and `scores` are what the cohort reported."""

    number: int
    clients: tuple[str, ...]  # the cohort
    losses: tuple[float, ...]  # of the received model on training samples; NaN: not reported
    scores: tuple[float, ...]
    weights: dict[str, float]  # of the replies that were used
    rates: dict[str, float] = field(default_factory=dict)  # of descent along d: <u_k, d>
    mixture: dict[str, float] = field(default_factory=dict)  # that was learnt, a mean over rounds


def outcome_fields(outcome: Outcome, names: Mapping[int, str] | Sequence[str]) -> dict[str, Any]:
    """The fields of a round's record that follow from its outcome, by the clients' names."""
    used = [names[client] for client in outcome.clients.tolist()]
    descent = outcome.descent
    return {
        "weights": dict(zip(used, outcome.weights.tolist(), strict=True)),
        "capped": {names[client]: reason for client, reason in outcome.capped.items()},
        "length": None if descent is None else descent.length,
        "rates": {} if descent is None else dict(zip(used, descent.rates.tolist(), strict=True)),
    }


def round_columns(
    record: RoundRecord, tables: Mapping[str, "ClientTable"], numbers: Mapping[str, int]
) -> Columns:
    """The values of a round's clients as arrays, by the names that the module lists.

    Args:
        record: The round.
        tables: Its evaluations, by the part of the data.
        numbers: The clients' numbers by name.
    """

    def numbered(names: Iterable[str]) -> Array:
        return np.array([numbers[name] for name in names], dtype=np.int64)

    columns: Columns = {
        "client": numbered(record.clients),
        "loss": np.array(record.losses, dtype=np.float64),
        "score": np.array(record.scores, dtype=np.float64),
        "weight": np.array(list(record.weights.values()), dtype=np.float64),
    }
    if tuple(record.weights) != tuple(record.clients):
        columns["weighted"] = numbered(record.weights)
    if record.rates:
        columns["rate"] = np.array([record.rates[name] for name in record.weights])
    if record.mixture:
        columns["mixed"] = numbered(record.mixture)
        columns["mixture"] = np.array(list(record.mixture.values()), dtype=np.float64)
    for part, table in tables.items():
        columns[f"{part}.client"] = numbered(table.names)
        for name, values in table.columns().items():
            columns[f"{part}.{name}"] = values.numpy()
    return columns


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
        """Invert `columns`, where the main score has no name of its own.

        Raises KeyError where one is missing, and ValueError where numbers of rows are none.
        """
        tensors = {name: torch.from_numpy(values) for name, values in columns.items()}
        sizes = tensors.pop("rows")
        if not bool(((sizes >= 0) & sizes.isfinite()).all()):
            raise ValueError("numbers of rows that are negative or not finite")
        of_personal = [name for name in tensors if name.startswith(PERSONAL)]
        own = {name.removeprefix(PERSONAL): tensors.pop(name) for name in of_personal}
        personal = _evaluation(own, score, sizes) if own else None
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
        own = {"number": line.round, "place": line.chunk, "names": names, "_chunks": chunks}
        vars(self).update(vars(line), **own)

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
        return self._by_client("weight")

    @property
    def rates(self) -> dict[str, float]:
        return self._by_client("rate")

    @property
    def mixture(self) -> dict[str, float]:
        return self._by_client("mixture")

    def _by_client(self, column: str) -> dict[str, float]:
        columns = self.columns()
        if column not in columns:
            return {}
        names = self._named(columns[_key(column, columns)])
        return dict(zip(names, columns[column].tolist(), strict=True))

    def columns(self) -> Columns:
        """The values of clients as arrays, by the names that the module lists."""
        if self.place is None:
            return dict.fromkeys(("client", "loss", "score", "weight"), np.empty(0, np.int64))
        columns = self._chunks.read(self.place)
        try:
            for name, values in columns.items():
                key = columns[_key(name, columns)]
                if values.shape != (len(key),) or key.dtype.kind != "i":
                    raise ValueError(f"{name} of shape {values.shape}")
                if len(key) and not 0 <= int(key.min()) <= int(key.max()) < len(self.names):
                    raise ValueError("it names clients that no round does")
            columns["client"], columns["loss"], columns["score"], columns["weight"]
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{str(self._chunks.path)!r} is damaged ({error}): run again") from None
        return columns

    def of_client(self, number: int) -> dict[str, float]:
        """A client's entry of every column, NaN where it has none."""
        columns = self.columns()
        entries = {}
        for name, values in columns.items():
            key = _key(name, columns)
            if name != key and not name.startswith(("unseen.", "mixture")):
                at = np.flatnonzero(columns[key] == number)
                entries[name] = float(values[at[0]]) if len(at) else math.nan
        return entries

    def table(self, part: Part) -> tuple[tuple[str, ...], Columns] | None:
        """Names and columns of the evaluation on test samples, or of clients that are held out."""
        start = f"{part}."
        columns = {}
        for name, values in sorted(self.columns().items()):
            if name.startswith(start):
                columns[name.removeprefix(start)] = values
        if not columns:
            return None
        return self._named(columns.pop("client")), columns

    def _named(self, numbers: Array) -> tuple[str, ...]:
        return tuple(self.names[k] for k in numbers.tolist())


def _key(column: str, columns: Columns) -> str:
    """The column with the numbers of the clients whose values a column holds."""
    part, dot, _ = column.partition(".")
    if dot:
        return f"{part}.client"
    if column in ("mixed", "mixture"):
        return "mixed"
    if column in ("weighted", "weight", "rate") and "weighted" in columns:
        return "weighted"
    return "client"


def best_round(
    rounds: Sequence[RoundRecord], monitor: str, lower_is_better: bool
) -> RoundRecord | None:
    """The first of the rounds with the best mean or worst score on validation samples."""
    sign = -1 if lower_is_better else 1
    evaluated = [entry for entry in rounds if entry.validation]
    return max(evaluated, key=lambda entry: sign * entry.validation[monitor], default=None)


def whole_lines(path: Path, begin: int = 0) -> Iterator[bytes]:
    """The complete lines of a file from some byte on, one at a time; none if there is no file."""
    try:
        check_plain(path)
    except FileNotFoundError:
        return
    with open(path, "rb", buffering=BUFFER) as file:
        file.seek(begin)
        yield from (line for line in file if line.endswith(b"\n"))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Report what cannot be read."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise RunError(
            f"{str(path)!r} is damaged ({error}): delete it and checkpoint.safetensors, and run "
            "again"
        ) from None


def read_rounds(folder: Path, most: int | None = None) -> list[StoredRound]:
    """The rounds of a run.

    Args:
        folder: of the run
        most: Of a long run, read a part to draw: at most so many evenly spaced rounds, as many
            evaluated ones, the round after each of them, and the last.
    """
    path = folder / ROUNDS
    chunks = Chunks(folder / VALUES)
    names: list[str] = []
    rounds = []
    with _reading(path):
        chosen = None if most is None else _sample(path, most)
        for k, data in enumerate(whole_lines(path)):
            is_chosen = chosen is None or k in chosen
            if is_chosen or NAMING in data:
                line = parse_line(data)
                names += line.new
            if is_chosen:
                rounds.append(StoredRound(line, names, chunks))
    return rounds


def _sample(path: Path, most: int) -> set[int]:
    """The positions of the lines that `read_rounds` chooses."""
    is_evaluated = [EVALUATED in line for line in whole_lines(path)]
    evaluated = np.flatnonzero(is_evaluated).tolist()
    chosen = {evaluated[k] for k in spaced(len(evaluated), most)}
    chosen |= set(spaced(len(is_evaluated), most))
    return chosen | {k + 1 for k in chosen}


def spaced(size: int, most: int) -> list[int]:
    """Evenly spaced indices, at most `most`, with the first and the last."""
    if size == 0:
        return []
    indices = np.linspace(0, size - 1, min(size, most)).astype(int)
    return sorted(set(indices.tolist()))


class Progress(NamedTuple):
    """The progress of a run: a round's number, and the metrics of the models that clients use."""

    number: int
    metrics: dict[str, float]  # empty: not evaluated

    @classmethod
    def parse(cls, data: bytes) -> "Progress":
        """Raises ValueError where the line is not one of a round."""
        line = parse_line(data)
        return cls(line.round, line.personal or line.metrics)


def progress_after(folder: Path, offset: int) -> tuple[list[Progress], int]:
    """The rounds that were written after some byte of rounds.jsonl, and where the next begins."""
    path = folder / ROUNDS
    with _reading(path):
        lines = list(whole_lines(path, offset))
        return [Progress.parse(line) for line in lines], offset + sum(map(len, lines))


def last_round(folder: Path) -> Progress:
    """The last round's number, and the last metrics, from the end of rounds.jsonl."""
    path = folder / ROUNDS
    number = 0
    with _reading(path):
        for line in reversed(last_lines(path)):
            progress = Progress.parse(line)
            number = number or progress.number
            if progress.metrics:
                return Progress(number, progress.metrics)
    return Progress(number, {})


def tail(path: Path, size: int = BUFFER) -> int:
    """Return the position of the first whole line in a file's last bytes; at least one is there."""
    end = path.stat().st_size if path.exists() else 0
    while size < end:
        lines = whole_lines(path, end - size)
        first = next(lines, b"")  # it may have begun before
        if next(lines, b""):
            return end - size + len(first)
        size *= 4
    return 0


def last_lines(path: Path) -> list[bytes]:
    """The complete lines in the last bytes of a file, at least one where there is one."""
    return list(whole_lines(path, tail(path, TAIL)))
