"""What a person sees of a comparison: the headline, cards, names and tables, in all formats."""

import io
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from commonweal import metrics
from commonweal.base.errors import ConfigError
from commonweal.record.record import Record
from commonweal.report import FORMATS, text
from commonweal.report.formats import ReportColumn, ReportTable
from commonweal.report.overview import overview
from commonweal.study.comparison import Comparison
from commonweal.study.curves import CURVES
from commonweal.study.judging import Contrast
from commonweal.study.results import Result
from commonweal.study.units import METRICS, chosen_columns, show_score
from comparison_helpers import CLIENTS, compared, judged, made
from page_helpers import make_runs

FEDAVG = [[0.2, 0.8, 0.9], [0.3, 0.8, 0.9], [0.2, 0.7, 0.9]]
TERM = [[0.5, 0.7, 0.8], [0.6, 0.7, 0.8], [0.5, 0.6, 0.8]]
ALONE = [[0.4, 0.4, 0.4]] * 3


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    (folder,) = make_runs(tmp_path_factory.mktemp("r"), ["fedavg"], seeds=1, names=CLIENTS)
    return Record.read(folder)


def pair(record: Record, local: bool = True, score: str = "accuracy") -> Comparison:
    """FedAvg and TERM; with local training, a gains 10 points with TERM and 17 less with FedAvg."""
    results = [made("fedavg", FEDAVG), made("term", TERM)]
    baselines = [made("alone", ALONE), made("pooled", [[0.7, 0.7, 0.7]] * 3)] if local else []
    gains = {"fedavg": [-1 / 6, 11 / 30, 0.5], "term": [0.4 / 3, 0.8 / 3, 0.4]}
    return compared(
        results,
        baselines,
        score,
        judged(gains) if local else None,
        {
            "mean": {"term": Contrast(0.0, -0.1, 0.1, False)},
            "worst": {"term": Contrast(0.3, 0.2, 0.4, True)},
        },
        {result.label: [record] * 3 for result in (*results, *baselines)},
        best={"worst": "term"},
    )


def columns(table: ReportTable | None) -> dict[str, ReportColumn]:
    assert table is not None
    return {column.title: column for column in table.columns}


def test_the_headline_is_the_verdict(record: Record) -> None:
    comparison = pair(record)
    seen = overview(comparison)
    assert seen.headline == comparison.verdict
    assert seen.headline.startswith("Joining helps: with term, the best of 2 methods here, ")
    assert seen.cards[0].value == "+26.7" and "to" in seen.cards[0].more


def test_without_local_training_the_headline_is_about_the_worst_clients(record: Record) -> None:
    comparison = pair(record, local=False)
    seen = overview(comparison)
    assert comparison.verdict == ""
    assert seen.headline == (
        "term serves the worst clients significantly better than fedavg: +30.0 points."
    )
    assert "Local training was not run" in seen.about
    unclear = compared(comparison.results, records=comparison.records)
    assert overview(unclear).headline.startswith("No method is significantly better than fedavg")
    single = compared(comparison.results[:1], records=comparison.records)
    assert overview(single).headline == "fedavg: 63.3 % on average over 3 clients."


def test_methods_have_gains_and_baselines_do_not(record: Record) -> None:
    seen = overview(pair(record))
    table = columns(seen.methods)
    assert seen.methods.labels == ["fedavg", "term", "local training", "pooled data"]
    assert table["mean"].cells == ["63.3", "66.7", "40.0", "70.0"]
    assert table["worst"].cells == ["23.3", "53.3", "40.0", "70.0"]
    assert table["worst"].best == 1 and table["mean"].best is None
    gains = table["mean gain over local training"].cells
    assert gains[0].startswith("+23.3 [") and gains[2:] == ["", ""]
    assert table["clients better · n.s. · worse"].cells == ["2 · 0 · 1", "3 · 0 · 0", "", ""]


def test_who_gains_and_loses_is_named_for_every_method(record: Record) -> None:
    seen = overview(pair(record))
    assert [str(named) for named in seen.named] == [
        "Significantly better off with term than with local training: c +40.0, b +26.7, a +13.3.",
        "Significantly better off with fedavg than with local training: c +50.0, b +36.7.",
        "Significantly worse off with fedavg than with local training: a -16.7.",
    ]


def test_numbers_are_of_scores_over_all_seeds_with_their_spread(record: Record) -> None:
    seen = overview(pair(record))
    worst = np.array([20.0, 30.0, 20.0])
    assert seen.numbers.title == "All numbers: accuracy of 3 clients in %, ± spread over 3 seeds"
    assert columns(seen.numbers)["worst"].cells[0] == f"{worst.mean():.1f}±{worst.std():.1f}"
    assert list(columns(seen.numbers)) == [
        "mean",
        "mean by samples",
        "worst",
        "best",
        "std",
        "Gini",
        "gap",
    ]


def test_the_worst_client_is_that_of_the_pooled_scores() -> None:
    """In each seed another client is at 0, and over all seeds all are alike."""
    result = made("fedavg", [[0.0, 0.6, 0.6], [0.6, 0.0, 0.6], [0.6, 0.6, 0.0]])
    assert result.metric("worst") == pytest.approx(0.4)
    assert result.metric("std") == pytest.approx(0.0)


def test_scores_that_are_no_fractions_are_not_in_per_cent(record: Record) -> None:
    seen = overview(pair(record, score="neg-mae"))
    assert "%" not in seen.numbers.title
    assert columns(seen.numbers)["worst"].cells[0] == "0.233±0.047"


def test_every_metric_of_a_summary_has_a_title() -> None:
    assert {*metrics.summary([0.5, 0.6], [1, 2]), "variance", *CURVES} == set(METRICS)


def test_gains_over_the_first_method_have_intervals(record: Record) -> None:
    table = columns(overview(pair(record)).gains)
    assert table["gain in mean over fedavg"].cells == ["", "+0.0 [-10.0, +10.0]"]
    assert table["gain in worst over fedavg"].cells == ["", "+30.0 [+20.0, +40.0]"]
    assert table["largest loss of a client to local training"].cells == ["-16.7", "none"]
    assert table["of the way from local to pooled training"].cells == ["78 %", "89 %"]


def test_errors_gain_by_falling(record: Record) -> None:
    """The page and the report: lower is better for errors, and R² is not rounded to 0.9."""
    local = made("alone", [[10.0, 14.0, 13.0]] * 2, lower=True)
    fedavg = made("fedavg", [[20.0, 12.0, 13.0]] * 2, lower=True)
    judgement = judged({"fedavg": [-10.0, 2.0, 0.0]})
    records = {"fedavg": [record] * 2, "alone": [record] * 2}
    seen = overview(compared([fedavg], [local], "mae", judgement, records=records))
    assert "MAE (lower is better) of 3 clients" in seen.about
    assert seen.cards[2].value.startswith("a 20.0")  # the largest error is served worst
    assert [named.clients[0][0] for named in seen.named] == ["b", "a"]
    assert columns(seen.methods)["worst"].cells == ["20.0", "14.0"]
    assert "Joining does not help" in seen.headline
    better = compared([made("fedavg", [[0.912, 0.934, 0.921]])], score="r2", records=records)
    assert columns(overview(better).methods)["mean"].cells == ["0.922"]


def test_suffering_and_thriving_are_relative_to_fedavg_only(record: Record) -> None:
    comparison = pair(record)
    table = columns(overview(comparison).gains)
    assert table["suffering improved"].cells == ["", "100 % (+30.0)"]
    assert table["thriving degraded"].cells == ["", "100 % (-10.0)"]
    other = [made("uniform", FEDAVG), comparison.results[1]]
    records = {"uniform": [record] * 3, "term": [record] * 3}
    assert overview(compared(other, records=records)).gains is None
    fewer = made("term", [[0.5, 0.8], [0.6, 0.8], [0.5, 0.8]], names=("a", "c"))
    changes = compared([comparison.results[0], fewer]).against["term"]
    assert changes.suffering_improved == 1.0  # b has no score


def test_tails_are_compared_where_clients_are_many() -> None:
    names = [str(k) for k in range(20)]
    many = made("fedavg", [np.linspace(0.1, 0.9, 20).tolist()], names=names)
    assert compared([many]).tail == "worst_10"
    assert compared([made("fedavg", FEDAVG)]).tail == "worst"


def test_all_formats_are_written(record: Record) -> None:
    for comparison in (pair(record), pair(record, local=False)):
        for form in FORMATS:
            assert comparison.table(form)


def test_the_verdict_is_in_every_format_but_csv(record: Record) -> None:
    comparison = pair(record)
    for form in ("terminal", "markdown", "latex"):
        assert comparison.verdict in " ".join(comparison.table(form).split())
    assert json.loads(comparison.table("json"))["verdict"] == comparison.verdict


def test_json_and_csv_hold_numbers(record: Record) -> None:
    comparison = pair(record)
    value = json.loads(comparison.table("json"))
    fedavg, term, alone, _ = value["methods"]
    assert term["worst"] == pytest.approx(8 / 15)
    assert (term["worst_difference"], fedavg["worst_difference"]) == (0.3, None)
    assert (fedavg["better_off"], term["excess_max"]) == (pytest.approx(2 / 3), 0.0)
    assert (fedavg["clients_better"], fedavg["clients_worse"]) == (2, 1)
    assert alone["mean_against_alone"] is None
    judgement = value["judgement"]
    assert judgement["says"] == "helps" and judgement["method"] == "term"
    assert judgement["clients"]["fedavg"]["a"]["gain"] == pytest.approx(-1 / 6)
    header, line, *_ = comparison.table("csv").splitlines()
    cell = dict(zip(header.split(","), line.split(","), strict=True))
    assert float(cell["mean"]) == pytest.approx(19 / 30)


def test_markdown_and_latex_hold_the_same_cells(record: Record) -> None:
    comparison = pair(record)
    markdown, latex = comparison.table("markdown"), comparison.table("latex")
    assert "| fedavg |" in markdown and "**53.3**" in markdown
    assert r"\begin{tabular}" in latex and r"\textbf{53.3}" in latex
    seen = overview(comparison)
    for name, table in seen.tables.items():
        for cell in (cell for column in table.columns for cell in column.cells):
            assert cell in markdown
            text = cell.replace("%", r"\%").replace("±", r"$\pm$")
            if name != "clients":
                assert re.sub(r"(?<!\d)-(?=\d)", "$-$", text) in latex


def printed(comparison: Comparison, width: int) -> str:
    file = io.StringIO()
    Console(width=width, file=file).print(text.terminal(overview(comparison)))
    return file.getvalue()


@pytest.mark.parametrize("label", ["aaggff-s", "my_rules:MaxMin(k=5)"])
def test_nothing_is_cropped_in_80_columns(record: Record, label: str) -> None:
    rng = np.random.default_rng(1)
    labels = ["fedavg", label, "other"]
    results = [made(name, (0.5 + 0.1 * rng.random((3, 3))).tolist()) for name in labels]
    gains = {name: [0.01, -0.1, 0.3] for name in labels}
    records = {name: [record] * 3 for name in (*labels, "alone")}
    comparison = compared(results, [made("alone", ALONE)], judgement=judged(gains), records=records)
    written = printed(comparison, 80)
    assert max(len(line) for line in written.splitlines()) <= 80
    words = set(written.split())
    for table in overview(comparison).tables.values():
        for column in table.columns:
            assert set(column.title.split()) <= words
            for cell in column.cells:
                assert set(cell.split()) <= words


def test_long_labels_are_folded_and_numbers_stay_whole(record: Record) -> None:
    label = "aaggff-s(cdf=frechet,beta=0.25) client=superfed-lm"
    long = [made(f"{label} {k}", [[0.1, 1.0, 1.0]] * 2) for k in (1, 2)]
    comparison = compared(long, records={result.label: [record] * 2 for result in long})
    written = printed(comparison, 80)
    assert "…" not in written
    letters = "".join(line[:20].strip() for line in written.splitlines())
    assert "client=superfed-lm" in letters.replace(" ", "")


def test_scores_are_shown_with_their_unit() -> None:
    assert show_score(0.123456, "accuracy") == "12.35 %"
    assert show_score(-0.5, "neg-mae") == "-0.500"
    assert show_score(math.nan, "accuracy") == "-"


# Columns, digits and seeds


def by_rows(record: Record, scores: list[list[float]], rows: list[int]) -> Comparison:
    result = made("fedavg", scores, sizes=rows)
    return compared([result], records={"fedavg": [record] * len(scores)})


def test_the_mean_by_samples_stands_next_to_the_mean_by_clients(record: Record) -> None:
    comparison = by_rows(record, [[0.2, 0.8, 0.5], [0.4, 0.8, 0.5]], [10, 30, 60])
    found = columns(overview(comparison).numbers)
    assert found["mean"].cells == [f"{(50 + 170 / 3) / 2:.1f}±{(170 / 3 - 50) / 2:.1f}"]
    assert found["mean by samples"].cells == ["57.0±1.0"]  # (2 + 24 + 30) and (4 + 24 + 30)


def test_the_columns_of_papers_with_two_decimals(record: Record) -> None:
    comparison = by_rows(record, [[0.2, 0.8, 0.5]], [10, 30, 60])
    found = columns(overview(comparison, chosen_columns("qffl"), 2).numbers)
    assert list(found) == ["mean by samples", "worst 10 %", "best 10 %", "variance"]
    variance = np.var([20.0, 80.0, 50.0])
    cells = [column.cells[0] for column in found.values()]
    assert cells == ["56.00", "20.00", "80.00", f"{variance:.2f}"]
    with pytest.raises(ConfigError, match="did you mean 'worst_10'"):
        chosen_columns("mean,worst10")


def test_one_seed_has_no_spread(record: Record) -> None:
    comparison = by_rows(record, [[0.2, 0.8, 0.5]], [10, 30, 60])
    seen = overview(comparison)
    assert not any("±" in note for note in seen.notes) and "±" not in seen.numbers.title
    assert not any("±" in cell for column in seen.numbers.columns for cell in column.cells)
    assert comparison.lines()[0]["mean_std"] is None


def test_notes_name_the_two_intervals(record: Record) -> None:
    notes = " ".join(overview(pair(record)).notes)
    assert "intervals of these clients' gains" in notes
    assert "for new clients like these, the mean gain with term is between" in notes
    assert "corrected for 3 clients and 2 methods (Holm)" in notes
    assert "would show a mean gain of" in notes


def test_a_client_that_is_not_tested_in_every_seed_has_a_score() -> None:
    scores = np.array([[0.5, np.nan], [1.0, 0.25]])
    sizes = np.array([[30.0, 0.0], [10.0, 4.0]])
    result = Result("fedavg", ("a", "b"), scores, sizes, [{}, {}])
    assert result.by_client == {"a": pytest.approx(0.625), "b": 0.25}


def test_unfinished_runs_are_noted(record: Record, tmp_path: Path) -> None:
    (folder,) = make_runs(tmp_path, ["fedavg"], seeds=1, rounds=4)
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("".join(lines[:2]))
    notes = overview(Comparison.in_folders([folder])).notes
    assert any("has 2 of 4 rounds so far" in note for note in notes)
