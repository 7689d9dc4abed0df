"""commonweal verify: whether a run's folder is as it was written."""

from pathlib import Path
from typing import Annotated

import typer

from commonweal.base.errors import RunError

__all__ = ["verify"]


def verify(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run's folder.", show_default=False)
    ],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
) -> None:
    """Say whether a run is as it was written, or what is not, with exit code 2.

    For example: commonweal verify runs/vowel-aaggff-s-0

    Reads every file of the run and compares it with the digests in the folder.
    """
    from commonweal.record.store import Record
    from commonweal.record.verify import problems

    rounds = len(Record.read(folder).rounds)
    found = problems(folder)
    if found:
        raise RunError("; ".join(found))
    if not quiet:
        typer.echo(f"{folder}: whole, {rounds} rounds")
