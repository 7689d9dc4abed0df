"""The command: `commonweal run | list | show | demo`. Only here does the library talk to a person."""

import json
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
from commonweal.errors import CommonwealError, ConfigError, did_you_mean
from commonweal.store import Record

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


def main() -> None:
    """Run the command; a user's mistake is one sentence and exit code 2."""
    try:
        app(standalone_mode=True)
    except CommonwealError as error:
        err.print(f"commonweal: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)


@contextmanager
def following(rounds: int, title: str, quiet: bool) -> Iterator[Any]:
    """A progress bar with rate, time left and the worst client so far; call it with each round and the client names."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    with Progress(
        *columns, TimeRemainingColumn(), TextColumn("{task.fields[worst]}"), console=err, disable=quiet
    ) as bar:
        job = bar.add_task(title, total=rounds, rate="", worst="")

        def step(done: Any, names: tuple[str, ...]) -> None:
            fields: dict[str, Any] = {}
            if done.evaluation is not None:
                score = done.evaluation[1].nan_to_num(nan=float("inf"))
                fields["worst"] = f"worst: {names[int(score.argmin())]} {100 * float(score.min()):.1f}"
            speed = bar.tasks[job].speed
            bar.update(job, completed=done.number, rate=f"{speed:.0f} rounds/s" if speed else "", **fields)

        yield step


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
    _warn_unscored(job.federation.unscored, quiet or as_json)
    last = 0
    try:
        with following(experiment.rounds, experiment.title, quiet or as_json) as step:
            for done in rounds_of(job, out=folder, resume=resume):
                step(done, job.federation.names)
                last = done.number
    except KeyboardInterrupt:
        err.print(
            f"stopped after round {last}; all of it is saved in {folder}: go on with the same command and --resume"
        )
        raise typer.Exit(130) from None
    if not (quiet or as_json):
        err.print(f"{folder} was finished already." if last == 0 else f"saved in {folder}")
    _show_run(Record.read(folder), quiet, as_json)


def _warn_unscored(names: list[str], quiet: bool) -> None:
    if names and not quiet:
        some = ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")
        err.print(f"{len(names)} clients have too few rows for a test set; they train but are not scored: {some}")


def _show_run(record: Record, quiet: bool, as_json: bool) -> None:
    from commonweal import report

    last = record.evaluated[-1] if record.evaluated else None
    if as_json:
        clients = [{"client": n, "score": s, "loss": v} for n, s, v in record.clients()] if last else []
        facts = {"folder": str(record.folder), "finished": record.finished, "round": last and last["round"]}
        print(json.dumps({**facts, "metrics": last and last["metrics"], "clients": clients}))
    elif not quiet:
        out.print(report.result(record) if last else f"{record.folder}: no round has been evaluated yet")


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
    table = Table(box=None, show_header=False)
    for name, line in rows.items():
        table.add_row(f"[bold]{name}[/bold]", line)
    out.print(table)


def _first_line(text: str | None) -> str:
    return (text or "").strip().split("\n")[0]


@app.command()
def show(
    what: Annotated[
        str, typer.Argument(metavar="NAME|DIR", help="An algorithm's name, or a run's folder.", show_default=False)
    ],
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Explain an algorithm, or show a run's result."""
    if Path(what).is_dir():
        _show_run(Record.read(what), quiet, as_json)
        return
    found = [entries[what] for entries in map(catalog.entries, catalog.KINDS) if what in entries]
    if not found:
        known = [name for kind in catalog.KINDS for name in catalog.entries(kind)]
        raise ConfigError(f"{what!r} is neither a run's folder nor a known name: {did_you_mean(what, known)}")
    for entry in found:
        parameters = {n: "required" if p.default is p.empty else p.default for n, p in entry.parameters.items()}
        if as_json:
            print(json.dumps({"kind": entry.kind, "name": entry.name, "about": entry.about, "parameters": parameters}))
            continue
        out.print(f"[bold]{entry.name}[/bold] ({entry.kind.removesuffix('s')})")
        out.print(entry.about, markup=False)
        if entry.details != entry.about:
            out.print("\n" + entry.details, markup=False)
        for name, default in parameters.items():
            out.print(f"  {name} = {default!r}", markup=False)


@app.command()
def demo(
    seeds: Annotated[int, typer.Option(help="How many seeds.", min=1)] = 5,
    rounds: Annotated[int, typer.Option(help="How many rounds.", min=1)] = 200,
    to: Annotated[Path, typer.Option("--out", help="Where the picture goes.")] = Path("demo"),
    quiet: Quiet = False,
) -> None:
    """FedAvg beside AAggFF-S on the vowels of 15 speakers: who is served badly, and what fairness changes."""
    import numpy as np

    from commonweal import report
    from commonweal.experiment import Experiment
    from commonweal.run import prepare
    from commonweal.run import run as rounds_of

    summaries: dict[str, list[dict[str, float]]] = {}
    scores: dict[str, list[np.ndarray]] = {}
    for rule in ("fedavg", "aaggff-s"):
        for seed in range(seeds):
            job = prepare(Experiment(**DEMO, rule=rule, rounds=rounds, seed=seed))
            with following(rounds, f"{rule}, seed {seed}", quiet) as step:
                for done in rounds_of(job):
                    step(done, job.federation.names)
            summaries.setdefault(rule, []).append(done.metrics)
            assert done.evaluation is not None  # the last round always is evaluated
            scores.setdefault(rule, []).append(100 * done.evaluation[1].numpy())
    stacked = {rule: np.stack(each) for rule, each in scores.items()}
    names = job.federation.names
    for suffix in ("png", "svg"):
        report.draw(to / f"vowel.{suffix}", names, stacked, "accuracy")
    out.print(report.side_by_side(summaries, "accuracy"))
    out.print(report.verdict("FedAvg", "AAggFF-S", stacked["fedavg"], stacked["aaggff-s"], names))
    out.print(f"The picture: {to / 'vowel.png'} (and .svg)")
    out.print("Next: commonweal run examples/vowel.toml rule=aaggff-s rule.cdf=frechet")


DEMO: dict[str, Any] = {
    "dataset": "vowel",
    "model": {"name": "mlp", "hidden": [32]},
    "client": {"name": "sgd", "batch": 10, "lr": 0.2},
}
