"""`commonweal reproduce`: the papers' tables next to ours, from a checkout."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from commonweal.base.errors import ConfigError
from commonweal.commands.options import out

CHECKOUT = Path(__file__).parents[3]


def reproduce(
    name: Annotated[
        str, typer.Argument(help="A table, such as aaggff/heart; LIST shows all.")
    ] = "LIST",
    to: Annotated[Path, out("The folder of the runs.")] = Path("runs/reproduce"),
    jobs: Annotated[int, typer.Option(min=0, help="Worker processes; 0 for one per core.")] = 0,
    seeds: Annotated[
        str, typer.Option(help="Seeds instead of the table's: a number, or a list (2,4,6 or 4,).")
    ] = "",
    rows: Annotated[str, typer.Option(help="Only these rows: FedAvg,AFL.")] = "",
    recorded: Annotated[
        bool, typer.Option("--recorded", help="Show what we measured, without running anything.")
    ] = False,
    ours: Annotated[
        bool,
        typer.Option("--ours", help="Run our shorter setting where there is one."),
    ] = False,
    picture: Annotated[
        Path | None, typer.Option(help="Draw finished or recorded runs to this file.")
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            help="tradeoff, curves, histogram, landscape, lengths, losses or reliability."
        ),
    ] = "tradeoff",
    record: Annotated[
        Path | None,
        typer.Option(help="Also add the figures to the JSON files in this folder."),
    ] = None,
) -> None:
    """Run the experiments of a published table, and print its figures next to ours.

    For example: commonweal reproduce aaggff/heart

    Needs a checkout of the repository. Lists missing data files and where to put them. Searches
    grids as the paper did, on validation samples and with a separate seed. Run the same command
    again to continue.
    """
    benchmarks = CHECKOUT / "benchmarks"
    if not (benchmarks / "published").is_dir():
        raise ConfigError(
            f"there are no published tables in {str(CHECKOUT)!r}: they are not part of the "
            'package; clone the repository and install it with pip install -e ".[dev]"'
        )
    sys.path.insert(0, str(benchmarks))  # worker processes inherit it
    from published import command

    command.reproduce(name, to, jobs, seeds, rows, recorded, record, ours, picture, kind)
