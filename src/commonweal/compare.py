"""Rules side by side: the same experiment under every rule and seed, and a table that says what can be told apart."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from commonweal import metrics
from commonweal.errors import ConfigError
from commonweal.experiment import Experiment, override
from commonweal.run import Round, prepare, run
from commonweal.store import Record

__all__ = ["OWN", "Cell", "Result", "Step", "cells", "compared", "results", "split_rules"]


OWN = ", own models"  # what clients are served with, where that is not the shared model


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    label: str
    experiment: Experiment
    folder: Path


class Step(NamedTuple):
    """Where a comparison is: the cell at work, its client names, and the round just done (None: it was finished)."""

    cell: Cell
    names: tuple[str, ...]
    round: Round | None


@dataclass(frozen=True)
class Result:
    """What one rule (with one setting) gave over the seeds."""

    label: str
    clients: tuple[str, ...]
    scores: np.ndarray  # (seeds, K)
    metrics: list[dict[str, float]]  # one a seed


def split_rules(text: str) -> list[str]:
    """The rules of a list, which may have parameters in brackets.

    >>> split_rules("fedavg, aaggff-s(cdf=frechet, beta=0.5)")
    ['fedavg', 'aaggff-s(cdf=frechet, beta=0.5)']
    """
    return [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def cells(base: Mapping[str, Any], rules: Sequence[str], seeds: int, vary: Sequence[str], folder: Path) -> list[Cell]:
    """Every combination of rule, varied values and seed, in the order in which it is run."""
    settings = [_choices(text) for text in vary]
    found = []
    for rule, setting, seed in product(rules, product(*settings), range(seeds)):
        name, _, inside = rule.partition("(")
        changes = [f"rule={name.strip()}"] if _name(base.get("rule")) != name.strip() else []
        changes += [f"rule.{text.strip()}" for text in inside.removesuffix(")").split(",") if text.strip()]
        label = " ".join([rule.replace(" ", ""), *setting])
        values = override(base, [*changes, *setting]) | {"seed": seed}
        found.append(Cell(label, Experiment(**values), folder / re.sub(r"[^\w.+=-]+", "_", label) / f"seed-{seed}"))
    if len({cell.folder for cell in found}) < len(found):
        raise ConfigError(f"the same rule twice among {', '.join(rules)}: every one needs parameters of its own")
    return found


def _name(part: Any) -> str | None:
    return part.get("name") if isinstance(part, Mapping) else part


def _choices(text: str) -> list[str]:
    key, equals, values = text.partition("=")
    if not equals or not values:
        raise ConfigError(f"--vary {text!r}: write key=value1,value2")
    return [f"{key}={value.strip()}" for value in values.split(",")]


def compared(plan: Iterable[Cell]) -> Iterator[Step]:
    """Run what is not finished yet, round by round; what was finished before is not repeated."""
    for cell in plan:
        if cell.folder.exists() and _finished(cell):
            yield Step(cell, (), None)
            continue
        job = prepare(cell.experiment)
        for done in run(job, out=cell.folder, resume=True):
            yield Step(cell, job.federation.names, done)


def _finished(cell: Cell) -> bool:
    """Whether the cell's folder holds its run, whole (a folder of another experiment is refused when it is run)."""
    text = cell.folder / "experiment.toml"
    return (
        text.exists()
        and text.read_text(encoding="utf-8") == cell.experiment.toml()
        and (cell.folder / "model.safetensors").exists()
    )


def results(plan: Iterable[Cell]) -> list[Result]:
    """The runs of a finished comparison, gathered by label: the shared model, and the clients' own if they have any."""
    gathered: dict[str, list[Record]] = {}
    for cell in plan:
        gathered.setdefault(cell.label, []).append(Record.read(cell.folder))
    found = []
    for label, records in gathered.items():
        found.append(_result(label, [record.clients() for record in records]))
        if all(own := [record.personal() for record in records]):
            found.append(_result(f"{label}{OWN}", own))
    return found


def _result(label: str, tables: Sequence[Sequence[tuple[str, float, float]]]) -> Result:
    """From every client's name, score and loss, seed by seed; those without a score are left out."""
    scored = [[row for row in table if not np.isnan(row[1])] for table in tables]
    names = tuple(name for name, _, _ in scored[0])
    scores = np.array([[score for _, score, _ in table] for table in scored])
    return Result(label, names, scores, [metrics.summary(row, names=names) for row in scores])
