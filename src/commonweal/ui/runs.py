"""The list of runs: federations, their methods over seeds, and folders that cannot be read."""

import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from commonweal import metrics
from commonweal.analysis.labels import (
    baseline_of,
    data_name,
    federation_of,
    identity,
    labels,
    seed_of,
)
from commonweal.base.errors import RunError
from commonweal.base.text import shown
from commonweal.record.record import Outline, find_runs
from commonweal.report.formats import decimals_of, interval, scale, score_name, sign_of, unit

STATES = ("running", "stopped", "finished")  # a method has the first state of its runs
RECENT = 60.0  # seconds since the last round in which an unfinished run counts as running
FILES = ("experiment.toml", "run.json", "rounds.jsonl", "model.safetensors")


@dataclass(frozen=True)
class Run:
    """A run by its small files and the end of its rounds."""

    id: str  # the path below the folder that is shown
    outline: Outline
    finished: bool
    round: int
    changed: float  # when, in seconds since 1970
    mean: float | None
    worst: float | None  # the mean over the worst 10 % of clients
    federation: str  # the same for runs on the same data
    method: str  # the same for runs that differ in nothing but their seeds

    @property
    def state(self) -> str:
        """Finished, running or stopped."""
        if self.finished:
            return "finished"
        return "running" if time.time() - self.changed < RECENT else "stopped"

    @property
    def words(self) -> str:
        """What a filter is matched with."""
        outline = self.outline
        named = f"{outline.title} {outline.part('client')} {outline.part('dataset')}"
        return f"{self.id} {named} seed={seed_of(outline)} {self.state}".lower()


@dataclass(frozen=True)
class Broken:
    """A folder that cannot be read as a run."""

    id: str
    problem: str
    state: str = "broken"

    @property
    def words(self) -> str:
        """What a filter is matched with."""
        return f"{self.id} broken".lower()


Stamp = tuple[tuple[int, int], ...]  # size and time of change of each of FILES
_known: dict[Path, tuple[Stamp, Run | Broken]] = {}


def scan(root: Path) -> list[Run | Broken]:
    """All runs below a folder. Files are read again only where they have changed."""
    return [describe(root, folder) for folder in find_runs(root)]


def describe(root: Path, folder: Path) -> Run | Broken:
    """One run. Whatever is wrong with its folder becomes the reason why it is broken."""
    stamp = tuple(_stamp(folder / name) for name in FILES)
    known = _known.get(folder)
    if known is not None and known[0] == stamp:
        return known[1]
    name = folder.relative_to(root).as_posix()
    run: Run | Broken
    try:
        run = _read(folder, name, max(changed for _, changed in stamp) / 1e9)
        _federation("", [run])  # what cannot be listed fails here, not with the others
    except Exception as error:  # a folder may hold anything; it must not hide the others
        run = Broken(shown(name), str(error) or type(error).__name__)
    _known[folder] = (stamp, run)
    return run


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return -1, 0
    return status.st_size, status.st_mtime_ns


def _read(folder: Path, name: str, changed: float) -> Run:
    if any("\ud800" <= c <= "\udfff" for c in name):  # no address can name such a run
        raise RunError(f"the folder's name '{shown(name)}' is not UTF-8: rename it")
    check_links(folder)
    outline = Outline.open(folder)
    last = outline.last()
    return Run(
        id=name,
        outline=outline,
        finished=outline.has_model,
        round=last.number,
        changed=changed,
        mean=_finite(last.metrics.get("mean")),
        worst=_finite(last.metrics.get("worst_10", last.metrics.get("worst"))),
        federation=federation_of(outline),
        method=identity(outline),
    )


def check_links(folder: Path) -> None:
    """Raise RunError where a file of a run is a link: the page reads its own folder only."""
    with os.scandir(folder) as entries:
        links = sorted(entry.name for entry in entries if entry.is_symlink())
    if links:
        raise RunError(f"{links[0]!r} is a link, which this page does not follow: copy the file")


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def select(runs: Iterable[Run | Broken], words: str) -> list[Run | Broken]:
    """The runs that match all words: a folder's name, a rule, a dataset, seed=0, a state."""
    parts = words.lower().split()
    return [run for run in runs if all(word in run.words for word in parts)]


# Federations


@dataclass(frozen=True)
class Method:
    """One line of a federation: the runs of a method over seeds. Scores are as shown."""

    label: str
    ids: list[str]
    compared: list[str]  # the ids of those that are compared with the other methods
    baseline: bool  # local or pooled training
    state: str
    progress: str  # rounds so far, where some are missing
    worst: float | None
    mean: float | None
    worst_gain: str  # over FedAvg, with its interval
    mean_gain: str


@dataclass(frozen=True)
class Federation:
    """Runs on the same data, by method."""

    key: str
    name: str
    clients: int
    samples: int | None
    score: str
    digits: int  # after the point
    unit: str
    lower_is_better: bool
    changed: float
    running: bool
    methods: list[Method]


def federations(runs: Iterable[Run | Broken]) -> list[Federation]:
    """The federations of some runs, the one with the latest run first."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        if isinstance(run, Run):
            groups.setdefault(run.federation, []).append(run)
    listed = [_federation(key, group) for key, group in groups.items()]
    return sorted(listed, key=lambda federation: -federation.changed)


def _federation(key: str, group: Sequence[Run]) -> Federation:
    methods: dict[str, list[Run]] = {}
    for run in group:
        methods.setdefault(run.method, []).append(run)
    titles = labels(runs[0].outline for runs in methods.values())
    named = dict(zip(titles, methods.values(), strict=True))
    fedavg = named.get("fedavg", [])
    compared = _compared(named.values())
    lines = [_method(label, runs, compared, fedavg) for label, runs in named.items()]
    first = group[0].outline
    score = first.facts.score
    # The best first; local and pooled training at the end, as do methods without a score.
    lines.sort(key=lambda m: (m.baseline, m.worst is None, -sign_of(score) * (m.worst or 0.0)))
    train, test = first.facts.train_rows, first.facts.test_rows
    return Federation(
        key=key,
        name=data_name(first),
        clients=first.facts.clients,
        samples=None if train is None or test is None else train + test,
        score=score_name(score),
        digits=decimals_of(score, np.array([line.mean for line in lines], float)),
        unit=unit(score).strip(),
        lower_is_better=first.lower_is_better,
        changed=max(run.changed for run in group),
        running=any(run.state == "running" for run in group),
        methods=lines,
    )


def _compared(methods: Iterable[Sequence[Run]]) -> set[str]:
    """The ids of finished runs that make the largest comparison of methods by equal seeds.

    A method that was tried with one seed does not reduce the comparison of others to that seed.
    """
    by_seed = []
    for runs in methods:
        ids: dict[int, str] = {}
        for run in runs:
            if run.finished:
                ids.setdefault(seed_of(run.outline), run.id)
        by_seed.append(ids)
    largest: set[str] = set()
    for seeds in dict.fromkeys(map(frozenset, by_seed)):
        chosen = set()
        for ids in by_seed:
            if ids.keys() >= seeds:
                chosen |= {ids[seed] for seed in seeds}
        if len(chosen) > len(largest):
            largest = chosen
    return largest


def _method(label: str, runs: Sequence[Run], compared: set[str], fedavg: Sequence[Run]) -> Method:
    outline = runs[0].outline
    state = min((run.state for run in runs), key=STATES.index)
    progress = ""
    if state != "finished":
        total = sum(run.outline.total for run in runs)
        progress = f"{sum(run.round for run in runs)} of {total} rounds"
    return Method(
        label=label,
        ids=[run.id for run in runs],
        compared=[run.id for run in runs if run.id in compared],
        baseline=baseline_of(outline) is not None,
        state=state,
        progress=progress,
        worst=_mean(_scores(runs, "worst"), outline),
        mean=_mean(_scores(runs, "mean"), outline),
        worst_gain=_gain("worst", runs, fedavg),
        mean_gain=_gain("mean", runs, fedavg),
    )


Scores: TypeAlias = list[tuple[int, float]]  # of runs, with their seeds


def _scores(runs: Sequence[Run], metric: Literal["worst", "mean"]) -> Scores:
    scores = []
    for run in runs:
        value = run.worst if metric == "worst" else run.mean
        if value is not None:
            scores.append((seed_of(run.outline), value))
    return scores


def _mean(scores: Scores, outline: Outline) -> float | None:
    if not scores:
        return None
    return scale(outline.facts.score) * sum(value for _, value in scores) / len(scores)


def _gain(metric: Literal["worst", "mean"], runs: Sequence[Run], fedavg: Sequence[Run]) -> str:
    """The gain over FedAvg in a metric, paired by seed: "+1.2 [+0.3, +2.1]", or "(n.s.)"."""
    before, after = dict(_scores(fedavg, metric)), dict(_scores(runs, metric))
    seeds = sorted(before.keys() & after.keys())
    if runs is fedavg or not seeds:
        return ""
    score = runs[0].outline.facts.score
    change = sign_of(score) * np.array([after[seed] - before[seed] for seed in seeds])
    return interval(metrics.paired(change, np.zeros_like(change)), score)
