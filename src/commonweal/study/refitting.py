"""The methods of a choice once more, on all samples of every client.

A choice needs validation samples that no model has seen. Once it is made, the models that clients
use are trained again, on these samples, too. The choice compared models of equal samples, and so do
the scores on test samples.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from commonweal.base.errors import RunError
from commonweal.config import catalog
from commonweal.config.experiment import Experiment, read
from commonweal.record.record import Record
from commonweal.study.compare import run_cells
from commonweal.study.plan import Cell

ALL = ", all samples"  # follows the name of the method in the label of its run
FOLDER = "refit"  # below the run of the method: what is below a run belongs to it

Train: TypeAlias = Callable[[Sequence[Cell]], Mapping[Path, str]]


def train(plan: Sequence[Cell]) -> dict[Path, str]:
    """Run what is not finished. Returns why some runs have no result, by folder."""
    return {step.cell.folder: step.failure for step in run_cells(plan) if step.failure}


def needs_validation(experiment: Experiment) -> str:
    """The setting for which a run needs validation samples; empty where there is none."""
    if experiment.threshold is not None:
        return "threshold"
    return "" if experiment.patience is None else "patience"


def refit_cell(label: str, experiment: Experiment, folder: Path) -> Cell:
    """The run of a method on all samples.

    Validation samples become training samples. Only `blend` needs them to learn its weights, before
    they return to training.
    """
    changes: dict[str, object] = {"validation": 0.0}
    if "rejoin" in catalog.complete("clients", experiment.client):
        changes = {"client": {**experiment.client, "rejoin": True}}
    whole = Experiment(**experiment.model_dump() | changes)
    return Cell(label + ALL, whole, folder / FOLDER)


def refit(
    methods: Mapping[str, Mapping[int, Record]], train: Train, notes: list[str]
) -> dict[str, dict[int, Record]] | None:
    """The methods' runs on all samples, by seed, trained where that is not done yet.

    None, with a note, where the runs cannot do without validation samples.
    """
    plan: dict[tuple[str, int], Cell] = {}
    for name, runs in methods.items():
        for seed, record in runs.items():
            experiment = read(record.folder / "experiment.toml")
            setting = needs_validation(experiment)
            if setting:
                notes.append(
                    f"{setting} needs validation samples: the models are not trained again on all "
                    "samples"
                )
                return None
            plan[name, seed] = refit_cell(name, experiment, record.folder)
    for folder, failure in train(list(plan.values())).items():
        raise RunError(
            f"{str(folder)!r}: training on all samples has no result ({failure}): choose without "
            "it, by --no-refit or refit=False"
        )
    again: dict[str, dict[int, Record]] = {name: {} for name in methods}
    for (name, seed), cell in plan.items():
        again[name][seed] = _checked(cell, methods[name][seed])
    return again


def _checked(cell: Cell, first: Record) -> Record:
    """The run on all samples; RunError unless it has the samples of the first run."""
    record = Record.read(cell.folder)
    training, test = first.facts.train_rows or 0, first.facts.test_rows
    if cell.experiment.validation == 0:
        training += first.facts.validation_rows or 0
    if (record.facts.train_rows, record.facts.test_rows) != (training, test):
        raise RunError(
            f"{str(cell.folder)!r} has {record.facts.train_rows} training and "
            f"{record.facts.test_rows} test samples, not {training} and {test}: the data changed "
            "since the runs; run the comparison again, or use --no-refit"
        )
    return record
