"""A comparison as numbers and as tables in all formats."""

import io
import math
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from commonweal import metrics
from commonweal.analysis.compare import Result
from commonweal.analysis.curves import CURVES
from commonweal.base.errors import ConfigError
from commonweal.record.record import Record
from commonweal.report import FORMATS
from commonweal.report.compare import Comparison
from commonweal.report.comparison import chosen_columns, layout, lines, render, summarize
from commonweal.report.formats import METRICS, Column, show_score
from commonweal.report.overview import overview
from page_helpers import make_runs

NAMES = ("a", "b", "c")


def made(label: str, scores: list[list[float]], lower: bool = False) -> Result:
    array = np.array(scores)
    summaries = [metrics.summary(row, names=NAMES, lower_is_better=lower) for row in array]
    return Result(label, NAMES, array, summaries, lower_is_better=lower)


NOISE = np.array([[0.0103], [0.0017], [-0.012]])  # over seeds; of no common step, and of mean 0


@pytest.fixture
def pair() -> list[Result]:
    """With term, a gains 30 points and the others lose 10."""
    fedavg = np.array([[0.2, 0.8, 0.9], [0.3, 0.8, 0.9], [0.2, 0.7, 0.9]])
    term = fedavg + np.array([0.3, -0.1, -0.1]) + NOISE
    return [made("fedavg", fedavg.tolist()), made("term", term.tolist())]


def columns(results: list[Result], score: str = "accuracy") -> dict[str, Column]:
    return {column.title: column for column in layout(summarize(results, score)).columns}


def test_a_comparison_holds_numbers(pair: list[Result]) -> None:
    numbers = summarize(pair, "accuracy")
    assert numbers.labels == ("fedavg", "term")
    assert (numbers.clients, numbers.seeds) == (3, 3)
    assert list(numbers.values) == ["mean", "worst", "best", "std", "gini", "gap"]
    assert numbers.values["worst"][0].tolist() == [0.2, 0.3, 0.2]
    assert numbers.values["worst"][1] == pytest.approx([0.5103, 0.6017, 0.488])
    assert numbers.differences["worst"][0].difference == pytest.approx(0.3)
    assert numbers.against["term"].suffering_improved == 1.0


def test_figures_are_means_and_population_stds_over_seeds_in_per_cent(pair: list[Result]) -> None:
    grid = layout(summarize(pair, "accuracy"))
    worst = np.array([20.0, 30.0, 20.0])
    titles = [column.title for column in grid.figures]
    assert titles == ["mean", "worst", "best", "std", "Gini", "gap"]
    assert grid.figures[1].cells[0] == f"{worst.mean():.1f}±{worst.std():.1f}"
    assert grid.labels[1] == "term"
    assert grid.title == "accuracy over 3 clients in %, mean±std over 3 seeds"


def test_scores_that_are_no_fractions_are_not_in_per_cent(pair: list[Result]) -> None:
    grid = layout(summarize(pair, "neg-mae"))
    assert "%" not in grid.title
    assert grid.figures[1].cells[0] == "0.233±0.047"


def test_the_best_cell_is_marked_only_where_it_is_significantly_better(pair: list[Result]) -> None:
    found = columns(pair)
    assert found["worst"].best == 1  # about 0.3 higher in every seed
    assert found["best"].best == 0
    assert found["std"].best == found["Gini"].best == 1  # lower is better
    assert found["gap"].best is None  # the same difference in every seed: no interval
    noisy = made("term", [[0.5, 0.7, 0.8], [0.2, 0.7, 0.8], [0.5, 0.6, 0.8]])
    assert columns([pair[0], noisy])["worst"].best is None  # +30, -10 and +30 points
    assert all(
        c.best is None
        for c in columns([made(r.label, [r.scores[0].tolist()]) for r in pair]).values()
    )
    errors = [made(r.label, r.scores.tolist(), lower=True) for r in pair]
    assert (columns(errors, "mae")["worst"].best, columns(errors, "mae")["best"].best) == (1, 0)


def test_every_metric_of_a_summary_has_a_title() -> None:
    assert {*metrics.summary([0.5, 0.6], [1, 2]), "variance", *CURVES} == set(METRICS)


def test_metrics_that_are_undefined_are_not_marked() -> None:
    negative = [made("fedavg", [[-0.2, 0.8, 0.9]]), made("term", [[0.5, 0.7, 0.8]])]
    assert columns(negative)["Gini"].best is None


def test_a_gain_has_an_interval_or_is_called_not_significant(pair: list[Result]) -> None:
    assert columns(pair)["gain in worst over fedavg"].cells[1].startswith("+30.0 [")
    same = [pair[0], made("term", [[0.2, 0.9, 0.8], [0.4, 0.7, 0.9], [0.1, 0.8, 0.9]])]
    assert columns(same)["gain in mean over fedavg"].cells[1] == "+0.0 (n.s.)"


def test_above_zero_is_better_also_for_errors() -> None:
    before = [[2.0, 4.0, 6.0], [2.1, 4.1, 6.1], [2.2, 4.0, 6.1]]
    after = [[1.0, 3.0, 4.0], [1.2, 3.2, 4.017], [1.1, 3.1, 4.2]]  # MAE falls: all gain
    pair = [made("fedavg", before, lower=True), made("term", after, lower=True)]
    found = columns(pair, "mae")
    gain = stats.ttest_1samp(np.mean(before, 1) - np.mean(after, 1), 0).confidence_interval(0.95)
    expected = f"{np.mean(before) - np.mean(after):+.2f} [{gain.low:+.2f}, {gain.high:+.2f}]"
    assert found["gain in mean over fedavg"].cells[1] == expected
    assert found["suffering improved"].cells[1] == "100 % (+1.99)"
    assert found["thriving degraded"].cells[1] == "0 % (+0.967)"
    assert "clients above, below FedAvg's mean" in layout(summarize(pair, "mae")).notes[-1]
    (line,) = [row for row in lines(summarize(pair, "mae")) if row["rule"] == "term"]
    assert float(str(line["mean_difference"])) < 0  # numbers stay differences of scores


def test_errors_and_small_scores_are_summarised_with_their_digits(tmp_path: Path) -> None:
    """The page and the report: lower is better for errors, and R² is not rounded to 0.9."""
    (folder,) = make_runs(tmp_path, ["fedavg"], seeds=1, rounds=2, names=NAMES)
    records = {"fedavg": [Record.read(folder)]}
    errors = [[20.0, 12.0, 13.0], [20.5, 12.5, 13.4], [21.0, 12.2, 13.1]]
    local = [[10.0, 14.0, 13.0], [10.2, 14.8, 13.4], [10.1, 14.6, 13.1]]
    results = [made("fedavg", errors, lower=True)]
    baselines = [made("alone", local, lower=True)]
    seen = overview(Comparison("mae", results, baselines, [], records))
    assert "MAE (lower is better) of 3 clients" in seen.about
    assert seen.cards[2].value.startswith("a 20.5")  # the largest error is served worst
    named = {each.title: each.clients[0][0] for each in seen.named}
    assert named == {"Gain most with fedavg": "b", "Left behind by fedavg": "a"}
    table = {column.title: column.cells for column in seen.table.columns}
    assert table["worst client"] == ["20.5", "14.5"] and table["mean"] == ["15.3", "12.6"]
    assert table["mean gain over local"][0].startswith("-2.72 [-2.9")
    fedavg = made("fedavg", [[0.912, 0.934, 0.921], [0.916, 0.931, 0.925]])
    afl = made("afl", [[0.941, 0.932, 0.935]] * 2)
    seen = overview(Comparison("r2", [fedavg, afl], [], [], records))
    table = {column.title: column.cells for column in seen.table.columns}
    assert table["mean"] == ["0.923", "0.936"]


def test_suffering_and_thriving_are_relative_to_fedavg_only(pair: list[Result]) -> None:
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
    assert layout(summarize([many], "accuracy")).figures[1].title == "worst 10 %"


def test_a_single_result_needs_no_differences(pair: list[Result]) -> None:
    numbers = summarize(pair[:1], "accuracy")
    grid = layout(numbers)
    assert grid.differences == []
    assert all(column.best is None for column in grid.figures)
    for form in FORMATS:
        assert render(numbers, form)


def test_markdown_and_latex_hold_the_same_cells(pair: list[Result]) -> None:
    numbers = summarize(pair, "accuracy")
    markdown, latex = (str(render(numbers, form)) for form in ("markdown", "latex"))
    assert "| fedavg |" in markdown
    assert "**" in markdown
    assert r"\begin{tabular}" in latex
    assert r"\textbf{" in latex
    assert r"100 \% (+30.0)" in latex
    assert r"10.0 \%" not in latex
    for column in layout(numbers).columns:
        for cell in column.cells:
            assert cell in markdown
            text = cell.replace("%", r"\%").replace("±", r"$\pm$")
            assert re.sub(r"(?<!\d)-(?=\d)", "$-$", text) in latex


def printed(results: list[Result], width: int) -> str:
    file = io.StringIO()
    Console(width=width, file=file).print(render(summarize(results, "accuracy"), "terminal"))
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
    for column in layout(summarize(long, "accuracy")).figures:
        assert all(cell in text for cell in column.cells)


def test_scores_are_shown_with_their_unit() -> None:
    assert show_score(0.123456, "accuracy") == "12.35 %"
    assert show_score(-0.5, "neg-mae") == "-0.500"
    assert show_score(math.nan, "accuracy") == "-"


# Columns, digits and seeds


def by_rows(label: str, scores: list[list[float]], rows: list[int]) -> Result:
    summaries = [metrics.summary(row, rows, NAMES) for row in scores]
    return Result(label, NAMES, np.array(scores), summaries)


def test_the_mean_by_rows_stands_beside_the_mean_by_clients() -> None:
    result = by_rows("fedavg", [[0.2, 0.8, 0.5], [0.4, 0.8, 0.5]], [10, 30, 60])
    found = columns([result])
    assert found["mean"].cells == [f"{(50 + 170 / 3) / 2:.1f}±{(170 / 3 - 50) / 2:.1f}"]
    assert found["mean by samples"].cells == ["57.0±1.0"]  # (2 + 24 + 30) and (4 + 24 + 30)


def test_the_columns_of_papers_with_two_decimals() -> None:
    result = by_rows("fedavg", [[0.2, 0.8, 0.5]], [10, 30, 60])
    chosen = chosen_columns("qffl")
    grid = layout(summarize([result], "accuracy", chosen), decimals=2)
    assert [c.title for c in grid.figures] == [
        "mean by samples",
        "worst 10 %",
        "best 10 %",
        "variance",
    ]
    variance = np.var([20.0, 80.0, 50.0])
    assert [c.cells[0] for c in grid.figures] == ["56.00", "20.00", "80.00", f"{variance:.2f}"]


def test_chosen_columns_keep_the_differences_that_count(pair: list[Result]) -> None:
    numbers = summarize(pair, "accuracy", ["std", "worst_20"])
    assert list(numbers.values) == ["std", "worst_20"]
    assert list(numbers.differences) == ["mean", "worst_20"]
    with pytest.raises(ConfigError, match="did you mean 'worst_10'"):
        chosen_columns("mean,worst10")


def test_one_seed_has_no_deviation(pair: list[Result]) -> None:
    one = [made(r.label, r.scores[:1].tolist()) for r in pair]
    numbers = summarize(one, "accuracy")
    grid = layout(numbers)
    assert "±" not in grid.title
    assert not any("±" in cell for column in grid.columns for cell in column.cells)
    assert lines(numbers)[0]["mean_std"] is None
    assert "one seed shows no significant difference: run at least three" in grid.notes


def test_the_table_of_local_training_has_all_formats(pair: list[Result]) -> None:
    numbers = summarize(pair, "accuracy", baselines=[made("alone", [[0.4, 0.4, 0.4]] * 3)])
    latex = str(render(numbers, "latex"))
    assert latex.count(r"\begin{tabular}") == 3
    assert "1 / 1 / 1" in latex and "2 / 1 / 0" in latex
    markdown = str(render(numbers, "markdown"))
    assert "| fedavg | 1 / 1 / 1 |" in markdown
    gain = stats.ttest_1samp((pair[1].scores - 0.4).mean(1), 0).confidence_interval(0.95)
    line = lines(numbers)[1]
    assert line["mean_against_alone_low"] == pytest.approx(gain.low)
    assert line["mean_against_alone_high"] == pytest.approx(gain.high)


@pytest.mark.parametrize("labels", [["fedavg", "aaggff-s"], ["fedavg", "my_rules:MaxMin(k=5)"]])
def test_nothing_is_cropped_in_80_columns(labels: list[str]) -> None:
    rng = np.random.default_rng(1)
    results = [made(label, (0.5 + 0.1 * rng.random((3, 3))).tolist()) for label in labels]
    results.append(made("other", (0.8 + 0.1 * rng.random((3, 3))).tolist()))
    alone = made("alone", (0.4 + 0.1 * rng.random((3, 3))).tolist())
    numbers = summarize(results, "accuracy", baselines=[alone])
    file = io.StringIO()
    Console(width=80, file=file).print(render(numbers, "terminal"))
    text = file.getvalue()
    assert max(len(line) for line in text.splitlines()) <= 80
    words = set(text.split())
    grid = layout(numbers)
    for column in [*grid.columns, *grid.against_local]:
        assert set(column.title.split()) <= words
        for cell in column.cells:
            assert set(cell.split()) <= words
