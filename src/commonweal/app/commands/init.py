"""`commonweal init`: an experiment from a table."""

import textwrap
from pathlib import Path
from typing import Annotated

import typer

from commonweal.app.commands import console
from commonweal.app.commands.options import Quiet, Table, out
from commonweal.base.errors import ConfigError

MOST_INDENT = 30  # columns


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
    from commonweal.config.experiment import table_stem

    toml = to or Path(f"{table_stem(path)}.toml")
    if toml.exists() and not force:
        raise ConfigError(
            f"{str(toml)!r} exists already: replace it with --force, or name another with --out"
        )
    from commonweal.base.files import write_file
    from commonweal.datasets.guess.doubts import advice
    from commonweal.datasets.guess.guess import guess

    guessed = guess(path, label, client, toml)
    write_file(toml, guessed.experiment.encode(), durable=False)
    if quiet:
        return
    width = max(len(name) for name, _ in guessed.lines)
    for name, text in guessed.lines:
        line = f"{name:{width}}  {text}"
        indent = " " * min(width + 2, MOST_INDENT)
        console.print_text(textwrap.fill(line, console.out.width, subsequent_indent=indent))
    for remark in guessed.remarks:
        console.print_text(remark)
    if guessed.doubts:
        console.print_text(advice(guessed.doubts, ["commonweal", "init", str(path)], ["--force"]))
    console.print_text(f'written to {toml}; next: commonweal run "{toml}"')
