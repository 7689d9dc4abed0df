"""Numbers as text, and tables for a terminal, Markdown, LaTeX and CSV."""

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Group
from rich.table import Table

from commonweal.base.text import quoted, shown
from commonweal.metrics import Paired
from commonweal.record.final import Bounds
from commonweal.training import scores

Array: TypeAlias = NDArray[np.float64]

NARROW = 80  # columns of a terminal
LABEL = 24  # of them, at most, for the first column


# Numbers


class Metric(NamedTuple):
    """How a metric over clients is shown."""

    title: str
    in_score_units: bool = True
    lower_is_better: bool = False
    digits: int = 1  # after the point, where it is not in units of the score


METRICS = {
    "mean": Metric("mean"),
    "weighted_mean": Metric("mean by samples"),
    "worst": Metric("worst"),
    "worst_5": Metric("worst 5 %"),
    "worst_10": Metric("worst 10 %"),
    "worst_20": Metric("worst 20 %"),
    "best": Metric("best"),
    "best_5": Metric("best 5 %"),
    "best_10": Metric("best 10 %"),
    "std": Metric("std", lower_is_better=True),
    "variance": Metric("variance", in_score_units=False, lower_is_better=True),
    "gini": Metric("Gini", in_score_units=False, lower_is_better=True),
    "gap": Metric("gap", lower_is_better=True),
    "gap_10": Metric("gap 10 %", lower_is_better=True),
    "angle": Metric("angle (degrees)", in_score_units=False, lower_is_better=True),
    "kl": Metric("KL (nats)", in_score_units=False, lower_is_better=True),
    "improved": Metric("losses not risen (%)", in_score_units=False),
    "length": Metric("|d|", in_score_units=False, lower_is_better=True, digits=3),
}


def scale(score: str) -> float:
    """The factor by which a score is shown: fractions are shown in per cent."""
    return 100.0 if scores.find(score).in_per_cent else 1.0


def unit(score: str) -> str:
    """What follows a value of a score: " %", or nothing."""
    return " %" if scores.find(score).in_per_cent else ""


SCORE_NAMES = {"auroc": "AUROC", "f1": "F1", "mae": "MAE", "r2": "R²", "rmse": "RMSE"}


def score_name(score: str) -> str:
    """A score as people write it."""
    return SCORE_NAMES.get(score, score)


def score_label(score: str) -> str:
    """The title of an axis or column of a score, with its unit."""
    return f"{score_name(score)} (%)" if scale(score) == 100 else score_name(score)


def decimals_of(score: str, values: Array | float, given: int | None = None) -> int:
    """Digits after the point as given, or one for per cent, or three significant digits."""
    if given is not None:
        return given
    if scores.find(score).in_per_cent:
        return 1
    sizes = np.abs(np.atleast_1d(values))
    largest = float(np.max(sizes, initial=0.0, where=np.isfinite(sizes)))
    return 2 if largest == 0 else min(4, max(0, 2 - math.floor(math.log10(largest))))


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


def show_score(value: float, score: str, digits: int = 2) -> str:
    """Format a score with its unit and at least some digits; "-" where it is undefined.

    >>> show_score(0.5, "accuracy")
    '50.00 %'
    """
    if math.isnan(value):
        return "-"
    if not scores.find(score).in_per_cent:
        digits = max(digits, decimals_of(score, value))
    return f"{scale(score) * value:.{digits}f}{unit(score)}"


def points(change: float, score: str, digits: int | None = None) -> str:
    """A difference of scores with its sign, in points of per cent or in the score's unit."""
    return f"{scale(score) * change:+z.{decimals_of(score, change, digits)}f}"


def in_points(change: str, score: str) -> str:
    """A difference in a sentence, followed by "points" where it is one of per cent."""
    return f"{change} points" if unit(score) else change


def interval(gain: Paired, score: str, digits: int | None = None) -> str:
    """A gain with its interval: "+1.2 [+0.3, +2.1]", or "+0.1 (n.s.)" if it is not significant."""
    digits = decimals_of(score, gain.difference, digits)
    text = points(gain.difference, score, digits)
    if not gain.significant:
        return f"{text} (n.s.)"
    return f"{text} [{points(gain.low, score, digits)}, {points(gain.high, score, digits)}]"


def counted(count: int, noun: str) -> str:
    """A number of things: "1 seed", "2 seeds"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def sign_of(score: str) -> int:
    """What turns a difference of scores into a gain: -1 for errors."""
    return -1 if scores.find(score).lower_is_better else 1


def worst_first(values: Sequence[float], score: str) -> list[int]:
    """The positions of clients by their scores; those without one stand at the end."""
    sign = sign_of(score)
    return sorted(range(len(values)), key=lambda k: (math.isnan(values[k]), sign * values[k]))


# Tables


class Column(NamedTuple):
    """A column of a table.

    best: The position of the cell that is significantly better than all others, if there is one.
    """

    title: str
    cells: list[str]
    best: int | None = None


@dataclass(frozen=True)
class Grid:
    """A comparison as text, before it has a format."""

    title: str
    labels: tuple[str, ...]
    figures: list[Column]
    differences: list[Column]
    against_local: list[Column]  # empty where clients were not trained alone
    notes: list[str]

    @property
    def columns(self) -> list[Column]:
        return [*self.figures, *self.differences]


Write: TypeAlias = Callable[[str], str]  # a text in some format


def cells_of(column: Column, bold: Write, cell: Write = str) -> list[str]:
    """The cells of a column in some format; the best one is bold."""
    texts = list(map(cell, column.cells))
    if column.best is not None:
        texts[column.best] = bold(texts[column.best])
    return texts


def cell_rows(
    labels: Iterable[str], columns: Sequence[Column], bold: Write, cell: Write = str
) -> list[list[str]]:
    """The cells line by line, after the label."""
    rows = [[label] for label in labels]
    for column in columns:
        for row, text in zip(rows, cells_of(column, bold, cell), strict=True):
            row.append(text)
    return rows


def header(columns: Sequence[Column]) -> list[str]:
    return ["method", *(column.title for column in columns)]


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Lines with the same keys as CSV. Texts are no formulas for a spreadsheet."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: quoted(v) if isinstance(v, str) else v for k, v in row.items()})
    return text.getvalue()


def markdown(grid: Grid) -> str:
    """A grid as Markdown: figures with differences, then gains over local training."""
    tables = [_markdown_table(grid, grid.columns)]
    if grid.against_local:
        tables.append(_markdown_table(grid, grid.against_local))
    notes = [f"({note})" for note in grid.notes]
    return "\n".join([f"{grid.title}:", "", "\n\n".join(tables), "", *notes, ""])


def _markdown_table(grid: Grid, columns: Sequence[Column]) -> str:
    lines = [pipes(map(_markdown, header(columns))), pipes(["---", *["--:"] * len(columns)])]
    for row in cell_rows(map(_markdown, grid.labels), columns, "**{}**".format):
        lines.append(pipes(row))
    return "\n".join(lines)


def _markdown(text: str) -> str:
    return shown(text, "markdown")


def pipes(cells: Iterable[str]) -> str:
    """A line of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


MINUS = re.compile(r"(?<![\w.])-(?=\d)")


def latex(grid: Grid) -> str:
    """A grid as LaTeX tables for the package booktabs, each with a caption and a label."""
    tables = [_latex_table(grid, "scores", grid.title, grid.figures)]
    if grid.differences:
        title = f"Differences: {grid.title}"
        tables.append(_latex_table(grid, "differences", title, grid.differences))
    if grid.against_local:
        title = f"Compared with local training: {grid.title}"
        tables.append(_latex_table(grid, "local", title, grid.against_local))
    notes = [f"% {shown(note)}" for note in grid.notes]
    return "\n".join([r"% \usepackage{booktabs}", *tables, *notes, ""])


def _latex_table(grid: Grid, label: str, caption: str, columns: Sequence[Column]) -> str:
    lines = [
        r"\begin{table}",
        rf"\caption{{{_latex(caption)}}}",
        rf"\label{{tab:{label}}}",
        r"\centering",
        r"\begin{tabular}{l" + "r" * len(columns) + "}",
        r"\toprule",
        _latex_line(map(_latex, header(columns))),
        r"\midrule",
    ]
    labels = map(_latex, grid.labels)
    for row in cell_rows(labels, columns, r"\textbf{{{}}}".format, _latex_number):
        lines.append(_latex_line(row))
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


def terminal(grid: Grid) -> Group:
    """A grid as tables for rich, so many that each fits into a narrow terminal."""
    tables = _narrow_tables(markup(grid.title), grid, grid.figures)
    if grid.differences:
        tables += _narrow_tables(None, grid, grid.differences, first=1)
    if grid.against_local:
        tables += _narrow_tables("compared with local training", grid, grid.against_local)
    return Group(*tables, *(f"[dim]{markup(note)}[/dim]" for note in grid.notes))


def _narrow_tables(
    title: str | None, grid: Grid, columns: Sequence[Column], first: int = 0
) -> list[Table]:
    """Distribute columns over tables. Labels and titles are folded, cells are not.

    first: the first line to show
    """
    label = min(LABEL, max(map(len, grid.labels)))
    parts: list[list[Column]] = []
    left = 0
    for column in columns:
        if not parts or _width(column) > left:
            parts.append([])
            left = NARROW - label - 2
        parts[-1].append(column)
        left -= _width(column)
    tables: list[Table] = []
    for part in parts:
        table = plain_table(None if tables else title)
        table.add_column("method", overflow="fold", width=max(label, len("method")))
        for column in part:
            width = _width(column) - 2
            table.add_column(markup(column.title), justify="right", overflow="fold", width=width)
        for name, *cells in cell_rows(grid.labels, part, "[bold]{}[/]".format)[first:]:
            table.add_row(markup(name), *cells)
        tables.append(table)
    return tables


def plain_table(title: str | None) -> Table:
    """A table for rich with a line below its header and no frame."""
    return Table(
        title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title_justify="left"
    )


def add_columns(table: Table, *titles: str, right: bool = False) -> None:
    """Add columns that are never cropped: text is folded, numbers stay whole."""
    for title in titles:
        table.add_column(markup(title), justify="right" if right else "left", overflow="fold")


def _width(column: Column) -> int:
    """The columns of a terminal that a column takes, with two for the gap."""
    return 2 + max(map(len, (*column.cells, *column.title.split())))
