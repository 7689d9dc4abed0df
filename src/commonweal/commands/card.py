"""`commonweal card`: a model card and a badge."""

from pathlib import Path
from typing import Annotated

import typer

from commonweal.commands.options import Quiet, RunFolder, out


def card(
    run: RunFolder,
    to: Annotated[Path | None, out("The card; by default RUN/card.md.")] = None,
    quiet: Quiet = False,
) -> None:
    """Write a model card with the training data and each client's score.

    For example: commonweal card runs/vowel-aaggff-s-0 -o card.md

    Also writes a badge with the mean and the worst client (card.svg).
    """
    from commonweal.export import write_card
    from commonweal.record.record import Record

    path = write_card(Record.read(run), to)
    if not quiet:
        badge = path.with_suffix(".svg")
        typer.echo(f"written to {path} and {badge}" if badge.exists() else f"written to {path}")
