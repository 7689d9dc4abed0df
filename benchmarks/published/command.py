"""The command `python -m benchmarks.published`: the papers' tables next to ours."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from commonweal.base.errors import ConfigError, did_you_mean
from commonweal.base.text import shown
from commonweal.study.compare import run_cells_in_processes
from commonweal.study.plan import seed_list
from commonweal.study.tuning import cores

from . import ledger as pages
from . import pictures, reproduction, table, verdicts
from .reproduction import Measured, Planned
from .table import PublishedTable, Setting

__all__ = ["app", "restricted"]

app = typer.Typer(
    name="python -m benchmarks.published",
    help="Run the experiments of published tables, and print their figures next to ours.",
    no_args_is_help=True,
    rich_markup_mode="markdown",  # lines of a paragraph are joined
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Name = Annotated[str, typer.Argument(help="A table, such as aaggff/heart.", show_default=False)]
Seeds = Annotated[
    str, typer.Option(help="Seeds instead of the table's: a number, or a list (2,4,6 or 4,).")
]
Rows = Annotated[str, typer.Option(help="Only these rows: FedAvg,AFL.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="The folder of the runs.")]
Ours = Annotated[bool, typer.Option("--ours", help="Our shorter setting where there is one.")]

RUNS = Path("runs/published")


@app.command("list")
def list_() -> None:
    """List the tables, with the paper, how many cells they have, and whether they ran here."""
    listing = Table(box=None, pad_edge=False)
    for header in ("table", "published in", "cells", "here"):
        justify: Literal["left", "right"] = "right" if header == "cells" else "left"
        listing.add_column(header, justify=justify, no_wrap=header == "table")
    for name in table.names():
        published = table.find(name)
        paper = f"{published.paper.partition(' (')[0]}, {published.table}"
        listing.add_row(name, paper, str(published.cells), published.status)
    Console().print(listing)


@app.command()
def show(name: Name) -> None:
    """Print a table next to what we measured, without running anything."""
    _print(table.find(name), reproduction.measured_by_us(name))


@app.command()
def run(
    name: Name,
    out: Out = RUNS,
    jobs: Annotated[int, typer.Option(min=0, help="Worker processes; 0 for one per core.")] = 0,
    seeds: Seeds = "",
    rows: Rows = "",
    ours: Ours = False,
    record: Annotated[
        Path | None,
        typer.Option(help="Also add the figures to the JSON files in this folder."),
    ] = None,
) -> None:
    """Run the experiments of a table, and print its figures next to ours.

    Lists missing data files and where to put them. Searches grids as the paper did, on validation
    samples and with a separate seed. Run the same command again to continue.
    """
    published = restricted(table.find(name), seeds, rows)
    measured = _run(published, published.ran if ours else published.settings, out, jobs)
    _print(published, measured)
    if record is not None:
        Console(stderr=True).print(f"Written: {reproduction.save(published, measured, record)}")


@app.command()
def picture(
    name: Name,
    file: Annotated[Path, typer.Argument(help="The picture's file.", show_default=False)],
    kind: Annotated[str, typer.Option(help=f"{', '.join(pictures.KINDS)}.")] = "tradeoff",
    out: Out = RUNS,
    seeds: Seeds = "",
    rows: Rows = "",
    ours: Ours = False,
) -> None:
    """Draw the finished or recorded runs of a table."""
    published = restricted(table.find(name), seeds, rows)
    settings = published.ran if ours else published.settings
    planned = [each for setting in settings for each in _planned(published, setting, out)]
    drawn = pictures.draw(published, reproduction.measured_by_us(name), planned, kind, file)
    Console().print(f"Drawn to {drawn}")


@app.command()
def ledger() -> None:
    """Write the pages in docs/results."""
    pages.write()


def _planned(published: PublishedTable, setting: Setting, out: Path) -> list[Planned]:
    """The runs of a setting, with what its grids gave."""
    chosen = reproduction.choose(published, setting, out) if out.exists() else {}
    return reproduction.plan(published, setting, chosen, out)


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
        waiting = [run for run in planned if not run.cell.finished]
        if waiting:
            seconds = reproduction.seconds(waiting) / jobs
            progress.print(
                f"{len(waiting)} runs take about {_duration(seconds)} with {jobs} processes."
            )
        task = progress.add_task("runs", total=len(planned))
        for step in run_cells_in_processes([run.cell for run in planned], jobs):
            if step.failure:
                progress.print(f"{step.cell.label}: {step.failure}")
            progress.advance(task)
    return reproduction.measure(published, planned, chosen)


def _duration(seconds: float) -> str:
    """About how long, in words.

    >>> _duration(0.4), _duration(400), _duration(9000)
    ('a second', '7 minutes', '2.5 hours')
    """
    if seconds < 90:
        return "a second" if seconds < 1.5 else f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _print(published: PublishedTable, measured: Measured | None) -> None:
    console = Console()
    console.print(
        f"{published.paper}, {published.table}: {published.data}; {published.unit}", markup=False
    )
    console.print(
        f"{published.status}: {published.why}" if published.why else published.status, markup=False
    )
    cells = verdicts.published_seeds(published, measured)
    has_code = any(row.code for row in published.rows)
    listing = Table(box=None, pad_edge=False)
    for header in (
        "method",
        "figure",
        "published",
        *(["code"] if has_code else []),
        "ours",
        "95 %",
    ):
        words = header in ("method", "figure")
        listing.add_column(header, justify="left" if words else "right", no_wrap=not words)
    listing.add_column("verdict")
    last = ""
    for row, column, _, verdict in verdicts.cells_of(published, measured):
        code = [verdicts.figure(row.code, (), column)] if has_code else []
        listing.add_row(
            shown(row.name) if row.name != last else "",
            published.columns[column],
            verdicts.figure(row.published, row.spreads, column),
            *code,
            verdicts.spread(published, row, column, cells),
            verdicts.half_width(row, column, cells),
            verdict,
        )
        last = row.name
    console.print(listing)
    for sentence in published.errors:
        console.print(f"- {sentence}", markup=False)
    for claim in published.claims:
        ours = verdicts.finding(published, claim, measured)
        console.print(f"- Claim: {claim.says} Ours: {ours}", markup=False)
