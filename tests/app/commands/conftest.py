"""Fixtures of commands: an empty folder, an experiment's file and a finished run."""

from pathlib import Path

import pytest

from command_helpers import TEXT, command
from commonweal.config.experiment import Experiment
from commonweal.jobs.rounds import run

__all__ = ["command", "file", "finished"]


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
