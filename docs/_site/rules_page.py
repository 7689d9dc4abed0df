"""The table of rules: `python docs/_site/rules_page.py docs/rules.md` renews it."""

import sys
from collections.abc import Iterable
from pathlib import Path

from commonweal.config.catalog import Entry
from commonweal.report.listing import families
from commonweal.rules.rule import Rule

__all__ = ["markdown_row", "renew", "rules_table"]

HEADER = ("rule", "family", "response", "update rule", "weights")


def rules_table() -> str:
    """The table of all rules in Markdown."""
    lines = [markdown_row(HEADER), "|" + "---|" * len(HEADER)]
    for found in families().values():
        lines += [markdown_row(_cells(entry)) for entry in found]
    return "\n".join(lines) + "\n"


def _cells(entry: Entry) -> tuple[str, ...]:
    rule = entry.factory
    assert isinstance(rule, type) and issubclass(rule, Rule)
    kind = rule.kind
    return (entry.name, kind.family, _code(kind.response), kind.update, _code(_formula(entry)))


def _code(formula: str) -> str:
    """A formula as code: a browser takes a bare <g, p> for a tag."""
    return f"`{formula}`" if formula else ""


def _formula(entry: Entry) -> str:
    """The first paragraph of the rule's docstring."""
    return entry.details.split("\n\n")[0].replace("\n", " ")


def markdown_row(cells: Iterable[object]) -> str:
    """A row of a table in Markdown."""
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def renew(page: str) -> str:
    """The text of a page with its table of rules as the code makes it now."""
    before, _, table = page.partition(markdown_row(HEADER))
    after = table.partition("\n\n")[2]
    return f"{before}{rules_table()}\n{after}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(renew(path.read_text(encoding="utf-8")), encoding="utf-8")
