"""`commonweal list`: what an experiment can name."""

import json
from typing import Annotated

import typer
from rich.markup import escape

from commonweal.app.commands import console
from commonweal.app.commands.options import Json, names_of
from commonweal.base.errors import ConfigError, did_you_mean
from commonweal.report import listing


def list_(
    what: Annotated[
        str | None,
        typer.Argument(
            help=f"One of {', '.join(listing.LISTS)}; without it, these are listed.",
            show_default=False,
            autocompletion=names_of(lambda: listing.LISTS),
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the rules, datasets, models and other parts that an experiment can use.

    For example: commonweal list rules; commonweal show NAME explains one of them.
    """
    if what is None:
        _show_kinds(as_json)
    elif what not in listing.LISTS:
        raise ConfigError(f"there is no list of {what!r}: {did_you_mean(what, listing.LISTS)}")
    elif as_json:
        _show_json(listing.summaries(what))
    elif what == "rules":
        _show_rules()
    else:
        table = console.name_table()
        for name, line in listing.summaries(what).items():
            table.add_row(f"[bold]{escape(name)}[/bold]", escape(line))
        console.out.print(table)


def _show_kinds(as_json: bool) -> None:
    """The lists themselves, with how many names each has."""
    sizes = {kind: len(listing.summaries(kind)) for kind in listing.LISTS}
    if as_json:
        _show_json(sizes)
        return
    table = console.name_table()
    for kind, size in sizes.items():
        table.add_row(f"[bold]{kind}[/bold]", f"{size}: commonweal list {kind}")
    console.out.print(table)


def _show_json(rows: dict[str, str] | dict[str, int]) -> None:
    print(json.dumps(rows, ensure_ascii=False))  # not console.show_json, which imports torch


def _show_rules() -> None:
    """The rules by family, with their ideas and papers."""
    table = console.name_table()
    for family, entries in listing.families().items():
        table.add_row(f"[dim]{family}[/dim]", "")
        for entry in entries:
            idea = escape(listing.first_line(entry.about))
            table.add_row(f"  [bold]{entry.name}[/bold]", f"{idea} [dim]{entry.paper}[/dim]")
    console.out.print(table)
