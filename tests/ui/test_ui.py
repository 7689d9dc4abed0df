"""The page of runs, in a browser as a person uses it, and over plain HTTP as an attacker would."""

import json
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
import uvicorn

from browser import Browser, browser
from commonweal.record.record import Record
from commonweal.report import document
from commonweal.ui import runs
from commonweal.ui.server import application
from page_helpers import IMAGE, NAMES, make_runs
from run_helpers import as_documented, weights_of


@dataclass
class Page:
    address: str
    root: Path

    def get(self, path: str, **parameters: str) -> httpx.Response:
        return httpx.get(self.address + path, params=parameters or None, timeout=30)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    root = tmp_path_factory.mktemp("page") / "runs"
    make_runs(root)
    broken = root / "zbroken"
    shutil.copytree(root / "fedavg" / "seed-0", broken)
    (broken / "run.json").write_text('{"format": ')
    started = root / "zstarted"
    started.mkdir()
    (started / "run.json").write_text("{}")
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


def rows(window: Browser) -> list[str]:
    return window.texts(".scroll tbody tr")


# In a browser


def test_runs_are_listed_and_filtered_and_broken_ones_say_so(page: Page, window: Browser) -> None:
    window.open(page.address)
    window.shows("6 runs")
    assert len(rows(window)) == 6
    broken = next(row for row in rows(window) if "zbroken" in row)
    assert "broken:" in broken and "is not the folder of a run" in broken
    started = next(row for row in rows(window) if "zstarted" in row)
    assert "experiment.toml is missing" in started
    window.type("#words", "aaggff-s seed=1")
    window.shows("1 runs")
    assert "aaggff-s/seed-1" in rows(window)[0]
    assert window.errors() == []


def test_chosen_runs_are_compared(page: Page, window: Browser) -> None:
    window.open(page.address + "/#/")
    window.run("location.reload()")
    window.shows("6 runs")
    for name in ("aaggff-s/seed-0", "fedavg/seed-0"):
        window.click(f"input[aria-label='Choose {name}']")
    window.shows("Compare 2 chosen")
    window.click("#compare")
    window.shows("Comparison", "h1")
    window.shows("fedavg against aaggff-s")
    last = page.root / "fedavg" / "seed-0" / "rounds.jsonl"
    mean = json.loads(last.read_text().splitlines()[-1])["metrics"]["mean"]
    line = next(row for row in rows(window) if row.startswith("fedavg"))
    assert f"\t{100 * mean:.1f}" in line  # one seed has no deviation
    assert len(window.find(".uplot canvas")) == 1
    assert window.errors() == []


def test_a_click_on_a_client_shows_its_history_and_weights(page: Page, window: Browser) -> None:
    window.open(page.address + "/#/run/aaggff-s%2Fseed-0")
    window.shows("finished: round 4 of 4")
    window.shows("5 of 5 clients")
    window.type("#client-words", "img")
    window.shows("1 of 5 clients")
    assert IMAGE in window.text(".scroll tbody")
    window.click(".scroll tbody a")
    window.shows("Weight over rounds, and why")
    assert window.text("h1") == IMAGE
    assert len(window.find(".uplot canvas")) == 2
    assert "The rule: aaggff-s" in window.texts("h2")
    assert window.errors() == []


def test_figures_are_drawn_when_they_are_unfolded(page: Page, window: Browser) -> None:
    window.open(page.address + "/#/run/fedavg%2Fseed-0")
    window.shows("Weights over rounds")
    assert window.find("img") == []
    window.click("details summary")
    script = "const i = document.querySelector('img'); return i && i.naturalWidth"
    window.until(lambda: bool(window.run(script)))
    assert window.errors() == []


def test_names_are_never_markup(page: Page, window: Browser) -> None:
    name = quote(IMAGE, safe="")
    for view in (
        "#/",
        "#/run/fedavg%2Fseed-0",
        f"#/client/fedavg%2Fseed-0/{name}",
        f"#/run/{name}",
    ):
        window.open(page.address + "/" + view)
        window.until(lambda: len(window.text("main")) > 40)
        assert window.find("img[src='x']") == []
        assert window.run("return document.title") == "Commonweal"
    assert ["404" in error for error in window.errors()] == [True]  # there is no such run


def test_rounds_appear_while_a_run_goes_on(page: Page, window: Browser, tmp_path: Path) -> None:
    live = page.root / "live"
    shutil.copytree(page.root / "fedavg" / "seed-1", live)
    lines = (live / "rounds.jsonl").read_text().splitlines(keepends=True)
    (live / "model.safetensors").rename(tmp_path / "model")
    (live / "rounds.jsonl").write_text("".join(lines[:2]))
    (live / "timings.jsonl").write_text('{"round": 2}\n')
    try:
        window.open(page.address + "/#/run/live")
        window.shows("running: round 2 of 4")
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


def test_a_report_is_readable_without_scripts_on_a_phone(
    page: Page, window: Browser, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    text = document.render(document.collect([page.root / "fedavg", page.root / "aaggff-s"]), "r")
    file.write_text(text, encoding="utf-8")
    window.resize(500, 800)
    window.open(file.as_uri())
    assert window.run("return document.documentElement.scrollWidth <= innerWidth")
    assert window.run(
        "return [...document.querySelectorAll('svg')].every(s => s.clientWidth > 300)"
    )
    assert window.run("return document.title") == "r"
    assert window.errors() == []


# Over HTTP


def test_every_answer_has_a_strict_policy(page: Page) -> None:
    for path in ("/", "/static/page.js", "/api/runs", "/api/run", "/nowhere"):
        headers = page.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'self'") and "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"


def test_nothing_outside_the_folder_is_read(page: Page, tmp_path: Path) -> None:
    outside = make_runs(tmp_path, ["fedavg"], seeds=1, rounds=2)[0]
    (page.root / "link").symlink_to(outside)
    try:
        for name in ("../../" + outside.name, str(outside), "link", "fedavg/../../../etc", "\x00"):
            for what in ("run", "clients", "client", "compare", "figure", "follow"):
                answer = page.get(f"/api/{what}", id=name, what="weights", name="d")
                assert answer.status_code == 404
                assert "there is no run" in answer.text
        assert all(run["id"] != "link" for run in page.get("/api/runs").json()["runs"])
        assert page.get("/static/../server.py").status_code == 404
        assert page.get("/static/%2e%2e/server.py").status_code == 404
    finally:
        (page.root / "link").unlink()


def test_nothing_can_be_written_and_other_hosts_are_refused(page: Page) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert httpx.request(method, page.address + "/api/runs").status_code == 405
    answer = httpx.get(page.address + "/api/runs", headers={"Host": "evil.example"})
    assert answer.status_code == 400


def test_a_clients_history_is_what_the_files_hold(page: Page) -> None:
    folder = page.root / "aaggff-s" / "seed-0"
    for name in NAMES:
        found = page.get("/api/client", id="aaggff-s/seed-0", name=name).json()
        lines = as_documented(folder)
        weights = [5 * weights_of(line)[name] for line in lines]
        assert found["weights"]["weight"] == pytest.approx(weights)
        losses = [dict(zip(x["client"], x["loss"], strict=True)) for x in lines]
        relative = [each[name] * 5 / sum(each.values()) for each in losses]
        assert found["weights"]["loss"] == pytest.approx(relative)
        assert found["scores"]["round"] == [2, 4]
    assert page.get("/api/client", id="aaggff-s/seed-0", name="nobody").status_code == 404


def test_a_damaged_line_of_rounds_is_a_sentence(page: Page, tmp_path: Path) -> None:
    folder = page.root / "damaged"
    shutil.copytree(page.root / "fedavg" / "seed-0", folder)
    try:
        (folder / "rounds.jsonl").write_text("nonsense\n")
        answer = page.get("/api/run", id="damaged")
        assert (answer.status_code, "is damaged" in answer.json()["problem"]) == (404, True)
        assert "is damaged" in page.get("/api/follow", id="damaged").text
    finally:
        shutil.rmtree(folder)


# Large folders


def test_a_thousand_runs_are_listed_at_once(page: Page, tmp_path: Path) -> None:
    model = page.root / "fedavg" / "seed-0"
    names = ("experiment.toml", "run.json", "rounds.jsonl", "timings.jsonl")
    small = {name: (model / name).read_bytes() for name in names}
    for k in range(1000):
        folder = tmp_path / f"run-{k:04d}"
        folder.mkdir()
        for name, data in small.items():
            (folder / name).write_bytes(data)
    begin = time.perf_counter()
    found = runs.search(tmp_path, "")
    seconds = time.perf_counter() - begin
    assert len(found) == 1000
    assert {run.round for run in found} == {4}
    assert seconds < 10  # less than one where nothing else runs


def test_the_list_reads_only_the_end_of_rounds(page: Page, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(page.root / "fedavg" / "seed-0", folder)
    last = (folder / "rounds.jsonl").read_bytes().splitlines()[-1]
    with open(folder / "rounds.jsonl", "wb") as file:
        file.write(b"x" * (1 << 20) + b"\n" + last + b"\n")
    (run,) = runs.search(tmp_path, "")
    assert run.state == "finished"
    assert run.mean == json.loads(last)["metrics"]["mean"]


def test_figures_are_of_the_models_that_clients_use(tmp_path: Path) -> None:
    (folder,) = make_runs(tmp_path, ("fedavg",), seeds=1, client="alone")
    last = json.loads((folder / "rounds.jsonl").read_bytes().splitlines()[-1])
    assert last["personal"]["mean"] != last["metrics"]["mean"]
    (run,) = runs.search(tmp_path, "alone")
    assert run.title == "fedavg, alone"
    assert run.mean == last["personal"]["mean"]
    assert run.worst == last["personal"]["worst_10"]
    record = Record.read(folder)
    rounds, _ = record.rounds_after(0)
    assert rounds[-1].metrics == last["personal"]
    assert runs.curve(record).mean[-1] == last["personal"]["mean"]
    clients = runs.client_page(record, "", most=99).clients
    assert min(client.score for client in clients) == last["personal"]["worst"]
    worst = clients[0]  # the worst off is first
    history = runs.client_history(record, worst.name).scores
    assert history.score[-1] == worst.score
