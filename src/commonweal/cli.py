"""The command `commonweal`. Only here and in `commands` is text printed.

What takes long to import (torch, numpy) is imported inside the commands, so that help, lists and
mistakes are answered at once.
"""

import os
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TextIO

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from commonweal import __version__
from commonweal.base.errors import CommonwealError, ConfigError, ResumeWarning, did_you_mean
from commonweal.base.text import reflowed, shown
from commonweal.commands import tables as table_commands
from commonweal.commands.card import card
from commonweal.commands.doctor import doctor
from commonweal.commands.flower import flower
from commonweal.commands.report import report
from commonweal.commands.reproduce import reproduce
from commonweal.commands.tune import tune
from commonweal.commands.ui import ui
from commonweal.commands.verify import verify
from commonweal.config import catalog
from commonweal.config.catalog import KINDS, Entry
from commonweal.report import FORMATS, listing

if TYPE_CHECKING:
    from torch import Tensor

    from commonweal.analysis.compare import Cell, Result
    from commonweal.jobs.job import Job
    from commonweal.jobs.rounds import Round
    from commonweal.record.store import Record

    Samples = tuple[Tensor, Tensor]  # synthetic rows and their labels

__all__ = ["app", "main"]

RULES = "fedavg,uniform,aaggff-s"  # that compare takes by default
FILE_WIDTH = 1000  # columns where the output is not a terminal: nothing is cropped

STOPPED = 130  # the exit code after Ctrl-C
NOTHING_LOST = "stopped; what was saved before is intact"
MOST_BASELINES = 50  # clients up to which a comparison trains each of them alone, too

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",  # lines of a paragraph are joined
    suggest_commands=False,  # click suggests them already
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data = typer.Typer(
    help="Describe a dataset, or download its files.", no_args_is_help=True, suggest_commands=False
)
app.add_typer(data, name="data")
app.add_typer(flower, name="flower")
app.command()(report)
app.command()(verify)
app.command()(ui)
app.command()(table_commands.init)
app.command()(table_commands.predict)
app.command()(table_commands.export)
app.command()(tune)
app.command()(reproduce)
app.command()(card)
app.command()(doctor)

out = Console(width=None if sys.stdout.isatty() else FILE_WIDTH)
err = Console(stderr=True)


def main() -> None:
    """Run the command. A user's mistake is one sentence and exit code 2."""
    warnings.showwarning = _show_warning
    try:
        app()
    except SystemExit as ended:
        if ended.code == STOPPED and isinstance(_cause(ended), KeyboardInterrupt):
            _say(NOTHING_LOST)
        raise
    except KeyboardInterrupt:
        _say(NOTHING_LOST)
        sys.exit(STOPPED)
    except CommonwealError as error:
        _fail(str(error))
    except OSError as error:  # a path that is too long or may not be searched, a full disk
        where = "" if error.filename is None else f" {str(error.filename)[:200]!r}"
        _fail(f"cannot use{where or ' the output'}: {error.strerror}")
    except BrokenProcessPool:
        _fail(
            "a worker process was ended from outside, perhaps for want of memory: what is finished "
            "is kept; run the same command again, with fewer --jobs"
        )
    except RecursionError:
        _fail("something in the experiment is nested too deeply: make it flatter")
    except MemoryError as error:
        _fail(
            f"this needs more memory than there is ({error}): make models, data or groups smaller"
        )


def _cause(ended: SystemExit) -> BaseException | None:
    """Why typer ends with some code: Ctrl-C, unless a command has said something about it."""
    return None if ended.__context__ is None else ended.__context__.__cause__


def _fail(sentence: str) -> NoReturn:
    _say(f"commonweal: {sentence}")
    sys.exit(2)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning for users as a sentence, and others as Python does."""
    if issubclass(category, ResumeWarning):
        _say(str(message))
    else:
        _say(f"{filename}:{lineno}: {category.__name__}: {message}")


def _say(text: str) -> None:
    """Print a line to the standard error, unwrapped: paths in it can be copied."""
    err.print(shown(text, lines=True), markup=False, highlight=False, soft_wrap=True)


def _print(text: str) -> None:
    """Print words to the standard output as they are."""
    out.print(shown(text, lines=True), markup=False, highlight=False)


def _print_json(value: object) -> None:
    from commonweal.record.store import to_json

    print(shown(to_json(value, indent=None).decode(), "json"), end="")


# Options that several commands have


def _use_data(path: Path | None) -> None:
    # The environment, so that whatever this process starts looks there too.
    if path is not None:
        os.environ["COMMONWEAL_DATA"] = str(path.resolve())


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"commonweal {__version__}")
        raise typer.Exit


def _complete_list(incomplete: str) -> list[str]:
    return [name for name in listing.LISTS if name.startswith(incomplete)]


def _complete_name(incomplete: str) -> list[str]:
    return sorted(name for name in _names(KINDS) if name.startswith(incomplete))


def _complete_format(incomplete: str) -> list[str]:
    return [name for name in FORMATS if name.startswith(incomplete)]


def _names(kinds: Iterable[str]) -> set[str]:
    return {name for kind in kinds for name in catalog.entries(kind)}


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON value.")]
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


@app.callback(help="Federated learning that leaves no client behind.")
def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


# run


@app.command()
def run(
    file: ExperimentFile,
    changes: Changes = None,
    to: Annotated[
        Path | None,
        typer.Option("--out", help="The run's folder; by default runs/FILE-RULE-SEED."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a run that was stopped.")
    ] = False,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run an experiment, write it to a folder, and print the result.

    For example: commonweal run examples/vowel.toml rule=term client.lr=0.1 rounds=50

    Every finished round is saved: a run that was stopped continues with --resume.
    """
    from commonweal.config.experiment import Experiment, named

    base, stem = named(file, changes or [])
    experiment = Experiment(**base)
    folder = to or Path("runs") / f"{stem}-{experiment.title}-{experiment.seed}"

    from commonweal.record.store import Record

    silent = quiet or as_json
    if experiment.engine == "flower":
        from commonweal.flower import local

        say = (lambda text: None) if silent else _say
        local.run(experiment, folder, None, resume, local.TIMEOUT, say)
        _show_run(Record.read(folder), quiet, as_json)
        return

    from commonweal.jobs.job import job_from_experiment

    job = job_from_experiment(experiment)
    last = _run_job(job, experiment.title, folder, resume, silent)
    if not silent:
        _say(f"saved in {folder}" if last else f"{folder} was finished already")
    _show_run(Record.read(folder), quiet, as_json)


def _run_job(job: "Job", title: str, folder: Path, resume: bool, silent: bool) -> int:
    """Run all rounds. Returns the last one; 0: the run was finished before."""
    from commonweal.jobs import rounds
    from commonweal.report.progress import run_bar
    from commonweal.report.remarks import Remarks

    remarks = Remarks(None if silent else _say)
    remarks.about_job(job)
    missing = _missing_picture(folder) if resume else None
    last = 0
    try:
        with run_bar(err, job.rounds, title, silent) as advance:
            for done in rounds.run(job, out=folder, resume=resume):
                advance(done)
                last = done.number
                remarks.about_round(done)
                _picture_round(folder, done)
    except KeyboardInterrupt:
        saved = last or _saved_rounds(folder)
        _say(
            f"stopped after round {saved}; all rounds are saved in {folder}: continue with the "
            "same command and --resume"
        )
        raise typer.Exit(STOPPED) from None
    if missing is not None:
        _write_picture(folder, *missing)
    return last


def _saved_rounds(folder: Path) -> int:
    from commonweal.record.store import Record

    started = (folder / "experiment.toml").exists()
    return len(Record.read(folder).rounds) if started else 0


def _picture_round(folder: Path, done: "Round") -> None:
    """Write a picture of the synthetic rows after an evaluated round, if there are any."""
    if done.evaluation is not None:
        _write_picture(folder, done.number, done.job.algorithm.samples(done.state))


def _missing_picture(folder: Path) -> "tuple[int, Samples | None] | None":
    """The last evaluated round and its synthetic rows, if its picture was not written."""
    from commonweal.record.store import Record

    if not (folder / "synthetic.npz").exists():
        return None
    record = Record.read(folder)
    if not record.evaluated:
        return None
    number = record.evaluated[-1].number
    return None if _picture_path(folder, number).exists() else (number, record.samples())


def _picture_path(folder: Path, number: int) -> Path:
    return folder / "pictures" / f"{number:06d}.png"


def _write_picture(folder: Path, number: int, samples: "Samples | None") -> None:
    from commonweal.base.files import write_file
    from commonweal.report.pictures import picture

    image = b"" if samples is None else picture(*samples)
    if image:  # rows that are not images have none
        write_file(_picture_path(folder, number), image, durable=False)


# show


@app.command()
def show(
    what: Annotated[
        str,
        typer.Argument(
            metavar="NAME|DIR",
            help="What an experiment can name (a rule, a dataset, ...), or a run's folder.",
            show_default=False,
            autocompletion=_complete_name,
        ),
    ],
    regret: Annotated[
        bool, typer.Option("--regret", help="Draw a run's regret and its bound: DIR/regret.png.")
    ] = False,
    curve: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Draw the scores between the global and the clients' own models."
        ),
    ] = None,
    landscape: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the loss around the global and two own models."),
    ] = None,
    reliability: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw how accurate models are by their confidence."),
    ] = None,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Import what a run names: only if you trust who wrote it."),
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Explain something by its name, or show a run's result and draw figures of its models.

    For example: commonweal show aaggff-s, or commonweal show runs/vowel-aaggff-s-0 --regret
    """
    figures = [path for path in (curve, landscape, reliability) if path is not None]
    if not Path(what).is_dir():
        if regret or figures:
            raise ConfigError(f"{what!r} is not a run's folder: figures are drawn of runs")
        _show_entries(what, as_json)
        return
    from commonweal.record.store import Record

    if not (Path(what) / "experiment.toml").exists() and not (regret or figures):
        _show_comparison(Path(what), quiet, as_json)
        return
    record = Record.read(what)
    _show_run(record, quiet, as_json)
    if regret:
        _show_regret(record, trust, quiet or as_json)
    if figures:
        _draw_models(Path(what), curve, landscape, reliability, trust, quiet or as_json)


def _show_comparison(folder: Path, quiet: bool, as_json: bool) -> None:
    """Print the comparison whose runs are in a folder."""
    from commonweal.analysis.compare import gather, read_comparison

    records, lines = read_comparison(folder)
    if not records:
        raise ConfigError("; ".join(lines))
    named = {label: runs for label, runs in records.items() if label not in ("alone", "pooled")}
    against = {label: runs for label, runs in records.items() if label not in named}
    order = sorted(named, key=lambda label: label != "fedavg")  # differences are against the first
    results = gather({label: named[label] for label in order}) if named else []
    score = next(iter(records.values()))[0].facts["score"]
    if results and not quiet:
        form = "json" if as_json else "terminal"
        _print_comparison(results, gather(against), score, form)
    for line in lines:
        _say(line)


def _show_run(record: "Record", quiet: bool, as_json: bool) -> None:
    from commonweal.report import tables

    if as_json:
        _print_json(tables.run_summary(record))
    elif not quiet and record.evaluated:
        out.print(tables.result(record))
    elif not quiet:
        _print(f"{record.folder}: no round has been evaluated yet")


def _show_regret(record: "Record", trust: bool, quiet: bool) -> None:
    from commonweal.analysis.regret import of_run
    from commonweal.report.figures import draw_regret

    curve = of_run(record, trust=trust)
    path = record.folder / "regret.png"
    draw_regret(path, curve, f"{record.title}: regret against the best fixed mixture")
    bound = "" if curve.bound is None else f", the theorem's bound {curve.bound[-1]:.3f}"
    if not quiet:
        last = curve.rounds[-1]
        about = ", estimated from cohorts" if curve.estimated else ""
        value = f"{curve.regret[-1]:.3f}{about}{bound}"
        _print(f"regret after round {last}: {value}; drawn to {path}")


def _draw_models(
    folder: Path,
    curve: Path | None,
    landscape: Path | None,
    reliability: Path | None,
    trust: bool,
    quiet: bool,
) -> None:
    """Draw figures of a run's models, from its last checkpoint."""
    from commonweal.analysis import interpolation
    from commonweal.jobs.rounds import reopen
    from commonweal.report import figures, tables

    figures.check_suffix(curve, landscape, reliability)
    job, state = reopen(folder, trust=trust)
    score = job.task.score
    if curve is not None:
        line = interpolation.curve(job, state)
        figures.draw_curve(curve, line, score)
        if not quiet:
            out.print(tables.choices(line, score))
    if landscape is not None:
        names, plane = interpolation.loss_landscape(job, state)
        figures.draw_landscape(landscape, plane, names)
    if reliability is not None:
        figures.draw_reliability(reliability, interpolation.reliability(job, state))


def _show_entries(name: str, as_json: bool) -> None:
    """Explain everything that has this name: sgd is a client method and a server optimizer."""
    if ":" in name:
        found = [catalog.find(_kind_of_own(name), name)]
    else:
        known = [kind for kind in KINDS if name in catalog.entries(kind)]
        found = [catalog.entries(kind)[name] for kind in known]
    if not found:
        hint = did_you_mean(name, _names(KINDS))
        raise ConfigError(f"{name!r} is neither a run's folder nor a known name: {hint}")
    if as_json:
        _print_json([_description(entry) for entry in found])
        return
    for entry in found:
        _show_entry(entry)


def _show_entry(entry: Entry) -> None:
    out.print(f"[bold]{escape(entry.name)}[/bold] ({KINDS[entry.kind].label})")
    _print(reflowed(entry.about))
    if entry.details != entry.about:
        _print(f"\n{reflowed(entry.details)}")
    for name, default in _parameters(entry).items():
        _print(f"  {name} = {default!r}")
    for name, tried in _grid(entry).items():
        _print(f"  published grid of {name}: {', '.join(str(value) for value in tried)}")


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


# list


@app.command(
    name="list",
    help=f"List what an experiment can name, one line each: {', '.join(listing.LISTS)}.",
    epilog="commonweal show NAME tells more.",
)
def list_(
    what: Annotated[
        str,
        typer.Argument(
            help=f"One of {', '.join(listing.LISTS)}.",
            show_default=False,
            autocompletion=_complete_list,
        ),
    ],
    as_json: Json = False,
) -> None:
    if what not in listing.LISTS:
        raise ConfigError(f"there is no list of {what!r}: {did_you_mean(what, listing.LISTS)}")
    if as_json:
        _print_list_as_json(listing.summaries(what))
    elif what == "rules":
        _list_rules()
    else:
        table = _list_table()
        for name, line in listing.summaries(what).items():
            table.add_row(f"[bold]{escape(name)}[/bold]", escape(line))
        out.print(table)


def _print_list_as_json(rows: dict[str, str]) -> None:
    import json  # not store.to_json, which imports torch

    print(json.dumps(rows, ensure_ascii=False))


def _list_rules() -> None:
    """The rules by family, with their ideas and papers."""
    table = _list_table()
    for family, entries in listing.families().items():
        table.add_row(f"[dim]{family}[/dim]", "")
        for entry in entries:
            idea = escape(listing.first_line(entry.about))
            table.add_row(f"  [bold]{entry.name}[/bold]", f"{idea} [dim]{entry.paper}[/dim]")
    out.print(table)


def _list_table() -> Table:
    table = Table(box=None, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


# check


@app.command()
def check(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A class in a file (./my_rules.py:MaxMin) or module (package.module:Class).",
            show_default=False,
        ),
    ],
    quiet: Quiet = False,
) -> None:
    """Check that a rule or client method of yours keeps what the library relies on.

    For example: commonweal check ./my_rules.py:MaxMin, with parameters './my_rules.py:MaxMin(t=2)'

    Prints the properties that hold, or the first that does not, with exit code 2.
    """
    part = catalog.parse(name)
    kind = _kind_of(part["name"])

    from commonweal import checks

    thing = catalog.build(kind, part)
    passed = checks.check_rule(thing) if kind == "rules" else checks.check_client(thing)
    if not quiet:
        for prop in passed:
            _print(f"ok  {prop}")


def _kind_of(name: str) -> str:
    """Whether a name is that of a rule or of a client method."""
    kinds = ("rules", "clients")
    if ":" not in name:
        for kind in kinds:
            if name in catalog.entries(kind):
                return kind
        hint = did_you_mean(name, _names(kinds))
        raise ConfigError(f"no rule or client method is called {name!r}: {hint}")
    kind = _kind_of_own(name)
    if kind not in kinds:
        raise ConfigError(f"{name!r} is neither a subclass of Rule nor one of Client")
    return kind


def _kind_of_own(name: str) -> str:
    """The kind of a part in a file or module of the user's (./my_rules.py:MaxMin)."""
    import inspect

    from commonweal.jobs.job import INTERFACES

    factory = catalog.find("rules", name).factory
    for kind, interface in INTERFACES.items():
        if isinstance(factory, type) and issubclass(factory, interface):
            return kind
    takes_shape = "shape" in inspect.signature(factory).parameters
    return "models" if takes_shape else "datasets"


# compare


@app.command()
def compare(
    file: ExperimentFile,
    changes: Changes = None,
    rules: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="The rules, with parameters in brackets: 'fedavg,afl(lr=0.5)'. "
            f"Default: {RULES}, or those of --tuned.",
        ),
    ] = None,
    tuned: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Take the parameters that commonweal tune has chosen."),
    ] = None,
    seeds: Annotated[
        str, typer.Option(metavar="N|A,B,...", help="How many seeds (0, 1, ...), or which: 2,4,6.")
    ] = "3",
    baselines: Annotated[
        bool | None,
        typer.Option(
            "--baselines/--no-baselines",
            help="Also train every client alone, and all rows pooled; by default up to "
            f"{MOST_BASELINES} clients.",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            metavar="N", help="Worker processes of one thread each; 0: one per core.", min=0
        ),
    ] = 1,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="K/N", help="Only run the K-th of N parts of the runs; see docs/slurm.sbatch."
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B,...",
            help="Compare values of another key, too: client.lr=0.1,0.01 (may be repeated).",
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option("--out", help="The folder of the runs; by default runs/FILE-compare."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="The metrics of the table, such as mean,weighted_mean,worst_10; or those of a "
            "paper's: aaggff, adafed, qffl, vred.",
        ),
    ] = None,
    decimals: Annotated[
        int | None,
        typer.Option(metavar="N", help="Digits after the point.", min=0, max=9, show_default=False),
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format", help=f"One of {', '.join(FORMATS)}.", autocompletion=_complete_format
        ),
    ] = "terminal",
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw every client's score: a PNG, SVG or PDF file."),
    ] = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Run an experiment under several rules and seeds, and print what can be told apart.

    For example: commonweal compare examples/vowel.toml rounds=50 --rules fedavg,afl --seeds 5

    Runs that are finished are not repeated: the same command continues where it was stopped. A run
    that diverges or is refused is a line of the result.
    """
    chosen = catalog.split_list(RULES if rules is None else rules)
    _check_mistakes(form, chosen)
    settings: dict[str, list[str]] = {}
    if tuned is not None:
        from commonweal.analysis.tuning import tuned_rules, tuned_settings

        chosen = tuned_rules(tuned, None if rules is None else chosen)
        settings = tuned_settings(tuned)
    from commonweal.analysis.compare import baseline_cells, cells, failed_lines, seed_list
    from commonweal.config.experiment import named
    from commonweal.report import figures, tables

    figures.check_suffix(picture)
    wanted = None if columns is None else tables.chosen_columns(columns)
    base, stem = named(file, changes or [])
    folder = to or Path("runs") / f"{stem}-compare"
    numbers = seed_list(seeds)
    plan = cells(base, chosen, numbers, vary or [], folder, settings)
    if shard is not None:
        _run_shard(base, plan, numbers, folder, shard, jobs, baselines, quiet)
        return
    results, score, failures = _compare(plan, quiet, jobs=jobs)
    against: list[Result] = []
    few = _clients(plan, failures) <= MOST_BASELINES
    if few if baselines is None else baselines:
        rest = baseline_cells(base, numbers, folder)
        against, _, more = _compare(rest, quiet, optional=True, jobs=jobs)
        failures |= more
        plan += rest
    _print_comparison(results, against, score, form, wanted, decimals)
    for line in failed_lines(plan, failures):
        _say(line)
    if picture is not None:
        figures.draw_scores(picture, [*against[:1], *results], score)


def _run_shard(
    base: Mapping[str, object],
    plan: Sequence["Cell"],
    seeds: Sequence[int],
    folder: Path,
    shard: str,
    jobs: int,
    baselines: bool | None,
    quiet: bool,
) -> None:
    """Run a part of a comparison, which is printed when all parts are there."""
    from commonweal.analysis.compare import baseline_cells, failed_lines, shard_of

    everything = [*plan, *(baseline_cells(base, seeds, folder) if baselines else [])]
    own = shard_of(everything, shard)
    failures = _run_plan(own, quiet, jobs)
    for line in failed_lines(own, failures):
        _say(line)
    if not quiet:
        _say(
            f"{len(own)} of {len(everything)} runs (part {shard}) are in {folder}: when all parts "
            "are, the same command without --shard prints the comparison"
        )


def _clients(plan: Sequence["Cell"], failures: Mapping[Path, str]) -> int:
    from commonweal.record.store import Record

    folder = next(cell.folder for cell in plan if cell.folder not in failures)
    return int(Record.read(folder).facts.get("clients", 0))


def _check_mistakes(form: str, rules: Sequence[str]) -> None:
    """Raise ConfigError for mistakes that can be found without importing anything slow."""
    if form not in FORMATS:
        raise ConfigError(f"there is no format {form!r}: {did_you_mean(form, FORMATS)}")
    if not rules:
        raise ConfigError("there are no rules to compare: name some, as in --rules fedavg,term")
    for rule in rules:
        name = catalog.parse(rule)["name"]
        if ":" not in name:
            catalog.find("rules", name)


def _compare(
    plan: Sequence["Cell"], quiet: bool, optional: bool = False, jobs: int = 1
) -> tuple[list["Result"], str, dict[Path, str]]:
    """Run what is not finished. Returns the results, the name of the score, and the failures.

    optional: there may be no result at all
    """
    from commonweal.analysis.compare import failed_lines, results
    from commonweal.base.errors import RunError
    from commonweal.record.store import Record

    failures = _run_plan(plan, quiet, jobs)
    found = results(plan, failures)
    if not found and optional:
        return [], "", failures
    if not found:
        raise RunError("; ".join(failed_lines(plan, failures)))
    finished = next(cell for cell in plan if cell.folder not in failures)
    return found, Record.read(finished.folder).facts["score"], failures


def _run_plan(plan: Sequence["Cell"], quiet: bool, jobs: int) -> dict[Path, str]:
    """Run what is not finished. Returns why some runs have no result, by folder."""
    from commonweal.analysis.compare import run_cells, run_cells_in_processes
    from commonweal.analysis.tuning import cores
    from commonweal.report.progress import comparison_bar

    jobs = jobs or cores()
    failures: dict[Path, str] = {}
    try:
        with comparison_bar(err, plan, quiet) as advance:
            steps = run_cells(plan) if jobs == 1 else run_cells_in_processes(plan, jobs)
            for step in steps:
                advance(step)
                if step.waiting and not quiet:
                    _say(f"{step.waiting.partition(':')[0]}: it is waited for when others are done")
                if step.failure:
                    failures[step.cell.folder] = step.failure
    except KeyboardInterrupt:
        _say("stopped; every finished round is saved: the same command continues from there")
        raise typer.Exit(STOPPED) from None
    return failures


def _print_comparison(
    results: Sequence["Result"],
    against: Sequence["Result"],
    score: str,
    form: str,
    columns: Sequence[str] | None = None,
    decimals: int | None = None,
) -> None:
    """Print what rules give, and for whom it is worth it where `against` has runs alone."""
    from commonweal.analysis.worth import worth
    from commonweal.report import tables

    found = worth(results, against)
    sentences = tables.worth_sentences(found, score)
    chosen = FORMATS[FORMATS.index(form)]
    numbers = tables.comparison(results, score, columns, found)
    rendered = tables.render(numbers, chosen, decimals)
    if chosen == "terminal" and sentences and sentences[0].startswith("Federating hurts"):
        _print(sentences.pop(0))
    if isinstance(rendered, str):
        print(rendered)
    else:
        out.print(rendered)
    if chosen == "markdown":
        print("\n".join(sentences))
    if chosen == "terminal" and against:
        out.print(tables.client_table([*against, *results], score))
        for sentence in sentences:
            _print(sentence)


# demo

# examples/vowel.toml, evaluated less often; the command must work where there is no examples/.
DEMO = """# Fifteen speakers learn to tell eleven vowels apart without sharing a recording.
dataset = { name = "vowel", test = 0.5 }
rounds = 200
evaluate_every = 10
model = { name = "mlp", hidden = [32] }
client = { name = "sgd", batch = 10, lr = 0.2 }
"""


@app.command()
def demo(
    seeds: Annotated[int, typer.Option(help="How many seeds.", min=1)] = 5,
    rounds: Annotated[int, typer.Option(help="How many rounds.", min=1)] = 200,
    to: Annotated[
        Path | None, typer.Option("--out", help="The folder for runs and figures; demo by default.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Compare training alone, FedAvg and AAggFF-S on the vowels of 15 speakers.

    Takes about two minutes.
    """
    from commonweal.analysis.compare import baseline_cells, cells
    from commonweal.base.files import write_file
    from commonweal.config.experiment import values
    from commonweal.report import figures, tables

    folder = to or Path("demo")
    file = folder / "vowel.toml"
    write_file(file, DEMO.encode(), durable=False)
    base = values(file) | {"rounds": rounds}
    plan = cells(base, ["fedavg", "aaggff-s"], seeds, [], folder)
    rest = baseline_cells(base, seeds, folder)
    results, score, _ = _compare(plan, quiet)
    against, _, _ = _compare(rest, quiet)
    for suffix in ("png", "svg"):
        figures.draw_scores(folder / f"vowel.{suffix}", [against[0], *results], score)
    if quiet:
        return
    _print_comparison(results, against, score, "terminal")
    fedavg, fair = results
    _print(tables.verdict(fedavg, fair, score))
    _print(f"The figure: {folder / 'vowel.png'} (and .svg)")
    _print(f"One run: commonweal show {plan[-1].folder}")
    _print(f"Next: commonweal compare {file} --rules fedavg,term,afl,aaggff-s --seeds 5")


# data


Dataset = Annotated[str, typer.Argument(help="A dataset, such as vowel.", show_default=False)]


@data.command(name="show")
def data_show(
    name: Dataset,
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[key=value ...]",
            help="Parameters, such as partition=dirichlet partition.alpha=0.1 seed=1.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--out", help="The figure; by default DATASET.png.")
    ] = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Describe which client holds how much of what, and draw it: clients by classes.

    For example: commonweal data show digits partition=dirichlet partition.alpha=0.1 test=0.5
    """
    from commonweal.config.experiment import Experiment, change

    values = change({"dataset": name}, [_of_dataset(text) for text in changes or []])
    experiment = Experiment(**values)

    from commonweal.analysis import describe
    from commonweal.datasets._download import differing
    from commonweal.jobs.job import build_dataset
    from commonweal.report.figures import draw_federation

    federation = build_dataset(experiment)
    path = to or Path(f"{name.replace(':', '-').replace('/', '-')}.png")
    draw_federation(path, federation, name)
    facts = describe.facts(federation)
    remarks = describe.remarks(federation)
    for file in differing(name):
        remarks.append(f"{file} is not the published file: its checksum differs")
    if as_json:
        described = {"dataset": experiment.dataset, **facts}
        _print_json({**described, "remarks": remarks, "picture": str(path)})
    elif not quiet:
        _print_facts(facts)
        for sentence in (*remarks, f"drawn to {path}"):
            _print(sentence)


def _of_dataset(change: str) -> str:
    """A change of a dataset's parameter as one of an experiment's key."""
    head = change.partition("=")[0].partition(".")[0].strip()
    return change if head in ("partition", "noise", "seed", "score") else f"dataset.{change}"


def _print_facts(facts: Mapping[str, object]) -> None:
    table = _list_table()
    for key, value in facts.items():
        table.add_row(f"[bold]{escape(key)}[/bold]", shown(str(value), "markup"))
    out.print(table)


@data.command(name="get")
def data_get(name: Dataset, data_dir: DataDir = None, quiet: Quiet = False) -> None:
    """Download a dataset's original files to the data directory and verify their checksums.

    For example: commonweal data get mnist; commonweal list datasets names the datasets.
    """
    from commonweal.datasets._download import fetch, sources
    from commonweal.report.progress import Download, download_bar

    with download_bar(err, quiet) as bar:
        paths = [fetch(file, Download(bar, file.name)) for file in sources(name)]
    folders = ", ".join(sorted({str(path.parent) for path in paths}))
    if not quiet:
        _print(f"{len(paths)} files in {folders}; their checksums are right")
