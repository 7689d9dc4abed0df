"""The report: one file that any browser shows, in which names are text and nothing is missing."""

import csv
import json
import sys
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from commonweal import cli
from commonweal.base.errors import RunError
from commonweal.base.text import shown
from commonweal.report import document, figures
from commonweal.study.compare import run_cells
from commonweal.study.comparison import Comparison
from commonweal.study.labels import by_label, runs_in
from commonweal.study.plan import baseline_cells, cells
from page_helpers import IMAGE, NAMES, make_runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    make_runs(root)
    return root


@pytest.fixture(scope="module")
def page(runs: Path) -> str:
    return document.render(Comparison.in_folders([runs]), "A <b>title</b>")


class Outline(HTMLParser):
    """The elements of a page, their attributes and the text in them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


def test_names_are_text_wherever_they_stand(page: str) -> None:
    outline = Outline(page)
    assert outline.count("img") == outline.count("b") == outline.count("script") == 0
    assert all(not key.startswith("on") for _, given in outline.elements for key in given)
    assert sum(IMAGE in text for text in outline.text) >= 2  # in tables
    assert any(text.strip() == IMAGE[:23] + "…" for text in outline.text)  # in SVG
    assert any(NAMES[1] in text for text in outline.text)
    assert "\x07" not in page.split("<svg", 1)[1].split("</svg>")[0]


def test_it_is_one_file_without_scripts_or_addresses(page: str) -> None:
    outline = Outline(page)
    for tag, given in outline.elements:
        for key, value in given.items():
            if key in ("src", "href", "xlink:href"):
                assert value is not None
                assert value.startswith(("#", "data:image/png")), (tag, key, value)
    assert "url(http" not in page and "@import" not in page
    policies = [g["content"] for _, g in outline.elements if "http-equiv" in g]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def test_a_screen_reader_finds_title_description_and_numbers_of_each_figure(page: str) -> None:
    outline = Outline(page)
    ids = Counter(given["id"] for _, given in outline.elements if "id" in given)
    assert max(ids.values()) == 1
    pictures = [given for tag, given in outline.elements if tag == "svg"]
    assert len(pictures) == 4  # clients, rounds, aaggff-s's weights and regret
    for given in pictures:
        assert given["role"] == "img"
        assert all(name in ids for name in (given["aria-labelledby"] or "").split())
    assert outline.count("details") == outline.count("figure") == len(pictures)
    assert outline.count("caption") == outline.count("table")
    assert ("html", {"lang": "en"}) in outline.elements


def test_the_report_has_what_the_folders_hold(runs: Path, page: str) -> None:
    with open(runs / "fedavg" / "seed-0" / "clients.csv", encoding="utf-8") as file:
        first = {line["client"]: float(line["score"]) for line in csv.DictReader(file)}
    with open(runs / "fedavg" / "seed-1" / "clients.csv", encoding="utf-8") as file:
        second = {line["client"]: float(line["score"]) for line in csv.DictReader(file)}
    text = Outline(page).text
    for name in first:
        mean = 50 * (first[name] + second[name])
        assert (shown(name), f"{mean:.1f}") in zip(text, text[2:], strict=False)
    whole = "".join(text)
    experiment = (runs / "fedavg" / "seed-0" / "experiment.toml").read_text().splitlines()
    assert "\n".join(experiment) in whole
    assert json.loads((runs / "fedavg" / "seed-0" / "run.json").read_text())["torch"] in whole


def test_equal_runs_give_equal_bytes(runs: Path, page: str) -> None:
    assert document.render(Comparison.in_folders([runs]), "A <b>title</b>") == page


def test_the_command_writes_the_file(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.html"
    monkeypatch.setattr(sys, "argv", ["commonweal", "report", str(runs), "-o", str(file)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"a report of 4 runs: {file}\n"
    assert file.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


# What is compared


def test_runs_are_labelled_by_their_differences(tmp_path: Path) -> None:
    make_runs(tmp_path / "short", ["fedavg"], seeds=2, rounds=2)
    make_runs(tmp_path / "long", ["fedavg", "term"], seeds=1, rounds=3)
    found = by_label(runs_in([tmp_path]))
    assert {label: len(records) for label, records in found.items()} == {
        "fedavg": 1,  # what most methods have goes without saying
        "term": 1,
        "fedavg rounds=2": 2,
    }


def test_a_run_that_was_repeated_is_a_label_of_its_own(tmp_path: Path) -> None:
    make_runs(tmp_path / "a", ["fedavg"], seeds=2, rounds=2)
    make_runs(tmp_path / "b", ["fedavg"], seeds=1, rounds=2)
    found = by_label(runs_in([tmp_path]))
    assert {label: len(records) for label, records in found.items()} == {
        "fedavg": 2,
        "fedavg #2": 1,
    }


def test_seeds_that_some_labels_lack_are_left_out_and_named(tmp_path: Path) -> None:
    make_runs(tmp_path, ["fedavg"], seeds=2, rounds=2)
    make_runs(tmp_path, ["term"], seeds=1, rounds=2)
    report = Comparison.in_folders([tmp_path])
    assert [result.seeds for result in report.results] == [1, 1]
    assert report.failures == ["fedavg: left out with seeds that others lack: 1."]


def test_folders_that_hold_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no runs"):
        Comparison.in_folders([tmp_path])
    with pytest.raises(RunError, match="is not a folder"):
        Comparison.in_folders([tmp_path / "nowhere"])


def test_a_run_without_an_evaluated_round_is_named(tmp_path: Path) -> None:
    (folder,) = make_runs(tmp_path, ["fedavg"], seeds=1, rounds=2)
    (folder / "rounds.jsonl").write_text("")
    with pytest.raises(RunError, match="no round has been evaluated yet"):
        Comparison.in_folders([tmp_path])
    make_runs(tmp_path, ["term"], seeds=1, rounds=2)
    assert "no round has been evaluated yet" in Comparison.in_folders([tmp_path]).failures[0]


# Sections


def test_many_clients_are_shown_as_a_distribution_and_in_groups(tmp_path: Path) -> None:
    names = [f"client {k}" for k in range(90)]
    make_runs(tmp_path, seeds=1, rounds=2, names=names)
    report = Comparison.in_folders([tmp_path])
    page = document.render(report, "many")
    assert "the share of clients with at most this score" in page
    record = report.records["aaggff-s"][0]
    assert figures.relative_weights(record).table.shape == (figures.MOST_NAMES, 2)
    outline = Outline(page)
    assert all(name in outline.text for name in names)  # in the numbers


def test_the_report_has_local_and_pooled_training(tmp_path: Path) -> None:
    base = {"dataset": {"name": "vowel", "test": 0.5}, "rounds": 2}
    plan = [*cells(base, ["fedavg", "term"], 1, [], tmp_path), *baseline_cells(base, 1, tmp_path)]
    for _ in run_cells(plan):
        pass
    report = Comparison.in_folders([tmp_path])
    assert [each.label for each in report.results] == ["fedavg", "term"]
    assert [each.label for each in report.baselines] == ["alone", "pooled"]
    page = Outline(document.render(report, "worth"))

    def score(label: str, column: str) -> dict[str, float]:
        with open(tmp_path / label / "seed-0" / "clients.csv") as file:
            return {line["client"]: float(line[column]) for line in csv.DictReader(file)}

    alone = score("alone", "personal_score")
    fedavg = score("fedavg", "score")
    for name in alone:
        scores = (f"{100 * alone[name]:.1f}", f"{100 * fedavg[name]:.1f}")
        assert scores in pairwise(page.text)
    assert not any("Weights over rounds: alone" in text for text in page.text)


def test_equal_weights_are_not_drawn(page: str) -> None:
    assert "Weights over rounds: fedavg" not in page
    assert "Weights over rounds: aaggff-s" in page
