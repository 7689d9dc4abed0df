"""Many runs as one: what is run, what is not repeated, what is gathered."""

from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from commonweal.base.errors import ConfigError, RunError
from commonweal.base.files import locked
from commonweal.config.catalog import split_list
from commonweal.config.experiment import Experiment, change
from commonweal.data.federation import Federation
from commonweal.jobs.rounds import run
from commonweal.record.record import Record
from commonweal.report.overview import overview
from commonweal.study import compare
from commonweal.study.compare import Step, finished_runs, run_cells
from commonweal.study.comparison import Comparison
from commonweal.study.labels import common_seeds, labels
from commonweal.study.plan import baseline_cells, cells
from commonweal.study.results import gather
from commonweal.task.task import Task

BASE = {"dataset": "vowel", "rounds": 3}


def rule_of(experiment: Experiment) -> dict[str, Any]:
    return experiment.rule


def numbers(steps: Iterable[Step]) -> list[int]:
    return [step.round.number for step in steps if step.round is not None]


def test_rules_may_have_parameters() -> None:
    assert split_list("fedavg,term(t=2),aaggff-s(cdf=frechet,beta=1)") == [
        "fedavg",
        "term(t=2)",
        "aaggff-s(cdf=frechet,beta=1)",
    ]
    plan = cells(BASE, ["term(t=2)", "aaggff-s(cdf=frechet,beta=0.5)"], 1, [], Path("x"))
    assert rule_of(plan[0].experiment)["t"] == 2
    assert rule_of(plan[1].experiment)["cdf"] == "frechet"
    assert rule_of(plan[1].experiment)["beta"] == 0.5


def test_rules_may_have_rules_with_parameters() -> None:
    plan = cells(BASE, ["guarded(limit=9, rule=term(t=2))"], 1, [], Path("x"))
    assert rule_of(plan[0].experiment)["limit"] == 9
    assert rule_of(plan[0].experiment)["rule"]["t"] == 2


def test_all_combinations_of_rules_values_and_seeds(tmp_path: Path) -> None:
    plan = cells(BASE, ["fedavg", "term"], 2, ["client.lr=0.1,0.2", "rounds=2,4"], tmp_path)
    assert len(plan) == 2 * 2 * 2 * 2 == len({cell.folder for cell in plan})
    assert {cell.experiment.client["lr"] for cell in plan} == {0.1, 0.2}
    assert {cell.experiment.seed for cell in plan} == {0, 1}
    assert plan[0].label == "fedavg client.lr=0.1 rounds=2"


def test_varied_values_may_have_brackets(tmp_path: Path) -> None:
    vary = ["model=mlp(hidden=[4, 8]),logistic"]
    plan = cells(BASE, ["fedavg"], 1, vary, tmp_path)
    assert [cell.experiment.model["name"] for cell in plan] == ["mlp", "logistic"]
    assert list(plan[0].experiment.model["hidden"]) == [4, 8]


def test_the_files_own_parameters_stay_with_its_rule() -> None:
    base = BASE | {"rule": {"name": "term", "t": 7.0}}
    plan = cells(base, ["fedavg", "term"], 1, [], Path("x"))
    assert rule_of(plan[1].experiment)["t"] == 7.0
    assert rule_of(plan[0].experiment) == {"name": "fedavg"}


def test_the_same_rule_twice_is_an_error() -> None:
    with pytest.raises(ConfigError, match="the same rule twice"):
        cells(BASE, ["fedavg", "fedavg"], 1, [], Path("x"))


@pytest.mark.parametrize("text", ["client.lr", "client.lr="])
def test_a_bad_vary_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="write key=value1,value2"):
        cells(BASE, ["fedavg"], 1, [text], Path("x"))


def test_what_is_finished_is_not_repeated(tmp_path: Path) -> None:
    plan = cells(BASE, ["fedavg", "term"], 1, [], tmp_path)
    assert numbers(run_cells(plan[:1])) == [1, 2, 3]
    steps = list(run_cells(plan))
    assert steps[0].round is None
    assert numbers(steps[1:]) == [1, 2, 3]


def test_a_comparison_that_was_stopped_continues_to_the_same_bytes(tmp_path: Path) -> None:
    plan = cells(BASE, ["aaggff-s"], 2, [], tmp_path / "cut")
    steps = run_cells(plan)
    for _ in range(4):  # into the second run
        next(steps)
    assert isinstance(steps, Generator)
    steps.close()
    list(run_cells(plan))
    straight = cells(BASE, ["aaggff-s"], 2, [], tmp_path / "straight")
    list(run_cells(straight))
    for a, b in zip(plan, straight, strict=True):
        for name in ("rounds.jsonl", "model.safetensors", "clients.chunks", "clients.csv"):
            assert (a.folder / name).read_bytes() == (b.folder / name).read_bytes()


def test_runs_with_other_data_do_not_share_them(tmp_path: Path) -> None:
    vary = ["validation=0.0,0.2"]
    list(run_cells(cells(BASE, ["fedavg"], 2, vary, tmp_path)))
    straight = tmp_path / "straight"
    for cell in cells(BASE, ["fedavg"], 2, vary, straight):
        list(run(cell.experiment, out=cell.folder))
        shared = tmp_path / cell.folder.relative_to(straight)
        assert (shared / "run.json").exists()
        for name in ("rounds.jsonl", "model.safetensors", "clients.chunks"):
            assert (shared / name).read_bytes() == (cell.folder / name).read_bytes()


def test_a_folder_of_another_experiment_is_refused(tmp_path: Path) -> None:
    list(run_cells(cells(BASE, ["fedavg"], 1, [], tmp_path)))
    with pytest.raises(RunError, match="another experiment"):
        list(run_cells(cells(BASE | {"evaluate_every": 2}, ["fedavg"], 1, [], tmp_path)))


def scores_of(record: Record, own: bool = False) -> list[float]:
    evaluation = record.clients().evaluation
    if own:
        assert evaluation.personal is not None
        evaluation = evaluation.personal
    scores: list[float] = evaluation.score.tolist()
    return scores


def test_personal_methods_have_a_line_for_the_global_model(tmp_path: Path) -> None:
    plan = cells(BASE, ["fedavg"], 2, ["client=sgd,ditto"], tmp_path)
    list(run_cells(plan))
    used, shared = gather(finished_runs(plan))
    assert [result.label for result in used] == ["fedavg client=sgd", "fedavg client=ditto"]
    assert [result.label for result in shared] == ["fedavg client=ditto, global model"]
    records = [Record.read(cell.folder) for cell in plan[2:]]
    assert used[1].scores.tolist() == [scores_of(record, own=True) for record in records]
    assert shared[0].scores.tolist() == [scores_of(record) for record in records]
    seen = overview(Comparison.of(finished_runs(plan)))
    assert "fedavg client=ditto, global model" in seen.numbers.labels
    assert any(note.startswith("global model: ") for note in seen.notes)


def test_results_gather_seeds_by_rule(tmp_path: Path) -> None:
    plan = cells(BASE, ["fedavg", "uniform"], 2, [], tmp_path)
    list(run_cells(plan))
    found, _ = gather(finished_runs(plan))
    assert [r.label for r in found] == ["fedavg", "uniform"]
    assert found[0].scores.shape == (2, 15)
    assert len(found[0].metrics) == found[0].seeds == 2
    assert found[0].metrics[0]["mean"] == pytest.approx(found[0].scores[0].mean())


# Runs of one's own task and federation


def own_run(folder: Path, rule: str, seed: int, sizes: dict[str, int]) -> Record:
    """A run on random rows of clients with these numbers of rows."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(list(sizes), list(sizes.values()))
    x = rng.normal(size=(len(owner), 2)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    f = Federation.from_arrays(x, y, owner, test=0.5, outputs=2)
    list(run(Task(nn.Linear(2, 2)), f, rule=rule, rounds=2, seed=seed, out=folder))
    return Record.read(folder)


def test_runs_of_ones_own_task_are_compared_in_the_order_of_their_seeds(tmp_path: Path) -> None:
    sizes = {"a": 8, "b": 8}
    records = {
        rule: [own_run(tmp_path / f"{rule}-{seed}", rule, seed, sizes) for seed in (1, 0)]
        for rule in ("fedavg", "aaggff-s")
    }
    found, _ = gather(records)
    assert [r.label for r in found] == ["fedavg", "aaggff-s"]
    assert found[0].scores.tolist() == [scores_of(record) for record in records["fedavg"][::-1]]


def test_a_client_that_is_not_tested_in_every_seed_is_compared(tmp_path: Path) -> None:
    """A client with a single row has no test row in the second seed."""
    both = own_run(tmp_path / "0", "fedavg", 0, {"a": 8, "b": 8, "c": 8})
    two = own_run(tmp_path / "1", "fedavg", 1, {"a": 8, "b": 1, "c": 8})
    ((result,), _) = gather({"fedavg": [both, two]})
    assert result.clients == ("a", "b", "c")
    assert result.by_client["b"] == scores_of(both)[1]
    assert result.metrics[0]["mean"] == pytest.approx(np.mean(scores_of(both)))
    assert result.metrics[1]["mean"] == pytest.approx(np.nanmean(scores_of(two)))
    means = np.nanmean([scores_of(both), scores_of(two)], 0)
    assert result.metric("mean") == pytest.approx(means.mean())


def test_the_most_runs_of_equal_seeds_are_paired() -> None:
    assert common_seeds({"alone": [0, 1, 2], "fedavg": [0, 1]}) == (["alone", "fedavg"], [0, 1])
    many = {"a": range(10), "b": range(10), "c": [0]}
    assert common_seeds(many) == (["a", "b"], list(range(10)))
    assert common_seeds(many, "c") == (["a", "b", "c"], [0])
    assert common_seeds({"a": [0], "b": [1]}) == ([], [])
    assert common_seeds({"a": [3, 4]}) == (["a"], [3, 4])
    assert common_seeds(dict(reversed(many.items())))[1] == list(range(10))


# Several commands at once


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_of_another_process_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    monkeypatch.setattr(compare, "PAUSE", 0.05)
    plan = cells(BASE, ["fedavg", "afl"], 1, [], tmp_path)
    holder = locked(plan[0].folder)
    holder.__enter__()
    steps = run_cells(plan) if jobs == 1 else compare.run_cells_in_processes(plan, jobs)
    seen = []
    for step in steps:
        seen.append((step.cell.label, bool(step.waiting)))
        if step.cell.label == "afl" and (step.round is None or step.round.number == 3):
            holder.__exit__(None, None, None)
    assert seen[0] == ("fedavg", True) and seen[-1] == ("fedavg", False)
    assert all(cell.finished for cell in plan)
    assert all(not step_waiting for _, step_waiting in seen[1:])


def test_trees_are_named_by_their_algorithm_and_what_differs_between_them(tmp_path: Path) -> None:
    """Not by their model, which others do not have."""
    base: dict[str, object] = {"dataset": "vowel", "rounds": 1}
    runs: dict[str, list[str]] = {
        "fedavg": [],
        "afl": ["rule=afl"],
        "boosting-afl model.leaves=3": ["algorithm=boosting", "rule=afl", "model.leaves=3"],
        "boosting-afl model.leaves=4": ["algorithm=boosting", "rule=afl", "model.leaves=4"],
    }
    for k, changes in enumerate(runs.values()):
        list(run(Experiment(**change(base, changes)), out=tmp_path / str(k)))
    records = [Record.read(tmp_path / str(k)) for k in range(len(runs))]
    assert labels(records) == list(runs)
    assert labels(records[:3]) == ["fedavg", "afl", "boosting-afl"]


def test_baselines_of_trees_are_networks(tmp_path: Path) -> None:
    base = change({"dataset": "vowel", "model": "mlp"}, ["algorithm=boosting", "rounds=1"])
    plan = baseline_cells(base, 1, tmp_path)
    assert [cell.experiment.algorithm["name"] for cell in plan] == ["averaging", "pooled"]
    assert {cell.experiment.model["name"] for cell in plan} == {"logistic"}
