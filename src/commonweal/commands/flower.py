"""`commonweal flower`: an experiment as a Flower app, on Flower's runtime, and keys for it."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["flower"]

flower = typer.Typer(
    help="Run an experiment on Flower, across processes or machines.", no_args_is_help=True
)

File = Annotated[Path, typer.Argument(help="An experiment, such as examples/vowel.toml.")]
Changes = Annotated[
    list[str] | None,
    typer.Argument(metavar="[key=value ...]", help="Changes to the experiment."),
]


@flower.command()
def export(
    file: File,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The app's folder, a new one.")],
    changes: Changes = None,
    nodes: Annotated[int, typer.Option(help="Nodes that must be connected at the start.")] = 2,
) -> None:
    """Write an experiment as a complete Flower app that runs on any SuperLink.

    For example: commonweal flower export examples/vowel.toml vowel-app
    """
    from commonweal.config.experiment import read
    from commonweal.flower import runtime

    experiment = read(file, changes or [])
    runtime.export(experiment.toml(), folder, nodes)
    typer.echo(f"a Flower app: {folder}; its README.md says how to run it")


@flower.command()
def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where they are written.")],
    node: Annotated[
        list[str] | None, typer.Option(help="The name of a node; give one for each.")
    ] = None,
    host: Annotated[
        list[str] | None, typer.Option(help="A name or address of the SuperLink.")
    ] = None,
) -> None:
    """Write certificates and keys for a trial: TLS, and a pair of keys per node.

    For example: commonweal flower keys keys --host 10.0.0.5 --node clinic-a --node clinic-b
    """
    from commonweal.flower.runtime import write_keys

    names = node or ["node-1", "node-2"]
    write_keys(folder, names, host or [])
    typer.echo(f"ca.crt, server.pem, server.key and keys of {', '.join(names)}: {folder}")


@flower.command()
def run(
    file: File,
    changes: Changes = None,
    nodes: Annotated[
        int | None, typer.Option(help="SuperNodes, each with one client; by default all clients.")
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option("--out", help="The run folder; by default runs/flower-FILE-RULE-SEED."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a run that was stopped.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for replies.")] = 120.0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
) -> None:
    """Run an experiment here, on Flower's own runtime: a SuperLink and a SuperNode per client.

    For example: commonweal flower run examples/vowel.toml --nodes 3 rounds=5

    TLS and node authentication are on; everything is on 127.0.0.1 and ends with the command. It
    is for trials: the simulator is far faster.
    """
    from commonweal.config.experiment import read
    from commonweal.flower import local

    experiment = read(file, changes or [])
    folder = to or Path("runs") / f"flower-{file.stem}-{experiment.title}-{experiment.seed}"
    say = (lambda text: None) if quiet else typer.echo
    local.run(experiment, folder, nodes, resume, timeout, say)
    say(f"saved in {folder}: commonweal show {folder}")
