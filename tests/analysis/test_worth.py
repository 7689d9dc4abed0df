"""Alone, pooled, and for whom a federation is worth it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import commonweal
from commonweal import metrics
from commonweal.analysis.compare import Result, failed_lines, finished_runs, gather, run_cells
from commonweal.analysis.gains import gains, gains_over_local
from commonweal.analysis.labels import by_label, find_runs
from commonweal.analysis.plan import baseline_cells, cells, seed_list
from commonweal.base.errors import ConfigError
from commonweal.data.federation import Federation
from commonweal.jobs.rounds import run
from commonweal.report.compare import Comparison
from commonweal.report.comparison import answer, layout, render, summarize, worth_sentences
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
    with pytest.raises(ConfigError, match="one model for all"):
        list(run(task(), federation(), algorithm="pooled", client="ditto", rounds=1))


# Worth


def test_worth_by_hand() -> None:
    alone = made("alone", [[0.5, 0.6, 0.9], [0.5, 0.6, 0.9]])
    pooled = made("pooled", [[0.9, 0.9, 0.9], [0.9, 0.9, 0.9]])
    fedavg = made("fedavg", [[0.7, 0.7, 0.8], [0.8, 0.7, 0.8]])
    (found,) = gains_over_local([fedavg], [alone, pooled])
    assert found.better_off == pytest.approx(2 / 3)
    assert found.excess_max == pytest.approx(0.1)
    assert [each.gain for each in found.clients] == pytest.approx([0.25, 0.1, -0.1])
    assert found.share == pytest.approx((0.75 - 2 / 3) / (0.9 - 2 / 3))
    (sentence,) = worth_sentences(summarize([fedavg], "accuracy", baselines=[alone, pooled]))
    assert sentence.startswith("fedavg: 0 of 3 clients are better off than with local training")
    assert "36 % of the way from local to pooled training" in sentence


def test_errors_gain_by_falling() -> None:
    alone = made("alone", [[2.0, 4.0, 6.0]], lower=True)
    fedavg = made("fedavg", [[1.0, 4.0, 7.5]], lower=True)
    (found,) = gains_over_local([fedavg], [alone])
    assert found.better_off == pytest.approx(2 / 3)
    assert found.excess_max == 1.5
    assert found.share is None


GAIN = [  # not in steps, for which intervals would be wider than Student's
    [0.1013, 0.05, -0.0913],
    [0.1201, -0.05, -0.1101],
    [0.1107 + 1 / 300_007, 0.01, -0.1007],
    [0.1279 - 1 / 300_007, 0.0, -0.1179],
]


@pytest.mark.parametrize("lower", [False, True])
def test_only_significant_gains_and_losses_are_named(lower: bool) -> None:
    sign = -1 if lower else 1
    alone = made("alone", [[0.5, 0.6, 0.9]] * 4, lower)
    other = made("ditto", (np.array([[0.5, 0.6, 0.9]] * 4) + sign * np.array(GAIN)).tolist(), lower)
    found = gains(alone, other)
    assert [each.client for each in found.better] == ["a"]
    assert [each.client for each in found.worse] == ["c"]
    assert found.unclear == 1
    interval = stats.ttest_1samp([row[0] for row in GAIN], 0).confidence_interval(0.95)
    assert found.better[0][1:4] == pytest.approx((0.115, interval.low, interval.high))
    (sentence,) = worth_sentences(
        summarize([other], "mae" if lower else "accuracy", baselines=[alone])
    )
    loss = "-0.105" if lower else "-10.5"
    assert f"1 of 3 clients is better off than with local training, 1 worse off (c {loss})" in (
        sentence
    )


def sentence_of(gain: list[list[float]]) -> str:
    alone = made("alone", [[0.5, 0.5, 0.5]] * len(gain))
    results_ = [made("fedavg", (0.5 + np.array(gain)).tolist())]
    return answer(summarize(results_, "accuracy", baselines=[alone]))


def test_the_answer_follows_from_the_intervals() -> None:
    up, down, flat = [0.1, 0.11, 0.12], [-0.1, -0.11, -0.12], [0.3, -0.1, 0.1]
    rows = np.array([up, up, flat]).T.tolist()
    assert sentence_of(rows) == (
        "Joining pays: with fedavg, 2 of 3 clients are significantly better off than with local "
        "training, and none is worse off."
    )
    rows = np.array([down, down, up]).T.tolist()
    assert sentence_of(rows).startswith("Joining does not pay here: even with fedavg, 2 of 3")
    assert sentence_of(np.array([up, down, flat]).T.tolist()) == (
        "Joining helps some clients and harms others: with fedavg, 1 of 3 clients is significantly "
        "better off than with local training, and 1 is worse off."
    )
    needed = metrics.seeds_needed(flat, [0.0, 0.0, 0.0])
    assert sentence_of(np.array([flat, flat, flat]).T.tolist()) == (
        "Whether joining pays is open: with fedavg and 3 seeds, no client's difference from local "
        f"training is significant; about {needed} seeds would show the mean gain."
    )
    assert "one seed shows no significant difference" in sentence_of([[0.4, 0.4, 0.4]])
    assert answer(summarize([made("fedavg", [[0.1, 0.2, 0.3]])], "accuracy")) == ""


def test_without_runs_alone_there_is_nothing_to_say() -> None:
    assert gains_over_local([made("fedavg", [[0.1, 0.2, 0.3]])], []) == []


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
    assert [r.label for r in gather(finished_runs(plan, failures))] == ["fedavg client.lr=0.1"]
    (line,) = failed_lines(plan, failures)
    assert line.startswith("fedavg client.lr=1e30: no result; seed 0: training diverged in round 1")


def test_a_failed_seed_does_not_remove_the_others(tmp_path: Path) -> None:
    plan = cells(BASE, ["fedavg", "term"], 3, [], tmp_path)
    list(run_cells(plan))
    lost = next(c for c in plan if c.label == "term" and c.experiment.seed == 1)
    failures = {lost.folder: "training diverged in round 12"}
    comparison = Comparison.of_plan(plan, failures)
    assert [result.label for result in comparison.results] == ["fedavg", "term"]
    assert [result.seeds for result in comparison.results] == [2, 2]  # paired: 0 and 2
    (line,) = comparison.failures
    assert line.startswith("term: no result with seed 1 of 3 (training diverged in round 12)")
    also = next(c for c in plan if c.label == "term" and c.experiment.seed == 2)
    most = Comparison.of_plan(plan, failures | {also.folder: "the same"})
    assert [(r.label, r.seeds) for r in most.results] == [("fedavg", 3)]
    assert most.failures[0].startswith("term: no result; seed 1")


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
    groups = by_label(find_runs([tmp_path]))
    assert list(groups) == ["fedavg", "alone client.lr=0.5", "alone"]
    assert [record.folder.parent.name for record in groups["alone"]] == ["slow", "slow"]


def test_csv_and_json_hold_numbers(tmp_path: Path) -> None:
    pair = [made("fedavg", [[0.2, 0.8, 0.9]] * 3), made("term", [[0.5, 0.7, 0.8]] * 3)]
    numbers = summarize(pair, "accuracy", baselines=[made("alone", [[0.4, 0.4, 0.4]] * 3)])
    fedavg, term = json.loads(str(render(numbers, "json")))
    assert term["worst"] == 0.5
    assert term["worst_difference"] == pytest.approx(0.3)
    assert fedavg["worst_difference"] is None
    assert (fedavg["better_off"], term["excess_max"]) == (pytest.approx(2 / 3), 0.0)
    header, line, _ = str(render(numbers, "csv")).splitlines()
    cell = dict(zip(header.split(","), line.split(","), strict=True))
    assert float(cell["mean"]) == pytest.approx(19 / 30)


def test_the_number_of_seeds_that_would_do() -> None:
    few = [made("fedavg", [[0.2, 0.8, 0.9], [0.3, 0.8, 0.9]])]
    few.append(made("term", [[0.3, 0.8, 0.9], [0.5, 0.8, 0.9]]))
    notes = layout(summarize(few, "accuracy")).notes
    assert notes[0].startswith("with 2 seeds 15.0 points are not significant (term, worst); about ")


def test_compare_in_python(tmp_path: Path) -> None:
    found = commonweal.compare(task(), federation(), rules=["fedavg", "afl"], seeds=2, rounds=3)
    assert [result.label for result in found.results] == ["fedavg", "afl"]
    assert [result.label for result in found.baselines] == ["alone", "pooled"]
    assert [each.label for each in found.worth] == ["fedavg", "afl"]
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
