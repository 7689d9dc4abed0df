"""`commonweal fit`: from a table to a model for each of its clients."""

import time
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commonweal.app.commands import console
from commonweal.app.commands.options import Changes, Force, Quiet, Table, Worth, out

if TYPE_CHECKING:
    from commonweal.study.fitting import Prepared

FINISHING = 4.0  # seconds for the choice and the report


def fit(
    path: Table,
    changes: Changes = None,
    client: Annotated[str | None, typer.Option(help="The column of clients.")] = None,
    label: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    seeds: Annotated[int | None, typer.Option(help="The number of seeds (5).", min=2)] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Finish in about this time by using fewer seeds (at least 2).", min=0),
    ] = None,
    to: Annotated[Path | None, out("The folder; by default runs/TABLE-fit.")] = None,
    worth: Worth = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Train a model for every client of a table, and report who gains from joining.

    For example: commonweal fit patients.csv --client hospital --label died

    Compares local training, FedAvg, a fair rule, fine-tuning, blend, boosting and blend with
    boosting over several seeds. Clients get blend, unless their validation samples show that
    another is better for them together. After Ctrl-C, run the same command again to continue.
    Where the table or settings changed since, --force starts again.
    """
    from commonweal.base.files import write_file
    from commonweal.config.experiment import table_stem
    from commonweal.report import document
    from commonweal.report.choice import choice_for_terminal
    from commonweal.study import fitting
    from commonweal.study.choosing import choose
    from commonweal.study.comparison import Comparison

    start = time.monotonic()
    call = fitting.Call(path, tuple(changes or []), label, client, seeds, minutes, to, worth)
    stem = table_stem(path)
    folder = to or Path("runs") / f"{stem}-fit"
    toml = folder / f"{stem}.toml"
    fitting.check_folder(folder, toml, path, force)
    prepared = fitting.prepare_fit(call, folder, toml, force)
    if not quiet:
        _show_guess(prepared, folder, toml)
    failed, evidence = _run(prepared, force, quiet, start)
    runs = fitting.finished(prepared.plan, failed)
    chosen = choose(runs, evidence=evidence, worth=prepared.settings.worth)
    chosen.write(folder)
    fitting.finish(toml, prepared.settings, chosen.seeds)
    report = folder / fitting.REPORT
    comparison = Comparison.in_folders([folder])
    page = document.render(comparison, f"Models for the clients of {path.name}")
    write_file(report, page.encode(), durable=False)
    for line in failed:
        console.say(line)
    if quiet:
        return
    console.out.print(choice_for_terminal(chosen))
    console.print_text(f"\nThe models and their choice are in {folder}, the report is {report}.")
    console.print_text("To predict new rows, each with its client's model:")
    console.print_text(f"  commonweal predict {folder} NEW.csv --choice -o predictions.csv")


def _show_guess(prepared: "Prepared", folder: Path, toml: Path) -> None:
    """Say what was guessed of the table, and what of an earlier call is replaced."""
    if prepared.replaced:
        console.print_text(f"The runs in {folder} are replaced: {prepared.replaced}.")
    if prepared.guessed is not None:
        for name, text in prepared.guessed.lines:
            is_left_out = text.startswith("left out") and text != "left out: dropped"
            if is_left_out or name in prepared.guessed.roles:
                console.print_text(f"{name}: {text}")
        for remark in prepared.guessed.remarks:
            console.print_text(remark)
    console.print_text(f"To change how columns are used, edit {toml} and start again.")


def _run(
    prepared: "Prepared", force: bool, quiet: bool, start: float
) -> tuple[list[str], dict[Path, dict[str, Any]]]:
    """Run what is not finished under one bar.

    Returns:
        A line for every method without a result, and what the validation samples say of each run.
    """
    from commonweal.report.progress import work_bar
    from commonweal.study.compare import failed_lines
    from commonweal.study.fitting import run_plan

    minutes = prepared.settings.minutes
    seconds = None
    if minutes is not None:
        seconds = max(0.0, 60 * minutes - FINISHING - (time.monotonic() - start))
    failures: dict[Path, str] = {}
    evidence: dict[Path, dict[str, Any]] = {}
    with console.stoppable(), work_bar(console.err, quiet) as advance:
        for step, done, total, own in run_plan(prepared.plan, seconds, force=force):
            advance(f"{step.cell.label}, seed {step.cell.seed}", done, total)
            if step.failure:
                failures[step.cell.folder] = step.failure
            if own is not None:
                evidence[step.cell.folder] = own
    return failed_lines(chain.from_iterable(prepared.plan), failures), evidence
