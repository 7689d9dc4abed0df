"""Progress where there is no terminal: lines of a log file, now and then."""

import io
import re

import pytest
from rich.console import Console

from commonweal.report import progress


def lines_of(
    monkeypatch: pytest.MonkeyPatch, seconds: float, quiet: bool = False, terminal: bool = False
) -> list[str]:
    """The lines of work that takes some seconds, a step each."""
    now = 0.0
    monkeypatch.setattr("commonweal.report.progress.time.monotonic", lambda: now)
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=80)
    advance = progress._lines(console, quiet)
    for step in range(int(seconds) + 1):
        now = float(step)
        advance("blend, seed 1", step, seconds)
    return file.getvalue().splitlines()


def test_a_log_file_has_progress_that_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_of(monkeypatch, 1000)
    assert lines[0] == "blend, seed 1: 0 % of all work, about 17 minutes left"
    assert lines[-1].endswith("about 20 seconds left")
    assert len(lines) == 20  # after 5, 10, 20, 40, 80 s and then every minute
    shares = [int(re.findall(r"(\d+) %", line)[0]) for line in lines]
    assert shares == sorted(shares)


def test_short_work_terminals_and_quiet_commands_have_no_such_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert lines_of(monkeypatch, 4) == []
    assert lines_of(monkeypatch, 1000, quiet=True) == []
    assert lines_of(monkeypatch, 1000, terminal=True) == []
