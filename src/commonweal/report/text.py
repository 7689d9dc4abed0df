"""A comparison as text: for a terminal, Markdown, LaTeX, CSV or JSON."""

from io import StringIO

from rich.console import Console, Group
from rich.text import Text

from commonweal.base.errors import ConfigError, did_you_mean
from commonweal.base.plain import to_json
from commonweal.base.text import shown
from commonweal.report import FORMATS, formats
from commonweal.report.formats import NARROW
from commonweal.report.overview import Overview, overview
from commonweal.study.comparison import Comparison
from commonweal.study.units import chosen_columns


def write_comparison(
    comparison: Comparison, form: str, columns: str | None = None, decimals: int | None = None
) -> str:
    """Write a comparison. CSV and JSON hold numbers as they are.

    Args:
        comparison: Of methods on the same data.
        form: One of `FORMATS`.
        columns: Metrics such as "mean,worst_10", or those of a paper.
        decimals: Digits after the point; None for one of per cent.
    """
    if form not in FORMATS:
        raise ConfigError(f"there is no format {form!r}: {did_you_mean(form, FORMATS)}")
    chosen = None if columns is None else chosen_columns(columns)
    if form == "csv":
        return formats.csv_text(comparison.with_curves(chosen or ()).lines(chosen))
    if form == "json":
        return to_json(comparison.with_curves(chosen or ()).plain(chosen)).decode()
    seen = overview(comparison, chosen, decimals)
    if form == "markdown":
        return markdown(seen)
    if form == "latex":
        return latex(seen)
    console = Console(width=NARROW, record=True, highlight=False, file=StringIO())
    console.print(terminal(seen))
    return console.export_text()


def terminal(seen: Overview) -> Group:
    """The headline, the tables, who gains and loses, and notes, as rich prints them."""
    tables = [formats.terminal_tables(table) for table in seen.tables.values()]
    sentences = [Text(shown(str(named))) for named in seen.named]
    notes = [Text(shown(note), style="dim") for note in seen.notes]
    head = Text(shown(seen.headline), style="bold")
    return Group(head, Text(shown(seen.about)), Text(), *tables, *sentences, *notes)


def markdown(seen: Overview) -> str:
    """The overview as Markdown."""
    tables = [formats.markdown_table(table) for table in seen.tables.values()]
    named = [shown(str(own), "markdown") for own in seen.named]
    notes = [f"- {shown(note, 'markdown')}" for note in seen.notes]
    parts = [shown(seen.headline, "markdown"), seen.about, *tables, *named, "\n".join(notes)]
    return "\n\n".join(filter(None, parts)) + "\n"


def latex(seen: Overview) -> str:
    """The tables of methods as LaTeX, with the rest as comments."""
    tables = []
    for name, table in seen.tables.items():
        if name != "clients":
            tables.append(formats.latex_table(table, name))
    notes = [f"% {shown(note)}" for note in (seen.headline, *map(str, seen.named), *seen.notes)]
    return "\n".join([r"% \usepackage{booktabs}", *tables, *notes, ""])
