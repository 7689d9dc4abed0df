"""The notebooks run as plain scripts in an empty folder, and their pages show what they print."""

import importlib.util
import warnings
from pathlib import Path

import pytest

pytest.importorskip("jupytext", reason="notebooks need pip install 'commonweal[docs]'")

import site_notebooks
from site_notebooks import NOTEBOOKS, execute, read

PATHS = sorted(NOTEBOOKS.glob("*.py"))
SHOWN = {
    "compare_for_a_paper": ("\\begin{tabular}", "over fedavg"),
    "flower_in_one_line": ("aaggff-s  weights", "accuracy"),
    "who_is_left_behind": ("Sue", "significantly better off"),
    "write_a_rule": ("[0.0000, 0.3333, 0.3333, 0.3333]", "ok  order", "worst"),
    "your_own_table": ("yes: 0.", "| Bonn |", "creatinine   number"),
}
FIGURES = {"compare_for_a_paper": 1, "who_is_left_behind": 1}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path) -> None:
    if path.stem.startswith("flower") and importlib.util.find_spec("flwr") is None:
        pytest.skip("Flower is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # a reader sees them, and goes on
        cells = execute(path)
    printed = "".join(cell.printed for cell in cells)
    for text in SHOWN[path.stem]:
        assert text in printed
    assert sum(len(cell.figures) for cell in cells) == FIGURES.get(path.stem, 0)


def test_a_notebook_opens_with_what_the_reader_gets() -> None:
    assert {path.stem for path in PATHS} == set(SHOWN)
    for path in PATHS:
        first = read(path)[0]
        assert not first.is_code and first.source.startswith("# ") and len(first.source) > 100


def test_pages_and_notebooks_are_written(tmp_path: Path) -> None:
    names = site_notebooks.write(tmp_path, run=False)
    assert len(names) == 5
    for name in names:
        page = (tmp_path / name).read_text(encoding="utf-8")
        assert "```python" in page and (tmp_path / name).with_suffix(".ipynb").exists()
