"""`commonweal compare`: an experiment under several rules and seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commonweal.app.commands import console
from commonweal.app.commands.options import (
    Changes,
    DataDir,
    ExperimentFile,
    Force,
    Quiet,
    Worth,
    figure,
    list_of,
    names_of,
    out,
)
from commonweal.base.errors import ConfigError, did_you_mean
from commonweal.config import catalog
from commonweal.report import FORMATS

if TYPE_CHECKING:
    from commonweal.record.record import Record
    from commonweal.study.compare import Data
    from commonweal.study.comparison import Comparison
    from commonweal.study.plan import Cell

RULES = "fedavg,uniform,aaggff-s"
MOST_BASELINES = 50  # clients up to which a comparison also trains local models by default


def compare(
    file: ExperimentFile,
    changes: Changes = None,
    rules: Annotated[
        str | None,
        list_of(
            "The rules, with optional parameters and names: "
            f'"fedavg,Ours=afl(lr=0.5)". Default: {RULES}, or those of --tuned.'
        ),
    ] = None,
    tuned: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Use the parameters that commonweal tune chose."),
    ] = None,
    seeds: Annotated[
        str, list_of("The number of seeds (0, 1, ...), or a list: 2,4,6.", "N|A,B,...")
    ] = "3",
    baselines: Annotated[
        bool | None,
        typer.Option(
            "--baselines/--no-baselines",
            help="Also train local models and a pooled model; by default for up to "
            f"{MOST_BASELINES} clients.",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            metavar="N", help="Worker processes with one thread each; 0 for one per core.", min=0
        ),
    ] = 1,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="K/N",
            help="Run only part K of N; see commonweal docs slurm.sbatch.",
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        list_of(
            "Also compare values of another key: client.lr=0.1,0.01 (repeatable).",
            "KEY=A,B,...",
        ),
    ] = None,
    to: Annotated[Path | None, out("The folder of the runs; by default runs/FILE-compare.")] = None,
    columns: Annotated[
        str | None,
        list_of(
            "The metrics of the table, such as mean,weighted_mean,worst_10, or those of a paper: "
            "aaggff, adafed, qffl, vred. Also improved (the share of losses that do not rise in a "
            "round) and length (of the last direction)."
        ),
    ] = None,
    decimals: Annotated[
        int | None,
        typer.Option(metavar="N", help="Decimal places.", min=0, max=9, show_default=False),
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help=f"One of {', '.join(FORMATS)}.",
            autocompletion=names_of(lambda: FORMATS),
        ),
    ] = "terminal",
    picture: Annotated[
        Path | None, figure("Draw every client's score: a PNG, SVG or PDF file.")
    ] = None,
    curves: Annotated[
        Path | None, figure("Draw the mean and the worst 10 % over rounds: PNG, SVG or PDF.")
    ] = None,
    worth: Worth = None,
    force: Force = False,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Compare rules over several seeds, and test which differences are significant.

    For example: commonweal compare examples/vowel.toml rounds=50 --rules fedavg,afl --seeds 5

    Finished runs are not repeated, so the same command continues after a stop. Where the data
    changed since, it says what changed; --force starts these runs again. If a run diverges or is
    refused, the table says so and the other runs go on.
    """
    chosen = catalog.split_list(RULES if rules is None else rules)
    settings: dict[str, list[str]] = {}
    if tuned is not None:
        from commonweal.study.tuning import read_chosen

        choices = read_chosen(tuned)
        settings = {catalog.split_name(rule)[1]: own for rule, own in choices.values()}
        names = choices if rules is None else chosen  # those that were not tuned stay as they are
        chosen = [choices[name][0] if name in choices else name for name in names]
    _check_mistakes(form, chosen)
    from commonweal.config.experiment import named
    from commonweal.study.plan import baseline_cells, cells, seed_list, shard_of

    base, stem, suffix = named(file, changes or [])
    folder = to or Path("runs") / f"{stem}-compare{suffix}"
    numbers = seed_list(seeds)
    plan = cells(base, chosen, numbers, vary or [], folder, settings)

    from commonweal.report import figures
    from commonweal.study.compare import Data, compared, failed_lines
    from commonweal.study.units import chosen_columns

    figures.check_suffix(picture, curves)
    if columns is not None:
        chosen_columns(columns)  # raises where there is no such column
    data = Data()
    if baselines is None:
        baselines = _clients(plan[0], data) <= MOST_BASELINES
    if baselines:
        plan += baseline_cells(base, numbers, folder)
    own = plan if shard is None else shard_of(plan, shard)
    failures = run_unfinished(own, quiet, jobs, data, force)
    if shard is not None:
        for line in failed_lines(own, failures):
            console.say(line)
        if not quiet:
            console.say(
                f"{len(own)} of {len(plan)} runs (part {shard}) are in {folder}: when all parts "
                "are, the same command without --shard prints the comparison"
            )
        return
    comparison = compared(plan, failures, worth=worth)
    if form != "terminal" or not quiet:
        print_comparison(comparison, form, columns, decimals)
    for line in comparison.failures:
        console.say(line)
    if picture is not None:
        comparison.plot("clients", picture)
    if curves is not None:
        comparison.plot("rounds", curves)


def _clients(cell: "Cell", data: "Data") -> int:
    """Return how many clients take part in a run."""
    from commonweal.record.record import Record

    if cell.finished:
        return Record.read(cell.folder).facts.clients
    return data.job(cell).population.clients


def _check_mistakes(form: str, rules: Sequence[str]) -> None:
    """Raise ConfigError for mistakes that can be found without importing anything slow."""
    if form not in FORMATS:
        raise ConfigError(f"there is no format {form!r}: {did_you_mean(form, FORMATS)}")
    if not rules:
        raise ConfigError("there are no rules to compare: name some, as in --rules fedavg,term")
    for rule in rules:
        name = catalog.parse_part(catalog.split_name(rule)[1])["name"]
        if ":" not in name:
            catalog.find_entry("rules", name)


def run_unfinished(
    plan: Sequence["Cell"],
    quiet: bool,
    jobs: int = 1,
    data: "Data | None" = None,
    force: bool = False,
) -> dict[Path, str]:
    """Run what is not finished. Returns why some runs have no result, by folder.

    Args:
        jobs: Worker processes; 0 for one per core.
        data: Has the data of the first run, where they are built already.
        force: Start runs again that are of other data or settings.
    """
    from commonweal.report.progress import comparison_bar
    from commonweal.study import compare
    from commonweal.study.plan import seed_by_seed
    from commonweal.study.tuning import cores

    jobs = jobs or cores()
    plan = seed_by_seed(plan)
    if jobs == 1:
        steps = compare.run_cells(plan, data, force)
    else:
        steps = compare.run_cells_in_processes(plan, jobs, force)
    failures: dict[Path, str] = {}
    with console.stoppable(), comparison_bar(console.err, plan, quiet) as advance:
        for step in steps:
            advance(step)
            if step.waiting and not quiet:
                busy = step.cell.folder
                console.say(f"{busy} is in progress elsewhere; waiting for it after the others")
            if step.failure:
                failures[step.cell.folder] = step.failure
    return failures


def print_comparison(
    comparison: "Comparison",
    form: str,
    columns: str | None = None,
    decimals: int | None = None,
) -> None:
    """Print whether joining helps, what methods give, and who gains and loses."""
    from commonweal.report import text
    from commonweal.report.overview import overview
    from commonweal.study.units import chosen_columns

    if form != "terminal":
        print(
            text.write_comparison(comparison, form, columns, decimals),
            end="" if form == "json" else "\n",
        )
    else:
        chosen = None if columns is None else chosen_columns(columns)
        console.out.print(text.terminal(overview(comparison, chosen, decimals)))
    if form in ("terminal", "markdown"):
        for sentence in _threshold_sentences(comparison.records):
            console.print_text(sentence)


def _threshold_sentences(records: Mapping[str, Sequence["Record"]]) -> list[str]:
    """Return a line for each method: the change by thresholds chosen on validation samples."""
    from commonweal.record.final import read_final

    sentences = []
    for label, runs in records.items():
        finals = [read_final(record.folder).threshold for record in runs]
        chosen = [threshold for threshold in finals if threshold is not None]
        changes = []
        for name in chosen[0].after if chosen else ():
            before = sum(threshold.before[name] for threshold in chosen) / len(chosen)
            after = sum(threshold.after[name] for threshold in chosen) / len(chosen)
            changes.append(f"{name} {100 * before:.1f} -> {100 * after:.1f} %")
        if changes:
            sentences.append(
                f"{label}, with thresholds from validation samples: {', '.join(changes)} (means "
                "over clients and seeds)"
            )
    return sentences
