"""`commonweal flower`: an experiment as a Flower app, and what left a node."""

from pathlib import Path
from typing import Annotated
from urllib.parse import unquote

import typer

from commonweal.app.commands import console
from commonweal.app.commands.options import Changes, ExperimentFile

flower = typer.Typer(help="Run an experiment on Flower, across machines.", no_args_is_help=True)


@flower.callback()
def main() -> None:
    """Run an experiment on Flower, across machines."""


@flower.command()
def export(
    file: ExperimentFile,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The app's folder, a new one.")],
    changes: Changes = None,
    nodes: Annotated[int, typer.Option(help="Nodes that must be connected at the start.")] = 2,
) -> None:
    """Write an experiment as a complete Flower app, for `flwr run`.

    For example: commonweal flower export examples/vowel.toml vowel-app
    """
    from commonweal.config.experiment import read
    from commonweal.flower.app_folder import write_app

    write_app(read(file, changes or []), folder, nodes)
    typer.echo(f"wrote the Flower app {folder}; its README.md explains how to run it")


@flower.command()
def sent(
    client: Annotated[str | None, typer.Option(help="One client; by default all.")] = None,
    states: Annotated[
        Path | None, typer.Option("--state-dir", help="The node's folder, if it was given one.")
    ] = None,
) -> None:
    """List what left this machine's nodes, and what they refused, in words.

    For example: commonweal flower sent --client Bonn
    """
    from commonweal.flower.app import state_folder
    from commonweal.flower.node import folder_of
    from commonweal.flower.sent import FILE, read, summary

    place = states or state_folder()
    folders = sorted(path.parent for path in place.glob(f"*/{FILE}"))
    if client is not None:
        folders = [folder for folder in folders if folder == folder_of(place, client)]
    if not folders:
        console.say(f"no node has sent anything: {str(place)!r} has no list (--state-dir)")
    for folder in folders:
        typer.echo(unquote(folder.name))
        typer.echo("\n".join(f"  {line}" for line in summary(read(folder))))
