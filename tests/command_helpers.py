"""What the tests of commands share: the command in this process, and what it printed."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from commonweal import cli
from commonweal.app.commands import console
from commonweal.config.experiment import Experiment
from commonweal.jobs.rounds import run

TEXT = """
dataset = "vowel"
rounds = 3

[rule]
name = "aaggff-s"
"""


@dataclass(frozen=True)
class Result:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


Command = Callable[..., Result]


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


def refusal(result: Result) -> str:
    """What a command prints that cannot do what it was asked to do."""
    assert result.code == 2, result.err
    assert "Traceback" not in result.err
    assert result.err.strip()
    return result.err


def mistake(result: Result) -> str:
    """The one line of a user's mistake."""
    lines = refusal(result).strip().splitlines()
    assert result.out == ""
    assert len(lines) == 1, result.err
    assert lines[0].startswith("commonweal: ")
    return lines[0].removeprefix("commonweal: ")


def strict(text: str) -> Any:
    """JSON as other languages read it: no NaN, no Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def python(
    *arguments: str, cwd: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def interrupted(*_: object, **__: object) -> Iterator[Any]:
    """A run in whose third round Ctrl-C is pressed."""
    yield from list(run(Experiment(dataset="vowel", rounds=2)))
    raise KeyboardInterrupt


def make(kind: str, path: Path) -> Path:
    """A pipe, an endless device or a folder where a file should be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    return path
