"""What `fit` runs, and how it keeps within its time."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commonweal.study import fitting
from commonweal.study.compare import Data, Step
from commonweal.study.fitting import TOGETHER, Work, fit_plan, run_plan
from commonweal.study.plan import Cell

ROUNDS = 10
COSTS = {"alone": 1.5, "blend": 2.5, "boosting": 4.0, TOGETHER: 5.0}
BASE = {"dataset": "vowel", "rounds": ROUNDS, "validation": 0.2}


class Machine:
    """Runs cells without training: a round of FedAvg takes `speed` seconds."""

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self.now = 100.0
        self.ran: list[tuple[str, int]] = []

    def run_cells(self, cells: Sequence[Cell], data: Data) -> Iterator[Step]:
        (cell,) = cells
        self.ran.append((cell.label, cell.experiment.seed))
        for number in range(1, ROUNDS + 1):
            self.now += self.speed * COSTS.get(cell.label.removesuffix(", all samples"), 1.0)
            yield Step(cell, (), SimpleNamespace(number=number))  # type: ignore[arg-type]

    def look(self, trust: bool, folder: Path) -> dict[str, Any]:
        self.now += self.speed
        return {"losses": str(folder)}


def run_on(
    machine: Machine, folder: Path, monkeypatch: pytest.MonkeyPatch, minutes: float | None
) -> list[Work]:
    monkeypatch.setattr(fitting, "run_cells", machine.run_cells)
    seconds = None if minutes is None else 60 * minutes
    plan = fit_plan(BASE, 5, folder)
    return list(run_plan(plan, seconds, lambda: machine.now, machine.look))


def test_every_seed_has_the_methods_on_the_same_samples(tmp_path: Path) -> None:
    plan = fit_plan(BASE, 3, tmp_path)
    assert [{cell.experiment.seed for cell in cells} for cells in plan] == [{0}, {1}, {2}]
    methods = {cell.label: cell.experiment for cell in plan[0]}
    again = {n: methods.pop(f"{n}, all samples") for n in list(methods)[: len(methods) // 2]}
    for name, method in methods.items():
        update: dict[str, object] = {"validation": 0.0}
        if (
            method.client.name == "blend"
        ):  # it learns its weights on these samples before they return
            update = {"client": {**method.client, "rejoin": True}}
        assert again[name] == method.model_copy(update=update)
    assert list(methods) == [
        "alone",
        "fedavg",
        "aaggff-s",
        "fine-tune",
        "blend",
        "boosting",
        TOGETHER,
    ]
    rules = [each.rule.name for each in methods.values()]
    assert rules == ["fedavg", "fedavg", "aaggff-s", "fedavg", "fedavg", "aaggff-s", "fedavg"]
    clients = [each.client.name for each in methods.values()]
    assert clients == ["alone", "sgd", "sgd", "fine-tune", "blend", "sgd", "blend"]
    assert methods["boosting"].model.name == methods[TOGETHER].model.name == "trees"
    assert methods["blend"].client["rejoin"] is False
    assert {each.validation for each in methods.values()} == {0.2}


# A seed is 2 x (15 + 3 x 10 + 25 + 40 + 50) = 320 rounds of FedAvg, and 7 looks at validation
# samples: at a second each, 327 s.
@pytest.mark.parametrize(
    ("minutes", "seeds"),
    [(None, 5), (327 * 5 / 60, 5), (327 * 4.9 / 60, 4), (16.5, 3), (0.1, 2), (0, 2)],
)
def test_the_time_bounds_the_seeds_but_never_below_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: float | None, seeds: int
) -> None:
    machine = Machine(1.0)
    work = run_on(machine, tmp_path, monkeypatch, minutes)
    assert len(machine.ran) == 14 * seeds
    assert {seed for _, seed in machine.ran} == set(range(seeds))
    looked_at = [one.evidence["losses"] for one in work if one.evidence is not None]
    assert len(set(looked_at)) == len(looked_at) == 7 * seeds
    assert work[-1].done == work[-1].total == 327 * seeds
    if minutes:
        assert machine.now - 100 <= max(60 * minutes, 2 * 327) + 1e-6


def test_the_work_left_predicts_the_time_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of local training and blend, whose rounds take longer."""
    machine = Machine(2.0)
    monkeypatch.setattr(fitting, "run_cells", machine.run_cells)
    times = []
    plan = fit_plan(BASE, 5, tmp_path)
    for work in run_plan(plan, None, lambda: machine.now, machine.look):
        elapsed = machine.now - 100
        times.append(elapsed / work.done * (work.total - work.done) + elapsed)
    assert times == pytest.approx([2.0 * 327 * 5] * len(times))
