"""Figures: the client plot, and those of rounds, weights and data."""

import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from commonweal.base.errors import ConfigError
from commonweal.data.federation import Federation
from commonweal.record.record import Record
from commonweal.report import figures
from commonweal.report.clients import ClientLines, client_lines, text
from commonweal.report.formats import cell_rows, titles_of
from comparison_helpers import compared, judged, made
from page_helpers import make_runs
from run_helpers import as_documented, weights_of


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    make_runs(root)
    return root


ALONE = [[0.2, 0.5, 0.8], [0.22, 0.5, 0.82], [0.24, 0.5, 0.81]]
METHOD = [[0.4, 0.65, 0.6], [0.43, 0.45, 0.61], [0.41, 0.52, 0.62]]  # gains, unclear, loses
GAINS = {"ditto": [0.19, 0.001, -0.2]}


def plot(lower: bool = False) -> ClientLines:
    results, alone = [made("ditto", METHOD, lower)], made("alone", ALONE, lower)
    score = "mae" if lower else "accuracy"
    return client_lines(compared(results, [alone], score, judged(GAINS)))


# The client plot


@pytest.mark.parametrize("lower", [False, True])
def test_clients_are_sorted_by_local_training_the_best_first(lower: bool) -> None:
    lines = plot(lower).lines
    assert [line.client for line in lines] == (["a", "b", "c"] if lower else ["c", "b", "a"])
    assert lines[1].local == pytest.approx(0.5)
    assert lines[1].scores == pytest.approx((np.mean([0.65, 0.45, 0.52]),))


def test_gains_are_of_the_method_that_the_verdict_is_about() -> None:
    results = [made("fedavg", METHOD), made("fair", METHOD), made("term", ALONE)]
    gains = {"fedavg": [0.1, 0.0, 0.0], "fair": [0.2, 0.15, 0.0], "term": [0.0, 0.0, 0.0]}
    alone = [made("alone", ALONE)]
    found = client_lines(compared(results, alone, judgement=judged(gains)))
    assert found.compared == "fair"
    significant = {line.client: line.gain and line.gain.significant for line in found.lines}
    assert significant == {"a": True, "b": True, "c": False}
    picked = judged(gains, picked="term")
    assert client_lines(compared(results, alone, judgement=picked)).compared == "term"
    without = client_lines(compared(results))
    assert (without.compared, without.has_local) == ("", False)


def test_the_figure_draws_rings_dots_and_bars_where_the_scores_are() -> None:
    axes = figures.clients(plot()).figure.axes[0]
    points = {str(line.get_label()): np.asarray(line.get_xdata()) for line in axes.lines}
    assert points["local training"] == pytest.approx(100 * np.mean(ALONE, 0)[::-1])
    assert points["ditto"] == pytest.approx(100 * np.mean(METHOD, 0)[::-1])
    bars = [line for line in axes.lines if len(np.asarray(line.get_xdata())) == 2]
    assert [bar.get_color() for bar in bars] == [figures.LOSS, figures.GAIN, figures.GAIN]
    assert [bar.get_alpha() for bar in bars] == [0.9, 0.3, 0.9]  # b is not significant
    assert np.asarray(bars[0].get_xdata()) == pytest.approx([81.0, 61.0])
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["c  10", "b  10", "a  10"]


def test_a_terminal_shows_the_same_plot() -> None:
    legend, bar, *rows, axis = text(plot(), width=40)
    assert legend == "○ local training  ● ditto"
    assert bar == "━ gain of ditto over local training (┄ not significant)"
    assert axis.split() == ["22.0", "%", "81.0", "%"]
    assert [row[:3] for row in rows] == ["c  ", "b  ", "a  "]
    assert (rows[0][3:].index("●"), rows[0][3:].index("○")) == (round(36 * 39 / 59), 36)
    assert "━" in rows[0] and "┄" in rows[1] and "━" in rows[2]
    assert all(len(row) <= 40 for row in (*rows, axis))


def test_clients_without_a_score_under_some_method_have_no_dot() -> None:
    other = made("other", [line[:2] for line in METHOD], names=("c", "new"))
    found = client_lines(compared([made("fedavg", METHOD), other], [made("alone", ALONE)]))
    by_name = {line.client: line for line in found.lines}
    assert math.isnan(by_name["new"].local) and math.isnan(by_name["a"].scores[1])
    assert by_name["a"].samples == "10"
    table = found.table()
    assert titles_of(table)[:3] == ["client", "test samples", "local training"]
    assert next(row for row in cell_rows(table, str) if row[0] == "new")[2] == "-"
    assert figures.draw(figures.clients(found).figure, "png") and text(found)


def test_many_clients_are_drawn_as_distributions() -> None:
    names = tuple(f"c{k}" for k in range(60))
    values = np.random.default_rng(0).random((2, 2, 60))
    alone, fedavg = (
        made(label, scores.tolist(), names=names)
        for label, scores in zip(("alone", "fedavg"), values, strict=True)
    )
    picture = figures.clients(client_lines(compared([fedavg], [alone])))
    assert "the share of clients with at most this score" in picture.description
    assert len(picture.rows) == 60
    curve = np.asarray(picture.figure.axes[0].lines[0].get_xdata())
    assert curve == pytest.approx(np.sort(100 * values[1].mean(0)))


def test_drawing_in_threads_leaves_the_settings_of_matplotlib() -> None:
    before = dict(matplotlib.rcParams)

    def drawn(_: int) -> bytes:
        return figures.draw(figures.clients(plot()).figure, "svg")

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(drawn, range(8)))) == 1
    assert {key for key in before if matplotlib.rcParams[key] != before[key]} == set()


# Runs


def test_a_record_draws_itself(runs: Path) -> None:
    plots = Record.read(runs / "aaggff-s" / "seed-0").plot
    for figure in (plots.clients(), plots.rounds(), plots.weights(), plots.regret()):
        assert isinstance(figure, Figure)
        assert figures.draw(figure, "png").startswith(b"\x89PNG")


def test_records_do_not_import_matplotlib() -> None:
    code = "import sys, commonweal.record.record; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_curves_are_means_over_seeds_with_their_range(runs: Path) -> None:
    records = [Record.read(runs / "fedavg" / f"seed-{seed}") for seed in (0, 1)]
    panels = figures.rounds({"fedavg": records}).figure.axes
    for axes, key in zip(panels, ("mean", "worst_10"), strict=True):
        values = []
        for seed in (0, 1):
            lines = (runs / "fedavg" / f"seed-{seed}" / "rounds.jsonl").read_text().splitlines()
            metrics = [line["metrics"] for line in map(json.loads, lines) if line["metrics"]]
            values.append([100 * each[key] for each in metrics])
        assert np.asarray(axes.lines[0].get_ydata()) == pytest.approx(np.mean(values, 0))
        corners = np.asarray(axes.collections[0].get_paths()[0].vertices)[:, 1]
        assert (corners.min(), corners.max()) == pytest.approx((np.min(values), np.max(values)))


def test_relative_weights_are_one_where_all_are_equal(runs: Path) -> None:
    found = figures.relative_weights(Record.read(runs / "aaggff-s" / "seed-0"))
    for j, line in enumerate(as_documented(runs / "aaggff-s" / "seed-0")):
        weights = weights_of(line)
        assert found.table[:, j] == pytest.approx([5 * weights[name] for name in found.names])
    assert (np.diff(found.table.mean(1)) >= 0).all()  # the most favoured last
    assert not found.are_constant
    assert figures.relative_weights(Record.read(runs / "fedavg" / "seed-0")).are_constant


# Data and files


@pytest.mark.parametrize("clients", [3, 250])
@pytest.mark.parametrize("classes", [True, False])
def test_a_federation_is_drawn(tmp_path: Path, clients: int, classes: bool) -> None:
    rng = np.random.default_rng(0)
    owner = [f"c{k:03d}" for k in range(clients) for _ in range(4)]
    x = rng.normal(size=(len(owner), 2))
    y = (x[:, 0] > 0).astype(int) if classes else x[:, 0]
    path = tmp_path / "deep" / "f.png"
    figures.save(figures.federation(Federation.from_arrays(x, y, owner), "samples"), path)
    assert path.stat().st_size > 1000


def test_a_federation_is_drawn_with_names(tmp_path: Path) -> None:
    """Clients and classes are called by name; the colours' steps are round numbers."""
    owner = [f"hospital {k % 50}" for k in range(600)]
    y = np.array(["ill", "well"])[np.arange(600) // 50 % 3 // 2]
    x = np.zeros((600, 1))
    drawn = figures.federation(Federation.from_arrays(x, y, owner), "table.csv")
    main, bar = drawn.axes
    assert [text.get_text() for text in main.get_yticklabels()] == ["ill", "well"]
    clients = [text.get_text() for text in main.get_xticklabels()]
    assert len(clients) == 40 and set(clients) <= set(owner)
    assert [text.get_text() for text in bar.get_yticklabels()] == ["1", "2", "5"]


def test_neighbours_are_averaged_where_clients_are_many() -> None:
    counts = np.arange(1000.0)[:, None]
    means = figures.averaged(counts)
    assert means.shape == (200, 1)
    assert means[:2, 0].tolist() == [2.0, 7.0]
    assert figures.averaged(counts[:200]).tolist() == counts[:200].tolist()


def test_a_file_is_a_picture_by_its_suffix(tmp_path: Path) -> None:
    figure = figures.clients(plot()).figure
    for suffix, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        figures.save(figure, tmp_path / f"c.{suffix}")
        assert (tmp_path / f"c.{suffix}").read_bytes().startswith(start)
    with pytest.raises(ConfigError, match=r"end it with .png, .svg, .pdf"):
        figures.save(figure, tmp_path / "c.gif")
