"""Local training once more after choosing, on all samples of a client.

A choice needs validation samples that no model has seen. Once it is made, a client that keeps its
local models can train them on these samples, too, without the federation.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from commonweal.analysis.compare import ALONE, Cell, run_cells
from commonweal.base.errors import RunError
from commonweal.config.experiment import Experiment, read
from commonweal.record.record import Record

__all__ = ["LABEL", "Train", "needs_validation", "refit", "refit_cell", "train"]

LABEL = f"{ALONE}, all samples"
FOLDER = "refit"  # below the run of local training: what is below a run belongs to it

Train: TypeAlias = Callable[[Sequence[Cell]], Mapping[Path, str]]


def train(plan: Sequence[Cell]) -> dict[Path, str]:
    """Run what is not finished. Returns why some runs have no result, by folder."""
    return {step.cell.folder: step.failure for step in run_cells(plan) if step.failure}


def needs_validation(experiment: Experiment) -> str:
    """The setting for which a run needs validation samples; empty where there is none."""
    if experiment.threshold is not None:
        return "threshold"
    return "" if experiment.patience is None else "patience"


def refit_cell(experiment: Experiment, folder: Path) -> Cell:
    """The run of local training on all samples.

    Args:
        experiment: Of local training with validation samples.
        folder: Of its run.
    """
    whole = Experiment(**experiment.model_dump() | {"validation": 0.0})
    return Cell(LABEL, whole, folder / FOLDER)


def refit(runs: Mapping[int, Record], train: Train, notes: list[str]) -> dict[int, Record] | None:
    """Train the local models of some runs on all samples, where that is not done yet.

    Args:
        runs: The runs of local training by seed.
        train: Runs what is not finished.
        notes: Gets a line where the runs cannot do without validation samples.

    Returns:
        The runs on all samples by seed; None where they cannot do without validation samples.
    """
    plan = {}
    for seed, record in runs.items():
        experiment = read(record.folder / "experiment.toml")
        setting = needs_validation(experiment)
        if setting:
            notes.append(
                f"{setting} needs validation samples: clients that keep local training are not "
                "trained on all samples"
            )
            return None
        plan[seed] = refit_cell(experiment, record.folder)
    for folder, failure in train(list(plan.values())).items():
        raise RunError(
            f"{str(folder)!r}: local training on all samples has no result ({failure}): choose "
            "without it, by --no-refit or refit=False"
        )
    return {seed: _checked(Record.read(cell.folder), runs[seed]) for seed, cell in plan.items()}


def _checked(whole: Record, part: Record) -> Record:
    """The run on all samples; RunError unless only validation samples were added to training."""
    counts = part.facts.train_rows, part.facts.validation_rows, part.facts.test_rows
    expected = (counts[0] or 0) + (counts[1] or 0), counts[2]
    if (whole.facts.train_rows, whole.facts.test_rows) != expected:
        raise RunError(
            f"{str(whole.folder)!r} has {whole.facts.train_rows} training and "
            f"{whole.facts.test_rows} test samples, not {expected[0]} and {expected[1]}: the data "
            "changed since the runs; run the comparison again, or use --no-refit"
        )
    return whole
