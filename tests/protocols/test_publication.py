"""What a private run publishes has nothing of a single client in it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from commonweal.app.export import export, write_card
from commonweal.app.ui import runs, views
from commonweal.base.errors import RunError
from commonweal.data.federation import Federation
from commonweal.jobs.reopening import reopen
from commonweal.jobs.rounds import Run, run
from commonweal.record.record import PRIVATE, Record
from commonweal.record.verify import problems
from commonweal.report import document, run_table
from commonweal.study.comparison import Comparison
from commonweal.task.task import Task
from helpers import federation
from run_helpers import contents

NAMES = [f"clinic-{k}-of-{word}" for k, word in enumerate(("Aton", "Beth", "Ceta", "Dill"))]
PRIVATE_WORDS = (*NAMES, "metrics", "dropped", "worst_10", "majority", "train_rows")


def clients() -> Federation:
    return federation(dict.fromkeys(NAMES, 9))


def private_run(out: Path, entropy: str = "system", resume: bool = False, **parts: Any) -> Run:
    torch.manual_seed(0)
    algorithm = {"name": "private", "noise": 2.0, "delta": 1e-3, "entropy": entropy}
    given = {"rule": "aaggff-d", "sampler": "poisson", "cohort": 2, "rounds": 4, **parts}
    return run(
        Task(nn.Linear(4, 3)), clients(), algorithm=algorithm, out=out, resume=resume, **given
    )


def published(folder: Path) -> dict[str, bytes]:
    return {n: data for n, data in contents(folder).items() if not n.startswith(f"{PRIVATE}/")}


def assert_public(text: str) -> None:
    for word in PRIVATE_WORDS:
        assert word not in text, word


def test_nothing_of_a_single_client_is_published(tmp_path: Path) -> None:
    out = tmp_path / "run"
    record = private_run(out).result()
    assert record.finished and record.is_public_part and not record.evaluated
    write_card(record)
    files = published(out)
    assert set(files) == {
        "experiment.toml",
        "run.json",
        "rounds.jsonl",
        "model.safetensors",
        "card.md",
    }
    for data in files.values():
        assert_public(data.decode("latin-1"))
    text = files["experiment.toml"].decode()
    assert "digest" not in text.partition("[dataset]")[2].partition("[")[0]
    assert json.loads(files["run.json"])["privacy"]["epsilon"] > 0
    lines = [json.loads(line) for line in files["rounds.jsonl"].decode().splitlines()]
    assert [line.keys() for line in lines] == 4 * [{"round", "public"}]
    assert {"clip", "mean", "normaliser"} <= lines[-1]["public"].keys()
    assert "epsilon = " in files["card.md"].decode()


def test_reports_pages_and_json_leave_clients_out(tmp_path: Path) -> None:
    out = tmp_path / "run"
    record = private_run(out).result()
    assert_public("\n".join(run_table.promised(record)))
    summary = run_table.run_summary(record)
    assert summary["metrics"] is None and summary["clients"] == []
    assert_public(json.dumps(summary["privacy"]))
    page = views.run_view(record, "finished")
    assert page["clients"] == [] and page["curves"] == {} and "epsilon" in str(page["private"])
    assert_public(json.dumps(page["facts"]))
    described = runs.scan(tmp_path)
    assert [each.id for each in described] == ["run"]  # the private part is not listed
    (run,) = described
    assert isinstance(run, runs.ListedRun) and run.mean is None and run.worst is None
    with pytest.raises(RunError, match="private") as error:
        Comparison.in_folders([out])
    assert_public(str(error.value))
    with pytest.raises(RunError, match="private"):
        record.clients()
    with pytest.raises(RunError, match="private"):
        reopen(out)


def test_asked_for_by_name_everything_is_there_and_marked(tmp_path: Path) -> None:
    out = tmp_path / "run"
    whole = private_run(out).result().whole()
    assert whole.folder == out / PRIVATE
    assert set(whole.clients().names) == set(NAMES)
    assert "outside the promise" in " ".join(run_table.promised(whole))
    assert (out / PRIVATE / "PRIVATE.txt").read_text(encoding="utf-8")
    report = document.render(Comparison.in_folders([out / PRIVATE]), "title")
    assert NAMES[0] in report and "outside the promise" in report
    assert problems(out) == problems(out / PRIVATE) == []
    card = export(whole, "card", tmp_path / "card.md").read_text(encoding="utf-8")
    assert NAMES[0] in card and "outside the promise" in card


def test_rounds_that_ask_nobody_can_be_reported(tmp_path: Path) -> None:
    whole = private_run(tmp_path / "run", "seed", cohort=1, rounds=6).result().whole()
    assert not all(each.clients for each in whole.rounds)
    assert NAMES[0] in document.render(Comparison.in_folders([whole.folder]), "title")


def test_a_seeded_run_is_a_simulated_promise(tmp_path: Path) -> None:
    record = private_run(tmp_path / "run", "seed").result()
    for each in (record, record.whole()):
        assert "simulated promise" in " ".join(run_table.promised(each))
        card = write_card(each).read_text(encoding="utf-8").lower()
        assert "simulated promise" in card
        assert "epsilon" not in card
    assert record.facts.privacy is not None and record.facts.privacy.simulated


def stopped(out: Path, entropy: str = "system") -> None:
    """A run that was stopped after its second round."""
    begun = private_run(out, entropy)
    next(begun)
    next(begun)
    begun.close()


def test_a_stopped_run_continues_with_fresh_noise(tmp_path: Path) -> None:
    """Who continues twice from the same checkpoint gets other cohorts and other noise."""
    stopped(tmp_path / "a")
    before = published(tmp_path / "a")["rounds.jsonl"]
    assert len(before.splitlines()) == 2
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    models = []
    for name in "ab":
        record = private_run(tmp_path / name, resume=True).result()
        after = published(tmp_path / name)["rounds.jsonl"]
        assert after.startswith(before) and len(after.splitlines()) == 4
        models.append(record.state_dict()["weight"])
    assert not torch.equal(*models)


def test_seeded_runs_are_repeated_and_resumed_to_the_byte(tmp_path: Path) -> None:
    whole = private_run(tmp_path / "a", "seed").result()
    stopped(tmp_path / "b", "seed")
    private_run(tmp_path / "b", "seed", resume=True).result()
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    other = private_run(tmp_path / "c").result()
    assert not torch.equal(other.state_dict()["weight"], whole.state_dict()["weight"])


def test_a_folder_with_another_run_is_left_alone(tmp_path: Path) -> None:
    run(Task(nn.Linear(4, 3)), clients(), rounds=1, out=tmp_path / "run").result()
    with pytest.raises(RunError, match="not private"):
        private_run(tmp_path / "run").result()
    private_run(tmp_path / "other").result()
    plain = run(Task(nn.Linear(4, 3)), clients(), rounds=1, out=tmp_path / "other")
    with pytest.raises(RunError, match="another experiment"):
        plain.result()
    assert Record.read(tmp_path / "other").is_public_part


def test_temporary_files_of_a_killed_process_are_deleted(tmp_path: Path) -> None:
    private_run(tmp_path / "run").result()
    left = ["rounds.jsonl.12.part", "private/PRIVATE.txt.12.part"]
    for name in [*left, "mine.part"]:
        (tmp_path / "run" / name).write_text("half")
    private_run(tmp_path / "run", resume=True).result()
    assert not any((tmp_path / "run" / name).exists() for name in left)
    assert (tmp_path / "run" / "mine.part").read_text() == "half"
