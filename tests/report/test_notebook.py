"""In a notebook: a progress bar, and data frames of what is installed."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import commonweal
from commonweal.base import notebook
from run_helpers import federation, task


class ZMQInteractiveShell:
    """Stands for the shell of a notebook's kernel."""


class Screen(list[str]):
    """Stands for a cell's output: what it has shown, one after the other."""

    def update(self, shown: str) -> None:
        self.append(shown)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    shown = Screen()
    python: Any = ModuleType("IPython")
    python.get_ipython = ZMQInteractiveShell
    display: Any = ModuleType("IPython.display")
    display.HTML = str

    def show(first: str, display_id: bool) -> Screen:
        shown.append(first)
        return shown

    display.display = show
    monkeypatch.setitem(sys.modules, "IPython", python)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return shown


def test_a_run_in_a_notebook_has_a_bar(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "INTERVAL", 0.0)
    numbers = [each.number for each in commonweal.run(task(), federation(), rule="afl", rounds=4)]
    assert numbers == [1, 2, 3, 4]
    assert '<progress max="4" value="0"></progress> afl: round 0 of 4' in screen[0]
    assert [f'value="{k}"' in screen[k] for k in (1, 2, 3, 4)] == [True] * 4
    assert "worst" in screen[-1]


def test_a_run_that_is_left_ends_its_bar(screen: Screen) -> None:
    for _ in commonweal.run(task(), federation(), rounds=9):
        break
    assert "round 1 of 9" in screen[-1]


def test_elsewhere_there_is_none() -> None:
    assert not notebook.in_notebook()


FRAME = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name: find(name) if name == "{library}" else None
import commonweal
frame = commonweal.Record.read("{folder}").frame()
print(type(frame).__module__.partition(".")[0], list(frame.columns)[:2], len(frame))
"""


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_are_of_the_library_that_is_installed(tmp_path: Path, library: str) -> None:
    pytest.importorskip(library)
    for _ in commonweal.run(task(), federation(4), out=tmp_path / "run", rounds=2):
        pass
    code = FRAME.format(library=library, folder=tmp_path / "run")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{library} ['round', 'client'] 8"
