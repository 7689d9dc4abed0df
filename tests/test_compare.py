"""Many runs as one: what is run, what is not repeated, what is gathered."""

from pathlib import Path

import pytest

from commonweal.compare import cells, compared, results, split_rules
from commonweal.errors import ConfigError, RunError
from commonweal.report import comparison
from commonweal.store import Record

BASE = {"dataset": "vowel", "rounds": 3}


def test_rules_may_have_parameters() -> None:
    assert split_rules("fedavg,term(t=2),aaggff-s(cdf=frechet,beta=1)") == [
        "fedavg",
        "term(t=2)",
        "aaggff-s(cdf=frechet,beta=1)",
    ]
    plan = cells(BASE, ["term(t=2)", "aaggff-s(cdf=frechet,beta=0.5)"], 1, [], Path("x"))
    assert plan[0].experiment.rule["t"] == 2
    assert plan[1].experiment.rule["cdf"] == "frechet" and plan[1].experiment.rule["beta"] == 0.5


def test_all_combinations_of_rules_values_and_seeds(tmp_path: Path) -> None:
    plan = cells(BASE, ["fedavg", "term"], 2, ["client.lr=0.1,0.2", "rounds=2,4"], tmp_path)
    assert len(plan) == 2 * 2 * 2 * 2 == len({cell.folder for cell in plan})
    assert {cell.experiment.client["lr"] for cell in plan} == {0.1, 0.2}
    assert {cell.experiment.seed for cell in plan} == {0, 1}
    assert plan[0].label == "fedavg client.lr=0.1 rounds=2"


def test_the_files_own_parameters_stay_with_its_rule() -> None:
    base = BASE | {"rule": {"name": "term", "t": 7.0}}
    plan = cells(base, ["fedavg", "term"], 1, [], Path("x"))
    assert plan[1].experiment.rule["t"] == 7.0
    assert plan[0].experiment.rule == {"name": "fedavg"}


def test_the_same_rule_twice_is_an_error() -> None:
    with pytest.raises(ConfigError, match="the same rule twice"):
        cells(BASE, ["fedavg", "fedavg"], 1, [], Path("x"))


@pytest.mark.parametrize("text", ["client.lr", "client.lr="])
def test_a_bad_vary_is_a_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match="write key=value1,value2"):
        cells(BASE, ["fedavg"], 1, [text], Path("x"))


def test_what_is_finished_is_not_repeated(tmp_path: Path) -> None:
    plan = cells(BASE, ["fedavg", "term"], 1, [], tmp_path)
    whole = list(compared(plan[:1]))
    assert [step.round.number for step in whole if step.round] == [1, 2, 3]
    steps = list(compared(plan))
    assert steps[0].round is None
    assert [step.round.number for step in steps[1:] if step.round] == [1, 2, 3]


def test_a_comparison_that_was_stopped_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    plan = cells(BASE, ["aaggff-s"], 2, [], tmp_path / "cut")
    steps = compared(plan)
    for _ in range(4):  # into the second run
        next(steps)
    steps.close()
    list(compared(plan))
    straight = cells(BASE, ["aaggff-s"], 2, [], tmp_path / "straight")
    list(compared(straight))
    for a, b in zip(plan, straight, strict=True):
        for name in ("rounds.jsonl", "model.safetensors", "clients/000003.csv"):
            assert (a.folder / name).read_bytes() == (b.folder / name).read_bytes()


def test_a_folder_of_another_experiment_is_refused(tmp_path: Path) -> None:
    list(compared(cells(BASE, ["fedavg"], 1, [], tmp_path)))
    with pytest.raises(RunError, match="another experiment"):
        list(compared(cells(BASE | {"rounds": 4}, ["fedavg"], 1, [], tmp_path)))


def test_personal_methods_have_a_line_for_the_models_that_clients_are_served_with(tmp_path: Path) -> None:
    plan = cells(BASE, ["fedavg"], 2, ["client=sgd,ditto"], tmp_path)
    list(compared(plan))
    found = {r.label: r for r in results(plan)}
    assert list(found) == ["fedavg client=sgd", "fedavg client=ditto", "fedavg client=ditto, own models"]
    records = [Record.read(cell.folder) for cell in plan[2:]]
    own, shared = (found[f"fedavg client=ditto{end}"].scores for end in (", own models", ""))
    assert own.tolist() == [[score for _, score, _ in record.personal()] for record in records]
    assert shared.tolist() == [[score for _, score, _ in record.clients()] for record in records] != own.tolist()
    grid = comparison(list(found.values()), "accuracy")
    assert len(grid.rows) == 3 and "own models: what the clients" in grid.notes[-1]


def test_results_gather_seeds_by_rule(tmp_path: Path) -> None:
    plan = cells(BASE, ["fedavg", "uniform"], 2, [], tmp_path)
    list(compared(plan))
    found = results(plan)
    assert [r.label for r in found] == ["fedavg", "uniform"]
    assert found[0].scores.shape == (2, 15) and len(found[0].metrics) == 2
    assert found[0].metrics[0]["mean"] == pytest.approx(found[0].scores[0].mean())
