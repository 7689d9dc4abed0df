"""Alone, pooled, and for whom a federation is worth it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import commonweal
from commonweal import metrics
from commonweal.analysis.compare import (
    Result,
    baseline_cells,
    cells,
    failed_lines,
    read_comparison,
    results,
    run_cells,
    seed_list,
)
from commonweal.analysis.worth import worth
from commonweal.base.errors import ConfigError
from commonweal.data.federation import Federation
from commonweal.jobs.rounds import run
from commonweal.report import tables
from commonweal.training.task import Task

NAMES = ("a", "b", "c")


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


def made(label: str, scores: list[list[float]], lower: bool = False) -> Result:
    array = np.array(scores)
    each = [metrics.summary(row, names=NAMES, lower_is_better=lower) for row in array]
    return Result(label, NAMES, array, each, lower_is_better=lower)


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
    client = {"name": "alone", "batch": 0, "lr": 0.5}
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
    with pytest.raises(ConfigError, match="one model for all"):
        list(run(task(), federation(), algorithm="pooled", client="ditto", rounds=1))


# Worth


def test_worth_by_hand() -> None:
    alone = made("alone", [[0.5, 0.6, 0.9], [0.5, 0.6, 0.9]])
    pooled = made("pooled", [[0.9, 0.9, 0.9], [0.9, 0.9, 0.9]])
    fedavg = made("fedavg", [[0.7, 0.7, 0.8], [0.8, 0.7, 0.8]])
    (found,) = worth([fedavg], [alone, pooled])
    assert found.better_off == pytest.approx(2 / 3)
    assert found.excess_max == pytest.approx(0.1)
    assert found.change.tolist() == pytest.approx([0.25, 0.1, -0.1])
    assert found.share == pytest.approx((0.75 - 2 / 3) / (0.9 - 2 / 3))
    (sentence,) = tables.worth_sentences([found], "accuracy")
    assert sentence.startswith("fedavg: worth it for 2 of 3 clients; not for c (-10.0). Mean")
    assert "36 % of the way from alone to pooled" in sentence


def test_errors_gain_by_falling() -> None:
    alone = made("alone", [[2.0, 4.0, 6.0]], lower=True)
    fedavg = made("fedavg", [[1.0, 4.0, 7.5]], lower=True)
    (found,) = worth([fedavg], [alone])
    assert found.better_off == pytest.approx(2 / 3)
    assert found.excess_max == 1.5
    assert found.share is None
    assert "not for c (-1.50)" in tables.worth_sentences([found], "mae")[-1]


def test_where_federating_hurts_the_first_sentence_says_so() -> None:
    alone = made("alone", [[0.8, 0.8, 0.9]])
    results_ = [made("fedavg", [[0.6, 0.6, 0.9]]), made("afl", [[0.7, 0.7, 0.7]])]
    first, *_ = tables.worth_sentences(worth(results_, [alone]), "accuracy")
    assert first == (
        "Federating hurts here: even fedavg serves 2 of 3 clients worse than training alone "
        "(mean gain -13.3)."
    )


def test_without_runs_alone_there_is_nothing_to_say() -> None:
    assert worth([made("fedavg", [[0.1, 0.2, 0.3]])], []) == []


# Comparisons


BASE = {"dataset": "vowel", "rounds": 2}


def test_seeds_are_a_number_or_a_list() -> None:
    plan = cells(BASE, ["fedavg"], seed_list("2,4,6"), [], Path("x"))
    assert [cell.experiment.seed for cell in plan] == [2, 4, 6]
    for text in ("0", "a", "1,1", "", "-1"):
        with pytest.raises(ConfigError, match="seeds"):
            seed_list(text)


def test_a_run_that_fails_is_a_line_and_the_others_go_on(tmp_path: Path) -> None:
    vary = ["client.lr=0.1,1e30"]
    plan = cells(BASE | {"rounds": 6}, ["fedavg"], 1, vary, tmp_path)
    failures = {step.cell.folder: step.failure for step in run_cells(plan) if step.failure}
    assert [r.label for r in results(plan, failures)] == ["fedavg client.lr=0.1"]
    (line,) = failed_lines(plan, failures)
    assert line.startswith("fedavg client.lr=1e30: no result; seed 0: training diverged in round 1")


def test_a_comparisons_folder_is_read_again(tmp_path: Path) -> None:
    plan = [*cells(BASE, ["fedavg", "term"], 2, [], tmp_path), *baseline_cells(BASE, 2, tmp_path)]
    steps = list(run_cells(plan))
    assert not any(step.failure for step in steps)
    records, lines = read_comparison(tmp_path)
    assert {label: len(runs) for label, runs in records.items()} == {
        "alone": 2,
        "fedavg": 2,
        "pooled": 2,
        "term": 2,
    }
    assert lines == []


def test_csv_and_json_hold_numbers(tmp_path: Path) -> None:
    pair = [made("fedavg", [[0.2, 0.8, 0.9]] * 3), made("term", [[0.5, 0.7, 0.8]] * 3)]
    found = worth(pair, [made("alone", [[0.4, 0.4, 0.4]] * 3)])
    numbers = tables.comparison(pair, "accuracy", found=found)
    fedavg, term = json.loads(str(tables.render(numbers, "json")))
    assert term["worst"] == 0.5
    assert term["worst_difference"] == pytest.approx(0.3)
    assert fedavg["worst_difference"] is None
    assert (fedavg["better_off"], term["excess_max"]) == (pytest.approx(2 / 3), 0.0)
    header, line, _ = str(tables.render(numbers, "csv")).splitlines()
    cell = dict(zip(header.split(","), line.split(","), strict=True))
    assert float(cell["mean"]) == pytest.approx(19 / 30)


def test_the_number_of_seeds_that_would_do() -> None:
    few = [made("fedavg", [[0.2, 0.8, 0.9], [0.3, 0.8, 0.9]])]
    few.append(made("term", [[0.3, 0.8, 0.9], [0.5, 0.8, 0.9]]))
    notes = tables.layout(tables.comparison(few, "accuracy")).notes
    assert notes[0].startswith("15 points (term, worst) is not significant with 2 seeds; about ")


def test_compare_in_python(tmp_path: Path) -> None:
    found = commonweal.compare(task(), federation(), rules=["fedavg", "afl"], seeds=2, rounds=3)
    assert [result.label for result in found.results] == ["fedavg", "afl"]
    assert [result.label for result in found.baselines] == ["alone", "pooled"]
    assert [each.label for each in found.worth] == ["fedavg", "afl"]
    columns = found.frame()
    assert list(columns) == ["label", "seed", "client", "score"]
    assert len(columns["score"]) == 4 * 2 * 3
    assert repr(found).startswith("<Comparison of fedavg, afl: 2 seeds, accuracy; seeds vary")


def test_a_record_as_a_frame(tmp_path: Path) -> None:
    list(run(task(), federation(), rounds=2, out=tmp_path / "r"))
    record = commonweal.Record.read(tmp_path / "r")
    columns = record.frame()
    assert list(columns)[:4] == ["round", "client", "rows", "score"]
    assert list(columns["round"]) == [1, 1, 1, 2, 2, 2]
    assert list(columns["score"][3:]) == record.clients().evaluation.score.tolist()
