"""A run's record, written to a tracker: from the folder, never from the loop that trains.

Old, resumed and running runs, simulated ones and those of Flower go the same way, and a tracker
that fails stops nothing. What was written is remembered in the run's folder (trackers.json), so
that the same command continues with the rounds that are new.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path

from commonweal.app.trackers.tracker import Moment, Tracker
from commonweal.base.errors import CommonwealError, RunError
from commonweal.base.files import write_file
from commonweal.base.plain import Plain, flat, to_json
from commonweal.base.typed import parse_json
from commonweal.record.record import Record
from commonweal.record.rounds import ClientTable, StoredRound

MEMORY = "trackers.json"
BATCH = 100  # rounds that are written at once
TRACKERS = {  # a module and its class; the libraries are imported where they are needed
    "tensorboard": ("tensorboard", "TensorBoard"),
    "mlflow": ("mlflow", "MLflow"),
    "wandb": ("wandb_api", "Wandb"),
    "trackio": ("wandb_api", "Trackio"),
}
FACTS = ("commonweal", "torch", "python", "clients", "parameters")


def name_of(folder: Path) -> str:
    """The name of a run: its folder, for a run of a comparison with those above it.

    >>> name_of(Path("runs/vowel-compare/afl/seed-0"))
    'vowel-compare/afl/seed-0'
    """
    parts = folder.absolute().parts
    return "/".join(parts[-3:]) if parts[-1].startswith("seed-") else parts[-1]


def send_rounds(
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
    module, kind = TRACKERS[to]
    made = vars(import_module(f"commonweal.app.trackers.{module}"))[kind]
    tracker: Tracker = made(record.folder, name_of(record.folder), project, folder)
    key = to if folder is None else f"{to} {folder.absolute()}"
    before = _memory(record.folder).get(key, Written("", 0))
    if before.round > len(record.rounds):  # the run was started again
        before = Written("", 0)
    first = last = 0
    try:
        toml = (record.folder / "experiment.toml").read_text(encoding="utf-8")
        identity = tracker.open(before.id or None, _settings(record), toml)
        if identity == before.id:
            first = last = before.round
        rounds = record.follow() if follow else record.rounds
        new = filter(lambda stored: stored.number > first, rounds)
        try:
            for moments in _batches(record, new, 1 if follow else BATCH):
                tracker.log(moments)
                last = moments[-1].round
        finally:
            if last > first:
                written = _memory(record.folder) | {key: Written(identity, last)}
                data = to_json({name: vars(entry) for name, entry in written.items()})
                write_file(record.folder / MEMORY, data, durable=False)
        ended = Record.read(record.folder)
        if ended.evaluated and last > first:
            tracker.table(ended.evaluated[-1].number, _columns(ended.clients()))
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


@dataclass(frozen=True)
class Written:
    """The part of a run that a tracker has."""

    id: str
    round: int  # the last one


def _memory(folder: Path) -> dict[str, Written]:
    """Read what was sent to trackers before; a file that cannot be read counts as nothing."""
    try:
        return parse_json(dict[str, Written], (folder / MEMORY).read_bytes())
    except (OSError, ValueError):
        return {}


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
    losses = _finite(stored.losses)
    weights = [weight * len(stored.weights) for weight in stored.weights.values()]
    table = stored.table("test") if stored.metrics else None
    scores = [] if table is None else _finite(table[1]["score"].tolist())
    cohort: dict[str, float] = {
        "clients": len(stored.clients),
        "replies_used": len(stored.weights),
        "replies_dropped": len(stored.dropped),
        "replies_capped": len(stored.capped),
    }
    if losses:
        cohort |= {"loss_mean": sum(losses) / len(losses), "loss_max": max(losses)}
    if weights:
        cohort["weight_max"] = max(weights)
    groups: dict[str, Mapping[str, float]] = {
        "cohort": cohort,
        "bytes": stored.bytes,
        "seconds": seconds,
        "test": stored.metrics,
        "personal": stored.personal,
        "validation": stored.validation,
        "unseen": stored.unseen,
        **{f"test_{name}": metrics for name, metrics in stored.more.items()},
    }
    numbers = {}
    for group, values in groups.items():
        for name, value in values.items():
            if math.isfinite(value):
                numbers[f"{group}/{name}"] = float(value)
    clients = {"cohort/losses": losses, "cohort/relative_weights": weights, "test/scores": scores}
    return Moment(stored.number, numbers, {name: each for name, each in clients.items() if each})


def _finite(values: Iterable[float]) -> list[float]:
    return list(filter(math.isfinite, values))


def _columns(table: ClientTable) -> dict[str, list[object]]:
    """Every client's last values by column."""
    evaluation = table.evaluation
    columns: dict[str, list[object]] = {"client": list(table.names)}
    columns["samples"] = evaluation.sizes.int().tolist()
    for name, values in evaluation.scores.items():
        columns[name] = values.tolist()
    columns["loss"] = evaluation.losses.tolist()
    for name, values in ({} if evaluation.personal is None else evaluation.personal.scores).items():
        columns[f"{name} of the personal model"] = values.tolist()
    return columns
