"""The list of runs: federations, their methods over seeds, and folders that cannot be read."""

import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from commonweal.base.errors import RunError
from commonweal.base.text import shown
from commonweal.record.record import Outline, find_runs
from commonweal.study.labels import (
    baseline_of,
    data_key,
    data_name,
    data_names,
    labels,
    method_key,
    seed_of,
)
from commonweal.study.units import decimals_of, scale, sign_of, unit, written_score

STATES = ("running", "stopped", "finished")  # a method has the first state of its runs
RECENT = 60.0  # seconds since the last round in which an unfinished run counts as running
FILES = ("experiment.toml", "run.json", "rounds.jsonl", "model.safetensors")


@dataclass(frozen=True)
class ListedRun:
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
        """The text that a filter is matched with."""
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
        """The text that a filter is matched with."""
        return f"{self.id} broken".lower()


Stamp = tuple[tuple[int, int], ...]  # size and time of change of each of FILES
_known: dict[Path, tuple[Stamp, ListedRun | Broken]] = {}


def scan(root: Path) -> list[ListedRun | Broken]:
    """All runs below a folder. Files are read again only where they have changed."""
    return [list_run(root, folder) for folder in find_runs(root)]


def list_run(root: Path, folder: Path) -> ListedRun | Broken:
    """One run. Whatever is wrong with its folder becomes the reason why it is broken."""
    stamp = tuple(_stamp(folder / name) for name in FILES)
    known = _known.get(folder)
    if known is not None and known[0] == stamp:
        return known[1]
    name = folder.relative_to(root).as_posix()
    run: ListedRun | Broken
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


def _read(folder: Path, name: str, changed: float) -> ListedRun:
    if any("\ud800" <= c <= "\udfff" for c in name):  # no address can name such a run
        raise RunError(f"the folder's name '{shown(name)}' is not UTF-8: rename it")
    check_links(folder)
    outline = Outline.open(folder)
    last = outline.last()
    return ListedRun(
        id=name,
        outline=outline,
        finished=outline.has_model,
        round=last.number,
        changed=changed,
        mean=_finite(last.metrics.get("mean")),
        worst=_finite(last.metrics.get("worst_10", last.metrics.get("worst"))),
        federation=data_key(outline),
        method=method_key(outline),
    )


def check_links(folder: Path) -> None:
    """Raise RunError where a file of a run is a link: the page reads its own folder only."""
    with os.scandir(folder) as entries:
        links = sorted(entry.name for entry in entries if entry.is_symlink())
    if links:
        raise RunError(f"{links[0]!r} is a link, which this page does not follow: copy the file")


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def matching_runs(runs: Iterable[ListedRun | Broken], words: str) -> list[ListedRun | Broken]:
    """The runs that match all words: a folder's name, a rule, a dataset, seed=0, a state."""
    parts = words.lower().split()
    return [run for run in runs if all(word in run.words for word in parts)]


# Federations


@dataclass(frozen=True)
class Method:
    """One line of a federation: the runs of a method over seeds. Scores are as shown."""

    label: str
    ids: list[str]
    finished: list[str]  # the ids of the finished ones
    baseline: bool  # local or pooled training
    state: str
    progress: str  # rounds so far, where some are missing
    worst: float | None
    mean: float | None


@dataclass(frozen=True)
class RunGroup:
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


def federations(runs: Iterable[ListedRun | Broken]) -> list[RunGroup]:
    """The federations of some runs, the one with the latest run first."""
    groups: dict[str, list[ListedRun]] = {}
    for run in runs:
        if isinstance(run, ListedRun):
            groups.setdefault(run.federation, []).append(run)
    names = data_names([group[0].outline for group in groups.values()])
    listed = []
    for name, (key, group) in zip(names, groups.items(), strict=True):
        listed.append(replace(_federation(key, group), name=name))
    return sorted(listed, key=lambda federation: -federation.changed)


def _federation(key: str, group: Sequence[ListedRun]) -> RunGroup:
    methods: dict[str, list[ListedRun]] = {}
    for run in group:
        methods.setdefault(run.method, []).append(run)
    titles = labels(runs[0].outline for runs in methods.values())
    named = dict(zip(titles, methods.values(), strict=True))
    lines = [_method(label, runs) for label, runs in named.items()]
    first = group[0].outline
    score = first.facts.score
    # The best first; local and pooled training at the end, as do methods without a score.
    lines.sort(key=lambda m: (m.baseline, m.worst is None, -sign_of(score) * (m.worst or 0.0)))
    train, test = first.facts.train_rows, first.facts.test_rows
    return RunGroup(
        key=key,
        name=data_name(first),
        clients=first.facts.clients,
        samples=None if train is None or test is None else train + test,
        score=written_score(score),
        digits=decimals_of(score, np.array([line.mean for line in lines], float)),
        unit=unit(score).strip(),
        lower_is_better=first.lower_is_better,
        changed=max(run.changed for run in group),
        running=any(run.state == "running" for run in group),
        methods=lines,
    )


def _method(label: str, runs: Sequence[ListedRun]) -> Method:
    outline = runs[0].outline
    state = min((run.state for run in runs), key=STATES.index)
    progress = ""
    if state != "finished":
        total = sum(run.outline.total for run in runs)
        progress = f"{sum(run.round for run in runs)} of {total} rounds"
    return Method(
        label=label,
        ids=[run.id for run in runs],
        finished=[run.id for run in runs if run.finished],
        baseline=baseline_of(outline) is not None,
        state=state,
        progress=progress,
        worst=_mean([run.worst for run in runs], outline),
        mean=_mean([run.mean for run in runs], outline),
    )


def _mean(scores: Iterable[float | None], outline: Outline) -> float | None:
    """The mean over seeds, as shown."""
    known = [value for value in scores if value is not None]
    if not known:
        return None
    return scale(outline.facts.score) * sum(known) / len(known)
