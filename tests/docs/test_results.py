"""Every figure in a table of docs/results.md stands in a recorded result."""

import re
from pathlib import Path

import numpy as np

import defaults
from commonweal import __version__
from commonweal.config import catalog
from published import reproduction

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "benchmarks" / "recorded"


def tables_in(text: str) -> list[str]:
    """The tables of a page, each with the line that names its runs where it has one."""
    titled = r"(?:^\*\*\w.*seeds\)\n\n)?(?:^\|.*\n)+"
    return [found.group() for found in re.finditer(titled, text, re.MULTILINE)]


def recorded() -> str:
    """All tables that benchmarks printed, or would print of their recorded runs."""
    texts = [file.read_text(encoding="utf-8") for file in sorted(RECORDED.glob("*.txt"))]
    scores = defaults.read(RECORDED / "defaults.jsonl")
    for name in defaults.SETS:
        values = defaults.complete(name, scores)
        texts.append("\n".join(defaults.table(name, values)) + "\n")
    return "\n".join(texts)


def test_tables_of_results_are_as_recorded() -> None:
    """Whole tables: a row of one federation in the table of another is not enough."""
    known = recorded()
    tables = tables_in((ROOT / "docs" / "results.md").read_text(encoding="utf-8"))
    assert len(tables) == 9
    for table in tables:
        assert table in known, table
    personal = (ROOT / "docs" / "personal.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:fedavg|aaggff-s) client=.*\n", personal, re.MULTILINE)
    assert len(rows) == 18 and "".join(rows) in known


def test_full_length_figures_of_personal_models_stand_in_the_ledger() -> None:
    personal = (ROOT / "docs" / "personal.md").read_text(encoding="utf-8")
    measured = reproduction.measured_by_us("thesis/mnist-500")
    assert measured is not None and len(measured.seeds) == 2 and "two seeds" in personal
    for row in measured.figures:
        assert f"{np.mean(measured.of(row, 0)):.2f}" in personal, row


def test_the_comparison_of_libraries_names_this_version() -> None:
    page = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    (table,) = tables_in(page)
    header, _, rules, *_ = table.splitlines()
    assert f"| Commonweal {__version__.rpartition('.')[0]} |" in header
    (least,) = re.findall(r"\| more than (\d+) \|", rules)
    fair = catalog.entries("rules").keys() - {"fedavg", "uniform", "grouped", "guarded"}
    assert len(fair) > int(least)


def test_the_summary_of_results_follows_the_tables() -> None:
    """Points in the list at the top stand in the table of their federation."""
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    scores = defaults.read(RECORDED / "defaults.jsonl")
    titles = {
        "Vowels": "vowel",
        "Digits": "digits, Dirichlet 0.1",
        "Adult": "adult",
        "MNIST by writer": "mnist-writers, 10 per round",
    }
    for title, name in titles.items():
        (text,) = re.findall(rf"^- \*\*{title}\*\*(?:.|\n  )*", page, re.MULTILINE)
        table = "\n".join(defaults.table(name, defaults.complete(name, scores)))
        for rule, points in re.findall(r"`([a-z+-]+)` ([+-][0-9]+[.][0-9])", text):
            (row,) = re.findall(rf"^\| {re.escape(rule)} \|.*$", table, re.MULTILINE)
            assert f"| {points}* |" in row, (title, rule, row)
