"""What the tests of commands share: the command in this process, and what it printed."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
