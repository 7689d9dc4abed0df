"""Names to things: a file in a folder is an entry, its signature is its configuration.

`aaggff-d` is `rules/aaggff_d.py`; a file that offers several things names each as the thing is called in Python.
Anything outside the package is named `package.module:callable`.
"""

import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

import pydantic

from commonweal.errors import ConfigError, did_you_mean
from commonweal.noise import Noise
from commonweal.partition import Partition
from commonweal.rule import Rule
from commonweal.server import ServerStep

__all__ = ["KINDS", "Entry", "build", "complete", "entries", "find"]

# Where each kind lives: packages whose files are scanned, or modules whose __all__ is.
KINDS = {
    "rules": ("commonweal.rules",),
    "clients": ("commonweal.clients",),
    "servers": ("commonweal.server",),
    "algorithms": ("commonweal.algorithm", "commonweal.synthetic"),
    "datasets": ("commonweal.datasets",),
    "models": ("commonweal.models",),
    "partitions": ("commonweal.partition",),
    "noises": ("commonweal.noise",),
}
# What the experiment itself supplies, not its author.
SUPPLIED = {"models": ("shape", "outputs", "labels"), "algorithms": ("rule", "local", "step", "setting")}

# Supplied only to those who ask: the shape of a row's label (() where it has one), and what algorithms may take.
OPTIONAL = ("labels", "rule", "local", "step", "setting")

# Parameters that are parts themselves: a rule that wraps a rule, a step that wraps a step, a dataset's partition.
NESTED: dict[Any, str] = {Rule: "rules", ServerStep: "servers", Partition: "partitions", Noise: "noises"}

Part = dict[str, Any]  # {"name": ..., parameters ...}


@dataclass(frozen=True)
class Entry:
    """One thing that an experiment can name."""

    kind: str
    name: str
    factory: Callable[..., Any]
    module: Any  # the file that offers it

    @property
    def about(self) -> str:
        """What its file, or itself, says of it."""
        shared = self.module.__name__ in KINDS[self.kind]
        return inspect.cleandoc((self.factory if shared else self.module).__doc__ or "")

    @property
    def paper(self) -> str:
        """Where it comes from: the first sentence after the idea."""
        _, _, rest = self.about.partition("\n\n")
        sentence = rest.split("\n\n")[0].replace("\n", " ")
        year = re.search(r"(?:19|20)\d\d\b|under review\)", sentence)
        return sentence[: year.end()] if year else ""

    @property
    def details(self) -> str:
        """The formula and the parameters, as its own docstring gives them."""
        return inspect.cleandoc(self.factory.__doc__ or "")

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        supplied = SUPPLIED.get(self.kind, ())
        return {n: p for n, p in inspect.signature(self.factory).parameters.items() if n not in supplied}

    @property
    def nested(self) -> dict[str, str]:
        """The parameters that are parts, with their kinds."""
        hints = get_type_hints(self.factory)
        kinds = {n: [NESTED[h] for h in (hint, *get_args(hint)) if h in NESTED] for n, hint in hints.items()}
        return {n: kind[0] for n, kind in kinds.items() if kind and n in self.parameters}

    @property
    def defaults(self) -> dict[str, Any]:
        """The parameters that need not be given, as plain values."""
        given = {name: p.default for name, p in self.parameters.items()}
        return {name: _table(value) for name, value in given.items() if value is not inspect.Parameter.empty}

    def schema(self) -> type[pydantic.BaseModel]:
        """The parameters with their types, as something that validates."""
        hints, defaults = get_type_hints(self.factory), self.defaults
        hints |= dict.fromkeys(self.nested, Part | None)
        fields: dict[str, Any] = {name: (hints.get(name, Any), defaults.get(name, ...)) for name in self.parameters}
        strict = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)
        return pydantic.create_model(self.name, __config__=strict, **fields)


@cache
def entries(kind: str) -> Mapping[str, Entry]:
    """Everything of a kind, by name."""
    if kind not in KINDS:
        raise ConfigError(f"there are no {kind!r}: {did_you_mean(kind, KINDS)}")
    found = {}
    for stem, module in (pair for home in KINDS[kind] for pair in _files(importlib.import_module(home))):
        offered = [getattr(module, name) for name in module.__all__]
        for thing in offered:
            name = _plain(stem if stem and len(offered) == 1 else thing.__name__.lower())
            found[name] = Entry(kind, name, thing, module)
    return dict(sorted(found.items()))


def _files(home: Any) -> list[tuple[str, Any]]:
    if not hasattr(home, "__path__"):
        return [("", home)]
    stems = [m.name for m in pkgutil.iter_modules(home.__path__) if not m.name.startswith("_")]
    return [(stem, importlib.import_module(f"{home.__name__}.{stem}")) for stem in stems]


def _plain(name: str) -> str:
    return name.replace("_plus", "+").replace("_", "-")


def find(kind: str, name: str) -> Entry:
    """The entry of that name, or of that `package.module:callable`."""
    known = entries(kind)
    if name in known:
        return known[name]
    if ":" not in name:
        raise ConfigError(f"no {kind.removesuffix('s')} is called {name!r}: {did_you_mean(name, known)}")
    path, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(path)
        factory = getattr(module, attribute)
        inspect.signature(factory)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"{kind.removesuffix('s')} {name!r} cannot be used: {error}") from None
    return Entry(kind, name, factory, module)


def complete(kind: str, part: str | Mapping[str, Any]) -> Part:
    """A part of an experiment with all its parameters, defaults included, checked against the signature."""
    if isinstance(part, str):
        part = {"name": part}
    if not isinstance(part, Mapping) or not isinstance(part.get("name"), str):
        raise ConfigError(f"{kind.removesuffix('s')} = {part!r}: give a name, or a table with a name and parameters")
    given = {key: _table(value) for key, value in part.items() if key != "name"}
    entry = find(kind, part["name"])
    for key in given:
        if key not in entry.parameters:
            hint = did_you_mean(key, entry.parameters) if entry.parameters else "it has none"
            raise ConfigError(f"{kind.removesuffix('s')} {entry.name!r} has no parameter {key!r}: {hint}")
    for key, part_kind in entry.nested.items():
        given |= {key: _inner(part_kind, given[key], entry.defaults.get(key))} if given.get(key) is not None else {}
    # As JSON, so that lists may be tuples while a number in quotes stays an error.
    try:
        checked = entry.schema().model_validate_json(json.dumps(given), strict=True)
    except pydantic.ValidationError as error:
        raise ConfigError(f"{kind.removesuffix('s')} {entry.name!r}: {explain(error)}") from None
    except TypeError as error:
        raise ConfigError(f"{kind.removesuffix('s')} {entry.name!r}: {error}") from None
    return {"name": entry.name, **checked.model_dump()}


def _inner(kind: str, part: str | Mapping[str, Any], default: Part | None) -> Part:
    """A part within a part; a table without a name changes parameters of the default."""
    if isinstance(part, Mapping) and "name" not in part and default is not None:
        part = {**default, **part}
    return complete(kind, part)


def _table(value: Any) -> Any:
    """A part that is given as the thing itself, as a table; anything else as it is."""
    if is_dataclass(value) and not isinstance(value, type):
        return {"name": _plain(type(value).__name__.lower()), **asdict(value)}
    return value


def explain(error: pydantic.ValidationError) -> str:
    """The first thing that is wrong, in a sentence."""
    first = error.errors()[0]
    where = ".".join(str(p) for i, p in enumerate(first["loc"]) if i == 0 or isinstance(p, int))
    if first["type"] == "missing":
        return f"{where} is missing"
    if first["type"] == "literal_error" and isinstance(first["input"], str):
        known = re.findall(r"'([^']*)'", first["ctx"]["expected"])
        return f"{where} = {first['input']!r}: {did_you_mean(first['input'], known)}"
    return f"{where} = {first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}"


def build(kind: str, part: str | Mapping[str, Any], **supplied: Any) -> Any:
    """The thing itself. `supplied` are values that the experiment knows (a row's shape, say), for those who ask."""
    done = complete(kind, part)
    entry = find(kind, done.pop("name"))
    factory = entry.factory
    done |= {key: build(part_kind, done[key]) for key, part_kind in entry.nested.items() if done[key] is not None}
    hints = get_type_hints(factory) if is_dataclass(factory) or inspect.isfunction(factory) else {}
    values = {k: tuple(v) if isinstance(v, list) and "tuple" in str(hints.get(k)) else v for k, v in done.items()}
    taken = inspect.signature(factory).parameters
    return factory(**values, **{k: v for k, v in supplied.items() if k in taken or k not in OPTIONAL})
