"""What `commonweal reproduce` does in a checkout: run a published table, print it next to ours."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from commonweal.analysis.compare import run_cells_in_processes, seed_list
from commonweal.analysis.tuning import cores
from commonweal.base.errors import ConfigError, did_you_mean
from commonweal.base.text import shown

from . import reproduction
from .reproduction import Measured, PublishedTable

__all__ = ["reproduce", "restricted"]


def reproduce(
    name: str, out: Path, jobs: int, seeds: str, rows: str, recorded: bool, record: Path | None
) -> None:
    """List the tables, show what was recorded of one, or run it."""
    if name.upper() == "LIST":
        _list()
        return
    table = reproduction.find(name)
    if recorded:
        _print(table, reproduction.measured_by_us(name))
        return
    table = restricted(table, seeds, rows)
    measured = _run(table, out, jobs)
    _print(table, measured)
    if record is not None:
        Console(stderr=True).print(f"Written: {reproduction.save(table, measured, record)}")


def _list() -> None:
    listing = Table(box=None, pad_edge=False)
    for header in ("table", "published in", "cells", "here"):
        justify: Literal["left", "right"] = "right" if header == "cells" else "left"
        listing.add_column(header, justify=justify, no_wrap=header == "table")
    for name in reproduction.names():
        table = reproduction.find(name)
        paper = f"{table.paper.partition(' (')[0]}, {table.table}"
        listing.add_row(name, paper, str(table.cells), table.status)
    Console().print(listing)


def restricted(table: PublishedTable, seeds: str, rows: str) -> PublishedTable:
    """The table with other seeds, or with some of its rows."""
    if seeds and table.ours is not None:
        table = replace(table, ours=replace(table.ours, seeds=tuple(seed_list(seeds))))
    if rows:
        known = {row.name: row for row in table.rows}
        chosen = [rows] if rows in known else [row.strip() for row in rows.split(",")]
        for row in chosen:
            if row not in known:
                raise ConfigError(f"{table.name} has no row {row!r}: {did_you_mean(row, known)}")
        table = replace(table, rows=tuple(known[row] for row in chosen))
    return table


def _run(table: PublishedTable, out: Path, jobs: int) -> Measured:
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


def _print(table: PublishedTable, measured: Measured | None) -> None:
    console = Console()
    console.print(f"{table.paper}, {table.table}: {table.data}; {table.unit}", markup=False)
    console.print(f"{table.status}: {table.why}" if table.why else table.status, markup=False)
    listing = Table(box=None, pad_edge=False)
    for header in ("method", "figure", "published", "code", "ours", ""):
        listing.add_column(
            header, justify="left" if header in ("method", "figure", "") else "right"
        )
    last = ""
    for row, column, ours, verdict in reproduction.cells_of(table, measured):
        listing.add_row(
            shown(row.name) if row.name != last else "",
            table.columns[column],
            reproduction.figure(row.published, row.spreads, column),
            reproduction.figure(row.code, (), column),
            reproduction.spread(ours),
            verdict,
        )
        last = row.name
    console.print(listing)
    for sentence in table.errors:
        console.print(f"- {sentence}", markup=False)
    for claim in table.claims:
        console.print(f"- Claim: {claim.says} Ours: {claim.ours}", markup=False)
