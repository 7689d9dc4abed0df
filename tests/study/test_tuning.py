"""Tuning: whole grids, on rows that are no test rows, continued where it was stopped."""

import errno
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from optuna.storages.journal import JournalFileBackend

from commonweal import cli
from commonweal.base.errors import ConfigError, DivergedError, RunError
from commonweal.config import catalog
from commonweal.report import figures
from commonweal.study import tuning
from commonweal.study.tuning import TriedSetting

BASE: dict[str, object] = {"dataset": {"name": "vowel", "test": 0.5}, "rounds": 2}
RULE = "term"
GRID = tuning.grid_of(RULE)


def tilt(values: Mapping[str, object], otherwise: float = 0.0) -> float:
    """The parameter t of a setting."""
    t = values.get("t", otherwise)
    assert isinstance(t, float)
    return t


TILTS = [tilt({"t": t}) for t in GRID["t"]]


class Fake:
    """Stands for runs: notes the settings, and gives better values to larger tilts."""

    def __init__(self) -> None:
        self.seen: list[dict[str, object]] = []
        self.stop_after: int | None = None

    def __call__(
        self, values: Mapping[str, object], seeds: Sequence[int], share: float
    ) -> tuple[float, float]:
        if len(self.seen) == self.stop_after:
            raise KeyboardInterrupt
        rule = values["rule"]
        assert isinstance(rule, dict)
        self.seen.append(rule)
        t = tilt(rule)
        if t == 2.0:
            raise DivergedError("too far")
        return 1 / (1 + t), t / 10


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake()
    monkeypatch.setattr(tuning, "validation_scores", made)
    return made


# Rows


def test_a_real_setting_is_scored_on_validation_rows() -> None:
    mean, worst = tuning.validation_scores(BASE, [1000], 0.25)
    assert 0 <= worst <= mean <= 1
    assert (mean * 15 * 8) == pytest.approx(round(mean * 15 * 8))  # 8 of 33 rows per speaker


# Grids


def test_the_whole_grid_is_tried_once_and_diverging_settings_are_skipped(
    fake: Fake, tmp_path: Path
) -> None:
    calls = []

    def progress(rule: str, done: int, total: int) -> None:
        calls.append((rule, done, total))

    found = tuning.tune(BASE, [RULE], tmp_path, progress=progress)
    assert Counter(map(tilt, fake.seen)) == Counter(TILTS)
    assert {tilt(trial.values) for trial in found} == set(TILTS) - {2.0}
    assert len(found) == len(TILTS) - 1
    assert calls == [(RULE, done, len(TILTS)) for done in range(len(TILTS) + 1)]


def test_equal_settings_rank_by_the_plan_whoever_ends_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "validation_scores", lambda *given: (0.5, 0.5))
    enqueue = tuning._enqueue
    monkeypatch.setattr(tuning, "_enqueue", lambda study, plan: enqueue(study, plan[::-1]))
    trials = tuning.tune(BASE, [RULE], tmp_path)
    assert [tilt(trial.values) for trial in trials] == TILTS
    assert tuning.best_trials(trials, "worst")[RULE].values == {"t": TILTS[0]}


def test_it_continues_where_it_was_stopped(fake: Fake, tmp_path: Path) -> None:
    fake.stop_after = 2
    with pytest.raises(KeyboardInterrupt):
        tuning.tune(BASE, [RULE], tmp_path)
    fake.stop_after = None
    first = tuning.tune(BASE, [RULE], tmp_path)
    assert set(map(tilt, fake.seen)) == set(TILTS)
    tried = len(fake.seen)
    again = tuning.tune(BASE, [RULE], tmp_path)
    assert len(fake.seen) == tried
    assert again == first
    further = tuning.tune(BASE, [RULE], tmp_path, trials=len(TILTS) + 2)  # drawn after the grid
    assert [trial for trial in further if trial in first] == first
    assert len(fake.seen) == tried + 2


def test_a_full_disk_is_named_and_the_search_continues(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(backend: JournalFileBackend, logs: object) -> None:
        if fake.seen:  # a result is to be written
            raise OSError(errno.ENOSPC, "No space left on device")
        write(backend, logs)

    write: Any = JournalFileBackend.append_logs
    with monkeypatch.context() as disk:
        disk.setattr(JournalFileBackend, "append_logs", full)
        with pytest.raises(RunError, match=r"cannot write .* \(.*No space left on device\): fix"):
            tuning.tune(BASE, [RULE], tmp_path)
    found = tuning.tune(BASE, [RULE], tmp_path)
    assert [tilt(trial.values) for trial in found] == [t for t in TILTS if t != 2.0]


def test_rules_without_a_grid_and_fixed_parameters(fake: Fake, tmp_path: Path) -> None:
    found = tuning.tune(BASE, ["fedavg", f"{RULE}(t=4.0)"], tmp_path)
    assert [each.values for each in found] == [{}, {}]
    assert [each.get("t") for each in fake.seen] == [None, 4.0]


def test_trials_lie_within_the_published_values(fake: Fake, tmp_path: Path) -> None:
    found = tuning.tune(BASE, [RULE], tmp_path, trials=8)
    tilts = [tilt(trial.values) for trial in found]
    assert len(set(tilts)) == 8
    assert min(TILTS) <= min(tilts) <= max(tilts) <= max(TILTS)


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
            given: dict[str, object] = dict(zip(grid, values, strict=True))
            catalog.build("rules", catalog.parse_part(tuning.with_values(rule, given)))


# Choices


def test_the_choice_is_by_worst_or_mean_and_errors_are_turned() -> None:
    trials = [TriedSetting("r", {"q": 1}, 0.9, 0.1), TriedSetting("r", {"q": 2}, 0.5, 0.4)]
    assert tuning.best_trials(trials, "worst")["r"].text == "r(q=2)"
    assert tuning.best_trials(trials, "mean")["r"].text == "r(q=1)"
    assert tuning.best_trials(trials, "worst", lower_is_better=True)["r"].text == "r(q=1)"


def test_the_front_joins_what_no_other_setting_beats() -> None:
    tried = [
        ("a", "a1", 0.5, 0.3),
        ("a", "a2", 0.4, 0.3),
        ("b", "b1", 0.3, 0.4),
        ("b", "b2", 0.2, 0.1),
    ]
    picture = figures.front([figures.SettingScores(*each) for each in tried], "accuracy")
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
        tuning.read_chosen(tmp_path)


# Client methods and other keys


def test_the_grid_of_the_client_method_is_tried_where_the_experiment_leaves_it_open() -> None:
    open_one = BASE | {"client": "fedprox"}
    fixed = BASE | {"client": {"name": "fedprox", "mu": 0.5}}
    assert tuning.grid_of("fedavg", open_one) == {"client.mu": (0.001, 0.01, 0.1, 1.0)}
    assert tuning.grid_of("fedavg", fixed) == {}
    assert list(tuning.grid_of("term", open_one)) == ["t", "client.mu"]


def test_other_keys_are_tuned_too_and_compared_with_what_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evaluate(
        values: Mapping[str, object], seeds: Sequence[int], share: float
    ) -> tuple[float, float]:
        client = values["client"]
        assert isinstance(client, dict)
        lr = client["lr"]
        return lr, -abs(lr - 0.3)

    monkeypatch.setattr(tuning, "validation_scores", evaluate)
    more = tuning.further(["client.lr=0.1,0.3,1"])
    found = tuning.tune(BASE, ["fedavg"], tmp_path, more=more)
    assert {trial.values["client.lr"] for trial in found} == {0.1, 0.3, 1}
    tuning.write_chosen(tmp_path, tuning.best_trials(found, "worst"), "worst")
    assert tuning.read_chosen(tmp_path) == {"fedavg": ("fedavg", ["client.lr=0.3"])}
    with pytest.raises(ConfigError, match="or --grid"):
        tuning.tune(BASE, ["fedavg"], tmp_path, more=tuning.further(["client.lr=0.1,2"]))
    for wrong in ("client.lr", "lr=0.1", "client.lr="):
        with pytest.raises(ConfigError, match="write a part's key"):
            tuning.further([wrong])


@pytest.mark.parametrize("sampler", ["nsga2", "tpe"])
def test_samplers_draw_between_published_values_for_both_objectives(
    tmp_path: Path, fake: Fake, sampler: tuning.Sampler
) -> None:
    found = tuning.tune(BASE, [RULE], tmp_path, trials=12, sampler=sampler)
    drawn = [tilt(trial.values) for trial in found]
    assert len(drawn) == 12 and all(min(TILTS) <= t <= max(TILTS) for t in drawn)
    assert not set(drawn) <= set(TILTS)


def test_compare_takes_tuned_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "e.toml"
    file.write_text('dataset = "vowel"\nrounds = 2\n')
    trial = TriedSetting("term", {"t": 2.0, "client.lr": 0.05}, 0.5, 0.4)
    tuning.write_chosen(tmp_path, {"term": trial}, "worst")
    words = ["compare", str(file), "--tuned", str(tmp_path), "--seeds", "1", "--no-baselines"]
    words += ["--format", "csv", "--out", str(tmp_path / "runs"), "-q"]
    monkeypatch.setattr(sys, "argv", ["commonweal", *words])
    cli.app(standalone_mode=False)
    (toml,) = (tmp_path / "runs").rglob("experiment.toml")
    written = tomllib.loads(toml.read_text())
    assert (written["rule"]["t"], written["client"]["lr"]) == (2.0, 0.05)
    assert "term(t=2.0) client.lr=0.05" in capsys.readouterr().out


def test_personal_models_are_what_a_personal_method_is_tuned_by() -> None:
    values = BASE | {"client": {"name": "ditto", "lam": 0.0}, "rounds": 6}
    shared = tuning.validation_scores(BASE | {"rounds": 6}, [1000], 0.25)
    assert tuning.validation_scores(values, [1000], 0.25) != shared


def test_a_rules_own_values_are_tried_where_the_rule_has_the_parameter() -> None:
    more = tuning.further(["rule.t=3,4"])
    assert tuning.grid_of("term", {}, more)["t"] == (3, 4)
    assert "t" not in tuning.grid_of("term(t=1)", {}, more)  # given in brackets, so fixed
    assert "t" not in tuning.grid_of("qfedavg", {}, more)
