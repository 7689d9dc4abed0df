"""`commonweal doctor`: what is there, what is missing, how to get it, and the exit code."""

import json
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import typer

import commonweal
from commonweal.commands.doctor import EXTRAS, doctor

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
DECLARED = [
    "numpy>=2.0",
    "torch>=2.6",
    'h5py>=3.10; extra == "h5"',
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
    assert lines["[h5]"]["state"] == "optional" and "h5py is missing" in lines["[h5]"]["text"]
    assert lines["[h5]"]["remedy"] == 'pip install "commonweal[h5]"'
    assert "ray is missing" in lines["[flower-sim]"]["text"]  # what flwr's own extra adds
    assert lines["packages"]["text"] == "numpy 2.4, torch 2.13.0+cpu"


def test_a_missing_or_old_package_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    declare(monkeypatch, DECLARED, numpy="1.26", h5py="3.11", flwr="1.41", ray="2.55")
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
    assert "adult" in lines["datasets"]["text"].partition("missing:")[2]


def test_datasets_that_are_there_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("COMMONWEAL_DATA", str(tmp_path))
    (tmp_path / "adult").mkdir()
    for name in ("adult.data", "adult.test"):
        (tmp_path / "adult" / name).write_text("")
    _, lines = found(capsys)
    there, _, missing = lines["datasets"]["text"].partition("missing:")
    assert "adult" in there and "mnist" in missing


@pytest.mark.skipif(not PROJECT.exists(), reason="not a checkout")
def test_every_extra_for_users_is_explained() -> None:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    assert set(project["optional-dependencies"]) - {"dev", "docs"} == set(EXTRAS)
