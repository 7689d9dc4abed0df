"""commonweal withdraw: training again without a client."""

from pathlib import Path
from typing import Annotated

import typer

from commonweal.app.commands import console
from commonweal.app.commands.options import Quiet, RunFolder, out


def withdraw(
    run: RunFolder,
    client: Annotated[str | None, typer.Option(help="The client that withdraws.")] = None,
    to: Annotated[Path | None, out("The new run's folder; by default RUN-without-CLIENT.")] = None,
    search: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Where derived files may be; by default next to the run."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Verify a finished withdrawal; RUN is the new run.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train a run again as if a client had never taken part, and delete the old states.

    For example: commonweal withdraw runs/first --client Bonn

    Lists the files that hold or name the old run: the run itself, exports, reports. Delete them,
    and verify with: commonweal withdraw runs/first-without-Bonn --verify
    """
    from commonweal.app.commands.run import run_job
    from commonweal.base.errors import ConfigError
    from commonweal.config.experiment import file_name
    from commonweal.jobs.job import job_from_experiment
    from commonweal.study.withdrawal import experiment_without, verify_withdrawal
    from commonweal.study.withdrawal import withdraw as finish

    if verify:
        done = verify_withdrawal(run)
        console.say(f"{run}: intact, without {done.client!r}; nothing is left of {done.run}")
        return
    if client is None:
        raise ConfigError("withdraw needs --client NAME: who withdraws?")
    folder = to or run.parent / f"{run.name}-without-{file_name(client)}"
    experiment = experiment_without(run, client)
    job = job_from_experiment(experiment)
    run_job(job, experiment.title, folder, resume=True, force=False, silent=quiet)
    done = finish(client, run, folder, search or [run.parent])
    if quiet:
        return
    typer.echo(f"{folder}: {job.rounds} rounds without {client!r}")
    typer.echo(f"deleted: {len(done.deleted)} files of states of {run}")
    typer.echo(f"{len(done.derived)} files hold or name the old run; delete them:")
    for path in done.derived:
        typer.echo(f"  {path}")
