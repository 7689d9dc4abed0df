"""One frozen value that determines a run, read from TOML and overridden by key=value."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BeforeValidator, ConfigDict, Field

from commonweal import catalog
from commonweal.catalog import Part
from commonweal.engines.simulator import MODES
from commonweal.errors import ConfigError, did_you_mean

__all__ = ["Experiment", "Plain", "override", "read", "values"]

_PARTS = {
    "dataset": "datasets",
    "model": "models",
    "algorithm": "algorithms",
    "rule": "rules",
    "client": "clients",
    "server": "servers",
}


def _part(kind: str) -> Any:
    return Annotated[Part, BeforeValidator(lambda value: catalog.complete(kind, value))]


class Plain(pydantic.BaseModel):
    """What determines a run besides its parts."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False)

    rounds: int = Field(100, ge=1)
    cohort: Any = "all"  # clients a round: a number, or a share of them
    seed: int = Field(0, ge=0, lt=2**64)
    engine: Literal[MODES] = "auto"  # type: ignore[valid-type]
    evaluate_every: int = Field(1, ge=1)

    def __init__(self, **values: Any) -> None:
        for key in values:
            if key not in type(self).model_fields:
                raise ConfigError(f"an experiment has no key {key!r}: {did_you_mean(key, type(self).model_fields)}")
        try:
            super().__init__(**values)
        except pydantic.ValidationError as error:
            raise ConfigError(catalog.explain(error)) from None
        if not _is_cohort(self.cohort):
            what = "give a number of clients, a share above 0 and at most 1, or 'all'"
            raise ConfigError(f"cohort = {self.cohort!r}: {what}")


class Experiment(Plain):
    """Everything that determines a run. Each part is a name, or a table with `name` and parameters.

    >>> Experiment(dataset="vowel", rule={"name": "aaggff-s", "cdf": "frechet"}).rule["variant"]
    'paper'
    """

    dataset: _part("datasets")  # type: ignore[valid-type]
    model: _part("models") = "logistic"  # type: ignore[valid-type]
    algorithm: _part("algorithms") = "averaging"  # type: ignore[valid-type]
    rule: _part("rules") = "fedavg"  # type: ignore[valid-type]
    client: _part("clients") = "sgd"  # type: ignore[valid-type]
    server: _part("servers") = "sgd"  # type: ignore[valid-type]

    def __init__(self, **values: Any) -> None:
        super().__init__(**_with_seed(values))

    def change(self, **values: Any) -> "Experiment":
        """The same experiment but for these keys; a new seed is the dataset's too, where that had the old one."""
        base = self.model_dump()
        if "seed" in values and base["dataset"].get("seed") == self.seed:
            del base["dataset"]["seed"]
        return Experiment(**(base | values))

    @property
    def title(self) -> str:
        """What tells this run from others on the same data: its rule, after an algorithm other than averaging."""
        rule, algorithm = self.rule["name"], self.algorithm["name"]
        return rule if algorithm == "averaging" else algorithm if rule == "fedavg" else f"{algorithm}-{rule}"

    def toml(self) -> str:
        """The whole experiment, defaults included, as it can be read back."""
        top, tables = [], []
        for key, value in self.model_dump().items():
            if not isinstance(value, dict):
                top.append(f"{key} = {_value(value)}")
                continue
            tables.append(f"\n[{key}]")
            tables += [f"# {k} is not set" if v is None else f"{k} = {_value(v)}" for k, v in value.items()]
        return "\n".join([*top, *tables]) + "\n"


def _is_cohort(value: Any) -> bool:
    if isinstance(value, float):
        return 0 < value <= 1
    return value == "all" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1)


def _with_seed(values: dict[str, Any]) -> dict[str, Any]:
    """A dataset that is drawn or split by a seed takes the experiment's, unless it is given one of its own."""
    part = values.get("dataset")
    part = {"name": part} if isinstance(part, str) else part
    if not isinstance(part, Mapping) or not isinstance(part.get("name"), str) or "seed" in part:
        return values
    if "seed" not in catalog.find("datasets", part["name"]).parameters:
        return values
    return values | {"dataset": {**part, "seed": values.get("seed", 0)}}


def _value(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_value(v)}" for k, v in value.items() if v is not None) + " }"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def read(path: str | Path, overrides: Iterable[str] = ()) -> Experiment:
    """The experiment in a TOML file, with `key=value` overrides (`rule=term`, `client.lr=0.01`)."""
    return Experiment(**override(values(path), overrides))


def values(path: str | Path) -> dict[str, Any]:
    """What a TOML file says, not yet checked."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(path)!r} is not TOML: {error}") from None


def override(base: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """These values with `key=value` texts laid over them, in order."""
    result = dict(base)
    for text in overrides:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ConfigError(f"{text!r} is not an override: write key=value, such as rounds=50 or rule.cdf=frechet")
        head, dot, rest = key.partition(".")
        if not dot:
            result[head] = _named(head, result.get(head), _parse(value))
            continue
        if head not in _PARTS:
            raise ConfigError(f"{key!r} is not a parameter of a part: {did_you_mean(head, _PARTS)}")
        part = result.get(head, Experiment.model_fields[head].default)
        part = {"name": part} if isinstance(part, str) else dict(part if isinstance(part, Mapping) else {})
        result[head] = _within(part, rest.split("."), _parse(value))
    return result


def _named(head: str, old: Any, value: Any) -> Any:
    """A part by its name. Another client method keeps what all have (lr, batch, ...), so that they can be compared."""
    if head != "client" or not isinstance(old, Mapping) or not isinstance(value, str):
        return value
    common = catalog.find("clients", "sgd").parameters.keys() & catalog.find("clients", value).parameters
    return {"name": value} | {key: given for key, given in old.items() if key in common}


def _within(part: dict[str, Any], keys: list[str], value: Any) -> dict[str, Any]:
    """A part with one value set, in a part of its own where the key has further dots (`dataset.partition.alpha`)."""
    key, *rest = keys
    if rest:
        inner = part.get(key, {})
        inner = {"name": inner} if isinstance(inner, str) else dict(inner if isinstance(inner, Mapping) else {})
        value = _within(inner, rest, value)
    return part | {key: value}


def _parse(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()
