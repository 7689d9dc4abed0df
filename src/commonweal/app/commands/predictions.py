"""`commonweal predictions`: what runs predict for their own samples, as a table."""

from pathlib import Path
from typing import Annotated

import typer

from commonweal.app.commands import console
from commonweal.app.commands.options import Quiet, Trust, argument, list_of, out


def predictions(
    runs: Annotated[
        list[Path], argument("RUN...", "Folders of runs, such as folds of one method.")
    ],
    to: Annotated[Path, out("The file: CSV, or Parquet by its ending.")] = Path("rows.parquet"),
    columns: Annotated[
        str, list_of("Columns of the table's file to add, whether or not they are features.")
    ] = "",
    split: Annotated[
        str, typer.Option(help="The samples: test, train, validation or all.")
    ] = "test",
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Write the predictions of runs for their own samples, a line per sample.

    For example: commonweal predictions runs/patients-fedavg-0 --columns sex -o rows.parquet

    Each sample is predicted by what its client uses. `commonweal predict` predicts new rows.
    """
    from commonweal.data.tables.columns import names_in
    from commonweal.study.predictions import predictions as predicted
    from commonweal.study.predictions import write

    table = predicted(runs, names_in(columns), split, trust)
    write(table, to)
    if not quiet:
        console.say(f"{table.num_rows} predictions: {to}")
