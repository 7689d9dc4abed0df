"""The server of the page: reads a folder of runs, answers GET requests on the loopback only."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from commonweal.analysis.comparison import Comparison
from commonweal.analysis.gains import ClientGain, Gains, gains
from commonweal.analysis.labels import by_label
from commonweal.base.errors import CommonwealError, RunError
from commonweal.base.plain import to_json
from commonweal.config import catalog
from commonweal.record.record import Record
from commonweal.record.rounds import progress_after
from commonweal.report import figures
from commonweal.report.clients import client_lines
from commonweal.report.comparison import answer, layout, summarize, worth_sentences
from commonweal.report.formats import Grid, cell_rows, scale
from commonweal.ui import runs

__all__ = ["application"]

STATIC = Path(__file__).parent / "static"
HOSTS = ["127.0.0.1", "localhost", "[::1]"]  # other names: a page elsewhere that points here
MOST_RUNS = 200  # that a list shows at once
MOST_CLIENTS = 100
MOST_COMPARED = 40
INTERVAL = 0.5  # seconds between looks at a run that goes on
HEADERS = {
    b"content-security-policy": b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}

Answer = Callable[[Path, Request], dict[str, object]]


def application(root: Path) -> Starlette:
    """The page of the runs below a folder."""
    root = root.resolve()
    answers: dict[str, Answer] = {
        "runs": _runs,
        "run": _run,
        "clients": _clients,
        "client": _client,
        "compare": _compare,
    }
    routes = [Route(f"/api/{name}", partial(_answer, root, each)) for name, each in answers.items()]
    return Starlette(
        routes=[
            Route("/", _index),
            Route("/api/follow", partial(_follow, root)),
            Route("/api/figure", partial(_figure, root)),
            *routes,
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[
            Middleware(_Headers),
            Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS),
        ],
    )


class _Headers:
    """Adds the headers that keep a page harmless to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS.items()]
            await send(message)

        await self.app(scope, receive, send_with_headers)


async def _index(request: Request) -> Response:
    return FileResponse(STATIC / "index.html")


async def _answer(root: Path, answer: Answer, request: Request) -> Response:
    try:
        found = await run_in_threadpool(answer, root, request)
    except (CommonwealError, OSError, ValueError, KeyError) as error:
        return _problem(error)
    return Response(to_json(found, indent=None), media_type="application/json")


def _problem(error: Exception) -> Response:
    text = str(error) if isinstance(error, CommonwealError) else f"cannot be read: {error}"
    return Response(to_json({"problem": text}), status_code=404, media_type="application/json")


def _folder(root: Path, name: str) -> Path:
    """The folder of a run by its id. Nothing outside the root is ever opened."""
    try:
        folder = (root / name).resolve()
        found = folder.is_relative_to(root) and (folder / "experiment.toml").is_file()
    except (OSError, ValueError):  # a name that no file can have
        found = False
    if not found:
        raise RunError(f"there is no run {name!r} here")
    return folder


def _asked(root: Path, request: Request) -> Path:
    return _folder(root, request.query_params.get("id", ""))


# Answers


def _runs(root: Path, request: Request) -> dict[str, object]:
    found = runs.search(root, request.query_params.get("words", ""))
    return {
        "folder": str(root),
        "runs": [asdict(run) for run in found[:MOST_RUNS]],
        "matching": len(found),
        "running": any(run.state == "running" for run in found),
    }


def _run(root: Path, request: Request) -> dict[str, object]:
    folder = _asked(root, request)
    record = Record.read(folder)
    described = runs.describe(root, folder)
    return {
        "run": asdict(described),
        "curve": asdict(runs.curve(record)),
        "scale": scale(described.score),
        "experiment": (folder / "experiment.toml").read_text(encoding="utf-8"),
        "facts": record.facts.table(),
        "rule": _rule(record),
    }


def _rule(record: Record) -> dict[str, object]:
    """What the rule does, in words."""
    name = record.part("rule")
    if not name or ":" in name or name not in catalog.entries("rules"):
        return {"name": name, "about": "", "details": ""}
    entry = catalog.entries("rules")[name]
    return {"name": name, "about": entry.about, "details": inspect.cleandoc(entry.details)}


def _clients(root: Path, request: Request) -> dict[str, object]:
    record = Record.read(_asked(root, request))
    page = runs.client_page(record, request.query_params.get("words", ""), MOST_CLIENTS)
    return asdict(page) | {"scale": scale(record.facts.score), "score": record.facts.score}


def _client(root: Path, request: Request) -> dict[str, object]:
    record = Record.read(_asked(root, request))
    history = runs.client_history(record, request.query_params.get("name", ""))
    more = {"rule": _rule(record), "scale": scale(record.facts.score)}
    return asdict(history) | more | {"score": record.facts.score}


def _chosen(root: Path, request: Request) -> Comparison:
    """The runs that the page asks to compare."""
    names = request.query_params.getlist("id")[:MOST_COMPARED]
    records = [Record.read(_folder(root, name)) for name in names]
    evaluated = [record for record in records if record.evaluated]
    if not evaluated:
        raise RunError(f"none of these {len(names)} runs has been evaluated yet")
    return Comparison.of(by_label(evaluated))


def _compare(root: Path, request: Request) -> dict[str, object]:
    """Curves and tables of the chosen runs, by label."""
    chosen = _chosen(root, request)
    results, score = chosen.results, chosen.score
    summary = summarize(results, score, baselines=chosen.baselines)
    grid = layout(summary)
    first, *others = results
    sentences = worth_sentences(summary)
    if sentences:
        sentences.insert(0, answer(summary))
    return {
        "score": score,
        "scale": scale(score),
        "title": grid.title,
        "base": first.label,
        "header": ["method", *(column.title for column in grid.columns)],
        "rows": cell_rows(grid, grid.columns, "{}"),
        "notes": [*sentences, *grid.notes],
        "worth": _worth(grid),
        "curves": {label: asdict(runs.curve(group[0])) for label, group in chosen.records.items()},
        "changes": [_changes(gains(first, other), score) for other in others],
    }


def _changes(found: Gains, score: str) -> dict[str, object]:
    """Who gained and who lost significantly, in shown units."""

    def shown(clients: list[ClientGain]) -> list[tuple[str, float]]:
        return [(each.client, scale(score) * each.gain) for each in clients[:MOST_CLIENTS]]

    more = [max(0, len(each) - MOST_CLIENTS) for each in (found.better, found.worse)]
    return {
        "label": found.label,
        "gained": shown(found.better),
        "lost": shown(found.worse),
        "more": more,
    }


def _worth(grid: Grid) -> dict[str, object] | None:
    """The table of gains over local training, where that was run."""
    if not grid.against_local:
        return None
    return {
        "header": ["method", *(column.title for column in grid.against_local)],
        "rows": cell_rows(grid, grid.against_local, "{}"),
    }


def _draw_clients(root: Path, request: Request) -> figures.Picture:
    chosen = _chosen(root, request)
    return figures.clients(client_lines(chosen.results, chosen.baselines, chosen.score))


DRAWINGS: dict[str, figures.Drawing] = {"weights": figures.weights, "regret": figures.regret}


async def _figure(root: Path, request: Request) -> Response:
    def drawn() -> bytes:
        what = request.query_params.get("what", "")
        if what == "clients":
            return figures.draw(_draw_clients(root, request).figure, "png")
        if what not in DRAWINGS:
            raise RunError(f"there is no figure {what!r}")
        record = Record.read(_asked(root, request))
        return figures.draw(DRAWINGS[what](record, record.title).figure, "png")

    try:
        return Response(await run_in_threadpool(drawn), media_type="image/png")
    except (CommonwealError, OSError, ValueError) as error:
        return _problem(error)


async def _follow(root: Path, request: Request) -> Response:
    try:
        folder = _asked(root, request)
    except CommonwealError as error:
        return _problem(error)
    return StreamingResponse(_events(folder), media_type="text/event-stream")


async def _events(folder: Path) -> AsyncIterator[str]:
    """New rounds as server-sent events, until the run is finished."""
    offset = 0
    while True:
        finished = (folder / "model.safetensors").exists()
        path = folder / "rounds.jsonl"
        size = path.stat().st_size if path.exists() else 0
        if size < offset:  # a resumed run was cut back
            offset = 0
        try:
            rounds, offset = await run_in_threadpool(progress_after, folder, offset)
        except CommonwealError as error:
            yield _event("problem", {"problem": str(error)})
            return
        if rounds:
            evaluated = [
                {"round": each.number, "metrics": each.metrics} for each in rounds if each.metrics
            ]
            shown = evaluated[-runs.MOST_POINTS :]
            yield _event("rounds", {"round": rounds[-1].number, "evaluated": shown})
        if finished:
            yield _event("finished", {})
            return
        await asyncio.sleep(INTERVAL)


def _event(name: str, value: dict[str, object]) -> str:
    return f"event: {name}\ndata: {to_json(value, indent=None).decode()}\n"
