"""The list of runs: federations, their methods over seeds, and folders that cannot be read."""

import math
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

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
from commonweal.report.formats import decimals_of, interval, scale, score_name

__all__ = ["Federation", "Method", "Run", "broken", "check_links", "describe", "federations"]
__all__ += ["scan", "select"]

RECENT = 60.0  # seconds since the last round in which an unfinished run counts as running
FILES = ("experiment.toml", "run.json", "rounds.jsonl", "model.safetensors")


@dataclass(frozen=True)
class Run:
    """A run by its small files and the end of its rounds."""

    id: str  # the path below the folder that is shown
    state: str  # finished, running, stopped, broken
    round: int = 0
    rounds: int = 0
    changed: float = 0.0  # when, in seconds since 1970
    mean: float | None = None
    worst: float | None = None  # the mean over the worst 10 % of clients
    problem: str = ""  # of a broken one
    federation: str = ""  # the same for runs on the same data
    method: str = ""  # the same for runs that differ in nothing but their seeds
    outline: Outline | None = None

    @property
    def words(self) -> str:
        """What a filter is matched with."""
        if self.outline is None:
            return f"{self.id} broken".lower()
        experiment = self.outline
        named = f"{experiment.title} {experiment.part('client')} {experiment.part('dataset')}"
        return f"{self.id} {named} seed={seed_of(experiment)} {self.state}".lower()


Stamp = tuple[tuple[int, int] | None, ...]  # size and time of change of each of FILES
_known: dict[Path, tuple[Stamp, Run]] = {}


def scan(root: Path) -> list[Run]:
    """All runs below a folder. Files are read again only where they have changed."""
    return [describe(root, folder) for folder in find_runs(root)]


def describe(root: Path, folder: Path) -> Run:
    """One run. Whatever is wrong with its folder becomes the reason why it is broken."""
    stamp = tuple(_stamp(folder / name) for name in FILES)
    known = _known.get(folder)
    if known is None or known[0] != stamp:
        run = _read(folder, folder.relative_to(root).as_posix())
        _known[folder] = (stamp, run)
        return run
    run = known[1]
    if run.state == "running" and time.time() - run.changed >= RECENT:
        return replace(run, state="stopped")
    return run


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _read(folder: Path, name: str) -> Run:
    try:
        if any("\ud800" <= c <= "\udfff" for c in name):  # no address can name such a run
            raise RunError(f"the folder's name '{shown(name)}' is not UTF-8: rename it")
        check_links(folder)
        outline = Outline.open(folder)
        last = outline.last()
        changed = max(_changed(folder / file) for file in FILES)
        run = Run(
            id=name,
            state=_state(outline, changed),
            round=last.number,
            rounds=outline.total,
            changed=changed,
            mean=_finite(last.metrics.get("mean")),
            worst=_finite(last.metrics.get("worst_10", last.metrics.get("worst"))),
            federation=federation_of(outline),
            method=identity(outline),
            outline=outline,
        )
        _federation("", [(run, outline)])  # what cannot be listed fails here, not with the others
        return run
    except Exception as error:  # a folder may hold anything; it must not hide the others
        return Run(shown(name), "broken", problem=str(error) or type(error).__name__)


def check_links(folder: Path) -> None:
    """Raise RunError where a file of a run is a link: the page reads its own folder only."""
    with os.scandir(folder) as entries:
        links = sorted(entry.name for entry in entries if entry.is_symlink())
    if links:
        raise RunError(f"{links[0]!r} is a link, which this page does not follow: copy the file")


def _state(outline: Outline, changed: float) -> str:
    if outline.has_model:
        return "finished"
    return "running" if time.time() - changed < RECENT else "stopped"


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def select(runs: Sequence[Run], words: str) -> list[Run]:
    """The runs that match all words: a folder's name, a rule, a dataset, seed=0, a state."""
    parts = words.lower().split()
    return [run for run in runs if all(word in run.words for word in parts)]


def broken(runs: Sequence[Run]) -> list[Run]:
    """The runs that cannot be read."""
    return [run for run in runs if run.outline is None]


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


def federations(runs: Sequence[Run]) -> list[Federation]:
    """The federations of some runs, the one with the latest run first."""
    groups: dict[str, list[tuple[Run, Outline]]] = {}
    for run in runs:
        if run.outline is not None:
            groups.setdefault(run.federation, []).append((run, run.outline))
    listed = [_federation(key, group) for key, group in groups.items()]
    return sorted(listed, key=lambda federation: -federation.changed)


Pairs: TypeAlias = Sequence[tuple[Run, Outline]]  # runs of one method or federation


def _federation(key: str, group: Pairs) -> Federation:
    first = group[0][1]
    methods: dict[str, list[tuple[Run, Outline]]] = {}
    for pair in group:
        methods.setdefault(pair[0].method, []).append(pair)
    titles = labels(pairs[0][1] for pairs in methods.values())
    named = dict(zip(titles, methods.values(), strict=True))
    fedavg = named.get("fedavg", [])
    score = first.facts.score
    sign = -1 if first.lower_is_better else 1
    compared = _compared(named.values())
    lines = [_method(label, pairs, compared, fedavg) for label, pairs in named.items()]
    # The best first; local and pooled training at the end, as do methods without a score.
    lines.sort(key=lambda m: (m.baseline, m.worst is None, -sign * (m.worst or 0.0)))
    sizes = (first.facts.train_rows, first.facts.test_rows)
    return Federation(
        key=key,
        name=data_name(first),
        clients=first.facts.clients,
        samples=None if None in sizes else sum(size or 0 for size in sizes),
        score=score_name(score),
        digits=decimals_of(score, np.array([m.mean for m in lines if m.mean is not None])),
        unit="%" if scale(score) == 100 else "",
        lower_is_better=first.lower_is_better,
        changed=max(run.changed for run, _ in group),
        running=any(run.state == "running" for run, _ in group),
        methods=lines,
    )


def _compared(methods: Collection[Pairs]) -> set[str]:
    """The ids of finished runs that make the largest comparison of methods by equal seeds.

    A method that was tried with one seed does not reduce the comparison of others to that seed.
    """
    by_seed = []
    for pairs in methods:
        ids: dict[int, str] = {}
        for run, outline in pairs:
            if run.state == "finished":
                ids.setdefault(seed_of(outline), run.id)
        by_seed.append(ids)
    largest: set[str] = set()
    for seeds in dict.fromkeys(frozenset(ids) for ids in by_seed):
        chosen = set()
        for ids in by_seed:
            if ids.keys() >= seeds:
                chosen |= {ids[seed] for seed in seeds}
        if len(chosen) > len(largest):
            largest = chosen
    return largest


def _method(label: str, pairs: Pairs, compared: Collection[str], fedavg: Pairs) -> Method:
    runs = [run for run, _ in pairs]
    score = pairs[0][1].facts.score
    states = [run.state for run in runs]
    state = next((s for s in ("running", "stopped") if s in states), "finished")
    missing = state != "finished"
    progress = f"{sum(r.round for r in runs)} of {sum(r.rounds for r in runs)} rounds"
    return Method(
        label=label,
        ids=[run.id for run in runs],
        compared=[run.id for run in runs if run.id in compared],
        baseline=baseline_of(pairs[0][1]) is not None,
        state=state,
        progress=progress if missing else "",
        worst=_mean([run.worst for run in runs], score),
        mean=_mean([run.mean for run in runs], score),
        worst_gain=_gain("worst", pairs, fedavg),
        mean_gain=_gain("mean", pairs, fedavg),
    )


def _mean(values: Sequence[float | None], score: str) -> float | None:
    known = [value for value in values if value is not None]
    return scale(score) * sum(known) / len(known) if known else None


def _gain(key: str, pairs: Pairs, fedavg: Pairs) -> str:
    """The gain over FedAvg in a metric, paired by seed: "+1.2 [+0.3, +2.1]", or "(n.s.)"."""
    if pairs is fedavg:
        return ""
    before = _by_seed(key, fedavg)
    after = _by_seed(key, pairs)
    seeds = sorted(before.keys() & after.keys())
    if not seeds:
        return ""
    change = np.array([after[seed] - before[seed] for seed in seeds])
    outline = pairs[0][1]
    if outline.lower_is_better:
        change = -change
    return interval(metrics.paired(change, np.zeros_like(change)), outline.facts.score)


def _by_seed(key: str, pairs: Pairs) -> dict[int, float]:
    values = {}
    for run, outline in pairs:
        value = run.worst if key == "worst" else run.mean
        if value is not None:
            values[seed_of(outline)] = value
    return values
