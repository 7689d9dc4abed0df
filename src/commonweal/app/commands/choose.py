"""`commonweal choose`: each client's best model among finished runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from commonweal.app.commands import console
from commonweal.app.commands.options import DataDir, Quiet, Trust, Worth, argument, names_of
from commonweal.base.errors import ConfigError, did_you_mean

HOWS = ("pooled", "safe", "likely", "proved")


def choose(
    folders: Annotated[
        list[Path],
        argument("FOLDER...", "A folder with runs below it, such as `compare` writes, or several."),
    ],
    how: Annotated[
        str,
        typer.Option(
            help="By what evidence: pooled (of all clients: blend, unless another method is better "
            "for them together), or each client's own, to leave local training: safe (95 % "
            "confidence in a lower loss), likely (a lower mean loss), or proved.",
            autocompletion=names_of(lambda: HOWS),
        ),
    ] = "pooled",
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
    worth: Worth = None,
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
    from commonweal.app.commands.compare import run_unfinished
    from commonweal.report.choice import choice_for_terminal, ways_table
    from commonweal.study import choosing
    from commonweal.study.plan import Cell, refuse_torchrun

    refuse_torchrun()

    def train(plan: Sequence[Cell]) -> dict[Path, str]:
        return run_unfinished(plan, quiet)

    by = choosing.HOWS[HOWS.index(how)]
    chosen = choosing.choose(folders, by, margin, level, trust, refit, train, worth=worth)
    path = chosen.write(folders[0])
    if quiet:
        return
    console.out.print(choice_for_terminal(chosen))
    console.out.print(ways_table(chosen))
    console.print_text(f"written to {path}; next: commonweal predict {folders[0]} TABLE --choice")
