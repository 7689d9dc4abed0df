"""Comparisons on several cores and machines, and differences corrected for their number."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from commonweal import metrics
from commonweal.base.errors import ConfigError
from commonweal.study.compare import run_cells, run_cells_in_processes
from commonweal.study.plan import Cell, cells, shard_of
from run_helpers import contents

BASE: dict[str, object] = {"dataset": {"name": "vowel", "test": 0.5}, "rounds": 3}


def plan(folder: Path) -> list[Cell]:
    return cells(BASE, ["fedavg", "aaggff-s"], 2, [], folder)


def test_worker_processes_write_the_same_bytes(tmp_path: Path) -> None:
    for _ in run_cells(plan(tmp_path / "one")):
        pass
    steps = list(run_cells_in_processes(plan(tmp_path / "two"), 2))
    assert [step.cell.folder for step in steps] == [each.folder for each in plan(tmp_path / "two")]
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    again = list(run_cells_in_processes(plan(tmp_path / "two"), 2))
    assert [step.failure for step in again] == [""] * 4


def test_a_run_that_is_refused_is_a_failure_and_the_others_go_on(tmp_path: Path) -> None:
    broken = cells({**BASE, "cohort": 99}, ["fedavg"], 1, [], tmp_path / "broken")
    good = cells(BASE, ["fedavg"], 1, [], tmp_path / "good")
    first, second = run_cells_in_processes([*broken, *good], 2)
    assert "there are 15" in first.failure
    assert second.failure == "" and good[0].finished


def test_shards_cover_a_plan_once(tmp_path: Path) -> None:
    whole = plan(tmp_path)
    parts = [shard_of(whole, f"{k}/3") for k in (1, 2, 3)]
    assert sorted(each.folder for part in parts for each in part) == sorted(
        each.folder for each in whole
    )
    for wrong in ("0/3", "4/3", "3", "a/b", "-1/3"):
        with pytest.raises(ConfigError, match="third of sixteen"):
            shard_of(whole, wrong)


def test_holm_decides_as_its_definition_by_p_values() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        base = rng.normal(size=6)
        others = [base + rng.normal(shift, 1, size=6) for shift in rng.uniform(0, 3, size=4)]
        ps = np.asarray(stats.ttest_rel(np.array(others), base[None], axis=1).pvalue)
        expected = [False] * 4
        for rank, k in enumerate(np.argsort(ps)):
            if ps[k] > 0.05 / (4 - rank):
                break
            expected[k] = True
        assert [each.significant for each in metrics.holm(others, base)] == expected


def test_one_comparison_is_not_corrected() -> None:
    pair = ([3.0, 1.0, 4.0], [1.0, 1.0, 1.5])
    assert metrics.holm([pair[0]], pair[1])[0] == pytest.approx(metrics.paired(*pair))
