"""What a person sees: tables in four formats, a verdict, figures, lists, the page of rules."""

import io
import math
from pathlib import Path

import numpy as np
import pytest
import rules_page
from rich.console import Console
from scipy import stats

from commonweal import metrics
from commonweal.analysis.compare import Result
from commonweal.analysis.worth import worth
from commonweal.base.errors import ConfigError
from commonweal.config import catalog
from commonweal.data.federation import Federation
from commonweal.report import FORMATS, figures, listing, tables
from commonweal.report.tables import Column, comparison, layout, render
from commonweal.rules.rule import Rule
from commonweal.training import scores

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


def columns(results: list[Result], score: str = "accuracy") -> dict[str, Column]:
    return {column.title: column for column in layout(comparison(results, score)).columns}


def test_a_comparison_holds_numbers(pair: list[Result]) -> None:
    numbers = comparison(pair, "accuracy")
    assert numbers.labels == ("fedavg", "term")
    assert (numbers.clients, numbers.seeds, numbers.baseline) == (3, 3, "fedavg")
    assert list(numbers.values) == ["mean", "worst", "best", "std", "gini", "gap"]
    assert numbers.values["worst"].tolist() == [[0.2, 0.3, 0.2], [0.5, 0.6, 0.5]]
    assert numbers.differences["worst"][0].difference == pytest.approx(0.3)
    assert numbers.against["term"].suffering_improved == 1.0


def test_figures_are_means_and_population_stds_over_seeds_in_per_cent(pair: list[Result]) -> None:
    grid = layout(comparison(pair, "accuracy"))
    worst = np.array([20.0, 30.0, 20.0])
    titles = [column.title for column in grid.figures]
    assert titles == ["mean", "worst", "best", "std", "Gini", "gap"]
    assert grid.figures[1].cells[0] == f"{worst.mean():.1f}±{worst.std():.1f}"
    assert grid.labels[1] == "term"
    assert grid.title == "accuracy over 3 clients in %, mean±std over 3 seeds"


def test_scores_that_are_no_fractions_are_not_in_per_cent(pair: list[Result]) -> None:
    grid = layout(comparison(pair, "neg-mae"))
    assert "%" not in grid.title
    assert grid.figures[1].cells[0] == "0.233±0.047"


def test_best_and_second_best_follow_each_metrics_direction(pair: list[Result]) -> None:
    found = columns(pair)
    assert found["worst"].marks == [2, 1]  # term is better at the worst client
    assert found["best"].marks == [1, 2]
    for title in ("gap", "std", "Gini"):  # there lower is better
        assert found[title].marks == [2, 1]


def test_every_metric_of_a_summary_has_a_title() -> None:
    assert {*metrics.summary([0.5, 0.6], [1, 2]), "variance"} == set(tables.METRICS)


def test_metrics_that_are_undefined_are_not_marked() -> None:
    negative = [made("fedavg", [[-0.2, 0.8, 0.9]]), made("term", [[0.5, 0.7, 0.8]])]
    assert columns(negative)["Gini"].marks == [0, 1]


def test_the_paired_difference_has_an_interval_or_an_honest_word(pair: list[Result]) -> None:
    assert columns(pair)["worst against fedavg"].cells[1] == "+30.0 (not significant)"  # always 30
    varied = [pair[0], made("term", (pair[1].scores + np.array([[0.01], [0.0], [-0.02]])).tolist())]
    assert columns(varied)["worst against fedavg"].cells[1].startswith("+29.7 [")
    same = [pair[0], made("term", [[0.2, 0.9, 0.8], [0.4, 0.7, 0.9], [0.1, 0.8, 0.9]])]
    assert "not significant" in columns(same)["mean against fedavg"].cells[1]


def test_suffering_and_thriving_are_told_against_fedavg_only(pair: list[Result]) -> None:
    found = columns(pair)
    assert found["suffering improved"].cells == ["", "100 % (+30.0)"]
    assert found["thriving degraded"].cells == ["", "100 % (-10.0)"]
    other = [made("uniform", pair[0].scores.tolist()), pair[1]]
    assert "suffering improved" not in columns(other)


def test_clients_that_only_one_result_has_are_left_out_of_the_changes(pair: list[Result]) -> None:
    fewer = Result("term", ("a", "c"), pair[1].scores[:, [0, 2]], pair[1].metrics)
    assert columns([pair[0], fewer])["suffering improved"].cells[1] == "100 % (+30.0)"


def test_tails_are_compared_where_clients_are_many() -> None:
    names = tuple(map(str, range(20)))
    values = np.linspace(0.1, 0.9, 40).reshape(2, 20)
    summaries = [metrics.summary(row, names=names) for row in values]
    many = Result("fedavg", names, values, summaries)
    assert layout(comparison([many], "accuracy")).figures[1].title == "worst 10 %"


def test_a_single_result_needs_no_differences(pair: list[Result]) -> None:
    numbers = comparison(pair[:1], "accuracy")
    grid = layout(numbers)
    assert grid.differences == []
    assert all(column.marks == [0] for column in grid.figures)
    for form in FORMATS:
        assert render(numbers, form)


def test_markdown_and_latex_hold_the_same_cells(pair: list[Result]) -> None:
    numbers = comparison(pair, "accuracy")
    markdown, latex = (str(render(numbers, form)) for form in ("markdown", "latex"))
    assert "| fedavg |" in markdown
    assert "**" in markdown
    assert "<u>" in markdown
    assert r"\begin{tabular}" in latex
    assert r"\textbf{" in latex
    assert r"100 \% (+30.0)" in latex
    assert r"10.0 \%" not in latex
    for column in layout(numbers).columns:
        for cell in column.cells:
            assert cell in markdown
            assert cell.replace("%", r"\%").replace("±", r"$\pm$") in latex


def printed(results: list[Result], width: int) -> str:
    file = io.StringIO()
    Console(width=width, file=file).print(render(comparison(results, "accuracy"), "terminal"))
    return file.getvalue()


def test_the_terminal_fits_eighty_columns(pair: list[Result]) -> None:
    text = printed(pair, 80)
    assert "fedavg" in text
    assert "degraded" in text
    assert "…" not in text


def test_long_labels_are_folded_and_numbers_stay_whole() -> None:
    label = "aaggff-s(cdf=frechet,beta=0.25) client=superfed-lm"
    long = [made(f"{label} {k}", [[0.1, 1.0, 1.0]] * 2) for k in (1, 2)]
    text = printed(long, 80)
    assert "…" not in text
    letters = "".join(line[:20].strip() for line in text.splitlines())
    assert "client=superfed-lm" in letters.replace(" ", "")
    for column in layout(comparison(long, "accuracy")).figures:
        assert all(cell in text for cell in column.cells)


def test_the_verdict_names_the_worst_off_and_the_cost(pair: list[Result]) -> None:
    base, fair = pair
    text = tables.verdict(base, fair)
    assert "term changes the score of a, the worst off under fedavg, by +30.0 points" in text
    assert "of 3 clients 1 gain and 2 lose, and the mean changes by +3.3" in text
    assert "The worst client of a seed changes by +30.0 (not significant)" in text
    varied = made("term", (fair.scores + np.array([[0.01], [0.0], [-0.02]])).tolist())
    assert "changes by +29.7 (between " in tables.verdict(base, varied)


def test_scores_are_shown_with_their_unit() -> None:
    assert tables.show_score(0.123456, "accuracy") == "12.35 %"
    assert tables.show_score(-0.5, "neg-mae") == "-0.500"
    assert tables.show_score(math.nan, "accuracy") == "-"


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_figure_is_drawn(pair: list[Result], tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "deep" / f"p.{suffix}"
    figures.draw_scores(path, pair, "accuracy")
    assert path.stat().st_size > 1000


def test_a_figure_of_results_with_other_clients(pair: list[Result], tmp_path: Path) -> None:
    path = tmp_path / "p.png"
    other = Result("other", ("c", "new"), pair[1].scores[:, :2], pair[1].metrics)
    figures.draw_scores(path, [*pair, other], "accuracy")
    assert path.stat().st_size > 1000


@pytest.mark.parametrize("clients", [3, 250])
@pytest.mark.parametrize("classes", [True, False])
def test_a_federation_is_drawn(tmp_path: Path, clients: int, classes: bool) -> None:
    rng = np.random.default_rng(0)
    owner = [f"c{k:03d}" for k in range(clients) for _ in range(4)]
    x = rng.normal(size=(len(owner), 2))
    y = (x[:, 0] > 0).astype(int) if classes else x[:, 0]
    path = tmp_path / "f.png"
    figures.draw_federation(path, Federation.from_arrays(x, y, owner), "rows")
    assert path.stat().st_size > 1000


def test_neighbours_are_averaged_where_clients_are_many() -> None:
    counts = np.arange(1000.0)[:, None]
    means = figures._averaged(counts)
    assert means.shape == (200, 1)
    assert means[:2, 0].tolist() == [2.0, 7.0]
    assert figures._averaged(counts[:200]).tolist() == counts[:200].tolist()


# Lists and the page of rules


def test_families_are_read_as_the_classes_have_them() -> None:
    for family, entries in listing.families().items():
        for entry in entries:
            rule = entry.factory
            assert isinstance(rule, type)
            assert issubclass(rule, Rule)
            assert rule.kind.family == family
    assert {entry.name for found in listing.families().values() for entry in found} == set(
        catalog.entries("rules")
    )


def test_metrics_and_scores_are_read_as_the_modules_have_them() -> None:
    functions = {name for name in metrics.__all__ if name[0].islower()}
    assert set(listing.summaries("metrics")) == functions
    meanings = {name: score.meaning for name, score in scores.SCORES.items()}
    assert listing.summaries("scores") == meanings


def test_every_rule_has_a_row() -> None:
    rows = rules_page.rules_table().splitlines()[2:]
    names = sorted(row.split(" | ")[0].removeprefix("| ") for row in rows)
    assert names == sorted(catalog.entries("rules"))


def test_the_page_of_rules_is_as_the_code_makes_it() -> None:
    page = (Path(__file__).parents[2] / "docs" / "rules.md").read_text(encoding="utf-8")
    assert rules_page.renew(page) == page, "run: python docs/_site/rules_page.py docs/rules.md"
    assert rules_page.renew(page.replace("| fedavg |", "| other |")) == page


# Columns, digits and seeds


def by_rows(label: str, scores: list[list[float]], rows: list[int]) -> Result:
    summaries = [metrics.summary(row, rows, NAMES) for row in scores]
    return Result(label, NAMES, np.array(scores), summaries)


def test_the_mean_by_rows_stands_beside_the_mean_by_clients() -> None:
    result = by_rows("fedavg", [[0.2, 0.8, 0.5], [0.4, 0.8, 0.5]], [10, 30, 60])
    found = columns([result])
    assert found["mean"].cells == [f"{(50 + 170 / 3) / 2:.1f}±{(170 / 3 - 50) / 2:.1f}"]
    assert found["mean by rows"].cells == ["57.0±1.0"]  # (2 + 24 + 30) and (4 + 24 + 30)


def test_the_columns_of_papers_with_two_decimals() -> None:
    result = by_rows("fedavg", [[0.2, 0.8, 0.5]], [10, 30, 60])
    chosen = tables.chosen_columns("qffl")
    grid = layout(comparison([result], "accuracy", chosen), decimals=2)
    assert [c.title for c in grid.figures] == [
        "mean by rows",
        "worst 10 %",
        "best 10 %",
        "variance",
    ]
    variance = np.var([20.0, 80.0, 50.0])
    assert [c.cells[0] for c in grid.figures] == ["56.00", "20.00", "80.00", f"{variance:.2f}"]


def test_chosen_columns_keep_the_differences_that_count(pair: list[Result]) -> None:
    numbers = comparison(pair, "accuracy", ["std", "worst_20"])
    assert list(numbers.values) == ["std", "worst_20"]
    assert list(numbers.differences) == ["mean", "worst_20"]
    with pytest.raises(ConfigError, match="did you mean 'worst_10'"):
        tables.chosen_columns("mean,worst10")


def test_one_seed_has_no_deviation(pair: list[Result]) -> None:
    one = [made(r.label, r.scores[:1].tolist()) for r in pair]
    numbers = comparison(one, "accuracy")
    grid = layout(numbers)
    assert "±" not in grid.title
    assert not any("±" in cell for column in grid.columns for cell in column.cells)
    assert tables.lines(numbers)[0]["mean_std"] is None
    assert "one seed shows no significance: take more" in grid.notes


def test_the_table_against_training_alone_has_all_formats(pair: list[Result]) -> None:
    found = worth(pair, [made("alone", [[0.4, 0.4, 0.4]] * 3)])
    numbers = comparison(pair, "accuracy", found=found)
    latex = str(render(numbers, "latex"))
    assert latex.count(r"\begin{tabular}") == 3
    assert "2 of 3" in latex and "3 of 3" in latex and "% Gains" not in latex
    markdown = str(render(numbers, "markdown"))
    assert "| fedavg | 2 of 3 |" in markdown
    gain = stats.ttest_1samp((pair[1].scores - 0.4).mean(1), 0).confidence_interval(0.95)
    line = tables.lines(numbers)[1]
    correction = 1 / 30 / 2 / 3  # gains come in steps of 1/30
    assert line["mean_against_alone_low"] == pytest.approx(gain.low - correction)
    assert line["mean_against_alone_high"] == pytest.approx(gain.high + correction)


@pytest.mark.parametrize("labels", [["fedavg", "aaggff-s"], ["fedavg", "my_rules:MaxMin(k=5)"]])
def test_nothing_is_cropped_in_80_columns(labels: list[str]) -> None:
    rng = np.random.default_rng(1)
    results = [made(label, (0.5 + 0.1 * rng.random((3, 3))).tolist()) for label in labels]
    results.append(made("other", (0.8 + 0.1 * rng.random((3, 3))).tolist()))
    found = worth(results, [made("alone", (0.4 + 0.1 * rng.random((3, 3))).tolist())])
    numbers = comparison(results, "accuracy", found=found)
    file = io.StringIO()
    Console(width=80, file=file).print(render(numbers, "terminal"))
    text = file.getvalue()
    assert max(len(line) for line in text.splitlines()) <= 80
    words = set(text.split())
    grid = layout(numbers)
    for column in [*grid.figures, *grid.differences, *grid.worth]:
        assert set(column.title.split()) <= words
        for cell in column.cells:
            assert set(cell.replace(tables.NOT_SIGNIFICANT, "(n.s.)").split()) <= words
