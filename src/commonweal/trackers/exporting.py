"""A run's record, written to a tracker: from the folder, never from the loop that trains.

Old, resumed and running runs, simulated ones and those of Flower go the same way, and a tracker
that fails stops nothing. What was written is remembered in the run's folder (trackers.json), so
that the same command continues with the rounds that are new.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from commonweal.base.errors import CommonwealError, RunError
from commonweal.base.files import write_file
from commonweal.base.plain import Plain, flat, to_json
from commonweal.record.record import Record
from commonweal.record.rounds import StoredRound
from commonweal.trackers.tracker import Destination, Moment, Tracker

MEMORY = "trackers.json"
BATCH = 100  # rounds that are written at once
FACTS = ("commonweal", "torch", "python", "clients", "parameters")


def name_of(folder: Path) -> str:
    """The name of a run: its folder, for a run of a comparison with those above it.

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
) -> tuple[int, str]:
    """Write the rounds that a tracker does not have yet.

    Args:
        record: The run.
        to: The tracker's name.
        project: The project or experiment at the tracker.
        folder: Where the tracker writes; None for its default.
        follow: Go on with new rounds until the run is finished.

    Returns:
        How many rounds were written, and where a person finds them.
    """
    destination = Destination(record.folder, name_of(record.folder), project, folder)
    tracker = _tracker(to, destination)
    key = to if folder is None else f"{to} {folder.absolute()}"
    before = _memory(record.folder).get(key)
    if before is not None and before.round > len(record.rounds):  # the run was started again
        before = None
    known = None if before is None else before.id
    first = last = 0
    try:
        toml = (record.folder / "experiment.toml").read_text(encoding="utf-8")
        identity = tracker.open(known, _settings(record), toml)
        first = last = before.round if before is not None and identity == known else 0
        rounds = record.follow() if follow else record.rounds
        new = filter(lambda stored: stored.number > first, rounds)
        try:
            for moments in _batches(record, new, 1 if follow else BATCH):
                tracker.log(moments)
                last = moments[-1].round
        finally:
            if last > first:
                _remember(record.folder, key, _Written(identity, last))
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


def _tracker(to: str, destination: Destination) -> Tracker:
    """A tracker by name. Their libraries are imported here and not before."""
    if to == "tensorboard":
        from commonweal.trackers.tensorboard import TensorBoard

        return TensorBoard(destination)
    if to == "mlflow":
        from commonweal.trackers.mlflow import MLflow

        return MLflow(destination)
    from commonweal.trackers.wandb_api import WandbApi

    return WandbApi(destination, to)


class _Written(NamedTuple):
    """What a tracker has of a run."""

    id: str
    round: int  # the last one


def _memory(folder: Path) -> dict[str, _Written]:
    """What was written to trackers before; a file that cannot be read counts as nothing."""
    try:
        written = {}
        for key, entry in json.loads((folder / MEMORY).read_text(encoding="utf-8")).items():
            written[str(key)] = _Written(str(entry["id"]), int(entry["round"]))
        return written
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _remember(folder: Path, key: str, written: _Written) -> None:
    entries = _memory(folder) | {key: written}
    data = to_json({name: entry._asdict() for name, entry in entries.items()})
    write_file(folder / MEMORY, data, durable=False)


def _settings(record: Record) -> dict[str, Plain]:
    known = record.facts.table()
    facts = {f"run.{key}": str(known[key]) for key in FACTS if key in known}
    return flat(record.experiment) | facts


# Rounds


def _batches(record: Record, rounds: Iterator[StoredRound], size: int) -> Iterator[list[Moment]]:
    """The rounds in portions of at most this size."""
    seconds: dict[int, dict[str, float]] = {}
    while batch := list(islice(rounds, size)):
        if batch[-1].number not in seconds:
            seconds = {int(line.pop("round")): line for line in record.timings()}
        yield [moment(stored, seconds.get(stored.number, {})) for stored in batch]


def moment(stored: StoredRound, seconds: Mapping[str, float]) -> Moment:
    """A round as a tracker takes it: summaries, and per-client values as distributions."""
    cohort: dict[str, float] = {
        "clients": len(stored.clients),
        "replies_used": len(stored.weights),
        "replies_dropped": len(stored.dropped),
        "replies_capped": len(stored.capped),
    }
    groups: dict[str, Mapping[str, float]] = {
        "cohort": cohort,
        "bytes": stored.bytes,
        "seconds": seconds,
        "test": stored.metrics,
        "personal": stored.personal,
        "validation": stored.validation,
        "unseen": stored.unseen,
    }
    for name, metrics in stored.more.items():
        groups[f"test_{name}"] = metrics
    clients = {}
    losses = _finite(stored.losses)
    if losses:
        cohort |= {"loss_mean": sum(losses) / len(losses), "loss_max": max(losses)}
        clients["cohort/losses"] = losses
    weights = [weight * len(stored.weights) for weight in stored.weights.values()]
    if weights:
        cohort["weight_max"] = max(weights)
        clients["cohort/relative_weights"] = weights
    table = stored.table("test") if stored.metrics else None
    scores = [] if table is None else _finite(table[1]["score"].tolist())
    if scores:
        clients["test/scores"] = scores
    numbers = {}
    for group, values in groups.items():
        for name, value in values.items():
            if math.isfinite(value):
                numbers[f"{group}/{name}"] = float(value)
    return Moment(stored.number, numbers, clients)


def _finite(values: Iterable[float]) -> list[float]:
    return list(filter(math.isfinite, values))


def _columns(record: Record, number: int) -> dict[str, list[object]]:
    """Every client's last values by column."""
    table = record.clients(number)
    evaluation = table.evaluation
    columns: dict[str, list[object]] = {"client": list(table.names)}
    columns["samples"] = evaluation.sizes.int().tolist()
    for name, values in evaluation.scores.items():
        columns[name] = values.tolist()
    columns["loss"] = evaluation.losses.tolist()
    if evaluation.personal is not None:
        for name, values in evaluation.personal.scores.items():
            columns[f"{name} of the personal model"] = values.tolist()
    return columns
