"""The pages of published tables: `python -m benchmarks.published ledger` writes them."""

import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from . import reproduction, verdicts
from .reproduction import Measured
from .table import TABLES, Claim, Gain, PublishedTable, find, names

__all__ = ["pages", "write"]

KINDS = ("reproduced", "within noise", "differs", "no verdict", "not run: time", "not run: data")
FRONT = """# Published tables

The five papers' main claims, and what our runs say about them. [Cell by cell](cells.md) has every
table. In a checkout, `python -m benchmarks.published run NAME` repeats a table and
`python -m benchmarks.published list` lists them.

{claims}
## Cells

{counts}
- *Differs*: the difference of both means is significant (Welch's test, 95 %). *Reproduced*: it is
  not, and is at most one point (a tenth of figures below 10). *Within noise*: it is larger.
- *No verdict*: other data, another model, or an unknown spread over runs.
- *Not run*: it would take too long on two cores, or files are missing here. All files are public or
  available on request.
"""
CELLS = """# Published tables, cell by cell

This page covers every results table of the five papers, with what Commonweal gives or why there is
no figure. [Published tables](ledger.md) has the summary. The published settings, with their
sources, are in `benchmarks/published/tables`.

- Cells are compared by Welch's test of two means over runs. Where the paper prints no spread over
  seeds, ours is taken for theirs. With fewer than five seeds of ours, the spread is pooled over the
  table's rows; with one, it is that of the run's evaluations in its last quarter. Where the paper
  prints a spread over clients, it is divided by the root of their number, and what our seeds differ
  by is added.
- Figures that a paper prints as a root (AdaFed's sigma) are compared as squares.
- Numbers in brackets are population standard deviations over seeds; where the paper's are over
  clients, so are ours. "code" is the authors' code, run again.

{tables}
This page is generated: `python -m benchmarks.published ledger` writes it. Tables 3.6 to 3.10 of the
thesis repeat Tables 2, 3, 5, 6 and 7 of AAggFF and are counted there.
"""
DOCS = Path(__file__).parents[2] / "docs" / "results"


def pages() -> dict[str, str]:
    """The pages in docs/results, by file name."""
    tables = [find(name) for name in names()]
    papers = dict.fromkeys(table.paper for table in tables)
    sections = [_section(paper, [t for t in tables if t.paper == paper]) for paper in papers]
    return {
        "ledger.md": FRONT.format(claims=_claims(), counts=_counts(tables)),
        "cells.md": CELLS.format(tables="\n".join(sections)),
    }


def _claims() -> str:
    """The papers' main claims as a table."""
    read = tomllib.loads((TABLES / "claims.toml").read_text("utf-8"))
    lines = [markdown_row(["paper", "claim", "here", "why"]), "|---|---|---|---|"]
    for claim in read["claims"]:
        why = " ".join([claim["why"], *(_finding(gain) for gain in claim.get("gains", ()))])
        lines.append(markdown_row([claim["paper"], claim["claim"], claim["verdict"], why]))
    return "\n".join(lines) + "\n"


def _finding(gain: Sequence[str]) -> str:
    """The difference of two rows of a table: its name, and the fields of a `Gain`."""
    name, *fields = gain
    claim = Claim("", gains=(Gain(*fields),))
    return f"{name}: {verdicts.finding(find(name), claim, reproduction.measured_by_us(name))}"


def kinds_of(table: PublishedTable, measured: Measured | None) -> Counter[str]:
    """How many cells of a table are reproduced, differ, and so on."""
    counts: Counter[str] = Counter()
    if table.repeats:
        return counts
    for row, column, ours, verdict in verdicts.cells_of(table, measured):
        if verdicts.figure(row.published, (), column):
            counts[_kind(table, bool(ours), verdict)] += 1
    return counts


def _kind(table: PublishedTable, measured: bool, verdict: str) -> str:
    if not measured:
        return table.status if table.status in KINDS else "not run: time"
    if not verdict or verdict.startswith(("+", "-")):
        return "no verdict"
    return verdict.partition(" (")[0]


def _counts(tables: Iterable[PublishedTable]) -> str:
    by_paper: dict[str, Counter[str]] = {}
    for table in tables:
        found = kinds_of(table, reproduction.measured_by_us(table.name))
        by_paper.setdefault(table.paper, Counter()).update(found)
    lines = ["| paper | cells | " + " | ".join(KINDS) + " |", "|---|" + "--:|" * (1 + len(KINDS))]
    for paper, found in by_paper.items():
        lines.append(markdown_row([paper, found.total(), *(found[kind] for kind in KINDS)]))
    total = sum(by_paper.values(), Counter[str]())
    lines.append(markdown_row(["all", total.total(), *(total[kind] for kind in KINDS)]))
    return "\n".join(lines) + "\n"


def _section(paper: str, tables: Iterable[PublishedTable]) -> str:
    return f"## {paper}\n\n" + "\n".join(_table(table) for table in tables)


def _table(table: PublishedTable) -> str:
    every = reproduction.measured_by_us(table.name)
    measured = verdicts.published_seeds(table, every)
    lines = [f"### {table.table}: {table.data}", "", _sentence(table, measured), ""]
    if table.errors:
        lines += [*(f"- {sentence}" for sentence in table.errors), ""]
    if measured is not None:
        lines += [*_rows(table, measured), ""]
    if table.claims:
        for claim in table.claims:
            lines.append(f"- Claim: {claim.says} Ours: {verdicts.finding(table, claim, every)}")
        lines.append("")
    return "\n".join(lines)


def _sentence(table: PublishedTable, measured: Measured | None) -> str:
    cells = f"{table.cells} cells, " if table.cells else ""
    why = f": {table.why}" if table.why else ""
    text = f"`{table.name}`, {cells}{table.unit}. {table.status.capitalize()}{why}."
    if measured is None:
        return text
    return f"{text} Seeds {_seeds(measured.seeds)}, version {measured.version}."


def _seeds(seeds: Sequence[int]) -> str:
    """The seeds as text: 2, 4, 6; many in a row: 0 to 49.

    >>> _seeds((2, 4, 6)), _seeds(tuple(range(50)))
    ('2, 4, 6', '0 to 49')
    """
    first, last = seeds[0], seeds[-1]
    if len(seeds) > 3 and tuple(seeds) == tuple(range(first, last + 1)):
        return f"{first} to {last}"
    return ", ".join(map(str, seeds))


def _rows(table: PublishedTable, measured: Measured) -> list[str]:
    has_code = any(row.code for row in table.rows)
    header = ["method", "figure", "published", *(["code"] if has_code else []), "ours", ""]
    lines = [markdown_row(header), "|---|---|" + "--:|" * (len(header) - 3) + "---|"]
    for row, column, ours, verdict in verdicts.cells_of(table, measured):
        if not ours:
            continue
        code = [verdicts.figure(row.code, (), column)] if has_code else []
        lines.append(
            markdown_row(
                [
                    row.name + _about(measured, row.name) if column == 0 else "",
                    table.columns[column],
                    verdicts.figure(row.published, row.spreads, column),
                    *code,
                    verdicts.spread(table, row, column, measured),
                    verdict,
                ]
            )
        )
    return lines


def _about(measured: Measured, row: str) -> str:
    """What a grid gave for a row, and how many seeds it has where they are fewer."""
    chosen = measured.chosen.get(row, {})
    values = [f"{key.partition('.')[2]} {value}" for key, value in chosen.items()]
    seeds = len(measured.figures[row])
    if seeds < len(measured.seeds):
        values.append(f"{seeds} of {len(measured.seeds)} seeds")
    return f" ({', '.join(values)})" if values else ""


def markdown_row(cells: Iterable[object]) -> str:
    """A row of a table in Markdown."""
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def write() -> None:
    """Write the pages in docs/results."""
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
