"""`commonweal fit`: from a table to a model for each client, with Ctrl-C on the way."""

import csv
import json
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from commonweal import cli
from commonweal.app.commands import console
from commonweal.base.errors import CommonwealError, LockedError
from commonweal.base.files import locked
from commonweal.record.record import Record
from commonweal.study import compare
from commonweal.study.choosing import choose
from commonweal.study.compare import Data, Step
from commonweal.study.plan import Cell
from own_table import write

FIT = ("fit", "patients.csv", "rounds=10", "--seeds", "2")
Command = Callable[..., str]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """`commonweal ...` in a folder with a table, in a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path)

    def call(*arguments: str) -> str:
        monkeypatch.setattr(console, "out", Console(width=80))
        capsys.readouterr()
        cli.app(list(arguments), standalone_mode=False)
        printed = capsys.readouterr()
        return printed.out + printed.err

    return call


def test_a_table_becomes_a_model_for_each_client_also_after_an_interruption(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "runs/patients-fit"
    run_rounds = compare._run_rounds

    def interrupted(cell: Cell, data: Data, force: bool) -> Iterator[Step]:
        for step in run_rounds(cell, data, force):
            yield step
            if cell.label == "fine-tune" and step.round is not None and step.round.number == 2:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(compare, "_run_rounds", interrupted)
        assert "the same command continues from there" in command(*FIT)
    assert not (folder / "choice.json").exists()
    before = (folder / "alone/seed-0/rounds.jsonl").stat().st_mtime_ns

    printed = command(*FIT)

    assert (folder / "alone/seed-0/rounds.jsonl").stat().st_mtime_ns == before  # not run again
    records = Record.find(folder)
    assert len(records) == 14 and all(record.finished for record in records)
    unfinished: list[Cell] = []

    def check(plan: Sequence[Cell]) -> dict[Path, str]:
        unfinished.extend(cell for cell in plan if not cell.finished)
        return {}

    assert choose(folder, train=check).refit and unfinished == []
    assert max(map(len, printed.splitlines())) <= 80
    text = " ".join(printed.split())
    saved = choose(folder).verdict
    assert saved in text and saved.startswith(("Joining", "Whether joining"))
    assert (
        "all clients get boosting blend in 1 of 2 seeds" in text
        and "trained on 80 % of the samples" in text
    )
    assert "blend: what clients predict with, by mean weight: " in text and " forest " in text
    for name in ("Aachen", "Bonn", "Ulm"):
        assert name in text
    assert "commonweal predict runs/patients-fit NEW.csv --choice -o predictions.csv" in text
    assert "Models for the clients of patients.csv" in (folder / "report.html").read_text("utf-8")
    models = json.loads((folder / "choice.json").read_text("utf-8"))["models"]
    assert sorted(models) == ["Aachen", "Bonn", "Ulm"]

    command("predict", "runs/patients-fit", "new.csv", "--choice", "-o", "predictions.csv", "-q")
    with (tmp_path / "predictions.csv").open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == 20


def test_a_doubtful_label_stops_before_anything_is_written(
    command: Command, tmp_path: Path
) -> None:
    rows = [f"{'ABC'[i % 3]},{i % 7},{'RO'[i % 3 == 0]},{i % 2}" for i in range(60)]
    (tmp_path / "t.csv").write_text("hospital,age,outcome,dead in 28 days\n" + "\n".join(rows))
    with pytest.raises(CommonwealError) as stop:
        command("fit", "t.csv", "rounds=3", "--seeds", "2", "--out", "here", "-q")
    doubt, *options, end = str(stop.value).splitlines()
    assert doubt.startswith("the label is doubtful: 'outcome' is constant within hospital")
    expected = "  commonweal fit t.csv rounds=3 --label 'dead in 28 days' --seeds 2 --out here   #"
    assert any(option.startswith(expected) for option in options)
    assert end == "Nothing was trained. Run the command that is right."
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv", "patients.csv", "t.csv"]
    printed = command("init", "t.csv")
    assert "the label is doubtful: 'outcome' is constant within hospital" in printed
    assert "commonweal init t.csv --label 'dead in 28 days' --force" in printed


def toml_of(tmp_path: Path) -> dict[str, Any]:
    text = (tmp_path / "runs/patients-fit/patients.toml").read_text("utf-8")
    return tomllib.loads(text)


def written_at(tmp_path: Path) -> dict[Path, int]:
    folder = tmp_path / "runs/patients-fit"
    return {path: path.stat().st_mtime_ns for path in folder.rglob("rounds.jsonl")}


def test_a_later_call_continues_with_all_settings_of_the_first(
    command: Command, tmp_path: Path
) -> None:
    call = ("fit", "patients.csv", "rounds=2", "dataset.drop=ward,creatinine", "client.lr=0.2")
    printed = command(*call, "--seeds", "2")
    assert "creatinine" not in printed  # which is dropped already
    tree = toml_of(tmp_path)
    assert (tree["rounds"], tree["client"]["lr"]) == (2, 0.2)
    assert tree["dataset"]["drop"] == ["ward", "creatinine"]
    assert tree["fit"]["seeds"] == 2
    before = written_at(tmp_path)
    assert len(before) == 28
    command("fit", "patients.csv")
    assert written_at(tmp_path) == before and toml_of(tmp_path) == tree
    command(*call, "-q")
    assert written_at(tmp_path) == before and toml_of(tmp_path) == tree
    with pytest.raises(CommonwealError, match=r"finished models .*rounds was 2, now 1.*--force"):
        command("fit", "patients.csv", "rounds=1")
    assert written_at(tmp_path) == before and toml_of(tmp_path) == tree
    command("run", "runs/patients-fit/patients.toml", "--out", "run", "-q")  # without [fit]
    command("fit", "patients.csv", "rounds=1", "--force", "-q")
    tree = toml_of(tmp_path)
    assert (tree["rounds"], tree["client"]["lr"]) == (1, 0.2)
    assert len(written_at(tmp_path)) == 28 and not written_at(tmp_path).items() & before.items()


def test_another_label_replaces_runs_that_are_not_finished(
    command: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "runs/patients-fit"
    command(*FIT, "-q")
    (folder / "choice.json").unlink()  # as if it had been stopped before
    (folder / "mine.txt").write_text("kept")
    printed = command("fit", "patients.csv", "--label", "smoker")
    assert "dataset.label was 'died', now 'smoker'" in " ".join(printed.split())
    tree = toml_of(tmp_path)
    assert (tree["dataset"]["label"], tree["rounds"], tree["fit"]["seeds"]) == ("smoker", 10, 2)
    labels = {record.experiment["dataset"]["label"] for record in Record.find(folder)}
    assert labels == {"smoker"}
    assert (folder / "mine.txt").read_text() == "kept"
    choice = (folder / "choice.json").read_bytes()
    with pytest.raises(CommonwealError, match=r"'smoker', now 'ward'.*--force"):
        command("fit", "patients.csv", "--label", "ward")
    assert (folder / "choice.json").read_bytes() == choice


def test_runs_that_another_process_is_at_are_not_removed(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "runs/patients-fit"
    command(*FIT, "-q")
    with locked(folder / "blend/seed-1/refit"), pytest.raises(LockedError):
        command("fit", "patients.csv", "--label", "smoker", "--force")
    assert len(Record.find(folder)) == 14


def test_the_time_that_there_was_is_kept(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("fit", "patients.csv", "rounds=2", "--minutes", "0", "-q")
    tree = toml_of(tmp_path)
    assert tree["fit"] == {"seeds": 2, "changes": ["rounds=2"]}
    before = written_at(tmp_path)
    command("fit", "patients.csv", "-q")
    assert written_at(tmp_path) == before


def test_a_gain_worth_having_is_kept_and_trains_nothing(command: Command, tmp_path: Path) -> None:
    longer = ("fit", "patients.csv", "rounds=20", "--seeds", "2")
    command(*longer, "-q")
    before = written_at(tmp_path)
    words = "A gain of 90 points is worth having."
    assert words in " ".join(command(*longer, "--worth", "90").split())
    assert written_at(tmp_path) == before
    assert toml_of(tmp_path)["fit"]["worth"] == 90.0
    folder = tmp_path / "runs/patients-fit"
    assert words in (folder / "report.html").read_text("utf-8")
    assert words in " ".join(command("show", str(folder)).split())
    assert words in " ".join(command("fit", "patients.csv").split())
    command("report", str(folder), "-o", str(tmp_path / "own.html"), "--worth", "80")
    assert "A gain of 80 points is worth having." in (tmp_path / "own.html").read_text("utf-8")
    with pytest.raises(CommonwealError, match="--worth -1"):
        command("fit", "patients.csv", "--worth", "-1")


def test_mistakes_are_clear(command: Command, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("age,died\n" + "50,yes\n50,no\n60,no\n" * 30)
    with pytest.raises(CommonwealError, match="name it with --client COLUMN"):
        command("fit", "t.csv")
    assert not (tmp_path / "runs").exists()
    (tmp_path / "two.csv").write_text("client,a,label\nA,1,x\nB,2,y\n")
    roles = ("--client", "client", "--label", "label")
    with pytest.raises(
        CommonwealError, match=r"no result of any method; .*no client has test rows"
    ):
        command("fit", "two.csv", *roles, "-q")
    with pytest.raises(CommonwealError, match=r"no result of local training; alone: .*diverged"):
        command(*FIT, "client.lr=1e30", "-q")
    toml = tmp_path / "runs/patients-fit/patients.toml"
    toml.write_text(toml.read_text("utf-8").replace("seeds = 2", "seeds = 1"), "utf-8")
    with pytest.raises(CommonwealError, match=r"\[fit\]: seeds is a whole number from 2 on"):
        command("fit", "patients.csv")
