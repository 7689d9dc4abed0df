"""`commonweal.compare`: several rules and seeds in Python, with what they give to every client."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from commonweal.analysis.compare import (
    Cell,
    Result,
    baseline_cells,
    cells,
    failed_lines,
    gather,
    results,
    run_cells,
)
from commonweal.analysis.worth import ALONE, POOLED, Worth, worth
from commonweal.base.errors import ConfigError, DataError, DivergedError, RunError
from commonweal.base.frames import frame
from commonweal.base.values import Value
from commonweal.config import catalog
from commonweal.config.experiment import Experiment, values
from commonweal.data.federation import Federation
from commonweal.jobs.rounds import run
from commonweal.record.record import Record
from commonweal.training.client import Client
from commonweal.training.task import Task

__all__ = ["Comparison", "compare"]


@dataclass(frozen=True, eq=False)
class Comparison:
    """What several rules give to every client, over seeds, beside training alone and pooled."""

    score: str
    results: list[Result]
    baselines: list[Result]  # alone and pooled, where they were run
    failures: list[str]  # a line for every label without a result

    def __repr__(self) -> str:
        labels = ", ".join(result.label for result in self.results)
        return f"<Comparison of {labels}: {self.results[0].seeds} seeds, {self.score}>"

    @property
    def worth(self) -> list[Worth]:
        """Every result beside training alone."""
        return worth(self.results, self.baselines)

    def frame(self) -> Value:
        """A line per label, seed and client: label, seed (by position), client, score.

        A pandas DataFrame, or a polars one; where neither is installed, a dict of lists.
        """
        columns: dict[str, list[object]] = {"label": [], "seed": [], "client": [], "score": []}
        for result in (*self.results, *self.baselines):
            for seed, scores in enumerate(result.scores.tolist()):
                for client, score in zip(result.clients, scores, strict=True):
                    line = (result.label, seed, client, score)
                    for column, value in zip(columns.values(), line, strict=True):
                        column.append(value)
        return frame(columns)


def compare(
    what: Experiment | str | Path | Task,
    federation: Federation | None = None,
    *,
    rules: Sequence[str] = ("fedavg", "uniform", "aaggff-s"),
    seeds: int | Sequence[int] = 3,
    baselines: bool = True,
    out: str | Path | None = None,
    **parts: Value,
) -> Comparison:
    """Run an experiment (or its file), or a Task and a Federation, under several rules and seeds.

    seeds: how many, or which; baselines: also train every client alone, and all rows pooled
    out: the folder of the runs; None: they are not kept
    parts: with a Task, the other parts and settings of `run`
    """
    if out is None:
        with TemporaryDirectory() as folder:
            return _compare(what, federation, rules, seeds, baselines, Path(folder), parts)
    return _compare(what, federation, rules, seeds, baselines, Path(out), parts)


def _compare(
    what: Experiment | str | Path | Task,
    federation: Federation | None,
    rules: Sequence[str],
    seeds: int | Sequence[int],
    baselines: bool,
    folder: Path,
    parts: Mapping[str, Value],
) -> Comparison:
    if isinstance(what, Task):
        if federation is None:
            raise ConfigError("compare(task) needs a Federation as its second argument")
        return _compare_own(what, federation, rules, seeds, baselines, folder, parts)
    if federation is not None or parts:
        raise ConfigError("compare(experiment) takes no other parts: change the experiment")
    base = what.model_dump() if isinstance(what, Experiment) else values(what)
    plan = cells(base, rules, seeds, [], folder)
    against = baseline_cells(base, seeds, folder) if baselines else []
    failures = {
        step.cell.folder: step.failure for step in run_cells([*plan, *against]) if step.failure
    }
    found = results(plan, failures)
    if not found:
        raise RunError("; ".join(failed_lines(plan, failures)))
    score = _score(plan, failures)
    lines = failed_lines([*plan, *against], failures)
    return Comparison(score, found, results(against, failures), lines)


def _score(plan: Sequence[Cell], failures: Mapping[Path, str]) -> str:
    folder = next(cell.folder for cell in plan if cell.folder not in failures)
    score: str = Record.read(folder).facts.score
    return score


def _compare_own(
    task: Task,
    federation: Federation,
    rules: Sequence[str],
    seeds: int | Sequence[int],
    baselines: bool,
    folder: Path,
    parts: Mapping[str, Value],
) -> Comparison:
    """Runs of one's own task and federation."""
    kinds: dict[str, dict[str, Value]] = {rule: {**parts, "rule": rule} for rule in rules}
    if baselines:
        kinds |= _baseline_parts(parts)
    records: dict[str, list[Record]] = {}
    failures: dict[str, str] = {}
    for number, (label, given) in enumerate(kinds.items()):
        for seed in range(seeds) if isinstance(seeds, int) else seeds:
            to = folder / f"{number}-{seed}"
            try:
                for _ in run(task, federation, out=to, resume=True, **{**given, "seed": seed}):
                    pass
                records.setdefault(label, []).append(Record.read(to))
            except (ConfigError, DataError, DivergedError) as error:
                failures.setdefault(label, f"{label}: no result; seed {seed}: {error}")
    done = {label: runs for label, runs in records.items() if label not in failures}
    found = gather({label: runs for label, runs in done.items() if label in rules})
    if not found:
        raise RunError("; ".join(failures.values()))
    against = gather({label: runs for label, runs in done.items() if label not in rules})
    score: str = next(iter(done.values()))[0].facts.score
    return Comparison(score, found, against, list(failures.values()))


def _baseline_parts(parts: Mapping[str, Value]) -> dict[str, dict[str, Value]]:
    """The parts of runs alone and pooled: plain SGD with the same learning rate and batches."""
    given = parts.get("client", "sgd")
    table = (
        catalog.describe(given) if isinstance(given, Client) else catalog.complete("clients", given)
    )
    known = catalog.find("clients", "sgd").parameters
    common = {key: value for key, value in table.items() if key in known}
    rest = {k: v for k, v in parts.items() if k not in ("rule", "client", "channels", "sampler")}
    return {
        ALONE: {**rest, "client": {"name": "alone", **common}},
        POOLED: {**rest, "algorithm": "pooled", "client": {"name": "sgd", **common}},
    }
