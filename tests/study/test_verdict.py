"""Whether joining helps: one sentence from one judgement, wherever it is printed."""

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from typer.testing import CliRunner

from commonweal.app.ui.server import application
from commonweal.base.errors import ConfigError, RunError
from commonweal.cli import app
from commonweal.data.federation import Federation
from commonweal.jobs.rounds import run
from commonweal.record.record import Record
from commonweal.report import document
from commonweal.study import samples as samples_of_runs
from commonweal.study.choosing import choose
from commonweal.study.compare import run_cells
from commonweal.study.comparison import Comparison
from commonweal.study.given import GIVEN, read_given
from commonweal.study.judging import judge
from commonweal.study.plan import baseline_cells, cells
from commonweal.study.verdict import verdict, worth_having
from commonweal.task.task import Task


def ask(root: Path, what: str, **parameters: str) -> httpx.Response:
    """What the page of the runs in a folder answers."""

    async def answer() -> httpx.Response:
        transport = httpx.ASGITransport(application(root))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get(f"/api/{what}", params=parameters)

    return asyncio.run(answer())


def printed(*arguments: object) -> str:
    """What a command prints."""
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result.output


Samples = dict[str, NDArray[np.float64]]


def samples(mean: float, clients: int = 20, size: int = 100, seed: int = 0) -> Samples:
    """Differences of accuracy with a mean gain."""
    rng = np.random.default_rng(seed)
    share = [0.1 - mean / 2, 0.8, 0.1 + mean / 2]
    return {f"c{k}": rng.choice([-1.0, 0.0, 1.0], size, p=share) for k in range(clients)}


# The sentence


def test_joining_helps_where_the_interval_is_above_0() -> None:
    found = judge({"blend": samples(0.08)})
    sentence = verdict(found, "accuracy")
    assert sentence.startswith("Joining helps: with blend, the mean gain in accuracy over local")
    low, high = 100 * found.low, 100 * found.high
    assert sentence.endswith(f"points (95 % interval {low:+.1f} to {high:+.1f}).")


def test_joining_does_not_help_where_a_gain_worth_having_is_excluded() -> None:
    found = judge({"blend": samples(-0.005, 60, 2000)})
    sentence = verdict(found, "accuracy")
    assert sentence.startswith("Joining does not help: with blend")
    assert sentence.endswith("is excluded.") == (found.high > 0)
    harmful = verdict(judge({"blend": samples(-0.09, 60, 400)}), "accuracy")
    assert harmful.startswith("Joining does not help") and "excluded" not in harmful


def test_otherwise_it_cannot_be_decided_and_the_verdict_has_what_could_be_found() -> None:
    found = judge({"blend": samples(0.0, 4, 30)})
    sentence = verdict(found, "accuracy")
    assert sentence.startswith("Whether joining helps cannot be decided with these samples: with")
    size = f"{100 * found.detectable:+.1f} points in 80 % of cases."
    assert sentence.endswith(f"These samples would show a mean gain of {size}")


def test_a_method_that_was_picked_by_test_scores_is_marked_as_the_best_of_them() -> None:
    differences = {"blend": samples(0.08), "fedavg": samples(0.0, seed=1)}
    sentence = verdict(judge(differences), "accuracy")
    assert "with blend, the best of 2 methods here, " in sentence
    assert sentence.endswith(", corrected for 2 methods).")
    picked = verdict(judge(differences, picked="blend"), "accuracy")
    assert "best of" not in picked and "corrected" not in picked


def test_scores_without_samples_have_no_verdict() -> None:
    assert verdict(None, "accuracy").startswith("Whether joining helps is not known")
    nothing = judge({"blend": {"a": []}})
    assert "no client has one with a score" in verdict(nothing, "accuracy")
    same = judge({"blend": {"a": [0.0] * 9}})
    assert "the same score as with local training" in verdict(same, "accuracy")


def test_errors_are_in_their_own_unit() -> None:
    found = judge({"blend": {"a": np.linspace(1.0, 3.0, 50), "b": np.linspace(1.0, 3.0, 50)}})
    sentence = verdict(found, "mae")
    assert "the mean gain in MAE over local training is +2.00 (95 % interval +1." in sentence
    assert "points" not in sentence
    assert worth_having("mae", 50.0) == 1.0 and worth_having("accuracy", 0.5) == 0.01


def test_a_gain_worth_having_is_what_a_user_calls_so() -> None:
    found = judge({"blend": samples(0.0, 60, 400)}, worth=worth_having("accuracy", 0.7, 3))
    assert found.says == "does not help" and 0 < found.high < 0.03
    sentence = verdict(found, "accuracy", worth=3)
    assert sentence.endswith("is excluded. A gain of 3 points is worth having.")
    finer = judge({"blend": samples(0.0, 60, 400)}, worth=worth_having("accuracy", 0.7, 0.1))
    assert finer.says == "cannot be decided"
    assert verdict(finer, "accuracy", worth=0.1).endswith("A gain of 0.1 points is worth having.")
    assert verdict(finer, "mae", worth=5).endswith("A gain of 5 % of the error is worth having.")
    assert worth_having("mae", 50.0, 5) == 2.5 and worth_having("r2", 50.0, 5) == 0.05
    for wrong in (0, -1, float("nan")):
        with pytest.raises(ConfigError, match="worth"):
            worth_having("accuracy", 0.7, wrong)


# Runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verdict") / "runs"
    base = {"dataset": "vowel", "rounds": 4, "evaluate_every": 4}
    plan = [*cells(base, ["fedavg", "afl"], 3, [], folder), *baseline_cells(base, 3, folder)]
    assert not any(step.failure for step in run_cells(plan))
    return folder


def test_the_verdict_is_the_same_everywhere(runs: Path) -> None:
    comparison = Comparison.in_folders([runs])
    sentence = comparison.verdict
    assert sentence.startswith("Joining does not help")
    assert sentence in " ".join(printed("show", runs).split())
    value = json.loads(printed("show", runs, "--json"))
    assert value["verdict"] == sentence
    assert value["judgement"]["says"] == "does not help"
    for form in ("terminal", "markdown", "latex"):
        assert sentence in " ".join(comparison.table(form).split())
    page = document.render(comparison, "title")
    (heading,) = re.findall("<h1>(.*?)</h1>", page)
    assert heading == sentence
    assert f"<strong>{sentence}</strong>" in comparison._repr_html_()
    (federation,) = ask(runs, "home").json()["federations"]
    view = ask(runs, "compare", federation=federation["key"]).json()
    assert view["overview"]["headline"] == sentence
    assert ask(runs, "verdict", federation=federation["key"]).json()["verdict"] == sentence


def test_a_gain_worth_having_is_an_option(runs: Path) -> None:
    comparison = Comparison.in_folders([runs], worth=500)
    assert comparison.worth == 500
    records = {"alone": comparison.records["fedavg"], "afl": comparison.records["afl"]}
    comparison = Comparison.of(records, worth=500)
    assert comparison.verdict.endswith("A gain of 500 points is worth having.")
    assert comparison.judgement is not None and comparison.judgement.says == "does not help"
    result = CliRunner().invoke(app, ["report", str(runs), "--worth", "0"])
    assert "--worth 0" in str(result.exception)


def test_the_order_of_methods_and_seeds_changes_nothing(runs: Path) -> None:
    first = Comparison.in_folders([runs])
    again = Comparison.of({k: v[::-1] for k, v in reversed(first.records.items())})
    assert first.judgement is not None and again.judgement is not None
    for key in ("says", "method", "better", "worse"):
        assert vars(first.judgement)[key] == vars(again.judgement)[key]
    for key in ("gain", "low", "high"):
        assert vars(first.judgement)[key] == pytest.approx(vars(again.judgement)[key], abs=1e-12)
    assert first.verdict == again.verdict


def test_a_gain_is_the_difference_of_the_scores_that_are_shown(runs: Path) -> None:
    comparison = Comparison.in_folders([runs])
    assert comparison.judgement is not None and comparison.local is not None
    for result in comparison.results:
        gain = comparison.judgement.methods[result.label].gain
        shown = result.metric("mean") - comparison.local.metric("mean")
        assert gain == pytest.approx(shown, abs=1e-6)


def against_itself(folder: Path, number: int) -> Comparison:
    """Local training twice: the same federation and split, other initial weights and batches."""
    rng = np.random.default_rng(number)
    x = rng.normal(size=(400, 4)).astype(np.float32)
    y = (x[:, 0] + rng.normal(size=400) > 0).astype(int)
    federation = Federation.from_arrays(x, y, np.arange(400) % 5, test=0.5)
    records: dict[str, list[Record]] = {"alone": [], "again": []}
    for k, label in enumerate(records):
        for seed in range(2):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(10 * seed + k)
                task = Task(nn.Linear(4, 2))
            out = folder / label / str(seed)
            trained = run(
                task, federation, client="alone", rounds=3, seed=seed + 100 * k, out=out
            ).result()
            records[label].append(replace(trained, experiment=trained.experiment | {"seed": seed}))
    return Comparison.of(records)


def test_local_training_does_not_help_against_itself(tmp_path: Path) -> None:
    wrong = 0
    for seed in range(8):
        judgement = against_itself(tmp_path / str(seed), seed).judgement
        assert judgement is not None
        named = (*judgement.better.values(), *judgement.worse.values())
        wrong += judgement.says == "helps" or any(named)
    assert wrong <= 1  # of 8: each is expected in 5 %


def test_runs_without_scores_of_samples_have_no_verdict(runs: Path, tmp_path: Path) -> None:
    comparison = Comparison.in_folders([runs])
    records = {}
    for label, own in comparison.records.items():
        records[label] = [replace(record, folder=tmp_path / "elsewhere") for record in own]
    old = Comparison.of(records)
    assert old.judgement is None and old.contrasts == {}
    assert old.verdict.startswith("Whether joining helps is not known")
    assert old.table()


# What clients are given


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("given")
    base = {"dataset": "vowel", "rounds": 3, "evaluate_every": 3, "validation": 0.3}
    plan = [cell for cell in baseline_cells(base, 2, folder) if cell.label == "alone"]
    vary = ["client=sgd,fine-tune,blend(rejoin=false)"]
    plan += cells(base, ["fedavg"], 2, vary, folder)
    assert not any(step.failure for step in run_cells(plan))
    return folder


def test_what_all_clients_are_given_is_that_method(chosen: Path) -> None:
    choice = choose(chosen)
    choice.write(chosen)
    read = Comparison.in_folders([chosen])
    assert read.verdict == choice.verdict
    assert read.given is not None and read.given.method in choice.candidates
    assert read.judgement is not None and GIVEN not in read.judgement.methods
    folders = {record.folder.name for own in read.records.values() for record in own}
    assert folders == {"refit"}  # the models that clients use, and no others


def test_clients_that_are_given_other_methods_have_their_scores(chosen: Path) -> None:
    given = choose(chosen, refit=False).given
    names = list(given.taken[0])
    taken = {}
    for seed in given.taken:
        taken[seed] = {name: ("alone", "blend")[k % 2] for k, name in enumerate(names)}
    comparison = Comparison.of_given(given._replace(taken=taken))
    assert comparison.judgement is not None
    assert (comparison.judgement.method, comparison.judgement.corrected) == (GIVEN, 1)
    assert "with the model that each client is given, " in comparison.verdict
    clients = comparison.judgement.clients
    scores = {result.label: result.by_client for result in comparison.results}
    assert comparison.local is not None
    for k, name in enumerate(names):
        if k % 2:
            assert clients[GIVEN][name].gain == pytest.approx(clients["blend"][name].gain)
            assert scores[GIVEN][name] == scores["blend"][name]
        else:
            assert clients[GIVEN][name].gain == 0.0
            assert scores[GIVEN][name] == comparison.local.by_client[name]
    page = document.render(comparison, "title")
    assert "what clients are given" in page
    assert comparison.table("markdown").count("local training |") >= len(names) // 2


def test_the_page_reads_no_runs_elsewhere_that_a_choice_names(chosen: Path, tmp_path: Path) -> None:
    choose(chosen, refit=False).write(chosen)
    value = json.loads((chosen / "choice.json").read_text())
    (federation,) = ask(chosen, "home").json()["federations"]
    key = federation["key"]
    answer = ask(chosen, "compare", federation=key).json()
    assert answer["overview"]["headline"] == Comparison.in_folders([chosen]).verdict
    value["runs"]["alone"]["0"] = str(tmp_path)
    (chosen / "choice.json").write_text(json.dumps(value))
    refused = ask(chosen, "compare", federation=key)
    assert refused.status_code == 404 and "there is no run" in refused.text
    (chosen / "choice.json").write_text("{}")
    with pytest.raises(RunError, match="run commonweal choose again"):
        read_given(chosen)
    (chosen / "choice.json").unlink()


def test_shards_have_the_runs_of_baselines(tmp_path: Path) -> None:
    words = ("compare", "vowel", "rounds=1", "--rules", "fedavg", "--seeds", 1, "-o", tmp_path)
    for part in (1, 2, 3):
        assert "1 of 3 runs" in printed(*words, "--shard", f"{part}/3")
    labels = {record.folder.parent.name for record in Record.find(tmp_path)}
    assert labels == {"fedavg", "alone", "pooled"}


def test_scores_of_samples_are_aligned(runs: Path) -> None:
    records = Comparison.in_folders([runs]).records
    table = samples_of_runs.aligned(records)
    changes = samples_of_runs.differences(records["alone"], {"afl": records["afl"]})
    for name, change in changes["afl"].items():
        assert table["afl"][name] - table["alone"][name] == pytest.approx(change)
    single = samples_of_runs.scores(records["afl"])
    assert sorted(single["Sue"].values()) == pytest.approx(sorted(table["afl"]["Sue"]))
