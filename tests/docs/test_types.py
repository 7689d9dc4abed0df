"""The Python of README.md and docs/pytorch.md passes `mypy --strict`; wrong keywords do not."""

import re
from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).parents[2]
WRONG = """
import commonweal as cw

task: cw.Task
federation: cw.Federation
cw.run(task, federation, ruel="term")
cw.run(task, federation, rounds="ten")
cw.compare(task, federation, cohrt=3)
cw.run(task, federation).rslt()
"""


def errors(folder: Path, text: str) -> list[str]:
    """What mypy says about a program."""
    file = folder / "page.py"
    file.write_text(text)
    cache = ["--cache-dir", str(folder / "cache")]
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--strict", *cache]
    output, problem, _ = api.run([*options, str(file)])
    assert problem == ""
    return [line for line in output.splitlines() if "error:" in line]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/pytorch.md"])
def test_snippets_are_typed(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    snippets = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)
    assert snippets
    assert errors(tmp_path, "\n".join(snippets)) == []


@pytest.mark.slow
def test_mypy_finds_wrong_keywords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    lines = [int(line.split(":")[1]) for line in errors(tmp_path, WRONG)]
    assert sorted(set(lines)) == [6, 7, 8, 9]
