"""What a person sees: tables in four formats, a verdict, the generated page of rules."""

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from commonweal import catalog, metrics, report
from commonweal.compare import Result

NAMES = ("a", "b", "c")


def made(label: str, scores: list[list[float]]) -> Result:
    array = np.array(scores)
    return Result(label, NAMES, array, [metrics.summary(row, names=NAMES) for row in array])


@pytest.fixture
def pair() -> list[Result]:
    return [
        made("fedavg", [[0.2, 0.8, 0.9], [0.3, 0.8, 0.9], [0.2, 0.7, 0.9]]),
        made("term", [[0.5, 0.7, 0.8], [0.6, 0.7, 0.8], [0.5, 0.6, 0.8]]),
    ]


def test_figures_are_means_and_population_stds_over_seeds_in_per_cent(pair: list[Result]) -> None:
    grid = report.comparison(pair, "accuracy")
    worst = np.array([20.0, 30.0, 20.0])
    assert grid.header[:7] == ["rule", "mean", "worst", "best", "std", "Gini", "gap"]
    assert grid.rows[0][2] == f"{worst.mean():.1f}±{worst.std():.1f}"
    assert grid.rows[1][0] == "term"


def test_best_and_second_best_follow_each_metrics_direction(pair: list[Result]) -> None:
    grid = report.comparison(pair, "accuracy")
    marks = dict(zip(grid.header, zip(*grid.marks, strict=True), strict=True))
    assert marks["worst"] == (2, 1)  # term is better at the worst client
    assert marks["best"] == (1, 2)
    assert marks["gap"] == marks["std"] == marks["Gini"] == (2, 1)  # there lower is better


def test_the_paired_difference_has_an_interval_or_an_honest_word(pair: list[Result]) -> None:
    row = dict(
        zip(report.comparison(pair, "accuracy").header, report.comparison(pair, "accuracy").rows[1], strict=True)
    )
    assert row["worst against fedavg"].startswith("+30.0 [")
    same = [pair[0], made("term", [[0.2, 0.9, 0.8], [0.4, 0.7, 0.9], [0.1, 0.8, 0.9]])]
    again = dict(
        zip(report.comparison(same, "accuracy").header, report.comparison(same, "accuracy").rows[1], strict=True)
    )
    assert "not distinguishable" in again["mean against fedavg"]


def test_suffering_and_thriving_are_told_against_fedavg_only(pair: list[Result]) -> None:
    row = dict(
        zip(report.comparison(pair, "accuracy").header, report.comparison(pair, "accuracy").rows[1], strict=True)
    )
    assert row["suffering improved"] == "100 % (+30.0)"
    assert row["thriving degraded"] == "100 % (-10.0)"
    other = [made("uniform", pair[0].scores.tolist()), pair[1]]
    assert "suffering improved" not in report.comparison(other, "accuracy").header


def test_tails_are_compared_where_clients_are_many() -> None:
    names = tuple(map(str, range(20)))
    scores = np.linspace(0.1, 0.9, 40).reshape(2, 20)
    many = Result("fedavg", names, scores, [metrics.summary(row, names=names) for row in scores])
    assert report.comparison([many], "accuracy").header[2] == "worst 10 %"


def test_a_single_result_needs_no_differences(pair: list[Result]) -> None:
    grid = report.comparison(pair[:1], "accuracy")
    assert all(mark == 0 for mark in grid.marks[0])
    for form in report.MARKS:
        assert report.render(grid, form)  # type: ignore[arg-type]


def test_markdown_latex_and_csv_hold_the_same_cells(pair: list[Result]) -> None:
    grid = report.comparison(pair, "accuracy")
    markdown, latex, table = (str(report.render(grid, form)) for form in ("markdown", "latex", "csv"))  # type: ignore[arg-type]
    assert "| fedavg |" in markdown and "**" in markdown and "<u>" in markdown
    assert r"\begin{tabular}" in latex and r"\textbf{" in latex and r"10.0 \%" not in latex
    assert table.splitlines()[0].split(",")[:3] == ["rule", "mean", "worst"]
    assert len(table.splitlines()) == 3


def test_the_terminal_fits_eighty_columns(pair: list[Result]) -> None:
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(report.render(report.comparison(pair, "accuracy"), "terminal"))
    console.file.close()
    text = console.export_text()
    assert "fedavg" in text and "degraded" in text and "…" not in text


def test_the_verdict_names_the_worst_off_and_the_cost(pair: list[Result]) -> None:
    text = report.verdict(*pair)
    assert "term moves a, whom fedavg serves worst, by +30.0 points" in text
    assert "1 clients gain, 2 lose, the mean changes by +3.3" in text


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_picture_is_drawn(pair: list[Result], tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "deep" / f"p.{suffix}"
    report.draw(path, pair, "accuracy")
    assert path.stat().st_size > 1000


def test_every_rule_has_a_kind_and_a_row() -> None:
    rows = report.rules_table().splitlines()[2:]
    assert sorted(row.split(" | ")[0].removeprefix("| ") for row in rows) == sorted(catalog.entries("rules"))


def test_the_page_of_rules_is_as_the_code_makes_it(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).resolve().parents[1] / "docs" / "rules.md"
    report.main()
    assert capsys.readouterr().out == page.read_text(encoding="utf-8"), (
        "run: python -m commonweal.report > docs/rules.md"
    )
