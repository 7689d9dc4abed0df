"""Fixtures of commands: an empty folder, an experiment's file and a finished run."""

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from command_helpers import TEXT, Command, Result
from commonweal import cli
from commonweal.commands import console
from commonweal.config.experiment import Experiment
from commonweal.jobs.rounds import run


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """`commonweal ...` in this process and in an empty folder, with a terminal of 100 columns."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object, width: int = 100) -> Result:
        capsys.readouterr()
        out, err = io.StringIO(), io.StringIO()
        monkeypatch.setattr(console, "out", Console(file=out, width=width))
        monkeypatch.setattr(console, "err", Console(file=err, width=width))
        monkeypatch.setattr(sys, "argv", ["commonweal", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as done:
            code = int(done.code or 0)
        printed = capsys.readouterr()
        return Result(code, printed.out + out.getvalue(), printed.err + err.getvalue())

    return call


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "e.toml"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    list(run(Experiment(dataset="vowel", rounds=3, rule="aaggff-s"), out=folder))
    return folder
