"""`commonweal reproduce`: the papers' tables beside ours."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from commonweal.base.text import shown

if TYPE_CHECKING:
    from commonweal.analysis.reproduction import Measured, PublishedTable

__all__ = ["reproduce"]


def reproduce(
    name: Annotated[
        str, typer.Argument(help="A table, such as aaggff/heart; LIST shows all.")
    ] = "LIST",
    out: Annotated[Path, typer.Option(help="The folder of the runs.")] = Path("runs/reproduce"),
    jobs: Annotated[
        int, typer.Option(min=0, help="Worker processes; 0: one per processor core.")
    ] = 0,
    seeds: Annotated[
        str, typer.Option(help="Other seeds than the table's: a number, or 2,4,6.")
    ] = "",
    rows: Annotated[str, typer.Option(help="Only these rows: FedAvg,AFL.")] = "",
    recorded: Annotated[
        bool, typer.Option("--recorded", help="Show what we measured, without running anything.")
    ] = False,
    record: Annotated[
        Path | None,
        typer.Option(
            help="Also write the figures as JSON into this folder, beside its other rows."
        ),
    ] = None,
) -> None:
    """Run a published table's experiments, and print published figures beside ours.

    For example: commonweal reproduce aaggff/heart

    Grids are searched as the paper did, on a seed of its own and on validation rows. Stopped runs
    go on where they were.
    """
    from commonweal.analysis import reproduction

    if name.upper() == "LIST":
        _list()
        return
    table = reproduction.find(name)
    if recorded:
        _print(table, reproduction.measured_by_us(name))
        return
    table = _restricted(table, seeds, rows)
    measured = _run(table, out, jobs)
    _print(table, measured)
    if record is not None:
        Console(stderr=True).print(f"Written: {reproduction.save(table, measured, record)}")


def _list() -> None:
    from commonweal.analysis import reproduction

    found = Table(box=None, pad_edge=False)
    for header in ("table", "published in", "cells", "here"):
        justify: Literal["left", "right"] = "right" if header == "cells" else "left"
        found.add_column(header, justify=justify, no_wrap=header == "table")
    for name in reproduction.names():
        table = reproduction.find(name)
        paper = f"{table.paper.partition(' (')[0]}, {table.table}"
        found.add_row(name, paper, str(table.cells), table.status)
    Console().print(found)


def _restricted(table: "PublishedTable", seeds: str, rows: str) -> "PublishedTable":
    """The table with other seeds, or with some of its rows."""
    from dataclasses import replace

    from commonweal.analysis.compare import seed_list
    from commonweal.base.errors import ConfigError, did_you_mean

    if seeds and table.ours is not None:
        table = replace(table, ours=replace(table.ours, seeds=tuple(seed_list(seeds))))
    if rows:
        known = {row.name: row for row in table.rows}
        wanted = [rows] if rows in known else [row.strip() for row in rows.split(",")]
        for row in wanted:
            if row not in known:
                raise ConfigError(f"{table.name} has no row {row!r}: {did_you_mean(row, known)}")
        table = replace(table, rows=tuple(known[row] for row in wanted))
    return table


def _run(table: "PublishedTable", out: Path, jobs: int) -> "Measured":
    from rich.progress import Progress

    from commonweal.analysis import reproduction
    from commonweal.analysis.compare import run_cells_in_processes
    from commonweal.analysis.tuning import cores

    jobs = jobs or cores()
    reproduction.plan(table, {}, out)  # refuses before anything runs
    with Progress(console=Console(stderr=True)) as progress:
        grids = [row for row in table.rows if row.grid is not None]
        task = progress.add_task("grids", total=len(grids), visible=bool(grids))
        chosen = reproduction.choose(table, out, jobs, lambda row: progress.advance(task))
        cells = reproduction.plan(table, chosen, out)
        task = progress.add_task("runs", total=len(cells))
        for step in run_cells_in_processes(cells, jobs):
            if step.failure:
                progress.print(f"{step.cell.label}: {step.failure}")
            progress.advance(task)
    return reproduction.measure(table, cells, chosen)


def _print(table: "PublishedTable", measured: "Measured | None") -> None:
    from commonweal.analysis import reproduction

    console = Console()
    console.print(f"{table.paper}, {table.table}: {table.data}; {table.unit}", markup=False)
    console.print(f"{table.status}: {table.why}" if table.why else table.status, markup=False)
    found = Table(box=None, pad_edge=False)
    for header in ("method", "figure", "published", "code", "ours", ""):
        found.add_column(header, justify="left" if header in ("method", "figure", "") else "right")
    last = ""
    for row, column, ours, verdict in reproduction.cells_of(table, measured):
        found.add_row(
            shown(row.name) if row.name != last else "",
            table.columns[column],
            reproduction.figure(row.published, row.spreads, column),
            reproduction.figure(row.code, (), column),
            reproduction.spread(ours),
            verdict,
        )
        last = row.name
    console.print(found)
    for sentence in table.errors:
        console.print(f"- {sentence}", markup=False)
    for claim in table.claims:
        console.print(f"- Claim: {claim.says} Ours: {claim.ours}", markup=False)
