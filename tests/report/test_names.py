"""Names are shown as text everywhere, and opening a run imports nothing that the run names."""

import csv
import io
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

import commonweal
from commonweal.app.commands import console
from commonweal.base.errors import CommonwealError, ConfigError, DataError, RunError
from commonweal.base.text import quoted, shown, unquoted
from commonweal.cli import app
from commonweal.config import catalog
from commonweal.data.federation import Federation
from commonweal.jobs.reopening import reopen
from commonweal.jobs.rounds import run
from commonweal.record.record import Record
from commonweal.report import document, figures, run_table
from commonweal.report.formats import ReportColumn, ReportTable
from commonweal.report.html import fill
from commonweal.study.comparison import Comparison
from commonweal.study.regret import of_run
from page_helpers import make_runs
from run_helpers import task

WILD = [
    "[/x]",
    "[bold]x[/bold]",
    "line\u2028separator",
    "next\x85line",
    "$\\foo{$",
    "\x1b]0;title\x07",
    "\x1b[2J",
    "\x9b2J",
    "=cmd|' /C calc'!A0",
    "right\u202eto left",
    "two\nlines",
    "<script>alert(1)</script>",
]


def federation() -> Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20 * len(WILD), 2)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    names = np.repeat(WILD, 20)
    return Federation.from_arrays(x, y, names, test=0.5)


@pytest.fixture(scope="module")
def wild(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wild") / "run"
    list(run(task(2), federation(), rule="aaggff-s", rounds=2, out=folder))
    return folder


def is_harmless(text: str) -> bool:
    """Whether a text has no character but printable ones and line ends."""
    return all(c.isprintable() or c == "\n" for c in text)


def test_a_record_of_wild_names_reads_back(wild: Path) -> None:
    record = Record.read(wild)
    assert len(record.rounds) == 2
    assert sorted(record.rounds[0].clients) == sorted(WILD)
    assert sorted(record.clients().names) == sorted(WILD)
    assert len(record.timings()) == 2


def test_terminals_show_wild_names_as_text(wild: Path) -> None:
    terminal = Console(file=io.StringIO(), width=200, force_terminal=False)
    terminal.print(run_table.result(Record.read(wild)))
    assert isinstance(terminal.file, io.StringIO)
    printed = terminal.file.getvalue()
    assert is_harmless(printed)
    for name in WILD[:2]:
        assert Text.from_markup(shown(name, "markup")).plain == name


def test_the_command_shows_wild_names_as_text(
    wild: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    console.say("round 1: the reply of \x1b[2J\x9b2J\u202e was dropped")
    console.show_json(run_table.run_summary(Record.read(wild)))
    printed = capsys.readouterr()
    assert is_harmless(printed.err) and is_harmless(printed.out)
    assert {each["client"] for each in json.loads(printed.out)["clients"]} == set(WILD)


def test_figures_of_wild_names_are_drawn(tmp_path: Path) -> None:
    figures.save(figures.federation(federation(), "$\\foo{$ \x1b"), tmp_path / "f.svg")
    assert (tmp_path / "f.svg").stat().st_size > 1000


def test_html_has_wild_names_as_text() -> None:
    for name in WILD:
        table = ReportTable(name, name, [name], [ReportColumn(name, [name])])
        page = fill("summary.html", seen=SimpleNamespace(headline=name, about=name, methods=table))
        assert "<script" not in page and all(map(is_harmless, page.split("\n")))


def test_no_cell_of_a_table_is_computed_by_a_spreadsheet(wild: Path) -> None:
    with open(wild / "clients.csv", newline="", encoding="utf-8") as file:
        cells = [row[0] for row in csv.reader(file)]
    assert not any(cell[:1] in "=+-@\t\r" for cell in cells)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.text())
def test_any_text_is_shown_harmlessly_and_survives_quoting(text: str) -> None:
    assert is_harmless(shown(text)) and "\n" not in shown(text)
    assert unquoted(quoted(text)) == text


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.text("'=+-@\t\r1.e", max_size=5))
def test_cells_that_look_like_formulas_survive_quoting(text: str) -> None:
    assert unquoted(quoted(text)) == text
    first = quoted(text)[:1]
    try:
        float(text)
    except ValueError:
        assert first not in ("=", "+", "-", "@", "\t", "\r")


def test_letters_of_all_scripts_stay() -> None:
    text = "Zürich 東京 Ελλάδα été"
    assert shown(text) == text


def test_latex_and_markdown_show_what_they_would_obey() -> None:
    assert shown(r"a_b & \x {c} 5%", "latex") == r"a\_b \& \textbackslash{}x \{c\} 5\%"
    assert shown("a|b<c>", "markdown") == r"a\|b\<c\>"


def test_names_that_are_not_unicode_are_refused() -> None:
    x = np.zeros((4, 1), np.float32)
    with pytest.raises(DataError, match="not valid Unicode"):
        Federation.from_arrays(x, [0, 1, 0, 1], ["a", "a", "b\udc80", "b\udc80"], test=0.5)


# Programs


def stranger(folder: Path, marker: Path) -> None:
    """A run whose experiment was changed to name a program."""
    list(run(commonweal.load_experiment(write(folder)), out=folder / "run"))
    path = folder / "run" / "experiment.toml"
    bomb = f'name = "os:mkdir"\npath = {json.dumps(str(marker))}\n'
    text = path.read_text()
    head, _, rest = text.partition("[rule]\n")
    _, _, rest = rest.partition("\n[")
    path.write_text(f"{head}[rule]\n{bomb}\n[{rest}")


def write(folder: Path) -> Path:
    path = folder / "e.toml"
    path.write_text('dataset = "vowel"\nrounds = 1\nrule = "aaggff-s"\n')
    return path


def test_opening_a_strangers_run_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the report is written there
    marker = tmp_path / "marker"
    stranger(tmp_path, marker)
    folder = tmp_path / "run"
    record = Record.read(folder)
    with pytest.raises(ConfigError, match="--trust"):
        of_run(record)
    with pytest.raises(RunError, match="--trust"):
        reopen(folder)
    for command in (["show", "--regret"], ["show", "--curve", str(tmp_path / "c.png")], ["report"]):
        first, *rest = command
        done = CliRunner().invoke(app, [first, str(folder), *rest])
        assert done.exception is None or isinstance(done.exception, CommonwealError | SystemExit)
        assert not marker.exists()
    with pytest.raises(AttributeError):
        of_run(record, trust=True)  # os.mkdir is not a rule, but it is called
    assert marker.exists()


def test_trust_ends_with_its_block() -> None:
    with catalog.trusting(False), catalog.trusting(True), pytest.raises(ConfigError):
        catalog.find_entry("rules", "os:getcwd")
    assert catalog.find_entry("rules", "os:getcwd").name == "os:getcwd"


def test_the_table_of_a_run_shortens_long_names(tmp_path: Path) -> None:
    x = np.arange(24.0).reshape(12, 2)
    clients = np.repeat(["a" * 10_000, "b" * 10_000], 6)
    data = Federation.from_arrays(x, np.arange(12) % 2, clients, test=0.5)
    record = commonweal.run(task(2), data, rounds=1, out=tmp_path / "run").result()
    printed = io.StringIO()
    Console(file=printed, width=1000).print(run_table.result(record))
    assert "a" * 99 + "…" in printed.getvalue()
    assert "a" * 100 not in printed.getvalue()


def test_a_name_of_a_megabyte_is_shortened_in_a_report(tmp_path: Path) -> None:
    long = "x" * 1_000_000
    folders = make_runs(tmp_path, names=(long, "b", "c", "d", "e"))
    report = document.render(Comparison.of_records(map(Record.read, folders)), "Report")
    assert "x" * 50 in report
    assert "x" * 201 not in report
