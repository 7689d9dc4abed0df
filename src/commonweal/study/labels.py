"""Runs by label: those that differ in nothing but their seeds belong together."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, combinations
from pathlib import Path

from commonweal.base.errors import RunError
from commonweal.base.files import digest
from commonweal.base.plain import Plain, flat
from commonweal.config.experiment import MODELS, OF_NETWORKS
from commonweal.data.identity import changes
from commonweal.record.identity import read_data
from commonweal.record.record import Outline, Record
from commonweal.study.plan import ALONE, POOLED

# What differs between seeds: a model that is given is initialised again, and has another digest.
SEEDS = ("seed", "dataset.seed", "dataset.digest", "model.digest")

DATA = ("dataset", "partition", "label_noise", "holdout_clients", "score")  # of an experiment
BASELINES = (ALONE, POOLED)
PLACES = ("dataset.path", "dataset.dir")  # of files, which are known by what they hold
SHOWN = 3  # settings that a name mentions
SPLITS = ("dataset.seed", "dataset.digest", "partition.seed")  # what a split is drawn by


def runs_in(folders: Sequence[str | Path]) -> list[Record]:
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


def data_key(outline: Outline) -> str:
    """A key that runs on the same data share; seeds draw other splits of it."""
    settings = sorted(_data_settings(outline).items(), key=repr)
    facts = outline.facts
    text = repr((settings, facts.federation, facts.score, facts.clients))
    return digest(text.encode())


def _data_settings(outline: Outline) -> dict[str, Plain]:
    """Return how data become samples of clients. The place of a file that is known is left out."""
    data = flat({key: outline.experiment.get(key) for key in DATA})
    places = PLACES if outline.facts.federation else ()
    for key in (*SPLITS, *places):
        data.pop(key, None)
    return data


def check_same_data(records: Sequence[Outline]) -> None:
    """Raise RunError for runs that cannot stand in one table: they are of different data."""
    first: dict[str, Outline] = {}
    for record in records:
        facts = record.facts
        if facts.samples is None:
            continue  # what it is of is not known here
        if facts.federation:
            group, data = "files", facts.federation
        else:  # every seed has data of its own
            group, data = repr((_data_settings(record), _drawn_by(record))), facts.samples
        known = first.setdefault(group, record)
        if data not in (known.facts.federation, known.facts.samples):
            raise RunError(_different(known, record))


def _drawn_by(record: Outline) -> list[Plain]:
    """The seeds of a run."""
    settings = flat(record.experiment)
    return [settings.get(key) for key in ("seed", "dataset.seed", "partition.seed")]


def _different(one: Outline, other: Outline) -> str:
    """Describe the differences between the data of two runs."""
    told: list[str] = []
    before, now = read_data(one.folder), read_data(other.folder)
    if before is not None and now is not None:
        told = changes(before.identity, now.identity)
    what = f" ({'; '.join(told)})" if told else ""
    return (
        f"{str(one.folder)!r} and {str(other.folder)!r} are runs of different data{what}: name the "
        "folders of one federation, or start the older ones again with --force"
    )


def data_name(outline: Outline) -> str:
    """The dataset; for a table its file; for data given in Python the folder."""
    dataset = outline.experiment.get("dataset")
    if isinstance(dataset, dict) and dataset.get("path"):
        return Path(str(dataset["path"])).stem
    name = outline.part("dataset", "data")
    return outline.folder.parent.name if name == "given" else name


def data_names(outlines: Sequence[Outline]) -> list[str]:
    """The datasets of some runs, each on other data. Equal names are followed by what differs."""
    names = list(map(data_name, outlines))
    settings = []
    for outline in outlines:
        given = _data_settings(outline).items()
        settings.append({key: str(value) for key, value in given if value})
    labelled = []
    for name, own, outline in zip(names, settings, outlines, strict=True):
        others = [s for other, s in zip(names, settings, strict=True) if other == name]
        text = name
        if len(others) > 1:
            keys = dict.fromkeys(chain(*others))
            differing = [key for key in keys if len({other.get(key) for other in others}) > 1]
            parts = []
            for key in filter(own.__contains__, differing[:SHOWN]):
                parts.append(f"{key.removeprefix('dataset.').removesuffix('.name')} {own[key]}")
            text = f"{name} ({', '.join(parts) or outline.folder.parent.name})"
        labelled.append(text)
    return labelled


def by_label(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The runs by method: the rule, the client method, and the settings in which they differ.

    A second run of the same experiment and seed has the label with "#2". Local and pooled training
    stand last.
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(method_key(record), []).append(record)
    labelled: dict[str, list[Record]] = {}
    for label, group in zip(labels(g[0] for g in groups.values()), groups.values(), strict=True):
        counts: Counter[int] = Counter()
        for record in sorted(group, key=seed_of):
            counts[seed_of(record)] += 1
            again = counts[seed_of(record)]
            labelled.setdefault(label if again == 1 else f"{label} #{again}", []).append(record)
    return dict(sorted(labelled.items(), key=lambda pair: pair[0].split(" ")[0] in BASELINES))


def common_seeds(
    seeds: Mapping[str, Collection[int]], needed: str = ""
) -> tuple[list[str], list[int]]:
    """The labels and seeds to compare: as many runs as possible of equal seeds.

    At least two labels are compared, where there are two: one that was tried with few seeds does
    not reduce the comparison of the others to these.

    Args:
        seeds: Of the runs, by label.
        needed: A label that is always compared.

    Returns:
        The labels in the given order, and the seeds that all of them have; none if no two labels
        have a seed in common.

    >>> common_seeds({"alone": [0, 1, 2], "fedavg": [0, 1, 2], "afl": [0]})
    (['alone', 'fedavg'], [0, 1, 2])
    >>> common_seeds({"fedavg": [0, 1, 2], "afl": [2, 3]})
    (['fedavg', 'afl'], [2])
    """
    sets = {label: frozenset(own) for label, own in seeds.items()}
    shared = {one & other for one, other in combinations(sets.values(), 2)}
    shared.add(frozenset.intersection(*sets.values()))
    best: tuple[list[str], frozenset[int]] = ([], frozenset())
    for common in sorted(shared, key=sorted):
        labels = [label for label, own in sets.items() if own >= common]
        if not common or (needed and needed not in labels):
            continue
        runs = len(labels) * len(common)
        if (runs, len(labels)) > (len(best[0]) * len(best[1]), len(best[0])):
            best = labels, common
    return best[0], sorted(best[1])


def seed_of(record: Outline) -> int:
    return int(record.experiment.get("seed", 0))


def baseline_of(record: Outline) -> str | None:
    """Return the baseline of a run as `compare` adds them: local or pooled training."""
    if record.part("client") == ALONE:
        return ALONE
    return POOLED if record.part("algorithm") == POOLED else None


def method_key(record: Outline) -> str:
    """Return a key that runs share if they differ in nothing but their seeds."""
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
    networks = [own for own in others if not _is_trees(own)]
    usual = {}
    for key in _varying(others):
        if key.partition(".")[0] not in (*PARTS, *OF_NETWORKS) and key not in OF_METHODS:
            usual[key] = _usual(key, others)
    of_networks = {}  # the parts that trees do not have
    for key in _varying(networks):
        if key.partition(".")[0] in OF_NETWORKS and key.partition(".")[0] not in PARTS:
            of_networks[key] = _usual(key, networks)
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
        shared = usual if _is_trees(own) else usual | of_networks
        unusual = [key for key, value in shared.items() if repr(own.get(key)) != value]
        apart = [key for key in within[method] if key not in shared]
        texts.append(" ".join([method, *(_setting(key, own) for key in unusual + apart)]))
    return texts


def _agreement(own: dict[str, Plain], others: Sequence[dict[str, Plain]]) -> int:
    """Return the number of settings of other runs that are the same."""
    return sum(own.get(key) == value for other in others for key, value in other.items())


PARTS = ("name", "rule", "algorithm", "client")  # which a method is named after
OF_METHODS = ("validation",)  # some methods hold samples back, and others have no use for it


def _settings(record: Outline) -> dict[str, Plain]:
    settings = flat(record.experiment)
    places = PLACES if record.facts.federation else ()
    for key in (*SEEDS, *places):
        settings.pop(key, None)
    return settings


def _is_trees(own: dict[str, Plain]) -> bool:
    """Return whether a run trains no network, so that its algorithm's name implies its model."""
    return own.get("algorithm.name") in MODELS


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
