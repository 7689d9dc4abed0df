"""Reading only what a page shows: the ends of files, and single clients' lines."""

import json
import math
import os
import re
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from commonweal.analysis.labels import flat
from commonweal.base.errors import CommonwealError, RunError
from commonweal.base.files import check_plain, read_plain
from commonweal.base.values import Values
from commonweal.record.store import Record, StoredRound, check_format
from commonweal.report.tables import scale
from commonweal.training import scores as scoring

__all__ = ["Run", "client_history", "client_page", "find", "light", "new_rounds", "search"]

TAIL = 1 << 14  # bytes at the end of rounds.jsonl in which the last evaluation is looked for
RECENT = 60.0  # seconds since the last round in which an unfinished run counts as running
MOST_POINTS = 300  # of a chart
BUFFER = 1 << 22  # bytes that are read at once: lines may be long
METRICS = b'"metrics": '  # quotes in names are escaped: nothing but the key looks like this
OWN = ', "personal": '  # follows the metrics, where clients use models of their own
SHOWN = ("mean", "worst_10", "best_10", "worst")


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


def find(root: Path) -> Iterator[Path]:
    """The folders of runs below a folder, by path. Links are not followed."""
    try:
        with os.scandir(root) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    names = {entry.name for entry in found}
    if names & {"experiment.toml", "run.json", "rounds.jsonl"}:
        yield root  # what is below a run belongs to it
        return
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield from find(Path(entry.path))


def search(root: Path, words: str) -> list[Run]:
    """The runs that match all words: a folder's name, a rule, a dataset, seed=0, a state."""
    wanted = words.lower().split()
    found = []
    for folder in find(root):
        run = describe(root, folder)
        if all(word in run.words for word in wanted):
            found.append(run)
    return found


def describe(root: Path, folder: Path) -> Run:
    """A run by its small files and the end of its rounds. A broken one says why."""
    name = folder.relative_to(root).as_posix()
    try:
        experiment, facts = read_small(folder)
        table = flat(experiment)
        last, metrics = _last(folder)
        score = str(facts.get("score", "accuracy"))
        return Run(
            id=name,
            title=_title(Record(folder, experiment, facts, [])),
            dataset=str(table.get("dataset.name", table.get("dataset", "?"))),
            seed=int(experiment.get("seed", 0)),
            state=_state(folder),
            round=last,
            rounds=int(experiment.get("rounds", 0)),
            mean=metrics.get("mean"),
            worst=metrics.get("worst_10", metrics.get("worst")),
            score=score,
            scale=scale(score),
        )
    except (CommonwealError, OSError, ValueError, TypeError, AttributeError) as error:
        problem = (
            f"{type(error).__name__}: {error}" if not isinstance(error, CommonwealError) else ""
        )
        return Run(name, "?", "?", 0, "broken", 0, 0, None, None, "", 1.0, problem or str(error))


def _title(record: Record) -> str:
    """The rule, followed by a client method other than sgd."""
    client = str(flat(record.experiment).get("client.name", "sgd"))
    return record.title if client == "sgd" else f"{record.title}, {client}"


def read_small(folder: Path) -> tuple[Values, Values]:
    try:
        experiment = dict(_parse(read_plain(folder / "experiment.toml").decode()))
        facts = json.loads(read_plain(folder / "run.json"))
    except FileNotFoundError as error:
        missing = Path(str(error.filename)).name
        raise RunError(f"{missing} is missing: the run was stopped while it began") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"experiment.toml or run.json is damaged: {error}") from None
    if not isinstance(facts, Mapping):
        raise RunError(f"run.json of {folder.name!r} is damaged: it is not a table")
    check_format(folder, dict(facts))
    return experiment, dict(facts)


@lru_cache(maxsize=1 << 13)
def _parse(text: str) -> Values:
    return tomllib.loads(text)


def _state(folder: Path) -> str:
    if (folder / "model.safetensors").exists():
        return "finished"
    newest = max(_changed(folder / "rounds.jsonl"), _changed(folder / "experiment.toml"))
    return "running" if time.time() - newest < RECENT else "stopped"


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _last(folder: Path) -> tuple[int, Values]:
    """The number of rounds, and the last metrics near the end of the file."""
    tail = _tail(folder / "rounds.jsonl", TAIL)
    timings = _tail(folder / "timings.jsonl", 1 << 12).rstrip(b"\n").rpartition(b"\n")[2]
    number = re.match(rb'\{"round": (\d+)', timings)
    end = len(tail)
    while (start := tail.rfind(METRICS, 0, end)) >= 0:
        metrics = _metrics(tail[start + len(METRICS) :])
        if metrics:
            return int(number[1]) if number else 0, metrics
        end = start
    return int(number[1]) if number else 0, {}


def _tail(path: Path, size: int) -> bytes:
    try:
        check_plain(path)
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - size))
            return file.read()
    except FileNotFoundError:
        return b""


def _metrics(data: bytes) -> Values | None:
    """The metrics at the beginning, of the models that clients use; None where they are cut off."""
    text = data.decode(errors="replace")
    decoder = json.JSONDecoder()
    try:
        metrics, end = decoder.raw_decode(text)
        if text.startswith(OWN, end):
            metrics, _ = decoder.raw_decode(text, end + len(OWN))
    except ValueError:
        return None
    return metrics if isinstance(metrics, dict) else None


# One run


def new_rounds(folder: Path, offset: int) -> tuple[list[Values], int]:
    """The rounds written after some byte: number and metrics. Only whole lines are read."""
    found = []
    try:
        check_plain(folder / "rounds.jsonl")
        with open(folder / "rounds.jsonl", "rb", buffering=BUFFER) as file:
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                offset += len(line)
                found.append(_round(line))
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise RunError(f"rounds.jsonl is damaged: {error.strerror}") from None
    return found, offset


def _round(line: bytes) -> Values:
    number = re.match(rb'\{"round": (\d+)', line)
    start = line.rfind(METRICS)
    metrics = _metrics(line[start + len(METRICS) :]) if start >= 0 else None
    if number is None or metrics is None:
        start_of_line = line[:40].decode(errors="replace")
        raise RunError(
            f"rounds.jsonl is damaged at the line {start_of_line!r}: delete it and "
            "checkpoint.safetensors, run again"
        )
    return {"round": int(number[1]), "metrics": metrics}


def light(folder: Path) -> Record:
    """A record: the values of clients are read when they are asked for."""
    read_small(folder)  # says what is wrong in the page's words
    return Record.read(folder)


def curve(record: Record) -> Values:
    """The evaluated rounds as columns, thinned to what a chart can show."""
    evaluated = record.evaluated
    chosen = [evaluated[k] for k in _thin(len(evaluated))]
    columns: Values = {"round": [each.number for each in chosen]}
    for key in SHOWN:
        columns[key] = [(each.personal or each.metrics).get(key) for each in chosen]
    return columns


def _thin(size: int, most: int = MOST_POINTS) -> list[int]:
    """At most so many positions, evenly spaced, with the first and the last."""
    if size == 0:
        return []
    places = np.linspace(0, size - 1, min(size, most)).astype(int)
    return sorted(set(places.tolist()))


# Clients


def client_page(record: Record, words: str, most: int) -> Values:
    """The clients whose names match, the worst off first, and how many there are."""
    table = record.clients()
    wanted = words.lower().split()
    used = table.evaluation.personal or table.evaluation  # by the models that clients use
    scores = used.score.tolist()
    rows = table.evaluation.sizes.tolist()
    matching = [
        k for k, name in enumerate(table.names) if all(word in name.lower() for word in wanted)
    ]
    sign = -1 if scoring.find(record.facts["score"]).lower_is_better else 1
    matching.sort(key=lambda k: (math.isnan(scores[k]), sign * scores[k]))
    shown = [{"name": table.names[k], "score": scores[k], "rows": rows[k]} for k in matching[:most]]
    return {"clients": shown, "matching": len(matching), "all": len(table.names)}


def client_history(folder: Path, name: str) -> Values:
    """One client's scores, weights and losses by round, and why replies were not used."""
    record = light(folder)
    own = record.history(name)
    tested = own.get("test.rows", [])
    evaluated = [k for k, rows in enumerate(tested) if not math.isnan(rows)]
    shown = [evaluated[k] for k in _thin(len(evaluated))]
    scores: Values = {"round": [record.rounds[k].number for k in shown]}
    for key in ("score", "loss"):
        used = own.get(f"test.personal_{key}", own.get(f"test.{key}", []))
        scores[key] = [_known(used[k]) for k in shown]
    took_part = [
        k
        for k, each in enumerate(record.rounds)
        if not (math.isnan(own["weight"][k]) and math.isnan(own["loss"][k])) or name in each.dropped
    ]
    weights: Values = {"round": [], "weight": [], "loss": []}
    events = []
    for k in (took_part[k] for k in _thin(len(took_part))):
        each = record.rounds[k]
        weight, loss = _relative(each, own["weight"][k], own["loss"][k])
        weights["round"].append(each.number)
        weights["weight"].append(weight)
        weights["loss"].append(loss)
        for what, reasons in (("not used", each.dropped), ("reduced", each.capped)):
            if name in reasons:
                events.append(f"round {each.number}: reply {what}: {reasons[name]}")
    return {"scores": scores, "weights": weights, "events": events[-MOST_POINTS:]}


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _relative(each: StoredRound, weight: float, loss: float) -> tuple[float | None, float | None]:
    """The weight relative to an equal one, and the loss relative to the cohort's mean."""
    columns = each.columns()
    losses = columns["loss"]
    known = losses[np.isfinite(losses)]
    mean = float(known.mean()) if len(known) else 0.0
    return _known(weight * len(columns["weight"])), _known(loss / mean) if mean else None
