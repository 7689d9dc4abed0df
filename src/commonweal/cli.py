"""The command: `commonweal run | list | show | demo`. Only here does the library talk to a person."""

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from commonweal import catalog, metrics
from commonweal.drawing import drawable
from commonweal.errors import CommonwealError, ConfigError, did_you_mean
from commonweal.store import Record, to_json

__all__ = ["app", "main"]

app = typer.Typer(
    help="Federated learning that leaves no client behind.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
out, err = Console(), Console(stderr=True)

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]


def _use_data(path: Path | None) -> None:
    # The environment, so that whatever this process starts looks there too.
    if path is not None:
        os.environ["COMMONWEAL_DATA"] = str(path.resolve())


DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", callback=_use_data, help="The data directory; $COMMONWEAL_DATA, or a cache, by default."
    ),
]


def main() -> None:
    """Run the command; a user's mistake is one sentence and exit code 2."""
    try:
        app(standalone_mode=True)
    except CommonwealError as error:
        _say(f"commonweal: {error}")
        sys.exit(2)


@contextmanager
def following(rounds: int, title: str, quiet: bool) -> Iterator[Any]:
    """A progress bar with rate, time left and the worst client so far; call it with each round and the client names."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    with Progress(
        *columns, TimeRemainingColumn(), TextColumn("{task.fields[worst]}"), console=err, disable=quiet
    ) as bar:
        job = bar.add_task(title, total=rounds, rate="", worst="", visible=False)  # an error before shows no empty bar

        def step(done: Any, names: tuple[str, ...]) -> None:
            speed = bar.tasks[job].speed
            rate = f"{speed:.0f} rounds/s" if speed else ""
            bar.update(job, completed=done.number, visible=True, rate=rate, **_worst(done, names))

        yield step


def _say(text: str) -> None:
    """A line beside the output; paths in it can be copied."""
    err.print(text, markup=False, highlight=False, soft_wrap=True)


def _worst(done: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The client that is served worst after an evaluated round, for a progress bar."""
    if done.evaluation is None:
        return {}
    score = done.evaluation[1].nan_to_num(nan=float("inf"))
    return {"worst": f"worst: {names[int(score.argmin())]} {100 * float(score.min()):.1f}"}


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="An experiment in TOML.", show_default=False)],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[key=value ...]", help="Overrides, such as rule=aaggff-s client.lr=0.01."),
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--out", help="The run's folder; runs/<file>-<rule>-<seed> by default.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a stopped run was saved.")] = False,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run an experiment and write it to a folder."""
    from commonweal.experiment import read
    from commonweal.run import prepare
    from commonweal.run import run as rounds_of

    experiment = read(file, changes or [])
    folder = to or Path("runs") / f"{file.stem}-{experiment.title}-{experiment.seed}"
    job = prepare(experiment)
    _remark(job, quiet or as_json)
    last, told = 0, set[str]()
    try:
        with following(experiment.rounds, experiment.title, quiet or as_json) as step:
            for done in rounds_of(job, out=folder, resume=resume):
                step(done, job.federation.names)
                last = done.number
                for about in [*done.notes, *(f"{name}: {why}" for name, why in done.dropped.items())]:
                    kind = re.split(r"\d", about)[0]  # a bound or a ratio changes from round to round
                    if kind not in told and not (quiet or as_json):
                        _say(f"round {last}: {about}")
                    told.add(kind)
    except KeyboardInterrupt:
        begun = (folder / "experiment.toml").exists()
        saved = last or (len(Record.read(folder).rounds) if begun else 0)  # 0: stopped before its first new round
        _say(f"stopped after round {saved}; all of it is saved in {folder}: go on with the same command and --resume")
        raise typer.Exit(130) from None
    if not (quiet or as_json):
        _say(f"{folder} was finished already." if last == 0 else f"saved in {folder}")
    _show_run(Record.read(folder), quiet, as_json)


def _remark(job: Any, quiet: bool) -> None:
    from commonweal.describe import remarks

    way, why = job.simulator.decision
    said = remarks(job.federation) + ([f"engine: {way}, because {why}"] if job.engine not in ("auto", way) else [])
    for sentence in said if not quiet else []:
        _say(sentence)


def _show_run(record: Record, quiet: bool, as_json: bool) -> None:
    from commonweal import report

    last = record.evaluated[-1] if record.evaluated else None
    if as_json:
        clients = [{"client": n, "score": s, "loss": v} for n, s, v in record.clients()] if last else []
        for client, (_, score, loss) in zip(clients, record.personal() if last else [], strict=False):
            client |= {"personal_score": score, "personal_loss": loss}
        facts = {"folder": str(record.folder), "finished": record.finished, "round": last and last["round"]}
        results = {"metrics": last and last["metrics"]}
        results |= {"personal": last["personal"]} if last and "personal" in last else {}
        print(to_json({**facts, **results, "clients": clients}, indent=None).decode(), end="")
    elif not quiet:
        out.print(report.result(record) if last else f"{record.folder}: no round has been evaluated yet")


def _draw_models(
    folder: str, curve: Path | None, landscape: Path | None, reliability: Path | None, quiet: bool
) -> None:
    """The pictures of a run's models, made from its last checkpoint."""
    if not (curve or landscape or reliability):
        return
    from commonweal import personal, report

    drawable(curve, landscape, reliability)
    job, server = personal.reopen(folder)
    if curve:
        along = personal.curve(job, server)
        report.draw_curve(curve, along, job.task.score)
        if not quiet:
            out.print(report.choices(along, job.task.score))
    if landscape:
        names, plane = personal.around(job, server)
        report.draw_landscape(landscape, plane, names)
    if reliability:
        report.draw_reliability(reliability, personal.trust(job, server))


LISTS = [*(kind for kind in catalog.KINDS), "metrics"]


@app.command(name="list")
def list_(
    what: Annotated[str, typer.Argument(help=f"One of {', '.join(LISTS)}.", show_default=False)], as_json: Json = False
) -> None:
    """List what an experiment can name, a line each."""
    if what not in LISTS:
        raise ConfigError(f"there is no list of {what!r}: {did_you_mean(what, LISTS)}")
    if what == "metrics":
        rows = {name: _first_line(getattr(metrics, name).__doc__) for name in metrics.__all__}
    else:
        rows = {name: _first_line(entry.about) for name, entry in catalog.entries(what).items()}
    if as_json:
        print(json.dumps(rows))
        return
    if what == "rules":
        _list_rules()
        return
    table = Table(box=None, show_header=False)
    for name, line in rows.items():
        table.add_row(f"[bold]{name}[/bold]", line)
    out.print(table)


def _list_rules() -> None:
    """The rules by family, each with its idea and its paper."""
    from commonweal import report

    table = Table(box=None, show_header=False)
    for family, found in report.families().items():
        table.add_row(f"[dim]{family}[/dim]", "")
        for entry in found:
            table.add_row(f"  [bold]{entry.name}[/bold]", f"{_first_line(entry.about)} [dim]{entry.paper}[/dim]")
    out.print(table)


def _first_line(text: str | None) -> str:
    return (text or "").strip().split("\n")[0]


@app.command()
def show(
    what: Annotated[
        str, typer.Argument(metavar="NAME|DIR", help="An algorithm's name, or a run's folder.", show_default=False)
    ],
    regret: Annotated[
        bool, typer.Option("--regret", help="Draw a run's regret and its bound to DIR/regret.png.")
    ] = False,
    curve: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the scores from the shared model to the clients' own.")
    ] = None,
    landscape: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the loss in the plane with two clients' own models.")
    ] = None,
    reliability: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw how often models are right against how sure they are.")
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Explain an algorithm, or show a run's result and pictures of its models."""
    if Path(what).is_dir():
        record = Record.read(what)
        _show_run(record, quiet, as_json)
        if regret:
            _show_regret(record, quiet)
        _draw_models(what, curve, landscape, reliability, quiet or as_json)
        return
    found = [entries[what] for entries in map(catalog.entries, catalog.KINDS) if what in entries]
    if found and (regret or curve or landscape or reliability):
        raise ConfigError(f"{what!r} is an algorithm's name: pictures are drawn of a run's folder")
    if not found:
        known = [name for kind in catalog.KINDS for name in catalog.entries(kind)]
        raise ConfigError(f"{what!r} is neither a run's folder nor a known name: {did_you_mean(what, known)}")
    described = [_described(entry) for entry in found]
    if as_json:
        print(to_json(described, indent=None).decode(), end="")
        return
    for entry, about in zip(found, described, strict=True):
        out.print(f"[bold]{entry.name}[/bold] ({entry.kind.removesuffix('s')})")
        out.print(entry.about, markup=False)
        if entry.details != entry.about:
            out.print("\n" + entry.details, markup=False)
        for name, default in about["parameters"].items():
            out.print(f"  {name} = {default!r}", markup=False)


def _described(entry: catalog.Entry) -> dict[str, Any]:
    parameters = {name: entry.defaults.get(name, "required") for name in entry.parameters}
    return {
        "kind": entry.kind,
        "name": entry.name,
        "about": entry.about,
        "formula": entry.details,
        "parameters": parameters,
    }


def _show_regret(record: Record, quiet: bool) -> None:
    from commonweal import regret, report

    curve, path = regret.of_run(record), record.folder / "regret.png"
    report.draw_regret(path, curve, f"{record.experiment['rule']['name']}: regret against the best fixed mixture")
    if not quiet:
        limit = "" if curve.bound is None else f", the theorem's bound {curve.bound[-1]:.3f}"
        out.print(f"regret after round {curve.rounds[-1]}: {curve.regret[-1]:.3f}{limit}; drawn to {path}")


@app.command()
def compare(
    file: Annotated[Path, typer.Argument(help="An experiment in TOML.", show_default=False)],
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="[key=value ...]", help="Overrides for all runs, such as rounds=50.")
    ] = None,
    rules: Annotated[
        str, typer.Option(help="Rules to compare, as a,b,c; parameters in brackets: 'fedavg,aaggff-s(cdf=frechet)'.")
    ] = "fedavg,uniform,aaggff-s",
    seeds: Annotated[int, typer.Option(help="How many seeds: 0, 1, ...", min=1)] = 3,
    vary: Annotated[
        list[str] | None, typer.Option(help="Also vary a key: client.lr=0.1,0.01 (may be repeated).")
    ] = None,
    to: Annotated[Path | None, typer.Option("--out", help="Where the runs go; runs/<file>-compare by default.")] = None,
    form: Annotated[str, typer.Option("--format", help="terminal, markdown, latex or csv.")] = "terminal",
    picture: Annotated[Path | None, typer.Option(help="Draw every client's score to this PNG, SVG or PDF.")] = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Run an experiment under several rules and seeds; print what can be told apart. What is done is not repeated."""
    from commonweal import report
    from commonweal.compare import cells, results, split_rules
    from commonweal.experiment import override, values

    if form not in report.MARKS:
        raise ConfigError(f"there is no format {form!r}: {did_you_mean(form, report.MARKS)}")
    drawable(picture)
    base = override(values(file), changes or [])
    plan = cells(base, split_rules(rules), seeds, vary or [], to or Path("runs") / f"{file.stem}-compare")
    _compare(plan, quiet)
    found, score = results(plan), Record.read(plan[0].folder).facts["score"]
    rendered = report.render(report.comparison(found, score), form)  # type: ignore[arg-type]
    out.print(rendered) if form == "terminal" else print(rendered)
    if picture is not None:
        report.draw(picture, found, score)


def _compare(plan: list[Any], quiet: bool) -> None:
    """Run a comparison with one progress display; Ctrl-C says how to go on."""
    from commonweal.compare import compared

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    try:
        with Progress(
            *columns, TimeRemainingColumn(), TextColumn("{task.fields[worst]}"), console=err, disable=quiet
        ) as bar:
            job = bar.add_task("", total=sum(cell.experiment.rounds for cell in plan), worst="", visible=False)
            before = {cell.folder: sum(c.experiment.rounds for c in plan[:i]) for i, cell in enumerate(plan)}
            for cell, names, done in compared(plan):
                number = cell.experiment.rounds if done is None else done.number
                fields: dict[str, Any] = {} if done is None else _worst(done, names)
                about = f"{plan.index(cell) + 1}/{len(plan)} {cell.label}, seed {cell.experiment.seed}"
                bar.update(job, completed=before[cell.folder] + number, description=about, visible=True, **fields)
    except KeyboardInterrupt:
        _say("stopped; every finished round is saved: the same command goes on where it stopped")
        raise typer.Exit(130) from None


DEMO: dict[str, Any] = {
    "dataset": {"name": "vowel", "test": 0.5},
    "model": {"name": "mlp", "hidden": [32]},
    "client": {"name": "sgd", "batch": 10, "lr": 0.2},
    "evaluate_every": 10,
}


@app.command()
def demo(
    seeds: Annotated[int, typer.Option(help="How many seeds.", min=1)] = 5,
    rounds: Annotated[int, typer.Option(help="How many rounds.", min=1)] = 200,
    to: Annotated[Path, typer.Option("--out", help="Where runs and picture go.")] = Path("demo"),
    quiet: Quiet = False,
) -> None:
    """FedAvg beside AAggFF-S on the vowels of 15 speakers: who is served badly, and what fairness changes."""
    from commonweal import report
    from commonweal.compare import cells, results

    plan = cells(DEMO | {"rounds": rounds}, ["fedavg", "aaggff-s"], seeds, [], to)
    _compare(plan, quiet)
    found = results(plan)
    for suffix in ("png", "svg"):
        report.draw(to / f"vowel.{suffix}", found, "accuracy")
    if quiet:
        return
    out.print(report.render(report.comparison(found, "accuracy"), "terminal"))
    out.print(report.verdict(*found))
    out.print(f"The picture: {to / 'vowel.png'} (and .svg). One run: commonweal show {plan[-1].folder}")
    out.print("Next: commonweal compare examples/vowel.toml --rules fedavg,term,afl,aaggff-s --seeds 5")


data = typer.Typer(help="See a dataset, or get its files.", no_args_is_help=True)
app.add_typer(data, name="data")


@data.command(name="show")
def data_show(
    name: Annotated[str, typer.Argument(help="A dataset.", show_default=False)],
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="[key=value ...]", help="Such as partition.alpha=0.1 seed=1.")
    ] = None,
    to: Annotated[Path | None, typer.Option("--out", help="The picture; <dataset>.png by default.")] = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Say who holds how much of what, and draw it: clients by classes."""
    from commonweal import describe
    from commonweal.datasets._download import differing
    from commonweal.experiment import override

    part = override({"dataset": name}, [f"dataset.{change}" for change in changes or []])["dataset"]
    federation = catalog.build("datasets", part)
    path = to or Path(f"{name.replace(':', '-')}.png")
    describe.draw(path, federation, name)
    facts, said = describe.facts(federation), describe.remarks(federation)
    said += [f"{file} is not the published file: its checksum differs" for file in differing(name)]
    if as_json:
        print(json.dumps({"dataset": part, **facts, "remarks": said, "picture": str(path)}))
    elif not quiet:
        table = Table(box=None, show_header=False)
        for key, value in facts.items():
            table.add_row(f"[bold]{key}[/bold]", str(value))
        out.print(table)
        for sentence in [*said, f"drawn to {path}"]:
            out.print(sentence, markup=False, highlight=False)


class _Bar:
    """A progress bar as pooch wants one, on rich's."""

    def __init__(self, bar: Progress, title: str) -> None:
        self.bar, self.job = bar, bar.add_task(title, total=None)

    @property
    def total(self) -> float | None:
        return self.bar.tasks[self.job].total

    @total.setter
    def total(self, value: int) -> None:
        self.bar.update(self.job, total=value)

    def update(self, bytes: int) -> None:
        self.bar.advance(self.job, bytes)

    def reset(self) -> None:
        self.bar.reset(self.job)

    def close(self) -> None:
        self.bar.stop_task(self.job)


@data.command(name="get")
def data_get(
    name: Annotated[str, typer.Argument(help="A dataset.", show_default=False)],
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Download a dataset's original files into the data directory and check them."""
    from rich.progress import DownloadColumn, TransferSpeedColumn

    from commonweal.datasets._download import fetch, sources

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=err, disable=quiet) as bar:
        paths = [fetch(file, _Bar(bar, file.name)) for file in sources(name)]
    if not quiet:
        out.print(f"{len(paths)} files, checksums right, in {', '.join(sorted({str(p.parent) for p in paths}))}")
