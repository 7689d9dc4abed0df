"""`commonweal tune`: each rule's published grid, tried on validation samples."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from commonweal.app.commands import console
from commonweal.app.commands.options import Changes, ExperimentFile, Force, Quiet, list_of, out
from commonweal.base.errors import ConfigError, install
from commonweal.base.text import shown
from commonweal.config import catalog

if TYPE_CHECKING:
    from commonweal.study.tuning import TriedSetting

WAYS = ("worst", "mean")
SAMPLERS = ("nsga2", "tpe")


def tune(
    file: ExperimentFile,
    changes: Changes = None,
    rules: Annotated[
        str,
        list_of(
            "The rules, with optional names (Ours=./mine.py:Soft). Parameters in brackets stay "
            "fixed."
        ),
    ] = "qfedavg,term,aaggff-s",
    seeds: Annotated[
        int, typer.Option(help="How many seeds per setting: 1000, 1001, ...", min=1)
    ] = 2,
    share: Annotated[
        float,
        typer.Option(help="The share of training samples for validation.", min=0.01, max=0.9),
    ] = 0.25,
    trials: Annotated[
        int,
        typer.Option(
            help="Trials per rule, also between published values; 0 for the published grid.",
            min=0,
        ),
    ] = 0,
    grid: Annotated[
        list[str] | None,
        list_of(
            "Also try values of another key: client.lr=0.01,0.1 (repeatable).",
            "KEY=A,B,...",
        ),
    ] = None,
    sampler: Annotated[
        str, typer.Option(help="Optuna's sampler for --trials: nsga2 or tpe.")
    ] = "nsga2",
    by: Annotated[str, typer.Option(help="Choose by worst (10 % of clients) or mean.")] = "worst",
    jobs: Annotated[int, typer.Option(help="Worker processes; 0 for one per core.", min=0)] = 0,
    to: Annotated[Path | None, out("The folder; by default runs/FILE-tuned.")] = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Tune the parameters of rules and client methods over their published grids.

    For example: commonweal tune examples/vowel.toml --rules qfedavg,term,afl

    Settings are scored on validation samples with seeds that `compare` does not use. Run the same
    command again to continue, and `commonweal compare FILE --tuned DIR` to use the result.
    """
    if by not in WAYS:
        raise ConfigError(f"--by {by!r}: give one of {', '.join(WAYS)}")
    if sampler not in SAMPLERS:
        raise ConfigError(f"--sampler {sampler!r}: give one of {', '.join(SAMPLERS)}")
    pairs = [catalog.split_name(text) for text in catalog.split_list(rules)]
    if not pairs:
        raise ConfigError("there are no rules to tune: name some, as in --rules qfedavg,term")
    names = {rule: name for name, rule in pairs if name}
    chosen = [rule for _, rule in pairs]
    for rule in chosen:
        catalog.find_entry("rules", catalog.parse_part(rule)["name"])
    from commonweal.config.experiment import Experiment, named
    from commonweal.study.plan import refuse_torchrun

    base, stem, _ = named(file, changes or [])
    Experiment(**base)  # raises where a key or a value is wrong
    folder = to or Path("runs") / f"{stem}-tuned"
    refuse_torchrun(base.get("engine"))
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise ConfigError(f"tuning needs optuna: install it with {install('tune')}") from None
    from commonweal.study import tuning
    from commonweal.task.scores import find_score

    more = tuning.further(grid or [])
    grids = {rule: tuning.grid_of(rule, base, more) for rule in chosen}
    for key in more:
        if not any(key.removeprefix("rule.") in known for known in grids.values()):
            raise ConfigError(f"--grid {key}: none of {', '.join(chosen)} has this parameter")
    for rule, values in grids.items():
        if not values and not quiet:
            console.say(
                f"{rule} has no published grid, so that one setting is tried: name values with "
                "--grid rule.KEY=A,B"
            )

    def progress(rule: str, done: int, total: int) -> None:
        if not quiet:
            typer.echo(f"{rule}: {done} of {total} settings", err=True)

    score = tuning.score_of(base)
    results = tuning.tune(
        base,
        chosen,
        folder,
        seeds,
        share,
        trials,
        jobs or tuning.cores(),
        progress,
        more,
        "tpe" if sampler == "tpe" else "nsga2",
        find_score(score).lower_is_better,
        force=force,
    )
    if not results:
        raise ConfigError("no setting of any rule could be run: try other rules, or a smaller lr")
    _finish(results, score, folder, by, names, quiet)
    if not quiet:
        typer.echo(f'next: commonweal compare "{file}" --tuned "{folder}"')


def _finish(
    trials: "list[TriedSetting]",
    score: str,
    folder: Path,
    by: str,
    names: Mapping[str, str],
    quiet: bool,
) -> None:
    """Write what was chosen, draw the front and print both. names: what users call some rules"""
    from commonweal.report import figures
    from commonweal.report.formats import add_columns
    from commonweal.study import tuning
    from commonweal.study.units import show_score
    from commonweal.task.scores import find_score

    lower = find_score(score).lower_is_better
    best = tuning.best_trials(trials, "mean" if by == "mean" else "worst", lower)
    tuning.write_chosen(folder, best, by, names)
    settings = []
    for trial in trials:
        name = " ".join([trial.text, *trial.settings])
        settings.append(figures.SettingScores(trial.rule, name, trial.mean, trial.worst))
    picture = figures.front(settings, score, lower)
    for form in ("svg", "png"):
        figures.save(picture.figure, folder / f"front.{form}")
    if quiet:
        return
    table = Table(title=f"{score} on validation samples, chosen by {by}", box=None)
    add_columns(table, "chosen")
    add_columns(table, "settings", "mean", "worst 10 %", right=True)
    tried = Counter(trial.rule for trial in trials)
    for rule, trial in best.items():
        values = (show_score(value, score) for value in (trial.mean, trial.worst))
        name = " ".join([catalog.with_name(names.get(rule), trial.text), *trial.settings])
        table.add_row(shown(name, "markup"), str(tried[rule]), *values)
    console.out.print(table)
    typer.echo(picture.description)
    typer.echo(f"drawn to {folder / 'front.svg'}")
