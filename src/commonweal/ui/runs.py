"""What the page shows of runs: a list, curves, and single clients."""

import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from commonweal.base.errors import CommonwealError
from commonweal.record.record import Outline, Record, find_runs
from commonweal.record.rounds import StoredRound
from commonweal.report.formats import scale

__all__ = ["Client", "ClientPage", "Curve", "History", "Run", "Weights"]
__all__ += ["client_history", "client_page", "curve", "describe", "search"]

RECENT = 60.0  # seconds since the last round in which an unfinished run counts as running
MOST_POINTS = 300  # of a chart


@dataclass(frozen=True)
class Run:
    """A line of the list of runs."""

    id: str  # the path below the folder that is shown
    title: str
    dataset: str
    seed: int
    state: str  # finished, running, stopped, broken
    round: int
    rounds: int
    mean: float | None
    worst: float | None
    score: str
    scale: float  # by which scores are shown: 100 for fractions
    problem: str = ""

    @property
    def words(self) -> str:
        """What a filter is matched with."""
        return f"{self.id} {self.title} {self.dataset} seed={self.seed} {self.state}".lower()


def search(root: Path, words: str) -> list[Run]:
    """The runs that match all words: a folder's name, a rule, a dataset, seed=0, a state."""
    runs = (describe(root, folder) for folder in find_runs(root))
    return [run for run in runs if all(word in run.words for word in words.lower().split())]


def describe(root: Path, folder: Path) -> Run:
    """A run by its small files and the end of its rounds. A broken one says why."""
    name = folder.relative_to(root).as_posix()
    try:
        outline = Outline.open(folder)
        last = outline.last()
        return Run(
            id=name,
            title=_title(outline),
            dataset=outline.part("dataset", "?"),
            seed=int(outline.experiment.get("seed", 0)),
            state=_state(outline),
            round=last.number,
            rounds=outline.total,
            mean=_known(last.metrics.get("mean")),
            worst=_known(last.metrics.get("worst_10", last.metrics.get("worst"))),
            score=outline.facts.score,
            scale=scale(outline.facts.score),
        )
    except (CommonwealError, OSError, ValueError, TypeError) as error:
        return Run(name, "?", "?", 0, "broken", 0, 0, None, None, "", 1.0, str(error))


def _title(outline: Outline) -> str:
    """The rule, followed by a client method other than sgd."""
    client = outline.part("client", "sgd")
    return outline.title if client == "sgd" else f"{outline.title}, {client}"


def _state(outline: Outline) -> str:
    if outline.has_model:
        return "finished"
    newest = max(_changed(outline.folder / name) for name in ("rounds.jsonl", "experiment.toml"))
    return "running" if time.time() - newest < RECENT else "stopped"


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


# One run


@dataclass(frozen=True)
class Curve:
    """The evaluated rounds as columns, thinned to what a chart can show."""

    round: list[int]
    mean: list[float | None]
    worst_10: list[float | None]
    best_10: list[float | None]
    worst: list[float | None]


def curve(record: Record) -> Curve:
    """The metrics of the models that clients use, by evaluated round."""
    evaluated = record.evaluated
    chosen = [evaluated[k] for k in _thin(len(evaluated))]
    metrics = [each.personal or each.metrics for each in chosen]

    def column(name: str) -> list[float | None]:
        return [values.get(name) for values in metrics]

    numbers = [each.number for each in chosen]
    return Curve(numbers, column("mean"), column("worst_10"), column("best_10"), column("worst"))


def _thin(size: int, most: int = MOST_POINTS) -> list[int]:
    """Evenly spaced indices, at most `most`, with the first and the last."""
    if size == 0:
        return []
    indices = np.linspace(0, size - 1, min(size, most)).astype(int)
    return sorted(set(indices.tolist()))


# Clients


@dataclass(frozen=True)
class Client:
    """A client in the list of a run's clients."""

    name: str
    score: float
    rows: int


@dataclass(frozen=True)
class ClientPage:
    """The clients whose names match, the worst off first, and how many there are."""

    clients: list[Client]
    matching: int
    all: int


def client_page(record: Record, words: str, most: int) -> ClientPage:
    """The first clients whose names have all words, by the models that clients use."""
    table = record.clients()
    used = table.evaluation.personal or table.evaluation
    columns = zip(table.names, used.score.tolist(), table.evaluation.sizes.tolist(), strict=True)
    clients = [Client(*values) for values in columns]
    matching = [c for c in clients if all(word in c.name.lower() for word in words.lower().split())]
    sign = -1 if record.lower_is_better else 1
    matching.sort(key=lambda client: (math.isnan(client.score), sign * client.score))
    return ClientPage(matching[:most], len(matching), len(clients))


@dataclass(frozen=True)
class Scores:
    """A client's evaluations, by the model that it uses."""

    round: list[int]
    score: list[float | None]
    loss: list[float | None]


@dataclass(frozen=True)
class Weights:
    """The rounds of a client: its weight relative to an equal one, its loss to the mean."""

    round: list[int]
    weight: list[float | None]
    loss: list[float | None]


@dataclass(frozen=True)
class History:
    """One client's scores, weights and losses by round, and why replies were not used."""

    scores: Scores
    weights: Weights
    events: list[str]


def client_history(record: Record, name: str) -> History:
    """What happened to a client over the rounds."""
    values = record.history(name)
    tested = values.get("test.rows", [])
    evaluated = [k for k, rows in enumerate(tested) if not math.isnan(rows)]
    shown = [evaluated[k] for k in _thin(len(evaluated))]

    def column(key: str) -> list[float | None]:
        used = values.get(f"test.personal_{key}", values.get(f"test.{key}", []))
        return [_known(used[k]) for k in shown]

    numbers = [record.rounds[k].number for k in shown]
    scores = Scores(numbers, column("score"), column("loss"))
    rounds = [k for k, each in enumerate(record.rounds) if _took_part(each, name, values, k)]
    weights = Weights([], [], [])
    events = []
    for k in (rounds[k] for k in _thin(len(rounds))):
        each = record.rounds[k]
        weight, loss = _relative(each, values["weight"][k], values["loss"][k])
        weights.round.append(each.number)
        weights.weight.append(weight)
        weights.loss.append(loss)
        if name in each.dropped:
            events.append(f"round {each.number}: reply not used: {each.dropped[name]}")
        if name in each.capped:
            events.append(f"round {each.number}: reply reduced: {each.capped[name]}")
    return History(scores, weights, events[-MOST_POINTS:])


def _took_part(each: StoredRound, name: str, values: dict[str, list[float]], k: int) -> bool:
    reported = not (math.isnan(values["weight"][k]) and math.isnan(values["loss"][k]))
    return reported or name in each.dropped


def _relative(each: StoredRound, weight: float, loss: float) -> tuple[float | None, float | None]:
    """The weight relative to an equal one, and the loss relative to the cohort's mean."""
    columns = each.columns()
    losses = columns["loss"]
    finite = losses[np.isfinite(losses)]
    mean = float(finite.mean()) if len(finite) else 0.0
    return _known(weight * len(columns["weight"])), _known(loss / mean) if mean else None
