"""`commonweal doctor`: what is there, what is missing, how to get it, and the exit code."""

import json
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import typer

import commonweal
from commonweal.app.commands.doctor import EXTRAS, doctor

PROJECT = Path(__file__).parents[3] / "pyproject.toml"
DECLARED = [
    "numpy>=2.0",
    "torch>=2.6",
    'optuna>=5.0; extra == "tune"',
    'flwr[simulation]>=1.41; extra == "flower-sim"',
]


def found(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit code, and the lines by topic."""
    code = 0
    try:
        doctor(as_json=True)
    except typer.Exit as done:
        code = done.exit_code
    return code, {line["topic"]: line for line in json.loads(capsys.readouterr().out)}


def declare(monkeypatch: pytest.MonkeyPatch, texts: list[str], **versions: str) -> None:
    """Let the installed package declare these requirements, and packages have these versions."""

    def requires(package: str) -> list[str]:
        given = {"commonweal": texts, "flwr": ['ray>=2; extra == "simulation"']}
        return given.get(package, [])

    def version(package: str) -> str:
        if package not in versions:
            raise metadata.PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(metadata, "requires", requires)
    monkeypatch.setattr(metadata, "version", version)


def test_all_is_well_here(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = found(capsys)
    assert code == 0
    assert commonweal.__version__ in lines["commonweal"]["text"]
    assert "cores" in lines["threads"]["text"] and lines["torch"]["state"] == "ok"
    doctor()
    assert "all requirements are installed" in capsys.readouterr().out


def test_a_missing_extra_is_named_with_the_command_and_is_no_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    declare(monkeypatch, DECLARED, numpy="2.4", torch="2.13.0+cpu", flwr="1.41")
    code, lines = found(capsys)
    assert code == 0
    assert lines["[tune]"]["state"] == "optional"
    assert "optuna is missing" in lines["[tune]"]["text"]
    assert lines["[tune]"]["remedy"] == 'pip install "commonweal[tune]"'
    assert "ray is missing" in lines["[flower-sim]"]["text"]  # what flwr's own extra adds
    assert lines["packages"]["text"] == "numpy 2.4, torch 2.13.0+cpu"


def test_a_missing_or_old_package_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    declare(monkeypatch, DECLARED, numpy="1.26", optuna="5.1", flwr="1.41", ray="2.55")
    with pytest.raises(typer.Exit) as ended:
        doctor()
    printed = capsys.readouterr().out
    assert ended.value.exit_code == 2
    assert "numpy is 1.26, and must be >=2.0" in printed and "torch is missing" in printed
    assert "pip install --upgrade commonweal" in printed and "2 of these must be" in printed


def test_a_data_directory_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("COMMONWEAL_DATA", str(tmp_path / "none"))
    code, lines = found(capsys)
    assert code == 2 and lines["data"]["state"] == "problem"
    assert str(tmp_path / "none") in lines["data"]["text"] and lines["data"]["remedy"]


@pytest.mark.skipif(not PROJECT.exists(), reason="not a checkout")
def test_every_extra_for_users_is_explained() -> None:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    assert set(project["optional-dependencies"]) - {"dev", "docs"} == set(EXTRAS)


def test_the_cache_is_shown_and_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    entry = tmp_path / "commonweal" / "parsed" / "table-1"
    entry.mkdir(parents=True)
    (entry / "x.npy").write_bytes(bytes(3_000_000))
    doctor()
    shown = capsys.readouterr().out
    assert f"3.0 MB of parsed tables and datasets in {entry.parent} (at most 4.0 GB" in shown
    doctor(clear_cache=True)
    assert "deleted 3.0 MB" in capsys.readouterr().out
    assert not entry.exists()
