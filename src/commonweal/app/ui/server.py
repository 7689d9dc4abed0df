"""The server of the page: reads a folder of runs, answers GET requests on the loopback only."""

import asyncio
import inspect
import re
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

from commonweal.app.ui import runs, views
from commonweal.base.errors import CommonwealError, RunError
from commonweal.base.plain import to_json
from commonweal.base.text import shown
from commonweal.config import catalog
from commonweal.record.record import Record
from commonweal.record.rounds import progress_after, tail
from commonweal.report import Format, document, figures
from commonweal.study.comparison import Comparison
from commonweal.study.given import FILE, Given, read_given

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


def application(root: Path) -> Starlette:
    """The page of the runs below a folder."""
    root = root.resolve()
    answers = [Route(f"/api/{name}", partial(_answer, root, name)) for name in ANSWERS]
    static = Mount("/static", StaticFiles(directory=STATIC))
    trusted = Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS)
    return Starlette(
        routes=[Route("/", _index), *answers, static], middleware=[Middleware(_Headers), trusted]
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


async def _answer(root: Path, name: str, request: Request) -> Response:
    try:
        return await run_in_threadpool(ANSWERS[name], root, request)
    except Exception as error:
        return _json(_problem(error), 404)


def _problem(error: Exception) -> dict[str, object]:
    """A folder may hold anything: the page says what is wrong."""
    if isinstance(error, CommonwealError):
        return {"problem": str(error)}
    return {"problem": f"this cannot be read ({type(error).__name__}: {error})"}


def _json(value: dict[str, object], status: int = 200) -> Response:
    data = to_json(value, indent=None)
    return Response(data, status_code=status, media_type="application/json")


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


def _requested(root: Path, request: Request) -> Path:
    return _folder(root, request.query_params.get("id", ""))


def _of_federation(root: Path, key: str) -> tuple[list[str], list[str]]:
    """The ids of a federation's finished runs, or of all where none is finished, and a note."""
    by_key = {federation.key: federation for federation in runs.federations(runs.scan(root))}
    if key not in by_key:
        raise RunError("there is no such federation here: it may have been moved")
    methods = by_key[key].methods
    finished = [name for method in methods for name in method.finished]
    every = [name for method in methods for name in method.ids]
    if not finished or len(finished) == len(every):
        return every, []
    labels = [method.label for method in methods if len(method.finished) < len(method.ids)]
    return finished, [f"Not compared: unfinished runs of {', '.join(labels)}."]


def _given(root: Path, names: Sequence[str]) -> Given | None:
    """Return the given models, where they were chosen among exactly the runs below one folder."""
    folders = set()
    for name in names:
        above = [path for path in (root / name).parents if path.is_relative_to(root)]
        folders.add(next((path for path in above if (path / FILE).is_file()), None))
    folder = folders.pop() if len(folders) == 1 else None
    if folder is None or (folder / FILE).is_symlink():
        return None
    return read_given(folder, lambda run: Record.read(_folder(root, str(run))))


def _compared(root: Path, request: Request) -> tuple[Comparison, dict[str, list[str]]]:
    """The comparison of the chosen runs, or of a federation, and their ids by label."""
    chosen = request.query_params.getlist("id")
    notes: list[str] = []
    given = None
    if not chosen:
        chosen, notes = _of_federation(root, request.query_params.get("federation", ""))
        given = _given(root, chosen)
    if len(chosen) > MOST_COMPARED:
        raise RunError(f"{len(chosen)} runs were chosen: compare at most {MOST_COMPARED} at once")
    if given is None:
        comparison = Comparison.of_records(Record.read(_folder(root, name)) for name in chosen)
    else:
        comparison = Comparison.of_given(given)
    comparison = replace(comparison, failures=[*notes, *comparison.failures])
    ids = {}
    for label, group in comparison.records.items():
        ids[label] = [record.folder.resolve().relative_to(root).as_posix() for record in group]
    return comparison, ids


# Answers


def _home(root: Path, request: Request) -> Response:
    everything = runs.scan(root)
    selected = runs.matching_runs(everything, request.query_params.get("words", ""))
    broken = [run for run in selected if isinstance(run, runs.Broken)]
    return _json(
        {
            "folder": shown(str(root)),
            "federations": list(map(asdict, runs.federations(selected))),
            "broken": [{"id": run.id, "problem": run.problem} for run in broken],
            "matching": len(selected),
            "all": len(everything),
            "running": any(run.state == "running" for run in selected),
        }
    )


def _verdict(root: Path, request: Request) -> Response:
    """A federation's verdict, and by run who is better off. It takes longer than the list."""
    comparison, ids = _compared(root, request)
    judgement = comparison.judgement
    better = {}
    for label, clients in ({} if judgement is None else judgement.clients).items():
        assert judgement is not None
        if label in ids:
            better[ids[label][0]] = f"{len(judgement.better[label])} of {len(clients)}"
    return _json({"verdict": comparison.verdict, "better": better})


def _compare(root: Path, request: Request) -> Response:
    return _json(views.comparison_view(*_compared(root, request)))


def _client(root: Path, request: Request) -> Response:
    comparison, _ = _compared(root, request)
    return _json(views.client_view(comparison, request.query_params.get("name", "")))


def _run(root: Path, request: Request) -> Response:
    folder = _requested(root, request)
    described = runs.list_run(root, folder)
    if isinstance(described, runs.Broken):
        raise RunError(described.problem)
    record = Record.sample(folder, views.MOST_POINTS)
    names = {"id": described.id, "state": described.state, "federation": described.federation}
    return _json(views.run_view(record, described.state) | names | {"rule": _rule(record)})


def _rule(record: Record) -> dict[str, object]:
    """Return the description of the rule."""
    name = record.part("rule")
    entry = catalog.entries("rules").get(name)
    if entry is None:
        return {"name": name, "about": "", "details": ""}
    return {"name": name, "about": entry.about, "details": inspect.cleandoc(entry.details)}


# Files


FORMS = {"png": "image/png", "svg": "image/svg+xml", "pdf": "application/pdf"}
TABLES: dict[str, Format] = {"csv": "csv", "tex": "latex", "md": "markdown"}


def _figure(root: Path, request: Request) -> Response:
    form = request.query_params.get("form", "png")
    what = request.query_params.get("what", "")
    if form not in FORMS:
        raise RunError(f"there is no format {form!r}: take {', '.join(FORMS)}")
    if what in ("weights", "regret"):
        record = Record.read(_requested(root, request))
        figure = record.plot.weights() if what == "weights" else record.plot.regret()
    elif what in ("clients", "rounds"):
        comparison, _ = _compared(root, request)
        figure = comparison.plot(what)
    else:
        raise RunError(f"there is no figure {what!r}")
    return _file(request, figures.draw(figure, form), FORMS[form])


def _table(root: Path, request: Request) -> Response:
    form = request.query_params.get("form", "csv")
    if form not in TABLES:
        raise RunError(f"there is no format {form!r}: take {', '.join(TABLES)}")
    comparison, _ = _compared(root, request)
    table = comparison.table(TABLES[form])
    return _file(request, table.encode(), "text/plain; charset=utf-8")


def _report(root: Path, request: Request) -> Response:
    comparison, _ = _compared(root, request)
    page = document.render(comparison, request.query_params.get("title", "Report"))
    return _file(request, page.encode(), "text/html; charset=utf-8")


def _file(request: Request, data: bytes, kind: str) -> Response:
    """A file; it is downloaded where the page asks for it by name."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", request.query_params.get("file", ""))
    headers = {"content-disposition": f'attachment; filename="{name}"'} if name else {}
    return Response(data, media_type=kind, headers=headers)


# A run that goes on


def _follow(root: Path, request: Request) -> Response:
    return StreamingResponse(_events(_requested(root, request)), media_type="text/event-stream")


async def _events(folder: Path) -> AsyncIterator[str]:
    """New rounds as server-sent events, after some of the last, until the run is finished."""
    offset = await run_in_threadpool(tail, folder / "rounds.jsonl")
    while True:
        finished = (folder / "model.safetensors").exists()
        path = folder / "rounds.jsonl"
        size = path.stat().st_size if path.exists() else 0
        if size < offset:  # a resumed run was cut back
            offset = 0
        try:
            rounds, offset = await run_in_threadpool(progress_after, folder, offset)
        except Exception as error:
            yield _event("problem", _problem(error))
            return
        if rounds:
            evaluated = []
            for done in rounds:
                if done.metrics:
                    evaluated.append({"round": done.number, "metrics": done.metrics})
            shown = evaluated[-views.MOST_POINTS :]
            yield _event("rounds", {"round": rounds[-1].number, "evaluated": shown})
        if finished:
            yield _event("finished", {})
            return
        await asyncio.sleep(INTERVAL)


def _event(name: str, value: dict[str, object]) -> str:
    return f"event: {name}\ndata: {to_json(value, indent=None).decode()}\n"


ANSWERS: dict[str, Callable[[Path, Request], Response]] = {
    "home": _home,
    "verdict": _verdict,
    "compare": _compare,
    "client": _client,
    "run": _run,
    "figure": _figure,
    "table": _table,
    "report": _report,
    "follow": _follow,
}
