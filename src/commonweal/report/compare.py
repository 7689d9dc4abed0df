"""`commonweal.compare`: several rules and seeds in Python, with what they give to every client."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Unpack

import torch
from rich.console import Console

from commonweal.analysis.compare import (
    OWN,
    Result,
    failed_lines,
    finished_runs,
    gather,
    keeps,
    lines_of,
    run_cells,
)
from commonweal.analysis.curves import CURVES
from commonweal.analysis.gains import Gains, gains_over_local
from commonweal.analysis.labels import by_label, find_runs, seed_of
from commonweal.analysis.plan import ALONE, POOLED, Cell, baseline_cells, cells, run_folder
from commonweal.base.arguments import expect, expect_int
from commonweal.base.errors import (
    CommonwealError,
    ConfigError,
    DataError,
    DivergedError,
    RunError,
    did_you_mean,
)
from commonweal.base.frames import frame
from commonweal.config import catalog
from commonweal.config.experiment import Experiment, values
from commonweal.data.federation import Federation
from commonweal.data.samples import joined, subset
from commonweal.jobs.job import Parts, job_from_parts
from commonweal.jobs.rounds import run
from commonweal.metrics import Paired
from commonweal.record.record import Record
from commonweal.report import Format, figures, html
from commonweal.report.clients import NAMES, ClientLines, client_lines, samples_of, used_results
from commonweal.report.comparison import Summary, chosen_columns, render, summarize
from commonweal.report.formats import NARROW
from commonweal.report.overview import overview
from commonweal.report.run_table import fallback_notes, promised, unequal_promises
from commonweal.rules.rule import Rule
from commonweal.training.client import Client
from commonweal.training.task import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Rules: TypeAlias = Sequence[str | Rule] | Mapping[str, str | Rule]

MOST_SEEDS = 10_000
T = TypeVar("T")
RULES = ("fedavg", "uniform", "aaggff-s")
NOTHING = "nothing but cohorts, batches and noise varies between seeds"


@dataclass(frozen=True, eq=False)
class Comparison:
    """What several rules give to every client, over seeds, next to local and pooled training."""

    score: str
    results: list[Result]
    baselines: list[Result]  # local models and pooled data, where they were run
    failures: list[str]  # a line for everything that was left out
    records: dict[str, list[Record]]  # by label
    varied: str = ""  # what differs between seeds, where the parts are not from an experiment

    @classmethod
    def of(
        cls,
        records: Mapping[str, Sequence[Record]],
        failures: Sequence[str] = (),
        varied: str = "",
    ) -> "Comparison":
        """Compare evaluated runs by label, over the seeds that all labels have.

        Raises:
            RunError: There are no runs, no common seeds, or different scores.
        """
        if not records:
            raise RunError("; ".join(failures) or "there are no runs to compare")
        seeds = [set(map(seed_of, runs)) for runs in records.values()]
        common = set.intersection(*seeds)
        if not common:
            raise RunError("these runs have no seed in common: choose runs of equal seeds")
        paired = {}
        scores = set()
        for label, runs in records.items():
            paired[label] = [record for record in runs if seed_of(record) in common]
            scores |= {record.facts.score for record in runs}
        if len(scores) > 1:
            raise RunError(
                f"these runs have different scores ({', '.join(sorted(scores))}): name the folders "
                "of one federation"
            )
        gathered = gather(paired)
        if not set.intersection(*(set(result.clients) for result in gathered)):
            raise RunError("these runs have no client in common: compare runs on the same data")
        rules = [result for result in gathered if result.label not in NAMES]
        baselines = [result for result in gathered if result.label in NAMES]
        notes = unequal_promises({k: runs for k, runs in paired.items() if k not in NAMES})
        if not rules:
            rules, baselines = baselines, []
        return cls(scores.pop(), rules, baselines, [*failures, *notes], paired, varied)

    @classmethod
    def in_folders(cls, folders: Sequence[str | Path]) -> "Comparison":
        """Compare the runs in some folders: each is a run's, or has runs below it."""
        return cls.of_records(find_runs(folders))

    @classmethod
    def of_records(cls, records: Iterable[Record]) -> "Comparison":
        """Compare runs by what they are, whatever their folders are called: FedAvg first.

        Runs without an evaluated round, and seeds that not all methods have, are left out and
        listed in `failures`.
        """
        left_out = []
        evaluated = []
        for record in records:
            if record.is_public_part:
                left_out.append(f"{record.folder} is left out: {record.where_scores_are}.")
            elif not record.evaluated:
                left_out.append(f"{record.folder} is left out: no round has been evaluated yet.")
            else:
                evaluated.append(record)
                left_out += _about_run(record)
        if not evaluated:
            raise RunError(" ".join(left_out) or "there are no runs to compare")
        labelled = by_label(evaluated)
        labels = sorted(labelled, key=lambda label: label.split(" ")[0] != "fedavg")
        comparison = cls.of({label: labelled[label] for label in labels})
        for label in labels:
            compared = set(map(seed_of, comparison.records[label]))
            beyond = sorted(set(map(seed_of, labelled[label])) - compared)
            if beyond:
                left_out.append(f"{label}: seeds {beyond} are left out; other methods lack them.")
        return replace(comparison, failures=[*left_out, *comparison.failures])

    @classmethod
    def of_plan(cls, plan: Sequence[Cell], failures: Mapping[Path, str]) -> "Comparison":
        """Compare the runs of a plan. A label is left out where one of its runs failed."""
        return cls.of(finished_runs(plan, failures), failed_lines(plan, failures))

    def __repr__(self) -> str:
        labels = ", ".join(result.label for result in self.results)
        varied = f"; {self.varied}" if self.varied else ""
        return f"<Comparison of {labels}: {self.results[0].seeds} seeds, {self.score}{varied}>"

    @property
    def first(self) -> Record:
        """The first run of the first method."""
        return next(iter(self.records.values()))[0]

    @property
    def worth(self) -> list[Gains]:
        """The gains of every result over local training."""
        return gains_over_local(self.results, self.baselines)

    @cached_property
    def used(self) -> list[Result]:
        """One result per method: that of the models that its clients use."""
        return used_results(self.results)

    @cached_property
    def summary(self) -> Summary:
        """The numbers of the models that clients use, next to local training."""
        return summarize(self.used, self.score, baselines=self.baselines)

    @property
    def client_lines(self) -> ClientLines:
        """Every client's scores, next to local training."""
        return client_lines(self.used, self.baselines, self.score, samples_of(self.first))

    def with_curves(self, names: Collection[str]) -> "Comparison":
        """Add the metrics of whole runs among these (`CURVES`), which take reading all rounds."""
        drawn = [name for name in CURVES if name in names]
        if not drawn:
            return self

        def extended(result: Result) -> Result:
            records = sorted(self.records[result.label.removesuffix(OWN)], key=seed_of)
            metrics = []
            for known, record in zip(result.metrics, records, strict=True):
                metrics.append(known | {name: CURVES[name](record.rounds) for name in drawn})
            return replace(result, metrics=metrics)

        results = list(map(extended, self.results))
        return replace(self, results=results, baselines=list(map(extended, self.baselines)))

    def frame(self) -> Any:
        """A line per method, seed and client: method, seed, client, score.

        A pandas DataFrame, or a polars one; where neither is installed, a dict of lists.
        """
        columns: dict[str, list[object]] = {"method": [], "seed": [], "client": [], "score": []}
        seeds = sorted(map(seed_of, next(iter(self.records.values()))))
        for result in (*self.results, *self.baselines):
            for seed, scores in zip(seeds, result.scores.tolist(), strict=True):
                columns["method"] += [result.label] * len(scores)
                columns["seed"] += [seed] * len(scores)
                columns["client"] += result.clients
                columns["score"] += scores
        return frame(columns)

    @property
    def differences(self) -> dict[str, dict[str, Paired]]:
        """Differences from the first method by method and metric, corrected for multiple tests."""
        summary = self._summary()
        table = {}
        for row, label in enumerate(summary.labels[1:]):
            by_metric = summary.differences.items()
            table[label] = {metric: differences[row] for metric, differences in by_metric}
        return table

    def table(
        self, form: Format = "terminal", columns: str | None = None, decimals: int | None = None
    ) -> str:
        """The table that `commonweal compare` prints.

        Args:
            form: "terminal", "markdown", "latex", "csv" or "json".
            columns: Metrics such as "mean,worst_10", or those of a paper: "aaggff", "adafed".
            decimals: Digits after the point; None for one of per cent.
        """
        expect("form", form, str, "the name of a format")
        if columns is not None:
            expect("columns", columns, str, "metrics, as in 'mean,worst_10'")
        if decimals is not None:
            expect_int("decimals", decimals, most=20)
        rendered = render(self._summary(columns), form, decimals)
        if isinstance(rendered, str):
            return rendered
        console = Console(width=NARROW, record=True, highlight=False, file=StringIO())
        console.print(rendered)
        return console.export_text()

    def plot(self, what: str = "clients", path: str | Path | None = None) -> "Figure":
        """Draw the comparison.

        Args:
            what: "clients" for every client's scores next to local training, or "rounds" for the
                mean and the worst 10 % over rounds.
            path: A PNG, SVG or PDF file to write.

        Returns:
            The matplotlib figure.
        """
        expect("what", what, str, "the name of a picture")
        if path is not None:
            expect("path", path, str | Path, "the path of a file")
        drawings = {"clients": self.client_picture, "rounds": self.round_picture}
        if what not in drawings:
            raise ConfigError(f"plot({what!r}): {did_you_mean(what, drawings)}")
        figure = drawings[what]().figure
        if path is not None:
            figures.check_suffix(Path(path))
            figures.save(figure, Path(path))
        return figure

    @property
    def methods(self) -> dict[str, list[Record]]:
        """The runs without local and pooled training, unless there are no others."""
        return {result.label: self.records[result.label] for result in self.used}

    def client_picture(self) -> figures.Picture:
        """Every client's scores, next to local training."""
        return figures.clients(self.client_lines)

    def round_picture(self) -> figures.Picture:
        """Mean and worst 10 % over rounds."""
        return figures.rounds(self.methods)

    def _summary(self, columns: str | None = None) -> Summary:
        chosen = None if columns is None else chosen_columns(columns)
        full = self.with_curves(chosen or ())
        return summarize(full.results, self.score, chosen, full.baselines)

    def _repr_html_(self) -> str:
        """What a notebook shows: the answer, and the table of methods."""
        seen = overview(self)
        sentence = html.tag("p", html.strong(seen.sentence))
        return sentence + html.columns(seen.about, seen.table.labels, seen.table.columns)


def compare(
    what: Experiment | str | Path | Task | Callable[[int], Task],
    federation: Federation | Callable[[int], Federation] | None = None,
    *,
    rules: Rules = RULES,
    seeds: int | Sequence[int] = 3,
    baselines: bool = True,
    out: str | Path | None = None,
    fixed: bool = False,
    **parts: Unpack[Parts],
) -> Comparison:
    """Run an experiment (or its file), or a Task and a Federation, under several rules and seeds.

    Every seed draws other initial weights, another split into training and test samples, and
    other batches, as on the command line: only then does a difference say something about rules.

    Args:
        what: An experiment or its file; or a Task, or a function of the seed that returns one.
        federation: With a task, the data, or a function of the seed that returns them.
        rules: Rules, by name or as objects; a dict gives them names: {"Ours": Soft(t=2)}.
        seeds: How many, or which.
        baselines: Also train local models, and one model on pooled data.
        out: The folder of the runs; without it they are not saved.
        fixed: Keep the task's initial weights and the federation's split for every seed.
        parts: With a task, the other parts and settings of `run`.
    """
    expect("rules", rules, list | tuple | Mapping, "a list of rules, or a dict by name")
    if not rules:
        raise ConfigError(f"rules = {rules!r}: there is no rule to run")
    numbers = _seeds(seeds)
    expect("baselines", baselines, bool, "True or False")
    expect("fixed", fixed, bool, "True or False")
    if out is not None:
        expect("out", out, str | Path, "the path of a folder")
    with TemporaryDirectory() as temporary:
        folder = Path(temporary if out is None else out)
        if isinstance(what, Task) or callable(what):
            if not isinstance(federation, Federation) and not callable(federation):
                raise ConfigError(
                    f"federation = {federation!r:.80}: compare(task) needs a Federation, or a "
                    "function of the seed"
                )
            return _compare_own(
                _Own(what, federation, fixed), rules, numbers, baselines, folder, parts
            )
        expect("what", what, Experiment | str | Path, "an Experiment, its file, or a Task")
        if federation is not None or parts or fixed:
            raise ConfigError(
                f"what = {what!r:.60}: compare(experiment) takes no other parts; change the "
                "experiment"
            )
        base = what.model_dump() if isinstance(what, Experiment) else values(what)
        plan = cells(base, _texts(rules), numbers, [], folder)
        if baselines:
            plan += baseline_cells(base, numbers, folder)
        failures = {step.cell.folder: step.failure for step in run_cells(plan) if step.failure}
        return Comparison.of_plan(plan, failures)


def _about_run(record: Record) -> list[str]:
    """What a reader of a comparison should know of one of its runs."""
    notes = [*promised(record), *fallback_notes(record)]
    if not record.finished:
        notes.append(f"{len(record.rounds)} of {record.experiment.get('rounds')} rounds so far")
    return [f"{record.folder}: {note}." for note in notes]


def _texts(rules: Rules) -> list[str]:
    """Rules as an experiment names them, with the names that a dict gives them."""
    if isinstance(rules, Mapping):
        return [f"{name}={label_of(rule)}" for name, rule in rules.items()]
    return [label_of(rule) for rule in rules]


def _seeds(seeds: int | Sequence[int]) -> list[int]:
    """Seeds by their number, or as they are."""
    if isinstance(seeds, int):
        expect_int("seeds", seeds, least=1, most=MOST_SEEDS)
        return list(range(seeds))
    expect("seeds", seeds, list | tuple | range, "a number of seeds, or a list of them")
    for seed in seeds:
        expect_int("seeds", seed, most=2**63)
    if not seeds:
        raise ConfigError(f"seeds = {seeds!r}: there are no seeds to run")
    return list(seeds)


def label_of(rule: str | Rule) -> str:
    """A rule as text, with the parameters that are not the default's.

    >>> label_of(catalog.build("rules", "afl(lr=0.5)")), label_of("afl(lr = 0.5)")
    ('afl(lr=0.5)', 'afl(lr=0.5)')
    """
    if isinstance(rule, str):
        return rule.replace(" ", "")
    expect("rules", rule, Rule, "rules by name, or as objects")
    parameters = catalog.describe(rule)
    name = str(parameters.pop("name"))
    defaults = catalog.find("rules", name).defaults
    changed = [f"{key}={v}" for key, v in parameters.items() if defaults.get(key) != v]
    return f"{name}({','.join(changed)})".replace(" ", "") if changed else name


@dataclass(frozen=True)
class _Own:
    """One's own task and data, for every seed."""

    what: Task | Callable[[int], Task]
    data: Federation | Callable[[int], Federation]
    fixed: bool

    def task(self, seed: int) -> Task:
        """The task with initial weights drawn by the seed."""
        if isinstance(self.what, Task):
            return self.what if self.fixed else self.what.reinitialised(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return _of_seed("what", self.what, seed, Task)

    def federation(self, seed: int) -> Federation:
        if not isinstance(self.data, Federation):
            return _of_seed("federation", self.data, seed, Federation)
        return resplit(self.data, seed) if self._splits else self.data

    @property
    def _splits(self) -> bool:
        """Whether the samples at hand can be split again."""
        data = self.data
        if not isinstance(data, Federation):
            return True
        prepared = data.preprocessing is not None or data.validation is not None
        return not (self.fixed or prepared or data.held_out is not None)

    @property
    def varied(self) -> str:
        """What differs between seeds."""
        changing = ["split"] if self._splits else []
        if not isinstance(self.what, Task) or (self.what.is_drawn and not self.fixed):
            changing.append("initial weights")
        if not changing:
            return NOTHING
        return f"seeds vary {', '.join(changing)} and batches"


def _of_seed(name: str, function: Callable[[int], T], seed: int, kind: type[T]) -> T:
    """What a user's function of the seed returns."""
    try:
        made = function(seed)
    except CommonwealError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{name}({seed}) raised {reason[:200]}") from error
    if not isinstance(made, kind):
        raise ConfigError(f"{name}({seed}) returned {made!r:.60}: return a {kind.__name__}")
    return made


def resplit(federation: Federation, seed: int) -> Federation:
    """Split each client's samples into training and test samples again, by the seed."""
    train, test = federation.train, federation.test
    clients = torch.arange(federation.clients)
    owner = torch.cat([clients.repeat_interleave(rows.sizes) for rows in (train, test)])
    order = owner.argsort(stable=True)
    sizes = train.sizes + test.sizes
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    inputs = subset(joined([train.inputs, test.inputs]), order)
    everything = replace(
        train, inputs=inputs, y=torch.cat([train.y, test.y])[order], offsets=offsets
    )
    share = len(test.y) / len(everything.y)
    split = replace(federation, train=everything).with_validation(share, seed)
    assert split.validation is not None
    return replace(split, test=split.validation, validation=None)


def _compare_own(
    own: _Own,
    rules: Rules,
    seeds: Sequence[int],
    baselines: bool,
    folder: Path,
    parts: Mapping[str, object],
) -> Comparison:
    """Runs of one's own task and federation."""
    kinds: dict[str, dict[str, object]] = {}
    if isinstance(rules, Mapping):
        for name, rule in rules.items():
            kinds[name] = {**parts, "rule": rule, "name": name}
    else:
        for rule in rules:
            kinds[label_of(rule)] = {**parts, "rule": rule}
    if len(kinds) < len(rules):
        raise ConfigError(f"the same rule twice among {', '.join(_texts(rules))}")
    labels = list(kinds)
    if baselines:
        kinds |= _baseline_parts(parts)
    records: dict[str, list[Record]] = {}
    failed: dict[str, dict[int, str]] = {}
    for seed in seeds:
        task = own.task(seed)
        federation = own.federation(seed)
        for label, given in kinds.items():
            to = run_folder(folder, label, seed)
            try:
                job = job_from_parts(task, federation, **{**given, "seed": seed})
                record = run(job, out=to, resume=True).result()
                records.setdefault(label, []).append(record)
            except (ConfigError, DataError, DivergedError) as error:
                failed.setdefault(label, {})[seed] = str(error)
    lines = lines_of(failed, dict.fromkeys(kinds, len(seeds)))
    for label, seeds_failed in failed.items():
        if not keeps(seeds_failed, len(seeds)):
            records.pop(label, None)
    if not records.keys() & set(labels):
        raise RunError("; ".join(lines))
    return Comparison.of(records, lines, own.varied)


def _baseline_parts(parts: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """The parts of runs alone and pooled, with the same learning rate and batches."""
    given = parts.get("client", "sgd")
    is_object = isinstance(given, Client)
    table = catalog.describe(given) if is_object else catalog.complete("clients", given)
    known = catalog.find("clients", "sgd").parameters
    common = {key: value for key, value in table.items() if key in known}
    replaced = ("rule", "client", "channels", "sampler")
    rest = {key: value for key, value in parts.items() if key not in replaced}
    return {
        ALONE: {**rest, "client": {"name": "alone", **common}},
        POOLED: {**rest, "algorithm": "pooled", "client": {"name": "sgd", **common}},
    }
