"""`commonweal transfer`: clients' models on each other's samples, or all without a client."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from commonweal.app.commands import console
from commonweal.app.commands.options import Quiet, Trust, argument, figure, list_of, out

if TYPE_CHECKING:
    from commonweal.study.plan import Cell
    from commonweal.study.transfer import Absence, Transfer

MOST = 30  # clients that the terminal shows


def transfer(
    runs: Annotated[
        list[Path], argument("RUN...", "Folders of runs, such as folds of one method.")
    ],
    to: Annotated[
        Path | None, out("A CSV file: whose model in rows, whose samples in columns.")
    ] = None,
    draw: Annotated[Path | None, figure("Draw the table as a heat map: PNG, SVG or PDF.")] = None,
    without: Annotated[
        str | None,
        list_of("Instead, train again without each of these clients, or `all`.", "A,B,...|all"),
    ] = None,
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate each client's model on the samples of all clients, or the others without a client.

    For example: commonweal transfer runs/patients-alone-0 --draw transfer.png

    The runs need personal models, such as those of local training (client=alone), and the
    simulator. `--without Bonn` trains every run again without Bonn, and says what the others lose.
    """
    from commonweal.base.files import write_file
    from commonweal.report import figures
    from commonweal.study import transfer as study

    figures.check_suffix(draw)
    if without is not None:
        from commonweal.app.commands.compare import run_unfinished

        def train(plan: "Sequence[Cell]") -> dict[Path, str]:
            return run_unfinished(plan, quiet)

        names = [] if without == "all" else [name.strip() for name in without.split(",")]
        absences = study.without(runs, names, train)
        if not quiet:
            _show_absences(absences, runs)
        return
    found = study.transfer(runs, trust)
    if to is not None:
        write_file(to, found.csv(), durable=False)
    if draw is not None:
        figures.save(figures.transfer(found), draw)
    if not quiet:
        _show(found)


def _show(found: "Transfer") -> None:
    import numpy as np
    from rich.markup import escape
    from rich.table import Table

    from commonweal.study.units import score_label, show_score

    table = Table(box=None)
    for name in ("samples of", "own model", "others' models", "best of them", "own one elsewhere"):
        table.add_column(name)
    others = found.table.copy()
    np.fill_diagonal(others, np.nan)

    def mean(values: "np.ndarray") -> str:
        known = values[~np.isnan(values)]
        return show_score(float(known.mean()) if len(known) else float("nan"), found.score)

    for k, name in enumerate(found.names[:MOST]):
        donor = found.best_donor(k)
        best = "-"
        if donor is not None:
            best = f"{escape(found.names[donor])} {show_score(found.table[donor, k], found.score)}"
        own = show_score(float(found.table[k, k]), found.score)
        table.add_row(escape(name), own, mean(others[:, k]), best, mean(others[k]))
    console.print_text(f"{score_label(found.score)} of clients' models on test samples")
    console.out.print(table)
    if len(found.names) > MOST:
        rest = len(found.names) - MOST
        console.print_text(f"{rest} more clients: -o table.csv and --draw table.png have all")


def _show_absences(absences: "list[Absence]", runs: list[Path]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from commonweal.record.record import Record
    from commonweal.study.units import counted, points, score_label

    score = Record.read(runs[0]).facts.score
    table = Table(box=None)
    for name in ("without", "the others lose", "interval", "clients that lose"):
        table.add_column(name)
    for absence in absences:
        low, high = points(absence.low, score), points(absence.high, score)
        table.add_row(
            escape(absence.client),
            points(absence.loss, score) + ("*" if absence.significant else ""),
            f"{low} to {high}",
            escape(", ".join(absence.worse)) or "-",
        )
    console.print_text(f"{score_label(score)} of the others, mean over clients")
    console.out.print(table)
    named = [absence.client for absence in absences if absence.significant]
    intervals = f"intervals corrected for {counted(len(absences), 'client')} left out"
    console.print_text(
        f"* significant (95 %, {intervals}): {', '.join(named)}"
        if named
        else f"no absence changes the others significantly ({intervals})"
    )
