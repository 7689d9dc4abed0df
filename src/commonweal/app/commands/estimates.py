"""`commonweal estimates`: coefficients of a run of `glm`, with intervals."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commonweal.app.commands import console
from commonweal.app.commands.options import Quiet, RunFolder, figure, out

if TYPE_CHECKING:
    from commonweal.study.inference import Estimates


def estimates(
    run: RunFolder,
    to: Annotated[Path | None, out("A CSV file.")] = None,
    draw: Annotated[Path | None, figure("Draw a forest plot of --term: PNG, SVG or PDF.")] = None,
    term: Annotated[
        str | None, typer.Option(help="The coefficient that is drawn, by client.")
    ] = None,
    level: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    quiet: Quiet = False,
) -> None:
    """Print the coefficients of a run of algorithm=glm, their intervals, and how clients differ.

    For example: commonweal estimates runs/patients-glm-0 --draw forest.png --term age
    """
    from commonweal.base.errors import ConfigError, did_you_mean
    from commonweal.base.files import write_file
    from commonweal.report import figures
    from commonweal.study import inference

    figures.check_suffix(draw)
    found = inference.estimates(run, level)
    if to is not None:
        write_file(to, found.csv(), durable=False)
    if draw is not None:
        names = [each.name for each in found.terms]
        if term not in names:
            raise ConfigError(f"--term {term!r}: {did_you_mean(str(term), names)}")
        figures.save(figures.forest(found.terms[names.index(term)], found.ratio), draw)
    if not quiet:
        _show(found, level)


def _show(found: "Estimates", level: float) -> None:
    import math

    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None)
    table.add_column("term", overflow="fold")
    interval = f"{100 * level:g} % interval"
    for name in ("estimate", found.ratio, interval, "p", "I²"):
        if name:
            table.add_column(name, justify="right", no_wrap=True)
    for term in found.terms:
        if math.isnan(term.value):
            table.add_row(escape(term.name), "reference")
            continue
        chance = "<0.001" if term.p < 0.001 else f"{term.p:.3f}"
        differs = "-"
        if not math.isnan(term.i2):
            differs = f"{100 * term.i2:.0f} %" + ("*" if term.heterogeneity < 0.05 else "")
        cells = [f"{term.value:.4g}", f"{term.low:.4g} to {term.high:.4g}"]
        if found.ratio:  # whose interval is shown
            value, low, high = (math.exp(min(x, 700.0)) for x in (term.value, term.low, term.high))
            cells = [cells[0], f"{value:.3g}", f"{low:.3g} to {high:.3g}"]
        table.add_row(escape(term.name), *cells, chance, differs)
    console.print_text(f"pooled estimates of {found.rows} rows of {found.clients} clients")
    console.out.print(table)
    if found.ratio:
        console.print_text(f"the interval is of the {found.ratio}, exp(estimate)")
    console.print_text(
        "I²: the share of the differences between clients that chance does not explain; "
        "* p < 0.05 for each coefficient, not corrected"
    )
