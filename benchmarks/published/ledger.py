"""The page of published tables: `python -m benchmarks.published.ledger` prints it."""

from collections import Counter
from collections.abc import Iterable, Sequence

from . import reproduction
from .reproduction import Measured, PublishedTable

__all__ = ["main", "page"]

KINDS = ("reproduced", "within noise", "differs", "no verdict", "not run", "cannot")
PAGE = """# Published tables, cell by cell

This page covers every results table of the five papers, cell by cell, with what Commonweal gives
or why there is no figure. [Results](../results.md#published-tables) has a summary. From a checkout,
`commonweal reproduce NAME` repeats a table and `commonweal reproduce` lists them.

- *Reproduced*: the published figure is within one point of ours and within two standard errors of
  the difference of both means over seeds.
- *Within noise*: within two standard errors, but more than a point away.
- *Differs*: more than that; the difference is ours minus theirs.
- *No verdict*: other data, another model, or an unknown spread over seeds.
- *Not run*: it can be run, but was not. *Cannot*: data or computing time is missing.

{counts}
Numbers in brackets are population standard deviations over seeds, unless a table says otherwise.
Ours were measured with the version that is named; "code" is the authors' code, run again.

{tables}
This page is generated: `python -m benchmarks.published.ledger > docs/results/ledger.md`. The
published cells are in `benchmarks/published/tables`. Tables 3.6 to 3.10 of the thesis repeat Tables
2, 3, 5, 6 and 7 of AAggFF and are counted there.
"""


def page() -> str:
    """docs/results/ledger.md."""
    tables = [reproduction.find(name) for name in reproduction.names()]
    papers = dict.fromkeys(table.paper for table in tables)
    sections = [_section(paper, [t for t in tables if t.paper == paper]) for paper in papers]
    return PAGE.format(counts=_counts(tables), tables="\n".join(sections))


def kinds_of(table: PublishedTable, measured: Measured | None) -> Counter[str]:
    """How many cells of a table are reproduced, differ, and so on."""
    found: Counter[str] = Counter()
    if table.repeats:
        return found
    for row, column, ours, verdict in reproduction.cells_of(table, measured):
        if reproduction.figure(row.published, (), column):
            found[_kind(table, bool(ours), verdict)] += 1
    return found


def _kind(table: PublishedTable, measured: bool, verdict: str) -> str:
    if not measured:
        return "cannot" if table.status == "cannot" else "not run"
    if table.status.startswith("other") or verdict.startswith(("+", "-")):
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
    measured = reproduction.measured_by_us(table.name)
    lines = [f"### {table.table}: {table.data}", "", _sentence(table, measured), ""]
    if table.errors:
        lines += [*(f"- {sentence}" for sentence in table.errors), ""]
    if measured is not None:
        lines += [*_rows(table, measured), ""]
    if table.claims:
        lines += [*(f"- Claim: {claim.says} Ours: {claim.ours}" for claim in table.claims), ""]
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
    for row, column, ours, verdict in reproduction.cells_of(table, measured):
        if not ours:
            continue
        code = [reproduction.figure(row.code, (), column)] if has_code else []
        lines.append(
            markdown_row(
                [
                    row.name + _chosen(measured, row.name) if column == 0 else "",
                    table.columns[column],
                    reproduction.figure(row.published, row.spreads, column),
                    *code,
                    reproduction.spread(ours),
                    verdict,
                ]
            )
        )
    return lines


def _chosen(measured: Measured, row: str) -> str:
    chosen = measured.chosen.get(row, {})
    values = [f"{key.partition('.')[2]} {value}" for key, value in chosen.items()]
    return f" ({', '.join(values)})" if values else ""


def markdown_row(cells: Iterable[object]) -> str:
    """A row of a table in Markdown."""
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def main() -> None:
    print(page(), end="")


if __name__ == "__main__":
    main()
