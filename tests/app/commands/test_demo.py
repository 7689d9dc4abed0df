"""`commonweal demo`: the first thing that a newcomer sees."""

from pathlib import Path

from typer.testing import CliRunner

from commonweal.app.commands.demo import DEMO
from commonweal.cli import app
from commonweal.config.experiment import read

EXAMPLES = Path(__file__).parents[3] / "examples"


def run(*arguments: object) -> tuple[int, str]:
    """The exit code of the demo and what it printed."""
    result = CliRunner().invoke(app, ["demo", *map(str, arguments)])
    return result.exit_code, result.output


def test_the_demo_answers_first_and_ends_with_commands(tmp_path: Path) -> None:
    code, output = run("--seeds", 2, "--rounds", 2, "--out", tmp_path / "d")
    assert code == 0
    assert (tmp_path / "d" / "students.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    svg = (tmp_path / "d" / "students.svg").read_text(encoding="utf-8")
    assert svg.lstrip().startswith("<?xml")
    lines = [line for line in output.splitlines() if line.strip()]
    titles = [i for i, line in enumerate(lines) if line.split()[0] == "method"]
    assert len(titles) == 1
    rows = {line.split()[0] for line in lines[titles[0] + 1 :]}
    assert {"local", "fedavg", "adafed", "blend"} <= rows
    courses = [line for line in lines[: titles[0]] if "Nursing" in line]
    assert len(courses) == 2  # of the picture
    assert [line.split()[0] for line in lines[-3:]] == ["commonweal"] * 3


def test_the_demo_leaves_its_experiment_which_is_an_example(tmp_path: Path) -> None:
    code, output = run("--seeds", 1, "--rounds", 1, "--out", tmp_path / "d", "--quiet")
    assert (code, output) == (0, "")
    left = (tmp_path / "d" / "students.toml").read_text(encoding="utf-8")
    assert left == DEMO
    assert read(tmp_path / "d" / "students.toml", ["rule=adafed"]) == read(
        EXAMPLES / "students.toml"
    )


def test_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "d").write_text("")
    code, _ = run("--seeds", 1, "--rounds", 1, "--out", tmp_path / "d")
    assert code != 0
