"""Arguments and options that several commands have."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from commonweal.base.errors import ConfigError


def argument(metavar: str, help: str, **more: Any) -> Any:
    """An argument, whose default needs no mention."""
    return typer.Argument(metavar=metavar, help=help, show_default=False, **more)


def out(help: str) -> Any:
    """The option of where a command writes."""
    return typer.Option("--out", "-o", help=help)


def figure(help: str) -> Any:
    """A file to draw."""
    return typer.Option(metavar="FILE", help=help)


def list_of(help: str, metavar: str = "A,B,...") -> Any:
    """Values that are separated by commas."""
    return typer.Option(metavar=metavar, help=help)


def names_of(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a function by which the shell completes one of some names."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def _use_data(path: Path | None) -> None:
    # The environment, so that whatever this process starts looks there too.
    if path is not None:
        os.environ["COMMONWEAL_DATA"] = str(path.resolve())


def _check_worth(worth: float | None) -> float | None:
    if worth is not None and not worth > 0:
        raise ConfigError(f"--worth {worth:g}: a gain worth having is above 0")
    return worth


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Force = Annotated[
    bool,
    typer.Option(
        "--force", help="Start runs again that are there already, of other data or settings."
    ),
]
Worth = Annotated[
    float | None,
    typer.Option(
        "--worth",
        metavar="N",
        callback=_check_worth,
        help="A gain worth having, in points or % of an error (1 point, 2 %): joining does not "
        "help where so much is excluded.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON value.")]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Import the code that a run names; only for runs you trust."),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        callback=_use_data,
        help="The folder with datasets; by default $COMMONWEAL_DATA or a cache folder.",
    ),
]
ExperimentFile = Annotated[
    Path,
    typer.Argument(
        help="An experiment, such as examples/vowel.toml, or the name of a dataset, such as table "
        "(then with its parameters: path=patients.csv label=died client=hospital).",
        show_default=False,
    ),
]
Table = Annotated[Path, argument("TABLE", "A CSV or Parquet file.")]
Changes = Annotated[
    list[str] | None,
    argument(
        "[key=value ...]",
        "Changes to the experiment, such as rule=aaggff-s client.lr=0.01 rounds=50.",
    ),
]
RunFolder = Annotated[Path, argument("RUN", "The folder of a run.")]
RunFolders = Annotated[
    list[Path], argument("DIR...", "Folders of runs, or folders with runs below them.")
]
Client = Annotated[str | None, typer.Option(help="Use the personal model of this client.")]
Chosen = Annotated[
    bool,
    typer.Option(
        "--choice",
        help="RUN is a folder of `choose`: use the model that each client chose.",
    ),
]
