"""`commonweal fit`: from a table to a model for each client, with Ctrl-C on the way."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from commonweal import cli
from commonweal.analysis import compare
from commonweal.analysis.choosing import choose
from commonweal.analysis.compare import Data, Step
from commonweal.analysis.plan import Cell
from commonweal.base.errors import CommonwealError
from commonweal.commands import console
from commonweal.record.record import Record
from own_table import write

FIT = ("fit", "patients.csv", "rounds=3", "--seeds", "2")
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

    def interrupted(cell: Cell, data: Data) -> Iterator[Step]:
        for step in run_rounds(cell, data):
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
    assert len(records) == 10 and all(record.finished for record in records)
    unfinished: list[Cell] = []

    def check(plan: Sequence[Cell]) -> dict[Path, str]:
        unfinished.extend(cell for cell in plan if not cell.finished)
        return {}

    assert choose(folder, train=check).refit and unfinished == []
    assert max(map(len, printed.splitlines())) <= 80
    text = " ".join(printed.split())
    assert "mean gain in accuracy over local training" in text or "Joining does not help" in text
    for name in ("Aachen", "Bonn", "Ulm"):
        assert name in text
    assert "commonweal predict runs/patients-fit NEW.csv --choice -o predictions.csv" in text
    assert "Models for the clients of patients.csv" in (folder / "report.html").read_text("utf-8")
    models = json.loads((folder / "choice.json").read_text("utf-8"))["models"]
    assert sorted(models) == ["Aachen", "Bonn", "Ulm"]

    command("predict", "runs/patients-fit", "new.csv", "--choice", "-o", "predictions.csv", "-q")
    with (tmp_path / "predictions.csv").open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == 20


def test_mistakes_are_clear(command: Command, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("age,died\n" + "50,yes\n60,no\n" * 30)
    with pytest.raises(CommonwealError, match="name it with --client COLUMN"):
        command("fit", "t.csv")
    assert not (tmp_path / "runs").exists()
    folder = tmp_path / "runs/patients-fit"
    folder.mkdir(parents=True)
    command("init", "patients.csv", "-o", str(folder / "patients.toml"), "-q")
    with pytest.raises(CommonwealError, match=r"--label ward: .*says 'died'"):
        command(*FIT, "--label", "ward")
    (tmp_path / "two.csv").write_text("client,a,label\nA,1,x\nB,2,y\n")
    roles = ("--client", "client", "--label", "label")
    with pytest.raises(CommonwealError, match=r"no method has a result; .*no client has test rows"):
        command("fit", "two.csv", *roles, "-q")
