"""`commonweal export`: a run's model for other programs, or its rounds for a tracker."""

from pathlib import Path
from typing import Annotated

import typer

from commonweal.app import trackers
from commonweal.app.commands import console
from commonweal.app.commands.options import Chosen, Client, Quiet, Trust, argument, names_of, out
from commonweal.base.errors import ConfigError, did_you_mean
from commonweal.base.text import shown

FORMS = ("torch", "onnx", "card")
TRACKERS = trackers.NAMES


def export(
    run: Annotated[
        Path,
        argument("RUN", "The folder of a run; for trackers also a folder with runs below it."),
    ],
    form: Annotated[
        str,
        typer.Option(
            "--to",
            help=f"A model: {', '.join(FORMS)}; a tracker: {', '.join(TRACKERS)}.",
            autocompletion=names_of(lambda: (*FORMS, *TRACKERS)),
        ),
    ],
    to: Annotated[
        Path | None,
        out(
            "A folder, or the card's file; by default in the run, or where the tracker writes by "
            "itself."
        ),
    ] = None,
    client: Client = None,
    choice: Chosen = False,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="For trackers: export until the run is finished."),
    ] = False,
    project: Annotated[
        str, typer.Option(help="For trackers: the name of the project or experiment.")
    ] = "commonweal",
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Export a run's model (torch, ONNX or a model card), or its rounds to a tracker.

    For example: commonweal export runs/patients-fedavg-0 --to torch -o model

    The exported model works without Commonweal: python model/predict.py new.csv. For trackers,
    run the same command again to add new rounds.
    """
    if form in TRACKERS:
        if client is not None or choice:
            raise ConfigError(
                f"--client and --choice are for models ({', '.join(FORMS)}), not for {form}"
            )
        _track(run, form, project, to, follow, quiet)
        return
    if form not in FORMS:
        raise ConfigError(f"there is no export {form!r}: {did_you_mean(form, (*FORMS, *TRACKERS))}")
    if follow:
        raise ConfigError(f"--follow is for trackers ({', '.join(TRACKERS)}), not for {form}")
    from commonweal.app import export as exports
    from commonweal.record.record import Record

    if choice:
        from commonweal.app.export.prediction import own_client
        from commonweal.study.choosing import chosen_model

        if client is None:
            raise ConfigError("--choice needs --client NAME: each client has chosen its own model")
        chosen = chosen_model(run, client)
        run, client = chosen.folder, own_client(chosen)
    path = exports.export(Record.read(run), exports.FORMS[FORMS.index(form)], to, client, trust)
    if not quiet:
        personal = (path / "clients.json").exists()
        more = ", the global model and a personal one per client" if personal else ""
        typer.echo(f"written to {path}{more}")


def _track(
    folder: Path, form: str, project: str, to: Path | None, follow: bool, quiet: bool
) -> None:
    """Write the rounds of a run, or of all runs below a folder, to a tracker."""
    from commonweal.app.trackers.sending import name_of, send_rounds
    from commonweal.study.labels import runs_in

    records = runs_in([folder])
    if follow and len(records) > 1:
        raise ConfigError(f"--follow takes one run, and {str(folder)!r} has {len(records)}")
    place = ""
    for record in records:
        with console.stoppable("the same command continues with the rounds that are new"):
            rounds, place = send_rounds(record, form, project, to, follow)
        if not quiet:
            typer.echo(f"{shown(name_of(record.folder))}: {rounds} new rounds")
    if not quiet:
        typer.echo(f"look at them: {place}")
