"""`commonweal flower export`: what it writes, and what it refuses."""

import re
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'commonweal[flower]'")

from typer.testing import CliRunner

import commonweal
from commonweal.base.errors import ConfigError, RunError
from commonweal.cli import app
from commonweal.config.experiment import Experiment
from commonweal.flower.app_folder import write_app


def test_export_writes_an_app_that_flower_accepts(tmp_path: Path) -> None:
    from flwr.common.config import validate_config

    folder = tmp_path / "my app"
    arguments = ["flower", "export", "examples/vowel.toml", str(folder), "rule=term"]
    done = CliRunner().invoke(app, [*arguments, "--nodes", "4"])
    assert done.exit_code == 0, done.output
    config = tomllib.loads((folder / "pyproject.toml").read_text())
    valid, errors, warnings = validate_config(config, True, folder)
    assert valid, (errors, warnings)
    assert config["tool"]["flwr"]["app"]["config"]["nodes"] == 4
    assert config["project"]["dependencies"] == []  # Flower would look for them on an index
    text = (folder / "my_app" / "experiment.toml").read_text()
    assert tomllib.loads(text)["rule"]["name"] == "term"
    readme = (folder / "README.md").read_text()
    assert "--enable-supernode-auth" in readme and "--insecure" not in readme
    again = CliRunner().invoke(app, arguments)
    assert isinstance(again.exception, RunError) and "empty folder" in str(again.exception)


@pytest.mark.parametrize("name", ["study-app", "2026", "Öl Studie", "a" * 40 + "-b", "__", "x--y"])
def test_any_folder_gives_a_name_that_flower_accepts(tmp_path: Path, name: str) -> None:
    """`flwr run` refuses others than letters, digits and hyphens, at most 32."""
    package = write_app(Experiment(dataset="vowel"), tmp_path / name)
    config = tomllib.loads((tmp_path / name / "pyproject.toml").read_text())
    assert re.fullmatch(r"[a-z][a-z0-9-]{0,31}", config["project"]["name"])
    assert package.isidentifier() and (tmp_path / name / package / "client_app.py").exists()
    assert config["tool"]["flwr"]["app"]["components"]["clientapp"].startswith(f"{package}.")


@pytest.mark.parametrize("setting", ["device=cuda", "holdout_clients=0.2"])
def test_settings_that_mean_nothing_on_flower_are_refused(tmp_path: Path, setting: str) -> None:
    arguments = ["flower", "export", "examples/vowel.toml", str(tmp_path / "app"), setting]
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, ConfigError)
    assert setting.partition("=")[0] in str(done.exception)
    assert "simulator" in str(done.exception) and not (tmp_path / "app").exists()


def test_engine_flower_names_the_command_for_flower() -> None:
    """Without reading the data, which may be nowhere near."""
    missing = {"name": "table", "path": "nowhere.csv", "label": "y", "client": "site"}
    given = Experiment(dataset=missing, engine="flower")
    with pytest.raises(ConfigError, match="commonweal flower export FILE DIR"):
        next(iter(commonweal.run(given)))
