"""The command `commonweal`: which commands there are, and how they end.

What takes long to import (torch, numpy) is imported inside the commands, so that help, lists and
errors appear at once.
"""

import sys
import warnings
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from typing import Annotated, NoReturn, TextIO

import click
import typer
from typer.core import TyperCommand

from commonweal import __version__
from commonweal.app.commands.console import STOPPED, say
from commonweal.app.commands.data import data
from commonweal.app.commands.flower import flower
from commonweal.base.errors import CommonwealError, CommonwealWarning

NOTHING_LOST = "stopped; what was saved before is intact"

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",  # lines of a paragraph are joined
    suggest_commands=False,  # click suggests them already
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Command(TyperCommand):
    """A command that explains how keys of an experiment are written."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. `--rounds 5` raises an error that says to write rounds=5."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            takes_keys = any(parameter.name == "changes" for parameter in self.params)
            hint = _written_as_key(error.option_name, given) if takes_keys else ""
            if not hint:
                raise
            raise CommonwealError(
                f"there is no option {error.option_name}: keys of the experiment are written "
                f"without dashes, as {hint}"
            ) from None


def _written_as_key(option: str, given: list[str]) -> str:
    """An option as `key=value`, or nothing where no experiment has such a key."""
    from commonweal.config.experiment import Experiment

    key = option.lstrip("-").replace("-", "_")
    if key.partition(".")[0] not in Experiment.model_fields:
        return ""
    for k, word in enumerate(given):
        name, equals, value = word.partition("=")
        if name == option and equals:
            return f"{key}={value}"
        if name == option and k + 1 < len(given):
            return f"{key}={given[k + 1]}"
    return f"{key}=VALUE"


PANELS = {  # of the help, in this order
    "Start": ("fit", "run", "demo", "init", "list", "docs", "doctor"),
    "Run": ("compare", "choose", "tune"),
    "Inspect": (
        "show",
        "report",
        "ui",
        "predict",
        "predictions",
        "withdraw",
        "estimates",
        "transfer",
        "export",
        "cite",
        "verify",
    ),
    "Extend": ("check",),
}
for panel, names in PANELS.items():
    for name in names:
        module = vars(import_module(f"commonweal.app.commands.{name}"))
        function = module["list_" if name == "list" else name]
        app.command(name=name, rich_help_panel=panel, cls=Command)(function)
app.add_typer(data, name="data", rich_help_panel="Run")
app.add_typer(flower, name="flower", rich_help_panel="Run")


def _print_version(version: bool) -> None:
    if version:
        print(f"commonweal {__version__}")
        raise typer.Exit


@app.callback(help="Federated learning that leaves no client behind.")
def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command. A user's mistake prints one line and ends with exit code 2."""
    warnings.showwarning = _show_warning
    try:
        app()
    except SystemExit as ended:
        # Ctrl-C, unless a command has reported it itself.
        reason = None if ended.__context__ is None else ended.__context__.__cause__
        if ended.code == STOPPED and isinstance(reason, KeyboardInterrupt):
            say(NOTHING_LOST)
        raise
    except KeyboardInterrupt:
        say(NOTHING_LOST)
        sys.exit(STOPPED)
    except CommonwealError as error:
        _fail(str(error))
    except OSError as error:  # a path that is too long or may not be searched, a full disk
        where = "" if error.filename is None else f" {str(error.filename)[:200]!r}"
        _fail(f"cannot use{where or ' the output'}: {error.strerror}")
    except BrokenProcessPool:
        _fail(
            "a worker process was killed, perhaps because memory ran out: finished runs are saved; "
            "run the same command again, with fewer --jobs"
        )
    except MemoryError as error:
        _fail(f"not enough memory ({error}): make models, data or groups smaller")


def _fail(sentence: str) -> NoReturn:
    say(f"commonweal: {sentence}")
    sys.exit(2)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning for users as one line, and others as Python does."""
    if issubclass(category, CommonwealWarning):
        say(str(message))
    else:
        say(f"{filename}:{lineno}: {category.__name__}: {message}")
