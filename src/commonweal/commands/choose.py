"""`commonweal choose`: each client's best model among finished runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from commonweal.base.errors import ConfigError, did_you_mean
from commonweal.commands import console
from commonweal.commands.options import DataDir, Quiet, Trust, argument, names_of

HOWS = ("safe", "likely", "proved")


def choose(
    folders: Annotated[
        list[Path],
        argument("FOLDER...", "A folder with runs below it, such as `compare` writes, or several."),
    ],
    how: Annotated[
        str,
        typer.Option(
            help="The evidence that a client needs to leave local training: safe (the expected "
            "loss is lower with 95 % confidence), likely (the mean loss is lower), or proved.",
            autocompletion=names_of(lambda: HOWS),
        ),
    ] = "safe",
    margin: Annotated[
        float, typer.Option(help="For proved: how much worse a model may be in expectation.", min=0)
    ] = 0.0,
    level: Annotated[float, typer.Option(help="For proved: the confidence level.")] = 0.95,
    refit: Annotated[
        bool,
        typer.Option(
            "--refit/--no-refit",
            help="Afterwards, train all methods again on training and validation samples.",
        ),
    ] = True,
    trust: Trust = False,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Choose the best model for each client among finished runs, on validation samples.

    For example: commonweal choose runs/patients-compare

    The runs need validation samples (validation=0.2) and local training, which `compare` adds. The
    choice is written to choice.json in the first folder, where `predict --choice` and
    `export --choice` find it. After Ctrl-C, run the same command again to continue.
    """
    if how not in HOWS:
        raise ConfigError(f"--how {how!r}: {did_you_mean(how, HOWS)}")
    from commonweal.analysis import choosing
    from commonweal.analysis.plan import Cell
    from commonweal.analysis.rank_pool import leading
    from commonweal.commands.compare import run_cells
    from commonweal.report.choice import choice_table, client_table, sentence

    with leading() as ranks:

        def train(plan: Sequence[Cell]) -> dict[Path, str]:
            return run_cells(plan, quiet, ranks=ranks)

        by = choosing.HOWS[HOWS.index(how)]
        chosen = choosing.choose(folders, by, margin, level, trust, ranks, refit, train)
    path = chosen.write(folders[0])
    if quiet:
        return
    console.show(sentence(chosen))
    console.out.print(choice_table(chosen))
    console.out.print(client_table(chosen))
    for note in chosen.notes:
        console.show(note)
    console.show(f"written to {path}; next: commonweal predict {folders[0]} TABLE --choice")
