"""`commonweal init`: an experiment from a table."""

from pathlib import Path
from typing import Annotated

import typer

from commonweal.base.errors import ConfigError
from commonweal.commands.options import Quiet, Table, out


def init(
    path: Table,
    client: Annotated[
        str | None, typer.Option(help="The column of clients, or several: a,b.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    to: Annotated[Path | None, out("The experiment; by default TABLE.toml.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    quiet: Quiet = False,
) -> None:
    """Write an experiment for a table, and explain how each column will be used.

    For example: commonweal init patients.csv --client hospital --label died
    """
    toml = to or Path(path.name.partition(".")[0] + ".toml")
    if toml.exists() and not force:
        raise ConfigError(
            f"{str(toml)!r} exists already: replace it with --force, or name another with --out"
        )
    from commonweal.analysis.guess import guess
    from commonweal.base.files import write_file

    guessed = guess(path, label, client, toml)
    write_file(toml, guessed.experiment.encode(), durable=False)
    if quiet:
        return
    width = max(len(name) for name, _ in guessed.lines)
    for name, text in guessed.lines:
        typer.echo(f"{name:{width}}  {text}")
    for remark in guessed.remarks:
        typer.echo(remark)
    typer.echo(f'written to {toml}; next: commonweal run "{toml}"')
