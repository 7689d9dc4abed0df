"""What `commonweal fit` runs: five methods over several seeds, within the time that there is."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from commonweal.analysis.compare import Data, Step, run_cells
from commonweal.analysis.plan import ALONE, Cell, run_folder
from commonweal.analysis.refitting import ALL, needs_validation, refit_cell
from commonweal.config.experiment import Experiment, change

FEWEST = 2  # seeds, whatever the time: one shows nothing
METHODS = {  # each as changes of an experiment of FedAvg
    ALONE: ["client=alone"],
    "fedavg": ["rule=fedavg"],
    "aaggff-s": ["rule=aaggff-s"],
    "fine-tune": ["client=fine-tune"],
    "blend": ["client=blend", "client.rejoin=false"],
}
COSTS = {ALONE: 1.5, "blend": 2.5}  # relative to FedAvg


class Work(NamedTuple):
    """A step, and how much of all the work is done, in rounds of FedAvg."""

    step: Step
    done: float
    total: float


def fit_plan(base: Mapping[str, object], seeds: int, folder: Path) -> list[list[Cell]]:
    """The runs of every seed: the methods that clients choose among, and what `choose` refits."""
    plan = []
    for seed in range(seeds):
        own = []
        for label, changes in METHODS.items():
            experiment = Experiment(**change(base, changes) | {"seed": seed})
            own.append(Cell(label, experiment, run_folder(folder, label, seed)))
        if not needs_validation(own[0].experiment):
            own += [refit_cell(*vars(cell).values()) for cell in own]
        plan.append(own)
    return plan


def run_plan(
    plan: Sequence[Sequence[Cell]],
    minutes: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Work]:
    """Run what is not finished, seed by seed, as long as the next seed fits into the time.

    minutes: begin no seed beyond the second that would end later; None for all seeds
    """
    start = clock()
    data = Data()
    costs = [sum(_cost(cell) for cell in cells if not cell.finished) for cells in plan]
    ends = list(accumulate(costs))  # the work done after each seed
    done = 0.0
    for k, cells in enumerate(plan):
        if k >= FEWEST and k >= _seeds_within(ends, minutes, clock() - start, done):
            return
        for cell in cells:
            before = done
            cost = 0.0 if cell.finished else _cost(cell)
            for step in run_cells([cell], data):
                if step.round is not None:
                    done = before + cost * step.round.number / cell.experiment.rounds
                seeds = _seeds_within(ends, minutes, clock() - start, done)
                yield Work(step, done, ends[max(k + 1, seeds) - 1])
            done = before + cost


def _cost(cell: Cell) -> float:
    return COSTS.get(cell.label.removesuffix(ALL), 1.0) * cell.experiment.rounds


def _seeds_within(ends: Sequence[float], minutes: float | None, elapsed: float, done: float) -> int:
    """How many seeds the time allows, at the speed so far."""
    if minutes is None or done == 0:
        return len(ends)
    affordable = 60 * minutes * done / elapsed if elapsed > 0 else float("inf")
    return max(min(FEWEST, len(ends)), sum(end <= affordable for end in ends))
