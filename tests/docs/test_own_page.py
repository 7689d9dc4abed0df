"""docs/own.md: every command is run in its order, and what it shows is what is printed."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from commonweal import cli
from commonweal.app.commands import console
from own_table import write
from page_outputs import check

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "own.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    ((?:commonweal|python) .*)$", PAGE, re.M)
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.M | re.S)


def call(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    program, *arguments = shlex.split(command)
    if program == "python":
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout
    cli.app(arguments, standalone_mode=False)
    return capsys.readouterr().out


def test_the_page_of_own_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console.out, "width", 80)
    write(tmp_path)
    for language, text in BLOCKS:
        name = re.match(r"# (\w+\.py)\n", text)
        if language == "python" and name:
            Path(name[1]).write_text(text, encoding="utf-8")
        elif language == "csv":
            assert text.strip() in Path("patients.csv").read_text(encoding="utf-8-sig")
    printed = {}
    for command in COMMANDS:
        capsys.readouterr()
        printed[command] = call(command, capsys)
    assert len(printed) == 24
    check(DOCS / "own.md", printed)
    assert "('no', 'yes')" in printed["python in_python.py"]
    assert list(Path("runs").glob("patients-fedavg*")) and Path("card.md").exists()
    assert Path("predictions.csv").read_text() != Path("bonn.csv").read_text()


def test_the_page_about_ones_own_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console.out, "width", 80)
    page = (DOCS / "write.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(# (\w+\.py)\n.*?)^```$", page, re.M | re.S)
    assert len(blocks) == 8
    for code, name in blocks:
        Path(name).write_text(code, encoding="utf-8")
    commands = re.findall(r"^    (commonweal .*)$", page, re.M)
    printed = {command: call(command, capsys) for command in commands}
    assert len(printed) == 15
    check(DOCS / "write.md", printed)
    explained = printed["commonweal show ./my_rules.py:WorstHalf"]
    assert "Equal weights for the clients" in explained and "power = 0.0" in explained
    assert "ok" in printed["commonweal check ./my_memory.py:Hedge"]
