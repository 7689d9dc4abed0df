"""Tables as text: for a terminal, Markdown, LaTeX and CSV."""

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from rich import box
from rich import table as rich_table
from rich.console import Group

from commonweal.base.text import quoted, shown
from commonweal.record.final import Bounds
from commonweal.study.units import decimals_of, points, scale, show_score, unit

NARROW = 80  # columns of a terminal
LABEL = 24  # of them, at most, for the first column


# Clients and gains


def show_client(value: float, score: str, bounds: Bounds | None, k: int) -> str:
    """Format the score of client k, with its confidence interval where there is one."""
    text = show_score(value, score)
    if text == "-" or bounds is None or k >= len(bounds.low):
        return text
    low, high = bounds.low[k], bounds.high[k]
    if low is None or high is None:
        return text
    form = ".0f" if unit(score) else ".3g"
    return f"{text} [{scale(score) * low:{form}}, {scale(score) * high:{form}}]"


def gain_with_interval(
    gain: float, low: float, high: float, score: str, digits: int | None = None
) -> str:
    """A gain with its interval, where that is known: "+1.2 [+0.3, +2.1]"."""
    if math.isnan(gain):
        return "-"
    if math.isnan(low) or low == high:  # no sample differs
        return points(gain, score, digits)
    digits = decimals_of(score, high - low, digits)
    text = points(gain, score, digits)
    return f"{text} [{points(low, score, digits)}, {points(high, score, digits)}]"


# Tables


class ReportColumn(NamedTuple):
    """A column of a table.

    best: The position of the cell that is significantly better than all others, if there is one.
    """

    title: str
    cells: list[str]
    best: int | None = None


@dataclass(frozen=True)
class ReportTable:
    """Columns next to the labels of rows."""

    title: str
    header: str  # of the labels
    labels: list[str]
    columns: list[ReportColumn]


Write: TypeAlias = Callable[[str], str]  # a text in some format


def cells_of(column: ReportColumn, bold: Write, cell: Write = str) -> list[str]:
    """The cells of a column in some format; the best one is bold."""
    texts = list(map(cell, column.cells))
    if column.best is not None:
        texts[column.best] = bold(texts[column.best])
    return texts


def cell_rows(table: ReportTable, bold: Write, cell: Write = str) -> list[list[str]]:
    """The cells line by line, after the label as it is."""
    rows = [[label] for label in table.labels]
    for column in table.columns:
        for row, text in zip(rows, cells_of(column, bold, cell), strict=True):
            row.append(text)
    return rows


def titles_of(table: ReportTable) -> list[str]:
    """The titles of the columns, that of the labels first."""
    return [table.header, *(column.title for column in table.columns)]


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Lines with the same keys as CSV. Texts are no formulas for a spreadsheet."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: quoted(v) if isinstance(v, str) else v for k, v in row.items()})
    return text.getvalue()


def markdown_table(table: ReportTable) -> str:
    """A table as Markdown, with its title."""
    aligned = ["---", *["--:"] * len(table.columns)]
    lines = [f"{table.title}:", "", pipes(map(_markdown, titles_of(table))), pipes(aligned)]
    for label, *cells in cell_rows(table, "**{}**".format):
        lines.append(pipes([_markdown(label), *cells]))
    return "\n".join([*lines, ""])


def _markdown(text: str) -> str:
    return shown(text, "markdown")


def pipes(cells: Iterable[str]) -> str:
    """A line of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


MINUS = re.compile(r"(?<![\w.])-(?=\d)")


def latex_table(table: ReportTable, label: str) -> str:
    """A table as LaTeX for the package booktabs, with caption and label."""
    lines = [
        r"\begin{table}",
        rf"\caption{{{_latex(table.title)}}}",
        rf"\label{{tab:{label}}}",
        r"\centering",
        r"\begin{tabular}{l" + "r" * len(table.columns) + "}",
        r"\toprule",
        _latex_line(map(_latex, titles_of(table))),
        r"\midrule",
    ]
    for name, *cells in cell_rows(table, r"\textbf{{{}}}".format, _latex_number):
        lines.append(_latex_line([_latex(name), *cells]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"])


def _latex_line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex(text: str) -> str:
    return shown(text, "latex")


def _latex_number(cell: str) -> str:
    """A cell with minus signs instead of hyphens."""
    return MINUS.sub("$-$", _latex(cell))


def markup(text: str) -> str:
    """Text for rich: markup and control sequences in it have no effect."""
    return shown(text, "markup")


def terminal_tables(table: ReportTable) -> Group:
    """A table as tables for rich, so many that each fits into a narrow terminal.

    Labels and titles are folded, cells are not.
    """
    label = min(LABEL, max(map(len, (*table.labels, table.header))))
    parts: list[list[ReportColumn]] = []
    left = 0
    for column in table.columns:
        if not parts or _width(column) > left:
            parts.append([])
            left = NARROW - label - 2
        parts[-1].append(column)
        left -= _width(column)
    tables: list[rich_table.Table] = []
    for part in parts:
        drawn = frameless_table(None if tables else markup(table.title))
        drawn.add_column(markup(table.header), overflow="fold", width=label)
        for column in part:
            width = _width(column) - 2
            drawn.add_column(markup(column.title), justify="right", overflow="fold", width=width)
        shown_part = ReportTable(table.title, table.header, table.labels, part)
        for name, *cells in cell_rows(shown_part, "[bold]{}[/]".format):
            drawn.add_row(markup(name), *cells)
        tables.append(drawn)
    return Group(*tables)


def frameless_table(title: str | None) -> rich_table.Table:
    """A table for rich with a line below its header and no frame."""
    return rich_table.Table(
        title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title_justify="left"
    )


def add_columns(table: rich_table.Table, *titles: str, right: bool = False) -> None:
    """Add columns that are never cropped: text is folded, numbers stay whole."""
    for title in titles:
        table.add_column(markup(title), justify="right" if right else "left", overflow="fold")


def _width(column: ReportColumn) -> int:
    """The columns of a terminal that a column takes, with two for the gap."""
    return 2 + max(map(len, (*column.cells, *column.title.split())))
