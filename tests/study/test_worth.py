"""Alone, pooled, and for whom a federation is worth it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import commonweal
from commonweal.base.errors import ConfigError
from commonweal.data.federation import Federation
from commonweal.jobs.rounds import run
from commonweal.study.compare import compared, failed_lines, finished_runs, run_cells
from commonweal.study.comparison import Comparison
from commonweal.study.labels import by_label, runs_in
from commonweal.study.plan import baseline_cells, cells, seed_list
from commonweal.task.task import Task


def federation(clients: int = 3) -> Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40 * clients, 3)).astype(np.float32)
    owner = np.repeat(np.arange(clients), 40)
    sign = np.where(owner == clients - 1, -1, 1)  # the last one has the opposite relation
    y = (sign * x[:, 0] > 0).astype(int)
    return Federation.from_arrays(x, y, owner, test=0.5, outputs=2)


def task() -> Task:
    torch.manual_seed(0)
    return Task(nn.Linear(3, 2))


# The two baselines against plain PyTorch


def by_hand(rows: tuple[torch.Tensor, torch.Tensor], steps: int, lr: float) -> nn.Module:
    """Full-batch gradient descent in plain PyTorch."""
    module = task().module
    optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(rows[0]), rows[1])
        torch.autograd.backward(loss)
        optimizer.step()
    return module


def accuracy(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    return float((module(x).argmax(1) == y).double().mean())


def test_alone_is_every_clients_own_training() -> None:
    f = federation()
    client = {"name": "alone", "select": False, "batch": 0, "lr": 0.5}
    *_, last = run(task(), f, client=client, rounds=7, rule="fedavg")
    assert last.evaluation is not None and last.evaluation.personal is not None
    for k in range(3):
        train, test = f.train.client(k), f.test.client(k)
        own = by_hand((train.x, train.y), 7, 0.5)
        want = accuracy(own, test.x, test.y)
        assert float(last.evaluation.personal.score[k]) == pytest.approx(want)
    assert torch.equal(last.state["w"], task().initial)  # nothing is shared


def test_pooled_is_training_on_all_rows_in_one_place() -> None:
    f = federation()
    client = {"name": "sgd", "batch": 0, "lr": 0.5}
    *_, last = run(task(), f, algorithm="pooled", client=client, rounds=7)
    module = by_hand((f.train.x, f.train.y), 7, 0.5)
    weights = torch.cat([p.detach().flatten() for p in module.parameters()])
    assert torch.allclose(last.state["w"], weights, atol=1e-5)
    assert last.evaluation is not None
    assert len(last.evaluation.score) == 3


def test_pooled_refuses_methods_with_own_models() -> None:
    with pytest.raises(ConfigError, match="trains by plain local SGD"):
        list(run(task(), federation(), algorithm="pooled", client="ditto", rounds=1))


# Comparisons


BASE = {"dataset": "vowel", "rounds": 2}


def test_seeds_are_a_number_or_a_list() -> None:
    plan = cells(BASE, ["fedavg"], seed_list("2,4,6"), [], Path("x"))
    assert [cell.experiment.seed for cell in plan] == [2, 4, 6]
    assert seed_list("4,") == [4]
    for text in ("0", "a", "1,1", "", "-1", ","):
        with pytest.raises(ConfigError, match="seeds"):
            seed_list(text)


def test_a_run_that_fails_is_a_line_and_the_others_go_on(tmp_path: Path) -> None:
    vary = ["client.lr=0.1,1e30"]
    plan = cells(BASE | {"rounds": 6}, ["fedavg"], 1, vary, tmp_path)
    failures = {step.cell.folder: step.failure for step in run_cells(plan) if step.failure}
    assert list(finished_runs(plan, failures)) == ["fedavg client.lr=0.1"]
    (line,) = failed_lines(plan, failures)
    assert line.startswith("fedavg client.lr=1e30: no result; seed 0: training diverged in round 1")


def test_a_failed_seed_does_not_remove_the_others(tmp_path: Path) -> None:
    plan = cells(BASE, ["fedavg", "term"], 3, [], tmp_path)
    list(run_cells(plan))
    lost = next(c for c in plan if c.label == "term" and c.experiment.seed == 1)
    failures = {lost.folder: "training diverged in round 12"}
    comparison = compared(plan, failures)
    assert [result.label for result in comparison.results] == ["fedavg", "term"]
    assert [result.seeds for result in comparison.results] == [2, 2]  # paired: 0 and 2
    assert comparison.failures == [
        "term: no result with seed 1 of 3 (training diverged in round 12); its other seeds may "
        "flatter it",
        "fedavg: left out with seeds that others lack: 1.",
    ]
    also = next(c for c in plan if c.label == "term" and c.experiment.seed == 2)
    most = compared(plan, failures | {also.folder: "the same"})
    assert [(r.label, r.seeds) for r in most.results] == [("fedavg", 1), ("term", 1)]


def test_a_comparisons_folder_is_read_again(tmp_path: Path) -> None:
    plan = [*cells(BASE, ["fedavg", "term"], 2, [], tmp_path), *baseline_cells(BASE, 2, tmp_path)]
    steps = list(run_cells(plan))
    assert not any(step.failure for step in steps)
    comparison = Comparison.in_folders([tmp_path])
    assert {label: len(runs) for label, runs in comparison.records.items()} == {
        "alone": 2,
        "fedavg": 2,
        "pooled": 2,
        "term": 2,
    }
    assert comparison.failures == []


def test_local_training_with_other_settings_is_another_method(tmp_path: Path) -> None:
    parts = {"fast": ("alone", 0.5), "slow": ("alone", 0.1), "fedavg": ("sgd", 0.1)}
    for folder, (client, lr) in parts.items():
        for seed in (0, 1):
            method = {"name": client, "lr": lr}
            run(
                task(), federation(), client=method, rounds=1, seed=seed,
                out=tmp_path / folder / str(seed),
            ).result()  # fmt: skip
    groups = by_label(runs_in([tmp_path]))
    assert list(groups) == ["fedavg", "alone client.lr=0.5", "alone"]
    assert [record.folder.parent.name for record in groups["alone"]] == ["slow", "slow"]


def test_compare_in_python(tmp_path: Path) -> None:
    found = commonweal.compare(task(), federation(), rules=["fedavg", "afl"], seeds=2, rounds=3)
    assert [result.label for result in found.results] == ["fedavg", "afl"]
    assert [result.label for result in found.baselines] == ["alone", "pooled"]
    assert found.judgement is not None and list(found.judgement.methods) == ["fedavg", "afl"]
    columns = found.frame()
    assert list(columns) == ["method", "seed", "client", "score"]
    assert len(columns["score"]) == 4 * 2 * 3
    assert repr(found).startswith("<Comparison of fedavg, afl: 2 seeds, accuracy; seeds vary")


def test_a_record_as_a_frame(tmp_path: Path) -> None:
    list(run(task(), federation(), rounds=2, out=tmp_path / "r"))
    record = commonweal.Record.read(tmp_path / "r")
    columns = record.frame()
    assert list(columns)[:4] == ["round", "client", "rows", "score"]
    assert list(columns["round"]) == [1, 1, 1, 2, 2, 2]
    assert list(columns["score"][3:]) == record.clients().evaluation.score.tolist()
