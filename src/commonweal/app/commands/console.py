"""Output of commands: results to the standard output, everything else to the standard error."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.table import Table

from commonweal.base.text import shown

FILE_WIDTH = 1000  # columns of a file, unless $COLUMNS gives their number: nothing is cropped
STOPPED = 130  # the exit code after Ctrl-C

_is_terminal = sys.stdout is not None and sys.stdout.isatty()  # None: it is closed
# No highlighting: its patterns take quadratic time in long names.
_is_narrow = _is_terminal or "COLUMNS" in os.environ
out = Console(width=None if _is_narrow else FILE_WIDTH, highlight=False)
err = Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """Print a line to the standard error, unwrapped, so that paths in it can be copied."""
    err.print(shown(text, lines=True), markup=False, soft_wrap=True)


def print_text(text: str) -> None:
    """Print text to the standard output as it is."""
    out.print(shown(text, lines=True), markup=False)


def print_command(text: str) -> None:
    """Print a command to the standard output, unwrapped, so that it can be copied."""
    out.print(shown(text, lines=True), markup=False, soft_wrap=True)


@contextmanager
def stoppable(
    next_step: str = "every finished round is saved: the same command continues from there",
) -> Iterator[None]:
    """Let Ctrl-C end the command, and print how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"stopped; {next_step}")
        raise typer.Exit(STOPPED) from None


def show_json(value: object) -> None:
    """Print a value to the standard output as one line of JSON."""
    from commonweal.base.plain import to_json

    print(shown(to_json(value, indent=None).decode(), "json"), end="")


def name_table() -> Table:
    """An empty table of two columns, a name and its text, without lines."""
    table = Table(box=None, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table
