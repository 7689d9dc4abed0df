"""Arguments and options that several commands have."""

import os
from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "Changes",
    "Chosen",
    "Client",
    "DataDir",
    "ExperimentFile",
    "Json",
    "Quiet",
    "RunFolder",
    "RunFolders",
    "Trust",
]


def _use_data(path: Path | None) -> None:
    # The environment, so that whatever this process starts looks there too.
    if path is not None:
        os.environ["COMMONWEAL_DATA"] = str(path.resolve())


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON value.")]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Import what a run names: only if you trust who wrote it."),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        callback=_use_data,
        help="Where datasets are; by default $COMMONWEAL_DATA, or else a cache folder.",
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
Changes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[key=value ...]",
        help="Changes to the experiment, such as rule=aaggff-s client.lr=0.01 rounds=50.",
        show_default=False,
    ),
]
RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a run.", show_default=False)
]
RunFolders = Annotated[
    list[Path],
    typer.Argument(
        metavar="DIR...",
        help="Folders of runs, or folders with runs below them.",
        show_default=False,
    ),
]
Client = Annotated[
    str | None, typer.Option(help="Use this client's personal model, where the run has them.")
]
Chosen = Annotated[
    bool,
    typer.Option(
        "--choice",
        help="RUN is a folder of `choose`: use the model that a client chose there.",
    ),
]
