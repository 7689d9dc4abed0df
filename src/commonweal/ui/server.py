"""The server of the page: reads a folder of runs, answers GET requests on the loopback only."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, replace
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

from commonweal.base.errors import CommonwealError, RunError
from commonweal.base.plain import to_json
from commonweal.base.text import shown
from commonweal.config import catalog
from commonweal.record.record import Record
from commonweal.record.rounds import progress_after, tail
from commonweal.report import Format, document, figures
from commonweal.report.compare import Comparison
from commonweal.report.comparison import answer, render
from commonweal.ui import runs, views

__all__ = ["application"]

STATIC = Path(__file__).parent / "static"
HOSTS = ["127.0.0.1", "localhost", "[::1]"]  # other names: a page elsewhere that points here
MOST_COMPARED = 400  # runs
INTERVAL = 0.5  # seconds between looks at a run that goes on
HEADERS = {
    b"content-security-policy": b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}

Answer = Callable[[Path, Request], dict[str, object]]
Writer = Callable[[Path, Request], tuple[bytes, str]]  # contents and media type


def application(root: Path) -> Starlette:
    """The page of the runs below a folder."""
    root = root.resolve()
    answers: dict[str, Answer] = {
        "home": _home,
        "sentence": _sentence,
        "compare": _compare,
        "client": _client,
        "run": _run,
    }
    files: dict[str, Writer] = {
        "figure": _draw,
        "table": _write_table,
        "report": _write_report,
    }
    return Starlette(
        routes=[
            Route("/", _index),
            Route("/api/follow", partial(_follow, root)),
            *(Route(f"/api/{k}", partial(_answer, root, each)) for k, each in answers.items()),
            *(Route(f"/api/{k}", partial(_file, root, each)) for k, each in files.items()),
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
        value = await run_in_threadpool(answer, root, request)
    except Exception as error:  # a folder may hold anything: the page says what is wrong
        return _problem(error)
    return Response(to_json(value, indent=None), media_type="application/json")


def _problem(error: Exception) -> Response:
    data = to_json({"problem": _reason(error)})
    return Response(data, status_code=404, media_type="application/json")


def _reason(error: Exception) -> str:
    if isinstance(error, CommonwealError):
        return str(error)
    return f"this cannot be read ({type(error).__name__}: {error})"


def _folder(root: Path, name: str) -> Path:
    """The folder of a run by its id. Nothing outside the root is ever opened."""
    try:
        folder = (root / name).resolve()
        is_run = folder.is_relative_to(root) and (folder / "experiment.toml").is_file()
    except (OSError, ValueError, RuntimeError):  # a name that no file can have, a circle of links
        is_run = False
    if not is_run:
        raise RunError(f"there is no run {name!r} here")
    runs.check_links(folder)
    return folder


def _asked(root: Path, request: Request) -> Path:
    return _folder(root, request.query_params.get("id", ""))


def _records(root: Path, names: Sequence[str]) -> dict[str, Record]:
    """Runs by id."""
    if len(names) > MOST_COMPARED:
        raise RunError(f"{len(names)} runs were chosen: compare at most {MOST_COMPARED} at once")
    return {name: Record.read(_folder(root, name)) for name in names}


def _of_federation(root: Path, key: str) -> tuple[list[str], list[str]]:
    """The ids of a federation's runs that are compared, and a note on those that are not."""
    for federation in runs.federations(runs.scan(root)):
        if federation.key != key:
            continue
        every = [name for method in federation.methods for name in method.ids]
        compared = [name for method in federation.methods for name in method.compared]
        if not compared or len(compared) == len(every):
            return every, []
        partly = [m.label for m in federation.methods if len(m.compared) < len(m.ids)]
        note = (
            f"Not compared: {len(every) - len(compared)} of {len(every)} runs, unfinished or of "
            f"seeds that other methods lack ({', '.join(partly)}). To compare others, choose them "
            "on the first page."
        )
        return compared, [note]
    raise RunError("there is no such federation here: it may have been moved")


def _compared(root: Path, request: Request) -> tuple[Comparison, dict[str, list[str]]]:
    """The comparison of the chosen runs, or of a federation, and their ids by label."""
    chosen = request.query_params.getlist("id")
    notes: list[str] = []
    if not chosen:
        chosen, notes = _of_federation(root, request.query_params.get("federation", ""))
    records = _records(root, chosen)
    comparison = Comparison.of_records(records.values())
    comparison = replace(comparison, failures=[*notes, *comparison.failures])
    names = {id(record): name for name, record in records.items()}
    ids = {}
    for label, group in comparison.records.items():
        ids[label] = [names[id(record)] for record in group]
    return comparison, ids


# Answers


def _home(root: Path, request: Request) -> dict[str, object]:
    everything = runs.scan(root)
    selected = runs.select(everything, request.query_params.get("words", ""))
    return {
        "folder": shown(str(root)),
        "federations": [asdict(federation) for federation in runs.federations(selected)],
        "broken": [{"id": run.id, "problem": run.problem} for run in runs.broken(selected)],
        "matching": len(selected),
        "all": len(everything),
        "running": any(run.state == "running" for run in selected),
    }


def _sentence(root: Path, request: Request) -> dict[str, object]:
    """A federation's answer, and by run who is better off. It takes longer than the list."""
    comparison, ids = _compared(root, request)
    summary = comparison.summary
    better = {}
    for gained in summary.gains:
        if summary.seeds > 1:
            better[ids[gained.label][0]] = f"{len(gained.better)} of {len(gained.clients)}"
    return {"sentence": answer(summary), "better": better}


def _compare(root: Path, request: Request) -> dict[str, object]:
    return asdict(views.compare(*_compared(root, request)))


def _client(root: Path, request: Request) -> dict[str, object]:
    comparison, _ = _compared(root, request)
    return asdict(views.client_view(comparison, request.query_params.get("name", "")))


def _run(root: Path, request: Request) -> dict[str, object]:
    folder = _asked(root, request)
    described = runs.describe(root, folder)
    if described.problem:
        raise RunError(described.problem)
    record = Record.sample(folder, views.MOST_POINTS)
    view = views.run_view(record, described.state)
    return asdict(view) | {
        "id": described.id,
        "state": described.state,
        "federation": described.federation,
        "rule": _rule(record),
    }


def _rule(record: Record) -> dict[str, object]:
    """What the rule does, in words."""
    name = record.part("rule")
    if not name or ":" in name or name not in catalog.entries("rules"):
        return {"name": name, "about": "", "details": ""}
    entry = catalog.entries("rules")[name]
    return {"name": name, "about": entry.about, "details": inspect.cleandoc(entry.details)}


# Files


FORMS = {"png": "image/png", "svg": "image/svg+xml", "pdf": "application/pdf"}
TABLES: dict[str, Format] = {"csv": "csv", "tex": "latex", "md": "markdown"}


def _draw(root: Path, request: Request) -> tuple[bytes, str]:
    """A figure as a file."""
    form = request.query_params.get("form", "png")
    what = request.query_params.get("what", "")
    if form not in FORMS:
        raise RunError(f"there is no format {form!r}: take {', '.join(FORMS)}")
    if what in DRAWINGS:
        record = Record.read(_asked(root, request))
        picture = DRAWINGS[what](record, record.title)
    elif what in ("clients", "rounds"):
        comparison, _ = _compared(root, request)
        drawn = comparison.client_picture if what == "clients" else comparison.round_picture
        picture = drawn()
    else:
        raise RunError(f"there is no figure {what!r}")
    return figures.draw(picture.figure, form), FORMS[form]


DRAWINGS: dict[str, figures.Drawing] = {"weights": figures.weights, "regret": figures.regret}


def _write_table(root: Path, request: Request) -> tuple[bytes, str]:
    """The table of a comparison as a file."""
    form = request.query_params.get("form", "csv")
    if form not in TABLES:
        raise RunError(f"there is no format {form!r}: take {', '.join(TABLES)}")
    comparison, _ = _compared(root, request)
    table = str(render(comparison.summary, TABLES[form]))
    return table.encode(), "text/plain; charset=utf-8"


def _write_report(root: Path, request: Request) -> tuple[bytes, str]:
    comparison, _ = _compared(root, request)
    title = request.query_params.get("title", "Report")
    return document.render(comparison, title).encode(), "text/html; charset=utf-8"


async def _file(root: Path, write: Writer, request: Request) -> Response:
    """A file; it is downloaded where the page asks for it by name."""
    try:
        data, kind = await run_in_threadpool(write, root, request)
    except Exception as error:
        return _problem(error)
    name = request.query_params.get("file", "")
    headers = {}
    if name:
        safe = "".join(c if (c.isalnum() and c.isascii()) or c in "-_." else "-" for c in name)
        headers["content-disposition"] = f'attachment; filename="{safe}"'
    return Response(data, media_type=kind, headers=headers)


async def _follow(root: Path, request: Request) -> Response:
    try:
        folder = _asked(root, request)
    except Exception as error:
        return _problem(error)
    return StreamingResponse(_events(folder), media_type="text/event-stream")


async def _events(folder: Path) -> AsyncIterator[str]:
    """New rounds as server-sent events, after some of the last, until the run is finished."""
    offset = await run_in_threadpool(tail, folder)
    while True:
        finished = (folder / "model.safetensors").exists()
        path = folder / "rounds.jsonl"
        size = path.stat().st_size if path.exists() else 0
        if size < offset:  # a resumed run was cut back
            offset = 0
        try:
            rounds, offset = await run_in_threadpool(progress_after, folder, offset)
        except Exception as error:
            yield _event("problem", {"problem": _reason(error)})
            return
        if rounds:
            evaluated = [
                {"round": done.number, "metrics": done.metrics} for done in rounds if done.metrics
            ]
            shown = evaluated[-views.MOST_POINTS :]
            yield _event("rounds", {"round": rounds[-1].number, "evaluated": shown})
        if finished:
            yield _event("finished", {})
            return
        await asyncio.sleep(INTERVAL)


def _event(name: str, value: dict[str, object]) -> str:
    return f"event: {name}\ndata: {to_json(value, indent=None).decode()}\n"
