"""`commonweal predictions`: what runs predict for their own samples, as a table."""

from pathlib import Path
from typing import Annotated

import typer

from commonweal.app.commands import console
from commonweal.app.commands.options import Quiet, Trust, argument, figure, list_of, out


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
    draw: Annotated[
        Path | None,
        figure("Draw calibration, decision and ROC curves, or survival by risk: PNG, SVG or PDF."),
    ] = None,
    client: Annotated[
        str, typer.Option(help="The client whose curves are drawn; by default all samples.")
    ] = "",
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Write the predictions of runs for their own samples, a line per sample.

    For example: commonweal predictions runs/patients-fedavg-0 --columns sex -o rows.parquet

    Each sample is predicted by what its client uses. `commonweal predict` predicts new rows.
    """
    from commonweal.base.errors import ConfigError, did_you_mean
    from commonweal.data.tables.columns import names_in
    from commonweal.report import figures
    from commonweal.study.predictions import predictions as predicted
    from commonweal.study.predictions import write

    figures.check_suffix(draw)
    table = predicted(runs, names_in(columns), split, trust)
    write(table, to)
    if draw is not None:
        from commonweal.study.site_curves import site_curves

        curves = site_curves(table)
        known = curves.survival or curves.roc
        if client not in known:
            hint = did_you_mean(client, filter(None, known))
            raise ConfigError(f"--client {client!r} has too few samples, or is unknown: {hint}")
        figures.save(figures.sites(curves, client), draw)
    if not quiet:
        console.say(f"{table.num_rows} predictions: {to}")
