"""`commonweal fit`: from a table to a model for each of its clients."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commonweal.base.errors import ConfigError, RunError
from commonweal.commands import console
from commonweal.commands.options import Changes, Quiet, Table, out

if TYPE_CHECKING:
    from commonweal.analysis.plan import Cell

VALIDATION = 0.2


def fit(
    path: Table,
    changes: Changes = None,
    client: Annotated[str | None, typer.Option(help="The column of clients.")] = None,
    label: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    seeds: Annotated[int, typer.Option(help="The number of seeds.", min=2)] = 5,
    minutes: Annotated[
        float | None,
        typer.Option(help="Finish in about this time by using fewer seeds (at least 2).", min=0),
    ] = None,
    to: Annotated[Path | None, out("The folder; by default runs/TABLE-fit.")] = None,
    quiet: Quiet = False,
) -> None:
    """Train a model for every client of a table, and report who gains from joining.

    For example: commonweal fit patients.csv --client hospital --label died

    Compares local training, FedAvg, a fair rule, fine-tuning and blend over several seeds. Then
    each client takes the model that is best on its validation samples. After Ctrl-C, run the same
    command again to continue.
    """
    from commonweal.analysis.choosing import choose
    from commonweal.analysis.fitting import fit_plan
    from commonweal.base.files import write_file
    from commonweal.config.experiment import change
    from commonweal.report import document
    from commonweal.report.choice import choice_table, client_table, paragraph
    from commonweal.report.compare import Comparison

    stem = path.name.partition(".")[0]
    folder = to or Path("runs") / f"{stem}-fit"
    base = _experiment(path, folder / f"{stem}.toml", {"label": label, "client": client}, quiet)
    plan = fit_plan(change(base, changes or []), seeds, folder)
    failed = _run(plan, minutes, quiet)
    if not any(cell.finished for cell in chain.from_iterable(plan)):
        raise RunError(f"no method has a result; {failed[0]}")
    for line in failed:
        console.say(line)
    chosen = choose(folder)
    chosen.write(folder)
    report = folder / "report.html"
    comparison = Comparison.in_folders([folder])
    page = document.render(comparison, f"Models for the clients of {path.name}")
    write_file(report, page.encode(), durable=False)
    if quiet:
        return
    console.out.print(choice_table(chosen))
    console.out.print(client_table(chosen))
    for note in chosen.notes:
        console.show(note)
    console.show(paragraph(chosen))
    console.show(f"\nThe models and their choice are in {folder}, the report is {report}.")
    console.show("To predict new rows, each with its client's model:")
    console.show(f"  commonweal predict {folder} NEW.csv --choice -o predictions.csv")


def _experiment(
    path: Path, toml: Path, given: Mapping[str, str | None], quiet: bool
) -> dict[str, object]:
    """The experiment of a table: the one of an earlier call, or a new one."""
    from commonweal.analysis.guess import guess
    from commonweal.analysis.plan import part_table
    from commonweal.base.files import write_file
    from commonweal.config.experiment import values

    if not toml.exists():
        guessed = guess(path, given["label"], given["client"], toml)
        lines = [(name, text) for name, text in guessed.lines if text.startswith("the ")]
        if not guessed.has_clients:
            raise ConfigError("no column looks like clients: name it with --client COLUMN")
        write_file(toml, guessed.experiment.encode(), durable=False)
        if not quiet:
            for name, text in lines:
                console.show(f"{name}: {text}")
            for remark in guessed.remarks:
                console.show(remark)
    if not quiet:
        console.show(f"To change how columns are used, edit {toml} and start again.")
    base = values(toml)
    dataset = part_table(base.get("dataset"))
    for key, column in given.items():
        if column not in (None, dataset.get(key)):
            raise ConfigError(
                f"--{key} {column}: {str(toml)!r} of an earlier call says {dataset.get(key)!r}; "
                "delete its folder, or name another with --out"
            )
    rounds = base.get("rounds")
    few = max(1, rounds // 5) if isinstance(rounds, int) else 20
    return {"validation": VALIDATION, "evaluate_every": few} | base


def _run(plan: Sequence[Sequence["Cell"]], minutes: float | None, quiet: bool) -> list[str]:
    """Run what is not finished under one bar. Returns a line for every method without a result."""
    from commonweal.analysis.compare import failed_lines
    from commonweal.analysis.fitting import run_plan
    from commonweal.report.progress import work_bar

    failures: dict[Path, str] = {}
    with console.stoppable(), work_bar(console.err, quiet) as advance:
        for step, done, total in run_plan(plan, minutes):
            advance(f"{step.cell.label}, seed {step.cell.experiment.seed}", done, total)
            if step.failure:
                failures[step.cell.folder] = step.failure
    return failed_lines(chain.from_iterable(plan), failures)
