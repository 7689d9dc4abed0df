"""The page of runs, in a browser as a person uses it, and over plain HTTP as an attacker would."""

import csv
import io
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

import httpx
import numpy as np
import pytest
import uvicorn

from browser import Browser, browser
from commonweal.app.ui import runs, views
from commonweal.app.ui.server import application
from commonweal.base import text
from commonweal.record.record import Outline, Record
from commonweal.report import document
from commonweal.study.comparison import Comparison
from page_helpers import IMAGE, NAMES, make_runs
from run_helpers import as_documented, weights_of


@dataclass
class Page:
    address: str
    root: Path

    def get(self, path: str, **parameters: str | list[str]) -> httpx.Response:
        return httpx.get(self.address + path, params=parameters or None, timeout=30)

    def view(self, view: str, **parameters: str | list[str]) -> str:
        return f"{self.address}/#/{view}?{urlencode(parameters, doseq=True)}"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    root = tmp_path_factory.mktemp("page") / "runs"
    make_runs(root)
    make_runs(root / "local", ["fedavg"], client="alone")
    broken = root / "zbroken"
    shutil.copytree(root / "fedavg" / "seed-0", broken)
    (broken / "run.json").write_text('{"format": ')
    started = root / "zstarted"
    started.mkdir()
    (started / "run.json").write_text("{}")
    with serve(root) as page:
        yield page


@contextmanager
def serve(root: Path) -> Iterator[Page]:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(application(root), log_level="error", lifespan="off", ws="none")
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield Page(f"http://127.0.0.1:{listening.getsockname()[1]}", root)
    server.should_exit = True
    server.force_exit = True
    thread.join(10)
    listening.close()


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


ALL = [f"{rule}/seed-{seed}" for rule in ("fedavg", "aaggff-s", "local/fedavg") for seed in (0, 1)]


def rows(window: Browser, label: str = "") -> list[str]:
    return window.texts(f".scroll[aria-label^='{label}'] tbody tr")


def scores(folder: Path, column: str = "score") -> dict[str, float]:
    """A run's last scores by client, from its CSV file."""
    with open(folder / "clients.csv", encoding="utf-8", newline="") as file:
        return {line["client"]: float(line[column]) for line in csv.DictReader(file)}


# In a browser


def test_runs_are_listed_by_federation_and_method_with_seeds_folded(
    page: Page, window: Browser
) -> None:
    window.open(page.address)
    window.shows("8 runs in")
    lines = [line.split() for line in rows(window, "Methods")]
    assert sorted(" ".join(line[:1]) for line in lines) == ["aaggff-s", "fedavg", "local"]
    worst = []
    for seed in (0, 1):
        last = (page.root / "fedavg" / f"seed-{seed}" / "rounds.jsonl").read_text().splitlines()
        worst.append(json.loads(last[-1])["metrics"]["worst_10"])
    assert f"{50 * sum(worst):.1f}" in next(line for line in lines if line[0] == "fedavg")
    window.shows("oining", ".answer")  # whatever the answer is
    window.click("details summary")
    broken = {line.split("\t")[0]: line for line in rows(window, "Broken")}
    assert "broken: " in broken["zbroken"] and "not the folder of a run" in broken["zbroken"]
    assert "experiment.toml is missing" in broken["zstarted"]
    window.type("#words", "aaggff-s seed=1")
    window.shows("1 of 8 runs")
    assert len(rows(window, "Methods")) == 1
    assert window.errors() == []


def test_a_header_sorts_and_the_theme_is_remembered(page: Page, window: Browser) -> None:
    window.open(page.address + "/#/")
    window.run("location.reload()")
    window.shows("8 runs in")
    window.click("th.name button")
    names = [line.split("\t")[1] for line in rows(window, "Methods")]
    assert names == ["aaggff-s", "fedavg", "local training"]
    window.click("th.name button")
    assert [line.split("\t")[1] for line in rows(window, "Methods")] == names[::-1]
    before = window.run("return getComputedStyle(document.body).backgroundColor")
    window.click("#theme")
    after = window.run("return getComputedStyle(document.body).backgroundColor")
    assert before != after
    window.run("location.reload()")
    window.shows("8 runs in")
    assert window.run("return getComputedStyle(document.body).backgroundColor") == after
    window.click("#theme")


def test_chosen_methods_are_compared(page: Page, window: Browser) -> None:
    window.open(page.address + "/#/")
    window.run("location.reload()")
    window.shows("8 runs in")
    for name in ("fedavg", "aaggff-s", "alone"):
        window.click(f"input[aria-label^='Choose {name} of']")
    window.shows("Compare 6 chosen runs")
    window.click("#compare")
    window.shows("oining", "h1")
    means = [np.mean(list(scores(page.root / "fedavg" / f"seed-{s}").values())) for s in (0, 1)]
    line = next(row for row in rows(window, "Methods") if row.strip().startswith("fedavg"))
    assert f"\t{100 * np.mean(means):.1f}\t" in line
    assert window.run("return document.querySelectorAll('svg.clients a').length") == 5
    assert len(window.find("svg.clients .ring")) == 5
    assert len(window.find(".uplot canvas")) == 1
    window.run("document.querySelector('select').value = 'mean'")
    window.run("document.querySelector('select').dispatchEvent(new Event('change'))")
    assert len(window.find(".uplot canvas")) == 1
    assert window.errors() == []


def test_a_client_is_shown_under_all_methods(page: Page, window: Browser) -> None:
    window.open(page.view("compare", id=ALL))
    window.shows("oining", "h1")
    window.click("svg.clients a")
    window.shows("Weight over rounds", "main")
    methods = [row.split("\t")[0].strip() for row in rows(window, "Methods")]
    assert methods == ["fedavg", "aaggff-s", "local training"]
    name = window.run("return new URLSearchParams(location.hash.split('?')[1]).get('name')")
    window.click("#after")
    window.until(
        lambda: "name=" + quote(str(name), safe="") not in window.run("return location.hash")
    )
    window.shows("Weight over rounds", "main")
    assert len(window.find(".uplot canvas")) == 3  # score, weight and loss
    assert window.errors() == []


def test_a_stopped_run_stays_stopped(page: Page, window: Browser, tmp_path: Path) -> None:
    folder = shutil.copytree(page.root / "fedavg" / "seed-1", tmp_path / "a b" / "stopped")
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("".join(lines[:2]))
    (folder / "model.safetensors").unlink()
    for file in folder.iterdir():
        os.utime(file, (1e9, 1e9))
    with serve(tmp_path) as own:
        window.open(own.view("run", id="a b/stopped"))
        window.shows("stopped: round 2 of 4")
        time.sleep(1)  # the first rounds that are followed are those that are known
        assert "stopped: round 2 of 4" in window.text("#progress")
        assert f'--out "{folder}" --resume' in window.text("main")
        window.open("about:blank")  # before the server ends


def test_figures_are_drawn_when_they_are_unfolded(page: Page, window: Browser) -> None:
    window.open(page.view("run", id="fedavg/seed-0"))
    window.shows("finished: round 4 of 4")
    assert window.find("img") == []
    window.click("details summary")
    script = "const i = document.querySelector('img'); return i && i.naturalWidth"
    window.until(lambda: bool(window.run(script)))
    assert window.errors() == []


def test_names_are_never_markup(page: Page, window: Browser) -> None:
    for view in (
        page.view(""),
        page.view("compare", id=ALL),
        page.view("client", id=ALL, name=IMAGE),
        page.view("run", id="fedavg/seed-0"),
        page.view("run", id=IMAGE),
    ):
        window.open(view)
        window.until(lambda: len(window.text("main")) > 40)
        assert window.find("img[src='x']") == []
        assert window.run("return document.title") == "Commonweal"
    window.shows("This cannot be shown.")
    assert ["404" in error for error in window.errors()] == [True]  # there is no such run


def test_rounds_appear_while_a_run_goes_on(page: Page, window: Browser, tmp_path: Path) -> None:
    live = page.root / "live"
    shutil.copytree(page.root / "fedavg" / "seed-1", live)
    lines = (live / "rounds.jsonl").read_text().splitlines(keepends=True)
    (live / "model.safetensors").rename(tmp_path / "model")
    (live / "rounds.jsonl").write_text("".join(lines[:2]))
    (live / "timings.jsonl").write_text('{"round": 2, "train": 10.0}\n')
    try:
        window.open(page.view("run", id="live"))
        window.shows("running: round 2 of 4")
        window.shows("fedavg serves ", "h1")
        assert page.get("/api/run", id="live").json()["seconds_left"] == 20.0
        with open(live / "rounds.jsonl", "a") as file:
            file.write(lines[2] + lines[3][:20])  # the last one is half written
        window.shows("running: round 3 of 4")
        with open(live / "rounds.jsonl", "a") as file:
            file.write(lines[3][20:])
        window.shows("running: round 4 of 4")
        (tmp_path / "model").rename(live / "model.safetensors")
        window.shows("finished: round 4 of 4")
        assert window.errors() == []
    finally:
        shutil.rmtree(live)


@pytest.mark.parametrize("width", [1280, 500])
def test_nothing_is_wider_than_the_window(page: Page, window: Browser, width: int) -> None:
    window.resize(width, 900)
    for view in (
        page.view(""),
        page.view("compare", id=ALL),
        page.view("client", id=ALL, name="d"),
        page.view("run", id="fedavg/seed-0"),
    ):
        window.open(view)
        window.until(lambda: len(window.text("main")) > 150)
        assert window.run("return document.documentElement.scrollWidth <= innerWidth")
        assert "null" not in window.text("main") and "NaN" not in window.text("main")


ACCESSIBLE = """
const all = (css) => [...document.querySelectorAll(css)];
const regions = all("[role=region]").map((e) => e.getAttribute("aria-label"));
return {
  "empty header": all("th").filter((e) => !e.textContent.trim()).length,
  "regions of one name": regions.length - new Set(regions).size,
  "links in an image": all("[role=img] a").length,
  "scrolls without focus": all("pre, .scroll").filter((e) => e.tabIndex < 0).length,
  "fields without a name": all("input, select").filter((e) => !e.getAttribute("aria-label")).length,
  "headings of level 1": all("h1").length - 1,
  "landmarks": all("main").length - 1,
};
"""


def test_assistive_technology_finds_names_for_everything(
    page: Page, window: Browser, tmp_path: Path
) -> None:
    """What axe-core complained about."""
    report = tmp_path / "report.html"
    report.write_text(document.render(Comparison.in_folders([page.root]), "r"), encoding="utf-8")
    for view in (
        page.view(""),
        page.view("compare", id=ALL),
        page.view("client", id=ALL, name="d"),
        page.view("run", id="fedavg/seed-0"),
        report.as_uri(),
    ):
        window.open(view)
        window.until(lambda: len(window.text("main")) > 150)
        problems = {name: count for name, count in window.run(ACCESSIBLE).items() if count}
        assert problems == {}, view


def test_axe_finds_no_violation(page: Page, window: Browser, tmp_path: Path) -> None:
    axe = os.environ.get("AXE")
    if axe is None:
        pytest.skip("set AXE to the path of axe.min.js, from the npm package axe-core")
    report = tmp_path / "report.html"
    report.write_text(document.render(Comparison.in_folders([page.root]), "r"), encoding="utf-8")
    views = [
        page.view(""),
        page.view("compare", id=ALL),
        page.view("client", id=ALL, name="d"),
        page.view("run", id="fedavg/seed-0"),
        page.view("run", id="nobody"),
    ]
    for theme in ("light", "dark"):
        for view in (*views, report.as_uri()):
            window.scheme(theme)
            window.open("about:blank")
            window.open(view)
            window.until(lambda: len(window.text("main")) > 40)
            window.run(Path(axe).read_text(encoding="utf-8"))
            violations = window.run("return axe.run().then((r) => r.violations.map((v) => v.id))")
            assert violations == [], (theme, view)
    window.errors()  # there is no run of that name
    window.scheme("light")


def test_a_report_is_readable_without_scripts_on_a_phone(
    page: Page, window: Browser, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    text = document.render(
        Comparison.in_folders([page.root / "fedavg", page.root / "aaggff-s"]), "r"
    )
    file.write_text(text, encoding="utf-8")
    window.resize(500, 800)
    window.open(file.as_uri())
    assert window.run("return document.documentElement.scrollWidth <= innerWidth")
    assert window.run(
        "return [...document.querySelectorAll('svg')].every(s => s.clientWidth > 300)"
    )
    assert window.run("return document.title") == "r"
    assert window.errors() == []


def test_a_report_prints_on_a4_without_a_cut_column(
    page: Page, window: Browser, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    file.write_text(document.render(Comparison.in_folders([page.root]), "r"), encoding="utf-8")
    window.resize(680, 1000)  # the width of A4 at 96 dots per inch, without margins of 15 mm
    window.media("print")
    try:
        window.open(file.as_uri())
        edges = "[...document.querySelectorAll('table')].map(t => t.getBoundingClientRect().right)"
        assert max(window.run(f"return {edges}")) <= window.run("return innerWidth")
        assert window.run("return document.documentElement.scrollWidth <= innerWidth")
        answer_and_picture = (
            "return document.querySelector('header figure').getBoundingClientRect().bottom"
        )
        assert window.run(answer_and_picture) < 1010  # the height of the first page
    finally:
        window.media("screen")


# Over HTTP


def test_every_answer_has_a_strict_policy(page: Page) -> None:
    for path in ("/", "/static/page.js", "/api/home", "/api/run", "/nowhere"):
        headers = page.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'self'") and "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"


def test_nothing_outside_the_folder_is_read(page: Page, tmp_path: Path) -> None:
    outside = make_runs(tmp_path, ["fedavg"], seeds=1, rounds=2)[0]
    (page.root / "link").symlink_to(outside)
    answers = ("run", "client", "compare", "verdict", "figure", "follow", "table", "report")
    try:
        for name in ("../../" + outside.name, str(outside), "link", "fedavg/../../../etc", "\x00"):
            for what in answers:
                answer = page.get(f"/api/{what}", id=name, what="weights", name="d")
                assert answer.status_code == 404
                assert "there is no run" in answer.text
        assert "link" not in page.get("/api/home").text
        assert page.get("/static/../server.py").status_code == 404
        assert page.get("/static/%2e%2e/server.py").status_code == 404
    finally:
        (page.root / "link").unlink()


def test_links_within_a_run_are_not_followed(page: Page, tmp_path: Path) -> None:
    secret = tmp_path / "secret.toml"
    secret.write_text('rounds = 4\npassword = "hunter2"\n')
    folder = shutil.copytree(page.root / "fedavg" / "seed-0", page.root / "zlinked")
    try:
        (folder / "experiment.toml").unlink()
        (folder / "experiment.toml").symlink_to(secret)
        for what in ("run", "client", "compare", "figure", "follow", "report"):
            answer = page.get(f"/api/{what}", id="zlinked", what="weights", name="d")
            assert answer.status_code == 404
            assert "is a link" in answer.text and "hunter2" not in answer.text
        home = page.get("/api/home").json()
        (broken,) = [line for line in home["broken"] if line["id"] == "zlinked"]
        assert "'experiment.toml' is a link" in broken["problem"]
    finally:
        shutil.rmtree(folder)


def test_nothing_can_be_written_and_other_hosts_are_refused(page: Page) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert httpx.request(method, page.address + "/api/home").status_code == 405
    answer = httpx.get(page.address + "/api/home", headers={"Host": "evil.example"})
    assert answer.status_code == 400


def test_the_client_plot_holds_scores_of_the_files(page: Page) -> None:
    view = page.get("/api/compare", id=ALL).json()
    assert view["factor"] == 100
    plot = view["plot"]
    assert plot["labels"] == ["fedavg", "aaggff-s"] and plot["has_local"]
    folders = {"fedavg": "fedavg", "aaggff-s": "aaggff-s"}
    local = [scores(page.root / "local/fedavg" / f"seed-{s}", "personal_score") for s in (0, 1)]
    for line in plot["lines"]:
        name = text.shown(line["client"])
        assert line["local"] == pytest.approx(sum(each[name] for each in local) / 2)
        for method, value in zip(plot["labels"], line["scores"], strict=True):
            both = [scores(page.root / folders[method] / f"seed-{s}")[name] for s in (0, 1)]
            assert value == pytest.approx(sum(both) / 2)
    by_local = [line["local"] for line in plot["lines"]]
    assert by_local == sorted(by_local, reverse=True)


def test_a_clients_weights_are_what_the_files_hold(page: Page) -> None:
    folder = page.root / "aaggff-s" / "seed-0"
    lines = as_documented(folder)
    for name in NAMES:
        view = page.get("/api/client", id=ALL, name=name).json()
        (found,) = [method for method in view["methods"] if method["label"] == "aaggff-s"]
        weights = [5 * weights_of(line)[name] for line in lines]
        assert found["weights"] == pytest.approx(weights, abs=1e-5)
        losses = [dict(zip(x["client"], x["loss"], strict=True)) for x in lines]
        relative = [each[name] * 5 / sum(each.values()) for each in losses]
        assert found["losses"] == pytest.approx(relative, abs=1e-5)
        assert found["rounds"] == [2, 4]
    assert page.get("/api/client", id=ALL, name="nobody").status_code == 404


def test_tables_figures_and_the_report_are_downloaded(page: Page) -> None:
    answer = page.get("/api/table", id=ALL, form="csv", file="a b/<c>.csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="a-b--c-.csv"'
    table = {line["rule"]: line for line in csv.DictReader(io.StringIO(answer.text))}
    means = [np.mean(list(scores(page.root / "fedavg" / f"seed-{s}").values())) for s in (0, 1)]
    assert float(table["fedavg"]["mean"]) == pytest.approx(np.mean(means))
    assert r"\begin{tabular}" in page.get("/api/table", id=ALL, form="tex").text
    for what in ("clients", "rounds"):
        for form, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
            drawn = page.get("/api/figure", id=ALL, what=what, form=form)
            assert drawn.content.startswith(start)
    assert "<h1>" in page.get("/api/report", id=ALL, title="x").text
    for wrong in ({"form": "exe"}, {"what": "clients", "form": "exe"}):
        assert page.get("/api/figure", id=ALL, **wrong).status_code == 404


def test_a_damaged_line_of_rounds_is_reported(page: Page) -> None:
    folder = page.root / "damaged"
    shutil.copytree(page.root / "fedavg" / "seed-0", folder)
    try:
        (folder / "rounds.jsonl").write_text("nonsense\n")
        answer = page.get("/api/run", id="damaged")
        assert (answer.status_code, "is damaged" in answer.json()["problem"]) == (404, True)
        assert "is damaged" in page.get("/api/follow", id="damaged").text
    finally:
        shutil.rmtree(folder)


# Large and strange folders


def copies(page: Page, root: Path, count: int) -> None:
    model = page.root / "fedavg" / "seed-0"
    names = ("experiment.toml", "run.json", "rounds.jsonl", "timings.jsonl")
    small = {name: (model / name).read_bytes() for name in names}
    for k in range(count):
        folder = root / f"run-{k:04d}"
        folder.mkdir()
        for name, data in small.items():
            text = data.replace(b"seed = 0", b"seed = %d" % k, 1) if name[0] == "e" else data
            (folder / name).write_bytes(text)


def test_a_thousand_runs_are_read_once(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies(page, tmp_path, 1000)
    (federation,) = runs.federations(runs.scan(tmp_path))
    (method,) = federation.methods
    assert len(method.ids) == 1000

    def fail(folder: Path) -> None:
        raise AssertionError(f"{folder} was read again")

    monkeypatch.setattr(Outline, "open", fail)
    assert runs.federations(runs.scan(tmp_path)) == [federation]


def test_one_broken_folder_never_empties_the_page(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies(page, tmp_path, 3)
    open_outline = Outline.open

    def fail(folder: Path) -> Outline:
        if folder.name == "run-0001":
            raise AttributeError("'NoneType' object has no attribute 'x'")  # nobody foresaw it
        return open_outline(folder)

    monkeypatch.setattr(Outline, "open", fail)
    found = runs.scan(tmp_path)
    assert [run.state == "broken" for run in found] == [False, True, False]
    assert isinstance(found[1], runs.Broken) and "NoneType" in found[1].problem
    assert len(runs.federations(found)[0].methods[0].ids) == 2


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("experiment.toml", "seed = 1", "seed = inf"),
        ("experiment.toml", "seed = 1", 'seed = "x"'),
        ("run.json", '"score": "accuracy"', '"score": "nobody knows"'),
        ("rounds.jsonl", '"metrics": {', '"metrics": ' + "[" * 12_000 + "{"),
    ],
)
def test_a_damaged_value_breaks_its_own_line_only(
    page: Page, tmp_path: Path, file: str, old: str, new: str
) -> None:
    copies(page, tmp_path, 2)
    path = tmp_path / "run-0001" / file
    content = path.read_text(encoding="utf-8")
    assert old in content
    path.write_text(content.replace(old, new), encoding="utf-8")
    found = runs.scan(tmp_path)
    assert [run.state == "broken" for run in found] == [False, True]
    assert len(runs.federations(found)[0].methods) == 1
    assert runs.matching_runs(found, "broken") == [found[1]]


DAMAGED = {
    "a list": b"[]\n",
    "NaN": b"NaN\n",
    "empty": b"",
    "deep": b"[" * 100_000 + b"\n",
    "megabytes": b"[" * 50_000_000 + b"\n",
    "NUL": b"\0" * 100,
    "a long number": b"1" * 5000 + b"\n",
    "a lone surrogate": b'{"format": "\\ud800", "round": 1, "new": ["\\ud800"]}\n',
}


def test_folders_with_anything_in_them_are_answered(page: Page, tmp_path: Path) -> None:
    copies(page, tmp_path, 1)
    model = tmp_path / "run-0000"
    names = []
    for file in ("run.json", "experiment.toml", "rounds.jsonl"):
        for kind, content in DAMAGED.items():
            names.append(f"{kind} as {file}")
            (shutil.copytree(model, tmp_path / names[-1]) / file).write_bytes(content)
        names.append(f"a pipe as {file}")
        folder = shutil.copytree(model, tmp_path / names[-1])
        (folder / file).unlink()
        os.mkfifo(folder / file)
    for odd in ("<img src=x>", "\x1b[2J", "\n", "&id=%00", "?#"):
        shutil.copytree(model, tmp_path / odd)
        names.append(odd)
    shutil.copytree(model, tmp_path / "\udcff")
    (tmp_path / "circle").symlink_to("circle")
    names += ["\udcff", "circle", "circle/x"]
    with serve(tmp_path) as odd_page:
        home = odd_page.get("/api/home")
        assert home.status_code == 200
        problems = {line["id"]: line["problem"] for line in home.json()["broken"]}
        unnamed = "the folder's name '\\udcff' is not UTF-8: rename it"
        assert problems.pop("\\udcff") == unnamed
        assert len([name for name in problems if name.endswith("as run.json")]) == len(DAMAGED) + 1
        assert all(problems.values())
        listed = [
            id for line in home.json()["federations"] for m in line["methods"] for id in m["ids"]
        ]
        assert {"run-0000", "<img src=x>", "\x1b[2J", "\n", "&id=%00", "?#"} <= set(listed)
        for name in names:
            query = f"id={quote(name, errors='surrogateescape')}&what=weights&name=d"
            for what in ("run", "client", "figure"):
                answer = odd_page.get(f"/api/{what}?{query}")
                assert answer.status_code in (200, 404)
                assert answer.status_code == 200 or answer.json()["problem"]
                assert answer.headers["content-security-policy"].startswith("default-src 'self'")
        for name in ("circle", "circle/x", "\udcff"):
            query = f"id={quote(name, errors='surrogateescape')}"
            assert odd_page.get(f"/api/follow?{query}").status_code == 404


def test_a_long_run_is_drawn_from_some_of_its_rounds(page: Page, tmp_path: Path) -> None:
    """The last client table, the end of the curve and the names are those of all rounds."""
    folder = shutil.copytree(page.root / "aaggff-s" / "seed-0", tmp_path / "long")
    lines = (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    last = json.loads(lines[-1]) | {"new": []}
    with open(folder / "rounds.jsonl", "a", encoding="utf-8") as file:
        for number in range(5, 5001):
            metrics = last["metrics"] | {"mean": number / 1e4} if number % 2 else {}
            file.write(json.dumps(last | {"round": number, "metrics": metrics}) + "\n")
    record = Record.sample(folder, 300)
    assert len(record.rounds) < 1300
    assert record.rounds[-1].number == 5000 and record.evaluated[-1].number == 4999
    view = views.run_view(record, "stopped")
    whole = views.run_view(Record.read(folder), "stopped")
    assert view["clients"] == whole["clients"] and view["round"] == whole["round"]
    assert isinstance(view["curves"], dict)
    curve = view["curves"]["mean"]
    assert len(curve["round"]) <= 300 and curve["round"][-1] == 4999
    shown = dict(zip(curve["round"], curve["mean"], strict=True))
    assert all(shown[number] == pytest.approx(number / 100) for number in curve["round"][2:])


def test_deep_folders_are_searched(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(1100):  # more levels than Python's stack has frames
        deep = deep / "d"
        os.mkdir(deep)
    (deep / "run.json").write_text("{}")
    try:
        assert [run.state for run in runs.scan(tmp_path)] == ["broken"]
    finally:
        (deep / "run.json").unlink()
        while deep != tmp_path:
            deep.rmdir()
            deep = deep.parent


def test_a_stray_run_does_not_reduce_the_comparison_of_others(page: Page, tmp_path: Path) -> None:
    for source in ("fedavg", "aaggff-s", "local/fedavg"):
        shutil.copytree(page.root / source, tmp_path / source.replace("/", "-"))
    stray = shutil.copytree(tmp_path / "fedavg" / "seed-1", tmp_path / "stray")
    text = (stray / "experiment.toml").read_text().replace('"fedavg"', '"uniform"')
    (stray / "experiment.toml").write_text(text)
    unfinished = shutil.copytree(tmp_path / "fedavg" / "seed-1", tmp_path / "unfinished")
    (unfinished / "experiment.toml").write_text(text.replace('"uniform"', '"term"'))
    (unfinished / "model.safetensors").unlink()
    (federation,) = runs.federations(runs.scan(tmp_path))
    finished = {method.label: len(method.finished) for method in federation.methods}
    assert sorted(finished.values()) == [0, 1, 2, 2, 2]
    with serve(tmp_path) as own:
        view = own.get("/api/compare", federation=federation.key).json()
        assert view["plot"]["labels"] == ["fedavg", "aaggff-s"]
        assert view["left_out"][0].startswith("Not compared: unfinished runs of term")
        assert "uniform: left out with seeds that others lack: 1" in view["left_out"][1]
        verdict = own.get("/api/verdict", federation=federation.key).json()
        assert verdict["verdict"] == view["overview"]["headline"]
        assert {name.split("/")[0] for name in verdict["better"]} == {"fedavg", "aaggff-s"}
        chosen = own.get("/api/compare", id=["stray", "fedavg/seed-0", "fedavg/seed-1"]).json()
        assert chosen["left_out"] == ["fedavg: left out with seeds that others lack: 0."]


def test_figures_are_of_the_models_that_clients_use(tmp_path: Path) -> None:
    (folder,) = make_runs(tmp_path, ("fedavg",), seeds=1, client="ditto")
    last = json.loads((folder / "rounds.jsonl").read_bytes().splitlines()[-1])
    assert last["personal"]["mean"] != last["metrics"]["mean"]
    (run,) = runs.matching_runs(runs.scan(tmp_path), "ditto")
    assert isinstance(run, runs.ListedRun)
    assert (run.mean, run.worst) == (last["personal"]["mean"], last["personal"]["worst_10"])
    (federation,) = runs.federations([run])
    assert [method.label for method in federation.methods] == ["ditto"]
