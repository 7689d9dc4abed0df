"""`commonweal choose`, and predictions and exports by what clients chose."""

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from commonweal import cli
from commonweal.base.errors import CommonwealError, ConfigError
from commonweal.study.choosing import choose, chosen_clients
from own_table import write

Command = Callable[..., str]

COMPARE = (
    "compare table path=patients.csv label=died client=hospital rounds=4 validation=0.3 "
    "client=sgd client.lr=0.2 --rules fedavg --seeds 2 --out runs -q "
    "--vary client=sgd,blend(rejoin=false)"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of hospitals, with their choice."""
    folder = tmp_path_factory.mktemp("choose")
    write(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        cli.app(COMPARE.split(), standalone_mode=False)
        cli.app(["choose", "runs", "--how", "likely", "-q"], standalone_mode=False)
    return folder


@pytest.fixture
def command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    monkeypatch.chdir(folder)

    def call(text: str) -> str:
        capsys.readouterr()
        cli.app(text.split(), standalone_mode=False)
        printed = capsys.readouterr()
        return printed.out + printed.err

    return call


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_it_prints_who_takes_what_and_why(command: Command, folder: Path) -> None:
    printed = command("choose runs --how likely")
    models = chosen_clients(folder / "runs")
    assert sorted(models) == ["Aachen", "Bonn", "Ulm"]
    assert json.loads((folder / "runs/choice.json").read_text())["how"] == "likely"
    assert choose(folder / "runs", how="likely").verdict in " ".join(printed.split())
    for line in ("pooled", "safe", "likely", "proved", "local training", "blend"):
        assert f" {line} " in printed
    for name in models:
        assert f" {name} " in printed
    assert "commonweal predict runs TABLE --choice" in printed


def test_models_are_those_of_all_samples_unless_no_refit(command: Command, folder: Path) -> None:
    """`proved` has too little evidence here: everybody keeps local training."""
    try:
        for option, run in (("", "alone/seed-0/refit"), ("--no-refit", "alone/seed-0")):
            printed = " ".join(command(f"choose runs --how proved {option}").split())
            assert ("all models were trained again" in printed) == (option == "")
            models = chosen_clients(folder / "runs").values()
            assert {model.folder for model in models} == {folder / "runs" / run}
            assert json.loads((folder / "runs/choice.json").read_text())["refit"] == (option == "")
            chosen = rows_of(command("predict runs new.csv --choice -q"))
            assert chosen == rows_of(command(f"predict runs/{run} new.csv -q"))
    finally:
        command("choose runs --how likely -q")


def test_eighty_columns_are_enough(folder: Path) -> None:
    program = (
        "from rich.console import Console\n"
        "from commonweal.app.commands import console\n"
        "from commonweal import cli\n"
        "console.out = Console(width=80)\n"
        "cli.app(['choose', 'runs', '--how', 'likely'], standalone_mode=False)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in done.stdout
    assert any("Aachen" in line for line in lines)


def test_each_row_is_predicted_by_the_model_that_its_client_chose(
    command: Command, folder: Path
) -> None:
    mixed = rows_of(command("predict runs new.csv --choice -q"))
    models = chosen_clients(folder / "runs")
    assert len(mixed) == 20 and {row["hospital"] for row in mixed} == set(models)
    for name, model in models.items():
        alone = rows_of(command(f"predict runs new.csv --choice --client {name} -q"))
        whose = f"--client {name}" if model.personal else ""
        by_run = rows_of(command(f"predict {model.folder} new.csv {whose} -q"))
        assert alone == by_run
        own = [row for row in mixed if row["hospital"] == name]
        assert own == [row for row in by_run if row["hospital"] == name]


def test_export_writes_the_model_that_a_client_chose(command: Command, folder: Path) -> None:
    command("export runs --to torch --choice --client Bonn -o bonn -q")
    done = subprocess.run(
        [sys.executable, "bonn/predict.py", "new.csv"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    expected = rows_of(command("predict runs new.csv --choice --client Bonn -q"))
    exported = rows_of(done.stdout)
    assert [row["predicted died"] for row in exported] == [
        row["predicted died"] for row in expected
    ]
    with pytest.raises(ConfigError, match="--choice needs --client NAME"):
        command("export runs --to torch --choice")


def test_mistakes_are_clear(command: Command, folder: Path) -> None:
    mistakes = {
        "choose runs --how save": "'safe'",
        "choose new.csv": "not a folder",
        "predict runs new.csv --choice --client Bon": "known: Aachen, Bonn, Ulm",
        "predict runs/alone new.csv --choice": "commonweal choose runs/alone",
    }
    for text, message in mistakes.items():
        with pytest.raises(CommonwealError, match=message):
            command(text)
