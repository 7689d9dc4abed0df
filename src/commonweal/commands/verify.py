"""commonweal verify: whether a run's folder is as it was written."""

import typer

from commonweal.base.errors import RunError
from commonweal.commands.options import Quiet, RunFolder


def verify(run: RunFolder, quiet: Quiet = False) -> None:
    """Verify a run's integrity: exit code 2 if a file was changed or damaged.

    For example: commonweal verify runs/vowel-aaggff-s-0

    Reads every file of the run and compares it with the digests in the folder.
    """
    from commonweal.record.record import Record
    from commonweal.record.verify import problems

    rounds = len(Record.read(run).rounds)
    damage = problems(run)
    if damage:
        raise RunError("; ".join(damage))
    if not quiet:
        typer.echo(f"{run}: intact, {rounds} rounds")
