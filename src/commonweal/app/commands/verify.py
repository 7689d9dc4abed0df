"""commonweal verify: whether a run's folder is as it was written."""

import typer

from commonweal.app.commands.options import Quiet, RunFolder
from commonweal.base.errors import RunError


def verify(run: RunFolder, quiet: Quiet = False) -> None:
    """Verify that no file of a run was changed or damaged.

    For example: commonweal verify runs/vowel-aaggff-s-0

    Compares every file with the digests in the folder. Exit code 2 reports a difference.
    """
    from commonweal.record.record import Record
    from commonweal.record.verify import problems

    rounds = len(Record.read(run).rounds)
    damage = problems(run)
    if damage:
        raise RunError("; ".join(damage))
    if not quiet:
        typer.echo(f"{run}: intact, {rounds} rounds")
