"""Every figure in a table of docs/results.md stands in a recorded result."""

import re
from pathlib import Path

import defaults

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "benchmarks" / "recorded"


def recorded() -> set[str]:
    """The rows of all tables that benchmarks printed, or would print of their recorded runs."""
    lines: set[str] = set()
    for file in RECORDED.glob("*.txt"):
        lines.update(file.read_text(encoding="utf-8").splitlines())
    scores = defaults.read(RECORDED / "defaults.jsonl")
    for name in defaults.SETS:
        values = defaults.complete(name, scores)
        lines.update("\n".join(defaults.table(name, values)).splitlines())
    return lines


def test_tables_of_results_are_as_recorded() -> None:
    known = recorded()
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if re.match(r"\||\*\*\w.*seeds\)", line)]
    assert len(rows) > 100
    for row in rows:
        assert row in known, row
    personal = (ROOT / "docs" / "personal.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:fedavg|aaggff-s) client=.*$", personal, re.MULTILINE)
    assert len(rows) == 18 and known.issuperset(rows)


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
