"""Runs by label: those that differ in nothing but their seeds belong together."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from commonweal.analysis.plan import ALONE, POOLED
from commonweal.base.errors import RunError
from commonweal.base.files import digest
from commonweal.base.plain import Plain, flat
from commonweal.record.record import Outline, Record

# What differs between seeds: a model that is given is initialised again, and has another digest.
SEEDS = ("seed", "dataset.seed", "dataset.digest", "model.digest")

DATA = ("dataset", "partition", "label_noise", "holdout_clients", "score")  # of an experiment
BASELINES = (ALONE, POOLED)
SPLITS = ("dataset.seed", "dataset.digest", "partition.seed")  # what a split is drawn by


def find_runs(folders: Sequence[str | Path]) -> list[Record]:
    """The runs in some folders: each is the folder of a run, or has runs below it."""
    runs: dict[Path, Record] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise RunError(f"{str(folder)!r} is not a folder: name folders of runs")
        own = (folder / "experiment.toml").exists()
        records = [Record.read(folder)] if own else Record.find(folder)
        if not records:
            raise RunError(f"{str(folder)!r} holds no runs: commonweal run and compare make some")
        for record in records:
            runs.setdefault(record.folder.resolve(), record)
    return list(runs.values())


def federation_of(outline: Outline) -> str:
    """A key that runs on the same data share; seeds draw other splits of it."""
    data = flat({key: outline.experiment.get(key) for key in DATA})
    for key in SPLITS:
        data.pop(key, None)
    text = repr((sorted(data.items(), key=repr), outline.facts.score, outline.facts.clients))
    return digest(text.encode())


def data_name(outline: Outline) -> str:
    """The dataset; for a table its file; for data given in Python the folder."""
    dataset = outline.experiment.get("dataset")
    if isinstance(dataset, dict) and dataset.get("path"):
        return Path(str(dataset["path"])).stem
    name = outline.part("dataset", "data")
    return outline.folder.parent.name if name == "given" else name


def by_label(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The runs by method: the rule, the client method, and the settings in which they differ.

    A second run of the same experiment and seed has the label with "#2". Local and pooled training
    stand last.
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(identity(record), []).append(record)
    labelled: dict[str, list[Record]] = {}
    for label, group in zip(labels(g[0] for g in groups.values()), groups.values(), strict=True):
        counts: Counter[int] = Counter()
        for record in sorted(group, key=seed_of):
            counts[seed_of(record)] += 1
            again = counts[seed_of(record)]
            labelled.setdefault(label if again == 1 else f"{label} #{again}", []).append(record)
    return dict(sorted(labelled.items(), key=lambda pair: pair[0].split(" ")[0] in BASELINES))


def seed_of(record: Outline) -> int:
    return int(record.experiment.get("seed", 0))


def baseline_of(record: Outline) -> str | None:
    """Whether a run is of local or of pooled training, as `compare` adds them."""
    if record.part("client") == ALONE:
        return ALONE
    return POOLED if record.part("algorithm") == POOLED else None


def identity(record: Outline) -> str:
    """What runs that differ in nothing but their seeds have in common."""
    return repr(sorted(_settings(record).items()))


def method_of(record: Outline) -> str:
    """The rule, or the client method, or both where both are unusual."""
    client = record.part("client", "sgd")
    if client == "sgd" or record.experiment.get("name"):
        return record.title
    return client if record.title == "fedavg" else f"{record.title} {client}"


def labels(records: Iterable[Outline]) -> list[str]:
    """A label for each of several runs that all differ: its method, and what tells it apart.

    Of several runs of local training (or of pooled training), the one whose settings most other
    runs share is called "alone", since that is what the others are compared with.
    """
    records = list(records)
    tables = [_settings(record) for record in records]
    methods = [baseline_of(record) or method_of(record) for record in records]
    others = [own for own, method in zip(tables, methods, strict=True) if method not in BASELINES]
    usual = {}
    for key in _varying(others):
        if key.partition(".")[0] not in PARTS and key not in OF_METHODS:
            usual[key] = _usual(key, others)
    by_method: dict[str, list[dict[str, Plain]]] = {}
    for own, method in zip(tables, methods, strict=True):
        by_method.setdefault(method, []).append(own)
    # The parameters of different methods always differ: those of the same one tell runs apart.
    within = {method: _varying(same) for method, same in by_method.items()}
    compared = {}  # the baselines that are called so without settings
    for method in by_method.keys() & set(BASELINES):
        compared[method] = max(by_method[method], key=lambda own: _agreement(own, others))
    texts = []
    for own, method in zip(tables, methods, strict=True):
        if own is compared.get(method):
            texts.append(method)
            continue
        unusual = [key for key, value in usual.items() if repr(own.get(key)) != value]
        apart = [key for key in within[method] if key not in usual]
        texts.append(" ".join([method, *(_setting(key, own) for key in unusual + apart)]))
    return texts


def _agreement(own: dict[str, Plain], others: Sequence[dict[str, Plain]]) -> int:
    """How many settings of other runs are the same."""
    return sum(own.get(key) == value for other in others for key, value in other.items())


PARTS = ("name", "rule", "algorithm", "client")  # which a method is named after
OF_METHODS = ("validation",)  # some methods hold samples back, and others have no use for it


def _settings(record: Outline) -> dict[str, Plain]:
    settings = flat(record.experiment)
    for key in SEEDS:
        settings.pop(key, None)
    return settings


def _varying(settings: Sequence[dict[str, Plain]]) -> list[str]:
    varying = []
    for key in dict.fromkeys(chain.from_iterable(settings)):
        if len({repr(table.get(key)) for table in settings}) > 1:
            varying.append(key)
    return varying


def _usual(key: str, settings: Sequence[dict[str, Plain]]) -> str | None:
    """The value that more than half of the methods have, which goes without saying."""
    ((value, count),) = Counter(repr(table.get(key)) for table in settings).most_common(1)
    return value if 2 * count > len(settings) else None


def _setting(key: str, own: dict[str, Plain]) -> str:
    short = key.removesuffix(".name")
    return f"{short}={own[key]}" if key in own else f"no {short}"
