"""One frozen value that determines a run, read from TOML and changed by key=value."""

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import pydantic
from pydantic import BeforeValidator, ConfigDict, Field

from commonweal.base.errors import ConfigError, did_you_mean
from commonweal.base.files import read_plain
from commonweal.base.values import Value, Values
from commonweal.config import catalog
from commonweal.config.catalog import KINDS, Part

__all__ = ["Experiment", "RunSettings", "change", "named", "read", "values"]

DEVICE = r"^(cpu|cuda(:\d{1,3})?|mps)$"
MODES = ("auto", "vmap", "chunked", "loop")
PARTS = {kind.key: name for name, kind in KINDS.items()}  # key of an experiment -> kind of part
LIFTED = ("partition", "noise", "score")  # keys that files may also write inside `dataset`
PATHS = ("path", "dir")  # parameters that name files


class RunSettings(pydantic.BaseModel):
    """What determines a run besides its parts."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False
    )

    rounds: int = Field(100, ge=1)
    cohort: Value = "all"  # clients per round: a number, or a share of them
    seed: int = Field(0, ge=0, lt=2**64)
    engine: Literal["simulator", "flower"] = "simulator"  # who carries the messages
    vectorize: Literal["auto", "vmap", "chunked", "loop"] = "auto"  # how the simulator computes
    device: str = Field("cpu", pattern=DEVICE)  # where clients compute: cpu, cuda, cuda:1 or mps
    evaluate_every: int = Field(1, ge=1)
    validation: float = Field(0.0, ge=0, lt=1)  # share of training rows to choose the best round by
    patience: int | None = Field(None, ge=1)  # rounds without a better one before the run stops
    watch: Literal["mean", "worst"] = "mean"  # what "better" means, over validation rows
    unseen: float = Field(0.0, ge=0, lt=1)  # share of clients that are held out of training
    augment: str = ""  # the folder of a run whose synthetic rows every client trains on too
    deterministic: bool = False  # one thread: the same bytes on any number of cores
    score: Value = None  # the main score, or a list of scores; None: the dataset's own

    def __init__(self, **values: Value) -> None:
        fields = type(self).model_fields
        for key in values:
            if key not in fields:
                hint = did_you_mean(key, fields)
                raise ConfigError(f"an experiment has no key {key!r}: {hint}")
        if values.get("engine") in MODES:
            old = values["engine"]
            raise ConfigError(
                f'engine = "{old}" is now written vectorize = "{old}": engine says who carries the '
                "messages, 'simulator' or 'flower'"
            )
        try:
            super().__init__(**values)
        except pydantic.ValidationError as error:
            raise ConfigError(catalog.explain(error)) from None
        if not _is_cohort(self.cohort):
            raise ConfigError(
                f"cohort = {self.cohort!r}: give a number of clients, a share above 0 and at most "
                "1, or 'all'"
            )
        for score in self.scores:
            _check_score(score)
        if self.patience is not None and not self.validation:
            raise ConfigError(
                f"patience = {self.patience} needs validation rows, as nothing is chosen on test "
                "rows: set validation = 0.2"
            )

    @property
    def scores(self) -> tuple[str, ...]:
        """The scores by name, the main one first; empty: the dataset's own."""
        if self.score is None:
            return ()
        if isinstance(self.score, str):
            return tuple(name.strip() for name in self.score.split(","))
        return tuple(self.score) if isinstance(self.score, list | tuple) else (self.score,)


def _is_cohort(value: object) -> bool:
    if isinstance(value, float):
        return 0 < value <= 1
    if isinstance(value, bool):
        return False
    return value == "all" or (isinstance(value, int) and value >= 1)


def _check_score(score: object) -> None:
    if not isinstance(score, str):
        raise ConfigError(f"score = {score!r}: give the name of a score, or a list of names")


def _part(kind: str) -> Value:
    """The type of a part: completed and checked by the catalog."""
    if KINDS[kind].several:
        return Annotated[list[Part], BeforeValidator(lambda value: _list_of(kind, value))]
    optional = KINDS[kind].default is None and not KINDS[kind].required
    annotation = Part | None if optional else Part
    return Annotated[annotation, BeforeValidator(lambda value: _complete(kind, value))]


def _complete(kind: str, value: object) -> Part | None:
    return None if value is None else catalog.complete(kind, value)


def _list_of(kind: str, value: object) -> list[Part]:
    if isinstance(value, str):
        value = catalog.split_list(value)
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{KINDS[kind].key} = {value!r}: give a list of names or tables")
    return [catalog.complete(kind, each) for each in value]


def _default(kind: str) -> Value:
    facts = KINDS[kind]
    if facts.several:
        return Field(default_factory=list)
    return ... if facts.required else facts.default


if TYPE_CHECKING:

    class _WithParts(RunSettings):
        def __getattr__(self, key: str) -> Part: ...

else:
    _WithParts = pydantic.create_model(
        "_WithParts",
        __base__=RunSettings,
        **{key: (_part(kind), _default(kind)) for key, kind in PARTS.items()},
    )


class Experiment(_WithParts):
    """Everything that determines a run. Each part is a name, or a table with `name` and parameters.

    >>> Experiment(dataset="vowel", rule={"name": "aaggff-s", "cdf": "frechet"}).rule["variant"]
    'paper'
    """

    def __init__(self, **values: Value) -> None:
        _check_names(values)
        super().__init__(**_with_seed(_lift(values)))

    def change(self, **values: Value) -> "Experiment":
        """The same experiment with other values. A new seed is the dataset's too."""
        base = self.model_dump()
        if "seed" in values and base["dataset"].get("seed") == self.seed:
            del base["dataset"]["seed"]
        return Experiment(**(base | values))

    @property
    def title(self) -> str:
        """The rule, preceded by an algorithm other than averaging."""
        rule = _file_name(self.rule["name"])
        algorithm = _file_name(self.algorithm["name"])
        if algorithm == "averaging":
            return rule
        return algorithm if rule == "fedavg" else f"{algorithm}-{rule}"

    def toml(self) -> str:
        """The whole experiment, defaults included, as it can be read back."""
        return to_toml(self.model_dump())


def to_toml(values: Mapping[str, Value]) -> str:
    """Values and tables as TOML. What is None becomes a comment."""
    top: list[str] = []
    tables: list[str] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            tables.append(f"\n[{key}]")
            tables += [_assignment(name, each) for name, each in value.items()]
        else:
            top.append(_assignment(key, value))
    return "\n".join([*top, *tables]) + "\n"


def _assignment(key: str, value: object) -> str:
    return f"# {key} is not set" if value is None else f"{key} = {_value(value)}"


def _value(value: object) -> str:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(each) for each in value) + "]"
    if isinstance(value, Mapping):
        pairs = [f"{key} = {_value(each)}" for key, each in value.items() if each is not None]
        return "{ " + ", ".join(pairs) + " }"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _file_name(name: str) -> str:
    """A part's name that can be part of a file name: of `./file.py:Rule` the callable."""
    return name.rpartition(":")[2]


def _check_names(values: Mapping[str, Value]) -> None:
    """Raise ConfigError for an unknown key or name, before anything slow is imported."""
    known = [*RunSettings.model_fields, *PARTS]
    for key, value in values.items():
        if key not in known:
            hint = did_you_mean(key, known)
            raise ConfigError(f"an experiment has no key {key!r}: {hint}")
        if key not in PARTS:
            continue
        name = value.get("name") if isinstance(value, Mapping) else value
        if isinstance(name, str) and ":" not in name and not KINDS[PARTS[key]].several:
            catalog.find(PARTS[key], catalog.parse(name)["name"])


def _lift(values: Values) -> Values:
    """Move `dataset.partition`, `dataset.noise` and `dataset.score` to the experiment."""
    dataset = values.get("dataset")
    if isinstance(dataset, str):
        dataset = catalog.parse(dataset)
    if not isinstance(dataset, Mapping):
        return values
    lifted = dict(values) | {"dataset": dict(dataset)}
    for key in LIFTED:
        inner = lifted["dataset"].pop(key, None)
        if inner is None:
            continue
        if values.get(key) is not None:
            raise ConfigError(f"{key} is given twice, as {key} and as dataset.{key}: keep one")
        lifted[key] = inner
    return lifted


def _with_seed(values: Values) -> Values:
    """A dataset that takes a seed has the experiment's, unless it is given its own."""
    dataset = values.get("dataset")
    if not isinstance(dataset, Mapping) or not isinstance(dataset.get("name"), str):
        return values
    takes_seed = "seed" in catalog.find("datasets", dataset["name"]).parameters
    if "seed" in dataset or not takes_seed:
        return values
    return values | {"dataset": {**dataset, "seed": values.get("seed", 0)}}


def read(path: str | Path, changes: Iterable[str] = ()) -> Experiment:
    """The experiment in a TOML file, changed by `key=value` (`rule=term`, `client.lr=0.01`)."""
    return Experiment(**change(values(path), changes))


def named(file: Path, changes: Sequence[str]) -> tuple[Values, str]:
    """The values that a TOML file or a dataset's name stands for, changed, and a name for runs.

    After a dataset's name, its parameters are written without `dataset.` (path=patients.csv). For
    `table`, client=NAME is the column, unless NAME is a client method.
    """
    name = str(file)
    if file.exists() or name not in catalog.entries("datasets"):
        return change(values(file), changes), file.stem
    parameters = catalog.find("datasets", name).parameters
    own = [_own(text, parameters) for text in changes]
    result = change({"dataset": name}, own)
    dataset = _table(result["dataset"])
    return result, Path(str(dataset.get("path", name))).name.partition(".")[0]


def _own(change: str, parameters: Iterable[str]) -> str:
    """A change of a dataset's parameter as one of an experiment's key."""
    key, _, value = change.partition("=")
    key = key.strip()
    if key not in parameters or key in (*LIFTED, "seed"):
        return change
    if key in PARTS and value.strip() in catalog.entries(PARTS[key]):
        return change
    return f"dataset.{change}"


def values(path: str | Path) -> Values:
    """What a TOML file says, not yet checked. Its paths are relative to the file."""
    path = Path(path)
    try:
        found = tomllib.loads(read_plain(path).decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{str(path)!r} is not valid TOML: {error}") from None
    return {key: _located(value, path.parent) for key, value in found.items()}


def _located(value: Value, folder: Path) -> Value:
    """A part with its relative paths made absolute, seen from a folder."""
    if isinstance(value, str) and ".py:" in value:
        file, _, attribute = value.rpartition(":")
        return f"{_absolute(file, folder)}:{attribute}"
    if not isinstance(value, Mapping):
        return value
    located = {key: _located(each, folder) for key, each in value.items()}
    for key in PATHS:
        if isinstance(located.get(key), str):
            located[key] = _absolute(located[key], folder)
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


def change(base: Mapping[str, Value], changes: Iterable[str]) -> Values:
    """Apply `key=value` texts to an experiment's values, in order."""
    result = dict(base)
    for text in changes:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ConfigError(
                f"{text!r} is not a change: write key=value, such as rounds=50 or rule.cdf=frechet"
            )
        head, *keys = _place(result, key.split("."))
        parsed = catalog.parse_value(value)
        if not keys:
            result[head] = _located(_named(head, result.get(head), parsed), Path())
            continue
        if head not in PARTS:
            raise ConfigError(f"{key!r} is not a parameter of a part: {did_you_mean(head, PARTS)}")
        result = _set(result, head, keys, parsed)
    return result


def _place(values: Mapping[str, Value], keys: list[str]) -> list[str]:
    """Where a part is: `partition` and `noise` are inside the dataset where the file says so."""
    dataset = _table(values.get("dataset"))
    head, *rest = keys
    if head == "dataset" and rest and rest[0] in LIFTED and rest[0] not in dataset:
        return rest
    return ["dataset", *keys] if head in LIFTED and head in dataset else keys


def _set(values: Values, head: str, keys: list[str], value: Value) -> Values:
    """Set a parameter of a part, where the part has several levels (`rule.rule.cdf`)."""
    part = values.get(head, KINDS[PARTS[head]].default)
    return values | {head: _located(_within(_table(part), keys, value), Path())}


def _table(part: Value) -> Values:
    if isinstance(part, str):
        return catalog.parse(part)
    return dict(part) if isinstance(part, Mapping) else {}


def _within(part: Values, keys: list[str], value: Value) -> Values:
    key, *rest = keys
    if rest:
        value = _within(_table(part.get(key)), rest, value)
    return part | {key: value}


def _named(head: str, old: Value, value: Value) -> Value:
    """A part by name. Another client method keeps what all have (lr, batch, ...)."""
    if head != "client" or not isinstance(old, Mapping) or not isinstance(value, str):
        return value
    part = catalog.parse(value)
    known = catalog.find("clients", "sgd").parameters.keys()
    common = known & catalog.find("clients", part["name"]).parameters.keys()
    return {key: each for key, each in old.items() if key in common} | part
