"""`commonweal show`: explain a name, or show a run or a comparison."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from commonweal.app.commands import console
from commonweal.app.commands.check import kind_of_own
from commonweal.app.commands.compare import print_comparison
from commonweal.app.commands.options import Changes, Json, Quiet, Trust, argument, figure, names_of
from commonweal.base.errors import ConfigError, did_you_mean
from commonweal.base.text import reflowed
from commonweal.config import catalog
from commonweal.config.catalog import KINDS, Entry

if TYPE_CHECKING:
    from commonweal.record.record import Record
    from commonweal.study.comparison import Comparison


def _names() -> set[str]:
    return {name for kind in KINDS for name in catalog.entries(kind)}


def show(
    what: Annotated[
        str,
        argument(
            "NAME|DIR|FILE",
            "What an experiment can name (a rule, a dataset, ...), a run's folder, or an "
            "experiment.",
            autocompletion=names_of(lambda: sorted(_names())),
        ),
    ],
    changes: Changes = None,
    regret: Annotated[
        bool, typer.Option("--regret", help="Draw a run's regret and its bound: DIR/regret.png.")
    ] = False,
    curve: Annotated[
        Path | None, figure("Draw the scores between the global and the personal models.")
    ] = None,
    trust: Trust = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Explain a rule, dataset or other part by its name, or show the result of a run.

    For example: commonweal show aaggff-s, or commonweal show runs/vowel-aaggff-s-0 --regret
    """
    draws = regret or curve is not None
    if Path(what).is_file():
        _show_experiment(Path(what), changes or [], as_json)
        return
    if changes:
        raise ConfigError(f"{changes[0]!r} changes an experiment, and {what!r} is no file")
    if not Path(what).is_dir():
        if draws:
            raise ConfigError(f"{what!r} is not a run's folder: figures are drawn of runs")
        _show_entries(what, as_json)
        return
    from commonweal.record.record import Record

    if not (Path(what) / "experiment.toml").exists() and not draws:
        _show_comparisons(Path(what), quiet, as_json)
        return
    record = Record.read(what)
    show_run(record, quiet, as_json)
    if regret:
        _show_regret(record, trust, quiet or as_json)
    if curve is not None:
        _draw_curve(record, curve, trust, quiet or as_json)


def _show_experiment(file: Path, changes: list[str], as_json: bool) -> None:
    """Print what an experiment would do, and what a private one promises and costs."""
    from dataclasses import asdict

    from commonweal.config.experiment import read
    from commonweal.jobs.job import job_from_experiment

    experiment = read(file, changes)
    job = job_from_experiment(experiment)
    promise = job.algorithm.promise
    if as_json:
        facts = {"clients": job.population.clients, "parameters": job.task.size}
        privacy = None if promise is None else asdict(promise) | {"ratio": promise.ratio}
        console.show_json(facts | {"rounds": job.rounds, "privacy": privacy})
        return
    console.print_text(
        f"{experiment.title}: {job.population.clients} clients, {job.cohort} of them per round, "
        f"{job.rounds} rounds, {job.task.size:,} parameters"
    )
    if promise is not None:
        console.print_text(promise.sentence)
        console.print_text(promise.cost)


def _show_comparisons(folder: Path, quiet: bool, as_json: bool) -> None:
    """Print the comparison of the runs in a folder, one for each federation."""
    from commonweal.study.comparison import Comparison
    from commonweal.study.given import FILE
    from commonweal.study.labels import data_key, runs_in

    if (folder / FILE).exists():
        _show_comparison(Comparison.in_folders([folder]), quiet, as_json)
        return
    groups: dict[str, list[Record]] = {}
    for record in runs_in([folder]):
        groups.setdefault(data_key(record), []).append(record)
    for group in groups.values():
        if len(groups) > 1 and not quiet and not as_json:
            console.print_text(f"{group[0].part('dataset', 'data')}:")
        _show_comparison(Comparison.of_records(group), quiet, as_json)


def _show_comparison(comparison: "Comparison", quiet: bool, as_json: bool) -> None:
    if as_json or not quiet:
        print_comparison(comparison, "json" if as_json else "terminal")
    for line in comparison.failures:
        console.say(line)


def show_run(record: "Record", quiet: bool, as_json: bool) -> None:
    from commonweal.report import run_table

    if as_json:
        console.show_json(run_table.run_summary(record))
        return
    if quiet:
        return
    for sentence in run_table.promised(record):
        console.print_text(sentence)
    if record.evaluated:
        console.out.print(run_table.result(record))
    elif not record.is_public_part:
        console.print_text(f"{record.folder}: no round has been evaluated yet")


def _show_regret(record: "Record", trust: bool, quiet: bool) -> None:
    from commonweal.report import figures
    from commonweal.study.regret import of_run

    curve = of_run(record, trust=trust)
    path = record.folder / "regret.png"
    figures.save(figures.regret(curve, record.title).figure, path)
    bound = "" if curve.bound is None else f", the theorem's bound {curve.bound[-1]:.3f}"
    if not quiet:
        last = curve.rounds[-1]
        about = ", estimated from cohorts" if curve.estimated else ""
        value = f"{curve.regret[-1]:.3f}{about}{bound}"
        console.print_text(f"regret after round {last}: {value}; drawn to {path}")


def _draw_curve(record: "Record", path: Path, trust: bool, quiet: bool) -> None:
    """Draw the scores between the models of a run, from its last checkpoint."""
    from commonweal.jobs.reopening import reopen
    from commonweal.report import figures, run_table
    from commonweal.study import interpolation

    figures.check_suffix(path)
    job, state = reopen(record.folder, trust=trust)
    line = interpolation.curve(job, state)
    figures.save(figures.interpolation(line, job.task.score), path)
    if not quiet:
        console.out.print(run_table.choices(line, job.task.score))


def _show_entries(name: str, as_json: bool) -> None:
    """Explain everything that has this name: sgd is a client method and a server optimizer."""
    if ":" in name:
        matches = [catalog.find_entry(kind_of_own(name), name)]
    else:
        known = [kind for kind in KINDS if name in catalog.entries(kind)]
        matches = [catalog.entries(kind)[name] for kind in known]
    if not matches:
        hint = did_you_mean(name, _names())
        raise ConfigError(f"{name!r} is neither a run's folder nor a known name: {hint}")
    if as_json:
        console.show_json([_description(entry) for entry in matches])
        return
    for entry in matches:
        _show_entry(entry)


def _show_entry(entry: Entry) -> None:
    console.out.print(f"[bold]{escape(entry.name)}[/bold] ({KINDS[entry.kind].label})")
    console.print_text(reflowed(entry.about))
    if entry.details != entry.about:
        console.print_text(f"\n{reflowed(entry.details)}")
    for name, default in _parameters(entry).items():
        console.print_text(f"  {name} = {default!r}")
    for name, tried in _grid(entry).items():
        console.print_text(
            f"  published grid of {name}: {', '.join(str(value) for value in tried)}"
        )


def _grid(entry: Entry) -> dict[str, list[object]]:
    """The values of a rule's or client method's parameters that its publication tried."""
    if entry.kind not in ("rules", "clients"):
        return {}
    from commonweal.rules.rule import Rule
    from commonweal.training.client import Client

    part = entry.factory
    assert isinstance(part, type) and issubclass(part, Rule | Client)
    return {name: list(values) for name, values in part.grid.items()}


def _description(entry: Entry) -> dict[str, object]:
    return {
        "kind": entry.kind,
        "name": entry.name,
        "about": entry.about,
        "formula": entry.details,
        "parameters": _parameters(entry),
        "grid": _grid(entry),
    }


def _parameters(entry: Entry) -> dict[str, object]:
    return {name: entry.defaults.get(name, "required") for name in entry.parameters}
