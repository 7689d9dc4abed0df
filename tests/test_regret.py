"""Regret from a run's record, against brute force."""

from pathlib import Path

import pytest
import torch

from commonweal import Experiment, Record, run
from commonweal.errors import RunError
from commonweal.regret import of_run, regret
from commonweal.report import draw_regret


def grid(k: int, steps: int) -> torch.Tensor:
    """All points of the simplex on a grid, for three clients."""
    assert k == 3
    points = [(i, j, steps - i - j) for i in range(steps + 1) for j in range(steps + 1 - i)]
    return torch.tensor(points, dtype=torch.float64) / steps


@pytest.mark.parametrize("logarithmic", [True, False])
def test_regret_is_what_was_paid_beyond_the_best_fixed_decision(logarithmic: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(6, 3, generator=generator, dtype=torch.float64)
    p /= p.sum(1, keepdim=True)
    r = torch.rand(6, 3, generator=generator, dtype=torch.float64)
    cost = (lambda x: -torch.log1p(x)) if logarithmic else (lambda x: -x)
    for t, value in zip([1, 4, 6], regret(p, r, [1, 4, 6], logarithmic), strict=True):
        best = cost(grid(3, 400) @ r[:t].T).sum(1).min()
        assert value == pytest.approx(float(cost((p[:t] * r[:t]).sum(1)).sum() - best), abs=2e-4)


def finished(folder: Path, **parts: object) -> Record:
    list(run(Experiment(dataset="vowel", rounds=30, evaluate_every=30, **parts), out=folder))
    return Record.read(folder)


@pytest.mark.parametrize("rule", ["aaggff-s", "aaggff-d"])
def test_the_theorems_bound_holds_on_a_run(tmp_path: Path, rule: str) -> None:
    curve = of_run(finished(tmp_path / "run", rule=rule))
    assert curve.bound is not None and curve.rounds[-1] == 30
    assert all(a <= b for a, b in zip(curve.regret, curve.bound, strict=True))
    draw_regret(tmp_path / "regret.png", curve, rule)
    assert (tmp_path / "regret.png").stat().st_size > 1000


def test_rules_without_a_theorem_have_a_regret_too(tmp_path: Path) -> None:
    curve = of_run(finished(tmp_path / "run", rule="term"))
    assert curve.bound is None and curve.regret[-1] > 0


def test_sampled_cohorts_and_direction_rules_are_told_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="every client's loss"):
        of_run(finished(tmp_path / "some", rule="aaggff-d", cohort=5))
    with pytest.raises(RunError, match="decides on a mixture"):
        of_run(finished(tmp_path / "direction", rule="fedmgda"))
