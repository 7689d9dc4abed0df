"""A run's record, written to a tracker: from the folder, never from the loop that trains.

Old, resumed and running runs, simulated ones and those of Flower go the same way, and a tracker
that fails stops nothing. What was written is remembered in the run's folder (trackers.json), so
that the same command continues with the rounds that are new.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from commonweal.base.errors import CommonwealError, RunError
from commonweal.base.files import write_file
from commonweal.base.plain import flat, to_json
from commonweal.base.values import Value, Values
from commonweal.record.record import Record
from commonweal.record.rounds import StoredRound
from commonweal.trackers.tracker import Destination, Moment, Tracker

__all__ = ["export", "moment", "name_of"]

MEMORY = "trackers.json"
BATCH = 100  # rounds that are written at once
FACTS = ("commonweal", "torch", "python", "clients", "parameters")

TRACKERS = {
    "tensorboard": "TensorBoard",
    "mlflow": "MLflow",
    "wandb": "Wandb",
    "trackio": "Trackio",
}

Stopped: TypeAlias = Callable[[], bool]


def name_of(folder: Path) -> str:
    """What a run is called: its folder, of a comparison's run with rule and comparison.

    >>> name_of(Path("runs/vowel-compare/afl/seed-0"))
    'vowel-compare/afl/seed-0'
    """
    parts = folder.absolute().parts
    return "/".join(parts[-3:]) if parts[-1].startswith("seed-") else parts[-1]


def export(
    record: Record,
    to: str,
    project: str,
    folder: Path | None = None,
    follow: bool = False,
    stopped: Stopped = lambda: False,
) -> tuple[int, str]:
    """Write the rounds that a tracker does not have yet: how many, and where a person finds them.

    follow: go on with new rounds until the run is finished
    """
    destination = Destination(record.folder, name_of(record.folder), project, folder)
    made: type[Tracker] = import_module(f"commonweal.trackers.{to}").__dict__[TRACKERS[to]]
    tracker = made(destination)
    key = to if folder is None else f"{to} {folder.absolute()}"
    memory = _memory(record.folder)
    done = memory.get(key, {})
    first = last = 0
    try:
        known = done.get("id") if _is_prefix(done, record) else None
        toml = (record.folder / "experiment.toml").read_text(encoding="utf-8")
        identity = tracker.open(known, _settings(record), toml)
        first = last = done["round"] if identity == known else 0
        rounds = record.follow(stopped=stopped) if follow else iter(record.rounds)
        try:
            for some in _batches(record, (each for each in rounds if each.number > first), follow):
                tracker.log(some)
                last = some[-1].round
        finally:
            if last > first:
                _remember(record.folder, key, {"id": identity, "round": last})
        ended = Record.read(record.folder)
        if ended.evaluated and last > first:
            number = ended.evaluated[-1].number
            tracker.table(number, _columns(ended, number))
        tracker.close(ended.finished)
        return last - first, tracker.place
    except CommonwealError:
        raise
    except Exception as error:  # whatever a tracker's library raises
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise RunError(
            f"{to} failed after round {last} of {str(record.folder)!r} ({reason}): the run itself "
            "is not concerned; the same command continues from there"
        ) from error


def _is_prefix(done: Mapping[str, Value], record: Record) -> bool:
    """Whether what was written before are rounds of this record, which may have been cut back."""
    return 0 < int(done.get("round", 0)) <= len(record.rounds)


def _memory(folder: Path) -> Values:
    try:
        read = json.loads((folder / MEMORY).read_text(encoding="utf-8"))
        return {str(key): dict(value) for key, value in read.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _remember(folder: Path, key: str, done: Mapping[str, Value]) -> None:
    write_file(folder / MEMORY, to_json(_memory(folder) | {key: dict(done)}), durable=False)


def _settings(record: Record) -> Values:
    known = record.facts.table()
    facts = {f"run.{key}": known[key] for key in FACTS if key in known}
    return flat(record.experiment) | facts


# Rounds


def _batches(record: Record, rounds: Iterator[StoredRound], follow: bool) -> Iterator[list[Moment]]:
    """The rounds in portions; while a run is followed, each at once."""
    seconds: dict[int, dict[str, float]] = {}
    size = 1 if follow else BATCH
    while some := list(islice(rounds, size)):
        if some[-1].number not in seconds:
            seconds = {int(line.pop("round")): line for line in record.timings()}
        yield [moment(each, seconds.get(each.number, {})) for each in some]


def moment(each: StoredRound, seconds: Mapping[str, float]) -> Moment:
    """A round as a tracker takes it: summaries, and per-client values as distributions."""
    losses = [loss for loss in each.losses if math.isfinite(loss)]
    weights = [weight * len(each.weights) for weight in each.weights.values()]
    numbers = {
        "cohort/clients": float(len(each.clients)),
        "cohort/replies_used": float(len(each.weights)),
        "cohort/replies_dropped": float(len(each.dropped)),
        "cohort/replies_capped": float(len(each.capped)),
        **_grouped("bytes", each.bytes),
        **_grouped("seconds", seconds),
        **_grouped("test", each.metrics),
        **_grouped("personal", each.personal),
        **_grouped("validation", each.validation),
        **_grouped("unseen", each.unseen),
    }
    for name, values in each.more.items():
        numbers |= _grouped(f"test_{name}", values)
    if losses:
        numbers |= {"cohort/loss_mean": sum(losses) / len(losses), "cohort/loss_max": max(losses)}
    if weights:
        numbers["cohort/weight_max"] = max(weights)
    clients = {"cohort/losses": losses, "cohort/relative_weights": weights}
    if each.metrics:
        table = each.table("test")
        scores = [] if table is None else table[1]["score"].tolist()
        clients["test/scores"] = [score for score in scores if math.isfinite(score)]
    return Moment(
        each.number,
        {name: value for name, value in numbers.items() if math.isfinite(value)},
        {name: values for name, values in clients.items() if values},
    )


def _grouped(group: str, values: Mapping[str, float]) -> dict[str, float]:
    return {f"{group}/{name}": float(value) for name, value in values.items()}


def _columns(record: Record, number: int) -> dict[str, list[object]]:
    """Every client's last values by column, the worst off first."""
    table = record.clients(number)
    evaluation = table.evaluation
    columns: dict[str, list[object]] = {
        "client": list(table.names),
        "rows": evaluation.sizes.int().tolist(),
        **{name: values.tolist() for name, values in evaluation.scores.items()},
        "loss": evaluation.losses.tolist(),
    }
    if evaluation.personal is not None:
        own = evaluation.personal.scores.items()
        columns |= {f"{name} of the own model": values.tolist() for name, values in own}
    return columns
