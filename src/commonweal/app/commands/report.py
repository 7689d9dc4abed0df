"""`commonweal report`: runs as one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from commonweal.app.commands.options import Quiet, RunFolders, Trust, Worth, out


def report(
    folders: RunFolders,
    to: Annotated[Path, out("The file.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="The heading of the report.")] = None,
    worth: Worth = None,
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Write a report of runs as one HTML file that you can mail or print.

    For example: commonweal report runs/vowel-compare -o vowel.html
    """
    from commonweal.base.files import write_file
    from commonweal.report import document
    from commonweal.study.comparison import Comparison

    comparison = Comparison.in_folders(folders, worth)
    heading = title or " and ".join(folder.resolve().name for folder in folders)
    write_file(to, document.render(comparison, heading, trust).encode(), durable=False)
    if not quiet:
        runs = sum(len(records) for records in comparison.records.values())
        typer.echo(f"a report of {runs} runs: {to}")
