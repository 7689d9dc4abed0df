"""Runs by label: those that differ in nothing but their seeds belong together."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from commonweal.analysis.worth import ALONE, POOLED
from commonweal.base.errors import RunError
from commonweal.base.plain import Plain, flat
from commonweal.record.record import Record

__all__ = ["by_label", "find_runs", "seed_of"]

# What differs between seeds: a model that is given is initialised anew, and has another digest.
SEEDS = ("seed", "dataset.seed", "dataset.digest", "model.digest")


def find_runs(folders: Sequence[str | Path]) -> list[Record]:
    """The runs in some folders: each is the folder of a run, or has runs below it."""
    found: dict[Path, Record] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise RunError(f"{str(folder)!r} is not a folder: name folders of runs")
        own = (folder / "experiment.toml").exists()
        records = [Record.read(folder)] if own else Record.find(folder)
        if not records:
            raise RunError(f"{str(folder)!r} holds no runs: commonweal run and compare make some")
        for record in records:
            found.setdefault(record.folder.resolve(), record)
    return list(found.values())


def by_label(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The runs by what tells them apart: the rule, and the keys in which experiments differ.

    A second run of the same experiment and seed has the label with "#2". What a federation is
    measured against, clients alone and pooled rows, stands last.
    """
    groups: dict[str, list[Record]] = {}
    baselines: dict[str, list[Record]] = {}
    for record in records:
        name = _baseline(record)
        if name is None:
            groups.setdefault(_identity(record), []).append(record)
        else:
            baselines.setdefault(name, []).append(record)
    found: dict[str, list[Record]] = {}
    labels = _labels([group[0] for group in groups.values()])
    labelled = [*zip(labels, groups.values(), strict=True), *baselines.items()]
    for label, group in labelled:
        met: Counter[int] = Counter()
        for record in sorted(group, key=seed_of):
            met[seed_of(record)] += 1
            again = met[seed_of(record)]
            found.setdefault(label if again == 1 else f"{label} #{again}", []).append(record)
    return found


def _baseline(record: Record) -> str | None:
    """Whether a run is of clients alone or of pooled rows, as `compare` adds them."""
    table = flat(record.experiment)
    if table.get("client.name") == ALONE:
        return ALONE
    return POOLED if table.get("algorithm.name") == POOLED else None


def seed_of(record: Record) -> int:
    return int(record.experiment.get("seed", 0))


def _settings(record: Record) -> dict[str, Plain]:
    return {key: value for key, value in flat(record.experiment).items() if key not in SEEDS}


def _identity(record: Record) -> str:
    return repr(sorted(_settings(record).items()))


def _labels(records: Sequence[Record]) -> list[str]:
    """A label for each of several runs that all differ."""
    settings = [_settings(record) for record in records]
    everywhere = _varying(settings)
    labels = []
    for record, own in zip(records, settings, strict=True):
        # The parameters of different rules always differ: those of the same rule tell runs apart.
        # So do those of client methods.
        alike = [s for r, s in zip(records, settings, strict=True) if r.title == record.title]
        method = own.get("client.name")
        same_method = _varying([s for s in settings if s.get("client.name") == method])
        keys = [key for key in everywhere if not _names_title(key) and not _of_method(key)]
        keys += [key for key in same_method if _of_method(key)]
        keys += [key for key in _varying(alike) if _names_title(key)]
        labels.append(" ".join([record.title, *(_setting(key, own) for key in keys)]))
    return labels


def _names_title(key: str) -> bool:
    return key.partition(".")[0] in ("rule", "algorithm")


def _of_method(key: str) -> bool:
    return key.startswith("client.") and key != "client.name"


def _varying(settings: Sequence[dict[str, Plain]]) -> list[str]:
    keys = dict.fromkeys(key for each in settings for key in each)
    return [key for key in keys if len({repr(each.get(key)) for each in settings}) > 1]


def _setting(key: str, own: dict[str, Plain]) -> str:
    short = key.removesuffix(".name")
    return f"{short}={own[key]}" if key in own else f"no {short}"
