"""Regret from a run's record, against brute force."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from commonweal import Experiment, Federation, Record, Task, run
from commonweal.base.errors import RunError
from commonweal.report import figures
from commonweal.rules import AAggFFS
from commonweal.rules.simplex import best_fixed
from commonweal.study.regret import Regret, cumulative_regret, of_run
from rule_helpers import ORACLE_CDFS


def grid(k: int, steps: int) -> torch.Tensor:
    """All points of the simplex on a grid, for three clients."""
    assert k == 3
    points = [(i, j, steps - i - j) for i in range(steps + 1) for j in range(steps + 1 - i)]
    return torch.tensor(points, dtype=torch.float64) / steps


@pytest.mark.parametrize("logarithmic", [True, False])
def test_regret_is_the_cost_beyond_that_of_the_best_fixed_decision(logarithmic: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(6, 3, generator=generator, dtype=torch.float64)
    p /= p.sum(1, keepdim=True)
    r = torch.rand(6, 3, generator=generator, dtype=torch.float64)

    def cost(gain: torch.Tensor) -> torch.Tensor:
        return -torch.log1p(gain) if logarithmic else -gain

    rounds = [1, 4, 6]
    for t, value in zip(rounds, cumulative_regret(p, r, rounds, logarithmic), strict=True):
        best = cost(grid(3, 400) @ r[:t].T).sum(1).min()
        paid = cost((p[:t] * r[:t]).sum(1)).sum()
        assert value == pytest.approx(float(paid - best), abs=2e-4)


def finished(folder: Path, **parts: Any) -> Record:
    list(run(Experiment(dataset="vowel", rounds=30, evaluate_every=30, **parts), out=folder))
    return Record.read(folder)


def within_bound(curve: Regret) -> bool:
    assert curve.bound is not None
    return all(a <= b for a, b in zip(curve.regret, curve.bound, strict=True))


@pytest.mark.parametrize("rule", ["aaggff-s", "aaggff-d"])
def test_the_theorems_bound_holds_on_a_run(tmp_path: Path, rule: str) -> None:
    curve = of_run(finished(tmp_path / "run", rule=rule))
    assert curve.rounds[-1] == 30
    assert within_bound(curve)
    figures.save(figures.regret(curve, rule).figure, tmp_path / "regret.png")
    assert (tmp_path / "regret.png").stat().st_size > 1000


def test_rules_without_a_theorem_have_a_regret_too(tmp_path: Path) -> None:
    curve = of_run(finished(tmp_path / "run", rule="term"))
    assert curve.bound is None
    assert curve.regret[-1] > 0


def test_a_guarded_rule_has_the_regret_of_its_rule(tmp_path: Path) -> None:
    plain = of_run(finished(tmp_path / "plain", rule="aaggff-s"))
    guarded = of_run(finished(tmp_path / "guarded", rule={"name": "guarded", "rule": "aaggff-s"}))
    assert guarded == plain
    assert within_bound(guarded)


@pytest.mark.parametrize("name", ["excess", "grouped"])
def test_every_combinator_has_a_regret(tmp_path: Path, name: str) -> None:
    rule: dict[str, object] = {"name": name, "rule": "aaggff-s"}
    if name == "grouped":
        rule["domains"] = [0] * 5 + [1] * 10
    curve = of_run(finished(tmp_path / name, rule=rule))
    assert curve.regret[-1] > 0
    # The theorem is about decisions on clients.
    assert (curve.bound is None) == (name == "grouped")


def test_a_run_of_ones_own_task_has_a_regret(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    f = Federation.from_arrays(x, y, np.repeat(["a", "b"], 20))
    list(run(Task(nn.Linear(2, 2)), f, rule="aaggff-s", rounds=5, out=tmp_path / "own"))
    curve = of_run(Record.read(tmp_path / "own"))
    assert curve.rounds == [1, 2, 3, 4, 5]
    assert within_bound(curve)


def test_the_regret_of_sampled_cohorts_is_estimated(tmp_path: Path) -> None:
    """By hand: eq. 12 over all 15 clients, eq. 10 for those who are absent."""
    record = finished(tmp_path / "some", rule="aaggff-d", cohort=5)
    curve = of_run(record)
    assert curve.estimated
    assert curve.bound is None
    names = sorted({name for each in record.rounds for name in each.clients})
    c = np.zeros(15)
    paid = 0.0
    responses = []
    for t, each in enumerate(record.rounds, start=1):
        rate = np.sqrt(np.log(15)) / ((1 / 3 + 2) * np.sqrt(t))
        p = np.exp(-rate * c) / np.exp(-rate * c).sum()
        f = np.array(each.losses)
        cdf = np.array([ORACLE_CDFS["normal"](x) for x in f / f.mean()])
        index = [names.index(name) for name in each.clients]
        r = np.full(15, cdf.mean() / 3)
        r[index] += cdf - cdf.mean()
        responses.append(r)
        paid -= np.log1p(p @ r)
        c[index] -= (cdf - cdf.mean()) / (1 + cdf.mean() / 3)
    best = best_fixed(torch.from_numpy(np.stack(responses)))[1]
    assert curve.regret[-1] == pytest.approx(paid + best, abs=1e-6)


def test_other_constants_have_no_theorem(tmp_path: Path) -> None:
    curve = of_run(finished(tmp_path / "run", rule={"name": "aaggff-s", "alpha": 1.0}))
    assert curve.bound is None
    assert AAggFFS(variant="reference").bound(10, 3) is None
    assert AAggFFS(beta=0.5).bound(10, 3) is None


def test_sampled_cohorts_and_direction_rules_have_a_note(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be computed from its record"):
        of_run(finished(tmp_path / "some", rule="term", cohort=5))
    with pytest.raises(RunError, match="decides on a mixture"):
        of_run(finished(tmp_path / "direction", rule="fedmgda"))
