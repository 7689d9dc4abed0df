"""One frozen value that determines a run, read from TOML and changed by key=value."""

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import tomli_w
from pydantic import BeforeValidator, ConfigDict, Field

from commonweal.base.errors import ConfigError, did_you_mean
from commonweal.base.files import digest, read_plain
from commonweal.config import catalog
from commonweal.config.catalog import KINDS, Part

DEVICE = r"^(cpu|cuda(:\d{1,3})?|mps)$"
PARTS = {kind.key: name for name, kind in KINDS.items()}  # key of an experiment -> kind of part
# Keys that say nothing more in the name of a run's folder: its first words, what a table is, and
# how long and how often.
IN_NAME = (
    "rule",
    "algorithm",
    "seed",
    "rounds",
    "evaluate_every",
    "engine",
    "dataset.path",
    "dataset.label",
    "dataset.client",
)
LONGEST_SUFFIX = 80  # characters
MODELS = {"boosting": "trees", "glm": "logistic"}  # the models of algorithms that train no other
OF_NETWORKS = ("model", "client", "server", "channels")  # what these algorithms do not take
LIFTED = ("partition", "label_noise", "score")  # keys that files may also write inside `dataset`
DIRECTIONS = ("lower:", "higher:")  # in front of a score of one's own: what is better
PATHS = ("path", "dir", "public")  # parameters that name files
OF_FIT = "fit"  # a table in files of `commonweal fit`, with what it needs besides the experiment

Tree = dict[str, object]  # an experiment's values: its parts are tables


# Types of values, and what to give instead of a wrong one.
Cohort = Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, le=1)] | Literal["all"]
Names = Annotated[tuple[str, ...], Field(strict=False)]  # lists, too
Weights = Annotated[tuple[float, ...], Field(strict=False, min_length=1)]
ByClass = Annotated[dict[Annotated[str, BeforeValidator(str)], float], Field(min_length=1)]
Loss = Literal["squared", "huber", "absolute", "poisson"]
OWN_LOSS = "; a loss of your own is written ./file.py:function"
HINTS = {
    "cohort": "give a number of clients, a share above 0 and at most 1, or 'all'",
    "score": "give the name of a score, or a list of names",
    "class_weight": "give 'balanced', a list of numbers in the order of the classes, or a table of "
    "numbers by class",
}


class RunSettings(pydantic.BaseModel):
    """The settings of a run besides its parts."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        validate_default=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,  # parts
    )

    name: str | None = Field(None, min_length=1)  # what tables and figures call the run
    rounds: int = Field(100, ge=1, lt=2**31)
    cohort: Cohort = "all"
    seed: int = Field(0, ge=0, lt=2**64)
    engine: Literal["simulator", "torchrun", "flower"] = "simulator"  # who carries the messages
    vectorize: Literal["auto", "vmap", "chunked", "loop"] = "auto"  # how the simulator computes
    device: str = Field("cpu", pattern=DEVICE)  # where clients compute: cpu, cuda, cuda:1 or mps
    precision: Literal["float32", "bfloat16"] = "float32"  # bfloat16: training is mixed
    evaluate_every: int = Field(1, ge=1)
    validation: float = Field(0.0, ge=0, lt=1)  # share of training rows to choose the best round by
    patience: int | None = Field(None, ge=1)  # rounds without a better one before the run stops
    monitor: Literal["mean", "worst"] = "mean"  # what "better" means, over validation rows
    holdout_clients: float = Field(0.0, ge=0, lt=1)  # share of clients held out of training
    policy: str = ""  # a site's policy (TOML), tried at every client of the simulator
    without: str | Names = ()  # clients that are left out, as if there were no such data
    synthetic_from: str = ""  # a run's folder, whose synthetic samples every client trains on too
    deterministic: bool = False  # one thread: the same bytes on any number of cores
    score: str | Names | None = None  # the main one first; None: the dataset's own
    # Of a regression by name, or a function of one's own: "./my_losses.py:focal"
    loss: Loss | Annotated[str, Field(pattern=":")] | None = None
    target: Literal["log"] | None = None  # a regression's model is trained on logarithms
    # The score for which a threshold of two classes is chosen on validation samples
    threshold: Literal["f1", "balanced-accuracy", "accuracy"] | None = None
    # By what the losses of classes are multiplied
    class_weight: Literal["balanced"] | Weights | ByClass | None = None

    def __init__(self, **values: object) -> None:
        _check_keys(values, type(self).model_fields)
        try:
            super().__init__(**values)
        except pydantic.ValidationError as error:
            key = str(error.errors()[0]["loc"][0])
            if key in HINTS:
                raise ConfigError(f"{key} = {values[key]!r}: {HINTS[key]}") from None
            more = OWN_LOSS if key == "loss" else ""
            raise ConfigError(catalog.explain(error) + more) from None
        for key, value in (("threshold", self.threshold), ("patience", self.patience)):
            if value is not None and not self.validation:
                raise ConfigError(
                    f"{key} = {value!r} needs validation rows, as nothing is chosen on test rows: "
                    "set validation = 0.2"
                )

    @property
    def scores(self) -> tuple[str, ...]:
        """The scores by name, the main one first; empty: the dataset's own."""
        if self.score is None:
            return ()
        if isinstance(self.score, str):
            return tuple(name.strip() for name in self.score.split(","))
        return self.score

    @property
    def left_out(self) -> tuple[str, ...]:
        """The names of the clients that are left out."""
        return (self.without,) if isinstance(self.without, str) else self.without


def _check_keys(values: Iterable[str], known: Collection[str]) -> None:
    """Raise ConfigError for a key that no experiment has."""
    for key in values:
        if key not in known:
            raise ConfigError(f"an experiment has no key {key!r}: {did_you_mean(key, known)}")


def _default(kind: str) -> Any:  # of a type that mypy accepts for a part, like pydantic's Field
    return Field(KINDS[kind].default)


class Experiment(RunSettings):
    """Everything that determines a run. Each part is a name, or a table with `name` and parameters.

    >>> Experiment(dataset="vowel", rule={"name": "aaggff-s", "cdf": "frechet"}).rule["variant"]
    'paper'
    """

    dataset: Part
    partition: Part | None = None
    label_noise: Part | None = None
    model: Part = _default("models")
    algorithm: Part = _default("algorithms")
    rule: Part = _default("rules")
    client: Part = _default("clients")
    server: Part = _default("servers")
    sampler: Part = _default("samplers")
    channels: list[Part] = []

    def __init__(self, **values: object) -> None:
        tree = parse_experiment(values)
        _check_names(tree)
        super().__init__(**_completed(tree))

    def change(self, **values: object) -> "Experiment":
        """The same experiment with other values. A new seed is the dataset's too."""
        base = dict(self)
        if "seed" in values and self.dataset.get("seed") == self.seed:
            base["dataset"] = dict(self.dataset)
            del base["dataset"]["seed"]
        return Experiment(**(base | values))

    @property
    def title(self) -> str:
        """The name of the experiment as part of a file's name."""
        return file_name(title_of(dict(self)))

    def toml(self) -> str:
        """The whole experiment, defaults included, as it can be read back."""
        return to_toml(self.model_dump())


def to_toml(values: Mapping[str, object]) -> str:
    """Values and tables as TOML, without those that are None."""
    return tomli_w.dumps(_without_none(values))


def _without_none(values: Mapping[str, object]) -> Tree:
    tree: Tree = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            tree[key] = _without_none(value)
        elif isinstance(value, list | tuple):
            tree[key] = [
                _without_none(item) if isinstance(item, Mapping) else item for item in value
            ]
        elif value is not None:
            tree[key] = value
    return tree


def part_name(part: object) -> str:
    """The name of a part, given as text or as a table."""
    return str(part.get("name", "?")) if isinstance(part, Mapping) else str(part)


def title_of(experiment: Mapping[str, object]) -> str:
    """The name of an experiment, or else its rule, after an algorithm other than averaging."""
    if experiment.get("name"):
        return str(experiment["name"])
    # Of `./file.py:Rule`, Rule.
    rule = part_name(experiment.get("rule", "fedavg")).rpartition(":")[2]
    algorithm = part_name(experiment.get("algorithm", "averaging")).rpartition(":")[2]
    if algorithm == "averaging":
        return rule
    return algorithm if rule == "fedavg" else f"{algorithm}-{rule}"


def parse_experiment(values: Mapping[str, object]) -> Tree:
    """An experiment's values with every part as a table, and those inside `dataset` lifted out.

    >>> dataset = {"name": "digits", "partition": "iid(clients=3)"}
    >>> parse_experiment({"rounds": 5, "dataset": dataset})
    {'rounds': 5, 'dataset': {'name': 'digits'}, 'partition': {'name': 'iid', 'clients': 3}}
    """
    tree = dict(values)
    dataset = _table(tree.get("dataset"))
    if isinstance(dataset, Mapping) and dataset.keys() & set(LIFTED):
        for key in LIFTED:
            value = dataset.get(key)
            if value is not None and tree.get(key) is not None:
                raise ConfigError(f"{key} is given twice, as {key} and as dataset.{key}: keep one")
            if value is not None:
                tree[key] = value
        tree["dataset"] = {key: value for key, value in dataset.items() if key not in LIFTED}
    for key, kind in PARTS.items():
        if tree.get(key) is not None:
            tree[key] = _parts(tree[key]) if KINDS[kind].several else _table(tree[key])
    return tree


def _table(part: object) -> object:
    """A part that is given as text, as a table; anything else as it is."""
    return catalog.parse_part(part) if isinstance(part, str) else part


def _parts(parts: object) -> object:
    """Several parts, given as text with commas, as one table, or as a list."""
    if isinstance(parts, str):
        parts = catalog.split_list(parts)
    if isinstance(parts, Mapping):
        parts = [parts]
    return [_table(part) for part in parts] if isinstance(parts, list | tuple) else parts


def _check_names(tree: Tree) -> None:
    """Raise ConfigError for an unknown key or name, before anything slow is imported."""
    _check_keys(tree, [*RunSettings.model_fields, *PARTS])
    for key, kind in PARTS.items():
        part = tree.get(key)
        name = part.get("name") if isinstance(part, Mapping) else None
        if isinstance(name, str) and ":" not in name:
            catalog.find_entry(kind, name)


def _completed(tree: Tree) -> Tree:
    """The values with all parameters of all parts. A dataset's seed is the experiment's."""
    whole = dict(tree)
    dataset = tree.get("dataset")
    if isinstance(dataset, Mapping) and isinstance(dataset.get("name"), str):
        open_keys = (
            catalog.find_entry("datasets", dataset["name"]).parameters.keys() - dataset.keys()
        )
        if "seed" in open_keys:
            whole["dataset"] = {**dataset, "seed": tree.get("seed", 0)}
    model = MODELS.get(part_name(tree.get("algorithm")))
    if model is not None:
        whole.setdefault("model", model)
    for key, kind in PARTS.items():
        part = whole.get(key, [] if KINDS[kind].several else KINDS[kind].default)
        if not KINDS[kind].several:
            whole[key] = None if part is None else catalog.complete(kind, part)
        elif isinstance(part, list | tuple):
            whole[key] = [catalog.complete(kind, inner) for inner in part]
        else:
            raise ConfigError(f"{key} = {part!r}: give a list of names or tables")
    return {key: value for key, value in whole.items() if key in tree or value is not None}


def read(path: str | Path, changes: Iterable[str] = ()) -> Experiment:
    """The experiment in a TOML file, changed by `key=value` (`rule=term`, `client.lr=0.01`)."""
    return Experiment(**change(values(path), changes))


def named(file: Path, changes: Sequence[str]) -> tuple[Tree, str, str]:
    """The values that a TOML file or a dataset's name stands for, and words for a run's folder.

    A dataset of a file is named as ./mine.py:load.

    After a dataset's name, its parameters are written without `dataset.` (path=patients.csv). For
    `table`, client=NAME is the column, unless NAME is a client method.
    """
    name = str(file)
    is_dataset = name in catalog.entries("datasets") or ".py:" in name
    if file.exists() or not is_dataset:
        return change(values(file), changes), file.stem, suffix(changes)
    parameters = catalog.find_entry("datasets", name).parameters
    own = [_of_dataset(text, parameters) for text in changes]
    result = change({"dataset": _located({"name": name}, Path())}, own)
    dataset = result["dataset"]
    path = dataset.get("path", name) if isinstance(dataset, Mapping) else name
    return result, table_stem(Path(str(path))), suffix(own)


def table_stem(path: Path) -> str:
    """The name of a table without what says how it is written.

    >>> table_stem(Path("a.2024.csv")), table_stem(Path("patients.csv.gz"))
    ('a.2024', 'patients')
    """
    name = path.name
    for ending in (".gz", ".csv", ".tsv", ".txt", ".parquet", ".npz"):
        name = name.removesuffix(ending) or name
    return name


def suffix(changes: Iterable[str]) -> str:
    """Return what changes add to the name of a default folder, so that each setting has its own.

    `rounds` adds nothing: a run with more rounds continues the shorter one.

    >>> suffix(["rule=term", "client.lr=0.2", "rounds=50"]), suffix(["rule=term(t=2)"])
    ('-client.lr=0.2', '-rule=term_t=2_')
    """
    name = ""
    for text in changes:
        key, _, value = text.partition("=")
        if key.strip() not in IN_NAME or "(" in value:
            name += f"-{file_name(text)}"
    if len(name) <= LONGEST_SUFFIX:
        return name
    return f"{name[:LONGEST_SUFFIX]}-{digest(name.encode())[:8]}"


def file_name(text: str) -> str:
    """A text as part of a file's name."""
    return re.sub(r"[^\w.+=-]+", "_", text.strip())


def _of_dataset(text: str, parameters: Iterable[str]) -> str:
    """A change of a dataset's parameter as one of an experiment's key."""
    key, _, value = text.partition("=")
    key = key.strip()
    if key not in parameters or key in (*LIFTED, "seed"):
        return text
    if key in PARTS and value.strip() in catalog.entries(PARTS[key]):
        return text
    return f"dataset.{text}"


def values(path: str | Path) -> Tree:
    """Read a TOML file, without checks. Its paths are relative to the file."""
    path = Path(path)
    try:
        text = read_plain(path).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{str(path)!r} is not valid TOML: {error}") from None
    return values_in(text, path)


def values_in(text: str, path: Path) -> Tree:
    """Return the values in the text of a TOML file. path: of the file"""
    try:
        read = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{str(path)!r} is not valid TOML: {error}") from None
    read.pop(OF_FIT, None)
    tree = parse_experiment(read)
    return {key: _located(value, path.parent) for key, value in tree.items()}


def _located(value: object, folder: Path) -> object:
    """A part with its relative paths made absolute, seen from a folder."""
    if isinstance(value, str) and value.startswith(DIRECTIONS):
        direction, _, rest = value.partition(":")
        return f"{direction}:{_located(rest, folder)}"
    if isinstance(value, str) and ".py:" in value:
        file, _, attribute = value.rpartition(":")
        return f"{_absolute(file, folder)}:{attribute}"
    if not isinstance(value, Mapping):
        return value
    located = {key: _located(item, folder) for key, item in value.items()}
    for key in PATHS:
        path = located.get(key)
        if isinstance(path, str) and path:
            located[key] = _absolute(path, folder)
    return located


def _absolute(text: str, folder: Path) -> str:
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"the path {text!r} cannot be used: {error}") from None
    beside = folder / path
    if path.is_absolute() or (path.exists() and not beside.exists()):
        return str(path.absolute())
    return str(beside.absolute())


def change(base: Mapping[str, object], changes: Iterable[str]) -> Tree:
    """Apply `key=value` texts to an experiment's values, in order."""
    changes = list(changes)
    tree = _for_trees(parse_experiment(base), changes)
    for text in changes:
        key, equals, value = text.partition("=")
        head, *keys = key.strip().split(".")
        if not equals or not head:
            raise ConfigError(
                f"{text!r} is not a change: write key=value, such as rounds=50 or rule.cdf=frechet"
            )
        if head == "dataset" and keys and keys[0] in LIFTED:
            head, *keys = keys
        if keys and head not in PARTS:
            hint = did_you_mean(head, PARTS)
            raise ConfigError(f"{key.strip()!r} is not a parameter of a part: {hint}")
        parsed = catalog.parse_value(value)
        if keys:
            tree[head] = _within(tree.get(head, KINDS[PARTS[head]].default), keys, parsed)
        else:
            tree[head] = _renamed_part(head, tree.get(head), parsed)
        tree[head] = _located(tree[head], Path())
    return parse_experiment(tree)


def _for_trees(tree: Tree, changes: Sequence[str]) -> Tree:
    """The values without those parts of networks that a newly chosen algorithm does not take."""
    for text in changes:
        key, _, value = text.partition("=")
        if key.strip() == "algorithm":
            model = MODELS.get(part_name(_table(catalog.parse_value(value))))
            if model is not None:
                rest = {key: part for key, part in tree.items() if key not in OF_NETWORKS}
                return rest | {"model": {"name": model}}
    return tree


def _within(part: object, keys: list[str], value: object) -> Tree:
    """A part with a parameter set, at any depth (`rule.rule.cdf`)."""
    table = _table(part)
    inside = dict(table) if isinstance(table, Mapping) else {}
    key, *rest = keys
    return inside | {key: _within(inside.get(key), rest, value) if rest else value}


def _renamed_part(head: str, old: object, value: object) -> object:
    """A part by name. Another client method keeps what all have (lr, batch, ...)."""
    if head != "client" or not isinstance(old, Mapping) or not isinstance(value, str):
        return value
    part = catalog.parse_part(value)
    known = catalog.find_entry("clients", "sgd").parameters.keys()
    common = known & catalog.find_entry("clients", part.name).parameters.keys()
    return {key: item for key, item in old.items() if key in common} | part


def part_table(part: object) -> dict[str, object]:
    """A part of an experiment as a table, from its text, its table or nothing."""
    if isinstance(part, str):
        return catalog.parse_part(part)
    return dict(part) if isinstance(part, Mapping) else {}
