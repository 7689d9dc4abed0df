"""`commonweal init`, `predict` and `export`: a table in, a usable model out."""

from pathlib import Path
from typing import Annotated

import typer

from commonweal import trackers
from commonweal.base.errors import ConfigError, did_you_mean
from commonweal.base.text import shown

__all__ = ["export", "init", "predict"]

FORMS = ("torch", "onnx", "card")
TRACKERS = trackers.NAMES

Run = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a finished run.", show_default=False)
]
Client = Annotated[
    str | None, typer.Option(help="Use this client's personal model, where the run has them.")
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Import what a run names: only if you trust who wrote it."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]


def _complete_form(incomplete: str) -> list[str]:
    return [form for form in (*FORMS, *TRACKERS) if form.startswith(incomplete)]


def init(
    path: Annotated[
        Path,
        typer.Argument(metavar="TABLE", help="A CSV or Parquet file.", show_default=False),
    ],
    client: Annotated[str | None, typer.Option(help="The column of clients.")] = None,
    label: Annotated[str | None, typer.Option(help="The column of labels.")] = None,
    to: Annotated[
        Path | None, typer.Option("--out", "-o", help="The experiment; by default TABLE.toml.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Look at a table and write an experiment: what each column becomes, and what looks wrong.

    For example: commonweal init patients.csv --client hospital --label died
    """
    toml = to or Path(path.name.partition(".")[0] + ".toml")
    if toml.exists():
        raise ConfigError(f"{str(toml)!r} exists already: delete it, or name another with --out")
    from commonweal.analysis.guess import guess
    from commonweal.base.files import write_file

    found = guess(path, label, client, toml)
    write_file(toml, found.experiment.encode(), durable=False)
    if quiet:
        return
    width = max(len(name) for name, _ in found.lines)
    for name, text in found.lines:
        typer.echo(f"{name:{width}}  {text}")
    for remark in found.remarks:
        typer.echo(remark)
    typer.echo(f"written to {toml}; next: commonweal run {toml}")


def predict(
    run: Run,
    path: Annotated[
        Path, typer.Argument(metavar="TABLE", help="New rows: CSV or Parquet.", show_default=False)
    ],
    to: Annotated[
        Path | None, typer.Option("--out", "-o", help="The CSV file; by default it is printed.")
    ] = None,
    client: Client = None,
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Predict the rows of a table by a run's model, prepared as the training rows were.

    For example: commonweal predict runs/patients-fedavg-0 new.csv -o predictions.csv
    """
    from commonweal.base.files import write_file
    from commonweal.export.prediction import predict_table
    from commonweal.record.store import Record

    predictions = predict_table(Record.read(run), path, client, trust)
    if not quiet:
        for remark in predictions.remarks:
            typer.echo(shown(remark), err=True)
    if to is None:
        typer.echo(predictions.csv().decode(), nl=False)
        return
    write_file(to, predictions.csv(), durable=False)
    if not quiet:
        typer.echo(f"{len(predictions.rows)} rows: {to}", err=True)


def export(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="The folder of a run; for trackers also a folder with runs below it.",
            show_default=False,
        ),
    ],
    form: Annotated[
        str,
        typer.Option(
            "--to",
            help=f"A model: {', '.join(FORMS)}; a tracker: {', '.join(TRACKERS)}.",
            autocompletion=_complete_form,
        ),
    ],
    to: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="A folder, or the card's file; by default in the run, or where "
            "the tracker writes by itself.",
        ),
    ] = None,
    client: Client = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Tracker: go on until the run is finished.")
    ] = False,
    project: Annotated[
        str, typer.Option(help="Tracker: the project or experiment there.")
    ] = "commonweal",
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Write a run's model for others (torch, onnx, a model card), or its rounds to a tracker.

    For example: commonweal export runs/patients-fedavg-0 --to torch -o model

    The folder needs no Commonweal: python model/predict.py new.csv. A tracker gets what the record
    says, also of old runs; the same command continues with the rounds that are new.
    """
    if form in TRACKERS:
        if client is not None:
            raise ConfigError(f"--client is for models ({', '.join(FORMS)}), not for {form}")
        _track(run, form, project, to, follow, quiet)
        return
    if form not in FORMS:
        raise ConfigError(f"there is no export {form!r}: {did_you_mean(form, (*FORMS, *TRACKERS))}")
    if follow:
        raise ConfigError(f"--follow is for trackers ({', '.join(TRACKERS)}), not for {form}")
    from commonweal import export as exports
    from commonweal.record.store import Record

    chosen = exports.FORMS[FORMS.index(form)]
    path = exports.export(Record.read(run), chosen, to, client, trust)
    if not quiet:
        typer.echo(f"written to {path}")


def _track(
    folder: Path, form: str, project: str, to: Path | None, follow: bool, quiet: bool
) -> None:
    """Write the rounds of a run, or of all runs below a folder, to a tracker."""
    from commonweal.analysis.labels import find_runs
    from commonweal.trackers.exporting import export, name_of

    records = find_runs([folder])
    if follow and len(records) > 1:
        raise ConfigError(f"--follow takes one run, and {str(folder)!r} has {len(records)}")
    place = ""
    for record in records:
        try:
            rounds, place = export(record, form, project, to, follow)
        except KeyboardInterrupt:
            typer.echo("stopped; the same command continues with the rounds that are new", err=True)
            raise typer.Exit(130) from None
        if not quiet:
            typer.echo(f"{shown(name_of(record.folder))}: {rounds} new rounds")
    if not quiet:
        typer.echo(f"look at them: {place}")
