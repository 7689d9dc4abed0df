"""What `commonweal reproduce` does in a checkout: run a published table, print it next to ours."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from commonweal.analysis.compare import run_cells_in_processes
from commonweal.analysis.plan import seed_list
from commonweal.analysis.tuning import cores
from commonweal.base.errors import ConfigError, did_you_mean
from commonweal.base.text import shown

from . import pictures, reproduction, table, verdicts
from .reproduction import Measured, Planned
from .table import PublishedTable, Setting

__all__ = ["reproduce", "restricted"]


def reproduce(
    name: str,
    out: Path,
    jobs: int,
    seeds: str,
    rows: str,
    recorded: bool,
    record: Path | None,
    ours: bool = False,
    picture: Path | None = None,
    kind: str = "tradeoff",
) -> None:
    """List the tables, show what was recorded of one, draw it, or run it."""
    if name.upper() == "LIST":
        _list()
        return
    published = table.find(name)
    if recorded:
        _print(published, reproduction.measured_by_us(name))
        return
    published = restricted(published, seeds, rows)
    settings = published.ran if ours else published.settings
    if picture is not None:
        planned = [run for each in settings for run in _planned(published, each, out)]
        recorded_figures = reproduction.measured_by_us(name)
        drawn = pictures.draw(published, recorded_figures, planned, kind, picture)
        Console().print(f"Drawn to {drawn}")
        return
    measured = _run(published, settings, out, jobs)
    _print(published, measured)
    if record is not None:
        Console(stderr=True).print(f"Written: {reproduction.save(published, measured, record)}")


def _planned(published: PublishedTable, setting: Setting, out: Path) -> list[Planned]:
    """The runs of a setting, with what its grids gave."""
    chosen = reproduction.choose(published, setting, out) if out.exists() else {}
    return reproduction.plan(published, setting, chosen, out)


def _list() -> None:
    listing = Table(box=None, pad_edge=False)
    for header in ("table", "published in", "cells", "here"):
        justify: Literal["left", "right"] = "right" if header == "cells" else "left"
        listing.add_column(header, justify=justify, no_wrap=header == "table")
    for name in table.names():
        published = table.find(name)
        paper = f"{published.paper.partition(' (')[0]}, {published.table}"
        listing.add_row(name, paper, str(published.cells), published.status)
    Console().print(listing)


def restricted(published: PublishedTable, seeds: str, rows: str) -> PublishedTable:
    """The table with other seeds, or with some of its rows."""
    if seeds:
        chosen_seeds = tuple(seed_list(seeds))
        settings = tuple(replace(setting, seeds=chosen_seeds) for setting in published.settings)
        published = replace(published, settings=settings)
        if published.ours is not None:
            published = replace(published, ours=replace(published.ours, seeds=chosen_seeds))
    if rows:
        known = {row.name: row for row in published.rows}
        chosen = [rows] if rows in known else [row.strip() for row in rows.split(",")]
        for row in chosen:
            if row not in known:
                hint = did_you_mean(row, known)
                raise ConfigError(f"{published.name} has no row {row!r}: {hint}")
        published = replace(published, rows=tuple(known[row] for row in chosen))
    return published


def _run(published: PublishedTable, settings: Sequence[Setting], out: Path, jobs: int) -> Measured:
    jobs = jobs or cores()
    console = Console(stderr=True)
    runnable = reproduction.with_files(published, settings, console.print)
    chosen: dict[str, Mapping[str, object]] = {}
    planned: list[Planned] = []
    with Progress(console=console) as progress:
        grids = [row for row in published.rows if row.grid is not None]
        task = progress.add_task("grids", total=len(grids), visible=bool(grids))
        for setting in runnable:
            by_row = reproduction.choose(
                published, setting, out, jobs, lambda row: progress.advance(task)
            )
            planned += reproduction.plan(published, setting, by_row, out)
            chosen.update(by_row)
        task = progress.add_task("runs", total=len(planned))
        for step in run_cells_in_processes([run.cell for run in planned], jobs):
            if step.failure:
                progress.print(f"{step.cell.label}: {step.failure}")
            progress.advance(task)
    return reproduction.measure(published, planned, chosen)


def _print(published: PublishedTable, measured: Measured | None) -> None:
    console = Console()
    console.print(
        f"{published.paper}, {published.table}: {published.data}; {published.unit}", markup=False
    )
    console.print(
        f"{published.status}: {published.why}" if published.why else published.status, markup=False
    )
    listing = Table(box=None, pad_edge=False)
    for header in ("method", "figure", "published", "code", "ours", ""):
        listing.add_column(
            header, justify="left" if header in ("method", "figure", "") else "right"
        )
    last = ""
    for row, column, _, verdict in verdicts.cells_of(published, measured):
        listing.add_row(
            shown(row.name) if row.name != last else "",
            published.columns[column],
            verdicts.figure(row.published, row.spreads, column),
            verdicts.figure(row.code, (), column),
            verdicts.spread(published, row, column, measured),
            verdict,
        )
        last = row.name
    console.print(listing)
    for sentence in published.errors:
        console.print(f"- {sentence}", markup=False)
    for claim in published.claims:
        console.print(f"- Claim: {claim.says} Ours: {claim.ours}", markup=False)
