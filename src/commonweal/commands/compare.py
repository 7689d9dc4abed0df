"""`commonweal compare`: an experiment under several rules and seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commonweal.base.errors import ConfigError, did_you_mean
from commonweal.commands import console
from commonweal.commands.options import (
    Changes,
    DataDir,
    ExperimentFile,
    Quiet,
    figure,
    list_of,
    names_of,
    out,
)
from commonweal.config import catalog
from commonweal.report import FORMATS

if TYPE_CHECKING:
    from commonweal.analysis.compare import Data
    from commonweal.analysis.plan import Cell
    from commonweal.analysis.rank_pool import RankPool
    from commonweal.record.record import Record
    from commonweal.report.compare import Comparison

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
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Compare rules over several seeds, and test which differences are significant.

    For example: commonweal compare examples/vowel.toml rounds=50 --rules fedavg,afl --seeds 5

    Finished runs are not repeated, so the same command continues after a stop. If a run diverges
    or is refused, the table says so and the other runs go on.
    """
    chosen = catalog.split_list(RULES if rules is None else rules)
    settings: dict[str, list[str]] = {}
    if tuned is not None:
        from commonweal.analysis.tuning import read_chosen

        choices = read_chosen(tuned)
        settings = {catalog.split_name(rule)[1]: own for rule, own in choices.values()}
        names = choices if rules is None else chosen  # those that were not tuned stay as they are
        chosen = [choices[name][0] if name in choices else name for name in names]
    _check_mistakes(form, chosen)
    from commonweal.analysis.plan import baseline_cells, cells, in_ranks, seed_list, shard_of
    from commonweal.config.experiment import named

    base, stem, suffix = named(file, changes or [])
    folder = to or Path("runs") / f"{stem}-compare{suffix}"
    numbers = seed_list(seeds)
    with_ranks = in_ranks(base)
    plan = cells(base, chosen, numbers, vary or [], folder, settings)

    from commonweal.analysis.compare import Data, failed_lines
    from commonweal.analysis.rank_pool import leading
    from commonweal.report import figures
    from commonweal.report.compare import Comparison
    from commonweal.report.comparison import chosen_columns

    figures.check_suffix(picture, curves)
    metrics = None if columns is None else chosen_columns(columns)
    with leading(with_ranks) as ranks:
        data = Data()
        if baselines is None and shard is None:
            baselines = _clients(plan[0], data) <= MOST_BASELINES
        if baselines:
            plan += baseline_cells(base, numbers, folder)
        own = plan if shard is None else shard_of(plan, shard)
        failures = run_cells(own, quiet, jobs, ranks, data)
    if shard is not None:
        for line in failed_lines(own, failures):
            console.say(line)
        if not quiet:
            console.say(
                f"{len(own)} of {len(plan)} runs (part {shard}) are in {folder}: when all parts "
                "are, the same command without --shard prints the comparison"
            )
        return
    comparison = Comparison.of_plan(plan, failures)
    if form != "terminal" or not quiet:
        print_comparison(comparison, form, metrics, decimals)
    for line in comparison.failures:
        console.say(line)
    if picture is not None:
        comparison.plot("clients", picture)
    if curves is not None:
        comparison.plot("rounds", curves)


def _clients(cell: "Cell", data: "Data") -> int:
    """How many clients take part in a run."""
    from commonweal.record.record import Record

    if cell.finished:
        return Record.read(cell.folder).facts.clients
    return data.job(cell.experiment).population.clients


def _check_mistakes(form: str, rules: Sequence[str]) -> None:
    """Raise ConfigError for mistakes that can be found without importing anything slow."""
    if form not in FORMATS:
        raise ConfigError(f"there is no format {form!r}: {did_you_mean(form, FORMATS)}")
    if not rules:
        raise ConfigError("there are no rules to compare: name some, as in --rules fedavg,term")
    for rule in rules:
        name = catalog.parse(catalog.split_name(rule)[1])["name"]
        if ":" not in name:
            catalog.find("rules", name)


def run_cells(
    plan: Sequence["Cell"],
    quiet: bool,
    jobs: int = 1,
    ranks: "RankPool | None" = None,
    data: "Data | None" = None,
) -> dict[Path, str]:
    """Run what is not finished. Returns why some runs have no result, by folder.

    Args:
        jobs: Worker processes; 0 for one per core.
        ranks: The processes of torchrun, instead.
        data: Has the data of the first run, where they are built already.
    """
    from commonweal.analysis import compare
    from commonweal.analysis.plan import seed_by_seed
    from commonweal.analysis.tuning import cores
    from commonweal.report.progress import comparison_bar

    jobs = jobs or cores()
    plan = seed_by_seed(plan)
    if jobs == 1 and ranks is None:
        steps = compare.run_cells(plan, data)
    else:
        steps = compare.run_cells_in_processes(plan, jobs, ranks)
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
    columns: Sequence[str] | None = None,
    decimals: int | None = None,
) -> None:
    """Print what methods give, and who is better off than with local training, if it was run."""
    from commonweal.report.comparison import (
        answer,
        client_table,
        render,
        summarize,
        worth_sentences,
    )

    comparison = comparison.with_curves(columns or ())
    results, baselines, score = comparison.results, comparison.baselines, comparison.score
    chosen = FORMATS[FORMATS.index(form)]
    summary = summarize(results, score, columns, baselines)
    sentences = worth_sentences(comparison.summary)  # by the models that clients use
    rendered = render(summary, chosen, decimals)
    if sentences and chosen in ("terminal", "markdown"):
        console.show(answer(comparison.summary))
    if isinstance(rendered, str):
        print(rendered)
    else:
        console.out.print(rendered)
    sentences += _threshold_sentences(comparison.records)
    if chosen == "markdown":
        print("\n".join(sentences))
    if chosen == "terminal":
        if baselines:
            console.out.print(client_table([*baselines, *results], score))
        for sentence in sentences:
            console.show(sentence)


def _threshold_sentences(records: Mapping[str, Sequence["Record"]]) -> list[str]:
    """What thresholds that were chosen on validation samples change, a line for each method."""
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
