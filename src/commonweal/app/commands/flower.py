"""`commonweal flower export`: an experiment as a Flower app."""

from pathlib import Path
from typing import Annotated

import typer

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
