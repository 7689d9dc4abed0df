"""Tuning: whole grids, on rows that are no test rows, continued where it was stopped."""

import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
import torch

from commonweal import catalog, cli
from commonweal.analysis import tuning
from commonweal.analysis.tuning import Trial
from commonweal.errors import ConfigError, DivergedError
from commonweal.report import plots
from commonweal.values import Value, Values
from run_helpers import federation

BASE: Values = {"dataset": {"name": "vowel", "test": 0.5}, "rounds": 2}
RULE = "term"
GRID = tuning.grid_of(RULE)


class Fake:
    """Stands for runs: notes the settings, and gives better values to larger tilts."""

    def __init__(self) -> None:
        self.seen: list[Values] = []
        self.stop_after: int | None = None

    def __call__(self, values: Values, seeds: Sequence[int], share: float) -> tuple[float, float]:
        if len(self.seen) == self.stop_after:
            raise KeyboardInterrupt
        self.seen.append(values["rule"])
        t = values["rule"].get("t", 0.0)
        if t == 2.0:
            raise DivergedError("too far")
        return 1 / (1 + t), t / 10


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake()
    monkeypatch.setattr(tuning, "evaluate", made)
    return made


# Rows


def test_validation_rows_are_training_rows_and_test_rows_are_gone() -> None:
    whole = federation(clients=4, rows=20, test=0.25)
    split = tuning.held_out(whole, 0.25, seed=3)

    def rows(x: torch.Tensor) -> Counter[tuple[float, ...]]:
        return Counter(tuple(row) for row in x.tolist())

    for client in range(4):
        own = rows(whole.train.client(client).x)
        train = rows(split.train.client(client).x)
        validation = rows(split.test.client(client).x)
        assert train + validation == own
        assert sum(validation.values()) == round(0.25 * sum(own.values()))
        assert not validation & rows(whole.test.client(client).x)
    other = tuning.held_out(whole, 0.25, seed=4)
    assert not torch.equal(other.test.x, split.test.x)


def test_a_client_keeps_a_row_for_training() -> None:
    split = tuning.held_out(federation(clients=3, rows=4, test=0.5), 0.9, seed=0)
    assert split.train.sizes.tolist() == [1, 1, 1]
    assert split.test.sizes.tolist() == [1, 1, 1]


def test_a_real_setting_is_scored_on_validation_rows() -> None:
    mean, worst = tuning.evaluate(BASE, [1000], 0.25)
    assert 0 <= worst <= mean <= 1
    assert (mean * 15 * 8) == pytest.approx(round(mean * 15 * 8))  # 8 of 33 rows per speaker


# Grids


def test_the_whole_grid_is_tried_once_and_diverging_settings_are_skipped(
    fake: Fake, tmp_path: Path
) -> None:
    found = tuning.tune(BASE, [RULE], tmp_path)
    assert Counter(each["t"] for each in fake.seen) == Counter(GRID["t"])
    assert {each.values["t"] for each in found} == set(GRID["t"]) - {2.0}
    assert len(found) == tuning.total_of(RULE, 0) - 1


def test_it_continues_where_it_was_stopped(fake: Fake, tmp_path: Path) -> None:
    fake.stop_after = 2
    with pytest.raises(KeyboardInterrupt):
        tuning.tune(BASE, [RULE], tmp_path)
    fake.stop_after = None
    first = tuning.tune(BASE, [RULE], tmp_path)
    assert {each["t"] for each in fake.seen} == set(GRID["t"])
    tried = len(fake.seen)
    again = tuning.tune(BASE, [RULE], tmp_path)
    assert len(fake.seen) == tried
    assert again == first


def test_rules_without_a_grid_and_fixed_parameters(fake: Fake, tmp_path: Path) -> None:
    found = tuning.tune(BASE, ["fedavg", f"{RULE}(t=4.0)"], tmp_path)
    assert [each.values for each in found] == [{}, {}]
    assert [each.get("t") for each in fake.seen] == [None, 4.0]


def test_trials_lie_within_the_published_values(fake: Fake, tmp_path: Path) -> None:
    found = tuning.tune(BASE, [RULE], tmp_path, trials=8)
    tilts = [each.values["t"] for each in found]
    assert len(set(tilts)) == 8
    assert min(GRID["t"]) <= min(tilts) <= max(tilts) <= max(GRID["t"])


def test_another_experiment_in_the_same_folder_is_refused(fake: Fake, tmp_path: Path) -> None:
    tuning.tune(BASE, ["fedavg"], tmp_path)
    with pytest.raises(ConfigError, match="choose another folder"):
        tuning.tune({**BASE, "rounds": 3}, ["fedavg"], tmp_path)


def test_every_published_grid_builds_its_rule() -> None:
    grids = {rule: tuning.grid_of(rule) for rule in catalog.entries("rules")}
    assert sum(bool(grid) for grid in grids.values()) >= 7
    for rule, grid in grids.items():
        if not grid:
            continue
        for values in product(*grid.values()):
            given: dict[str, Value] = dict(zip(grid, values, strict=True))
            catalog.build("rules", catalog.parse(tuning.with_values(rule, given)))


# Choices


def test_the_choice_is_by_worst_or_mean_and_errors_are_turned() -> None:
    trials = [Trial("r", {"q": 1}, 0.9, 0.1), Trial("r", {"q": 2}, 0.5, 0.4)]
    assert tuning.choose(trials, "worst")["r"].text == "r(q=2)"
    assert tuning.choose(trials, "mean")["r"].text == "r(q=1)"
    assert tuning.choose(trials, "worst", lower_is_better=True)["r"].text == "r(q=1)"


def test_the_front_joins_what_no_other_setting_beats() -> None:
    points = {"a": [("a1", 0.5, 0.3), ("a2", 0.4, 0.3)], "b": [("b1", 0.3, 0.4), ("b2", 0.2, 0.1)]}
    picture = plots.front(points, "accuracy")
    assert picture.description.endswith("beats in both: b1, a1.")
    assert len(picture.rows) == 4


def test_tune_and_compare_as_commands(
    fake: Fake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("v.toml").write_text('dataset = { name = "vowel", test = 0.5 }\nrounds = 1\n')

    def call(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["commonweal", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 0
        return capsys.readouterr().out

    rules = f"fedavg,{RULE}"
    told = call("tune", "v.toml", "--rules", rules, "--out", "tuned", "--jobs", "1")
    assert f"{RULE}(t=5.0)" in told
    assert Path("tuned/front.svg").read_text().count("<svg") == 1
    call("compare", "v.toml", "--tuned", "tuned", "--seeds", "1", "--out", "c", "-q")
    text = next(Path("c").glob(f"{RULE}*/seed-0/experiment.toml")).read_text()
    assert tomllib.loads(text)["rule"]["t"] == 5.0
    with pytest.raises(ConfigError, match="holds no tuned rules"):
        tuning.tuned_rules(tmp_path, None)
