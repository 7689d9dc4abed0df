"""Names to things: a file in a folder is an entry, its signature is its configuration.

`aaggff-d` is `rules/aaggff_d.py`; a file that offers several things names each as the thing is called in Python.
Anything outside the package is named `package.module:callable`.
"""

import importlib
import inspect
import json
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_type_hints

import pydantic

from commonweal.errors import ConfigError, did_you_mean
from commonweal.noise import Noise
from commonweal.partition import Partition

__all__ = ["KINDS", "Entry", "build", "complete", "entries", "find"]

# Where each kind lives: a package whose files are scanned, or a module whose __all__ is.
KINDS = {
    "rules": "commonweal.rules",
    "clients": "commonweal.clients",
    "servers": "commonweal.server",
    "algorithms": "commonweal.algorithm",
    "datasets": "commonweal.datasets",
    "models": "commonweal.models",
    "partitions": "commonweal.partition",
    "noises": "commonweal.noise",
}
# What the experiment itself supplies, not its author.
SUPPLIED = {"models": ("shape", "outputs", "labels"), "algorithms": ("rule", "local", "step")}
OPTIONAL = ("labels",)  # supplied only to those who ask: the shape of a row's label, () where it has one
# A parameter of such a type is a part itself: a name, or a table with a name and parameters.
PARTS: dict[Any, str] = {Partition: "partitions", Noise: "noises"}

Part = dict[str, Any]  # {"name": ..., parameters ...}


@dataclass(frozen=True)
class Entry:
    """One thing that an experiment can name."""

    kind: str
    name: str
    factory: Callable[..., Any]

    @property
    def about(self) -> str:
        """What its file, or itself, says of it."""
        module = inspect.getmodule(self.factory)
        shared = module is not None and module.__name__ == KINDS[self.kind]
        text = self.factory.__doc__ if shared or module is None else module.__doc__
        return inspect.cleandoc(text or "")

    @property
    def details(self) -> str:
        """The formula and the parameters, as its own docstring gives them."""
        return inspect.cleandoc(self.factory.__doc__ or "")

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        supplied = SUPPLIED.get(self.kind, ())
        return {n: p for n, p in inspect.signature(self.factory).parameters.items() if n not in supplied}

    @property
    def defaults(self) -> dict[str, Any]:
        """The parameters that need not be given, as plain values."""
        given = {name: p.default for name, p in self.parameters.items()}
        return {name: _plainly(value) for name, value in given.items() if value is not inspect.Parameter.empty}

    @property
    def inner(self) -> dict[str, str]:
        """The parameters that are parts themselves, with their kinds."""
        hints = get_type_hints(self.factory)
        kinds = {name: [PARTS[h] for h in (hint, *get_args(hint)) if h in PARTS] for name, hint in hints.items()}
        return {name: kind[0] for name, kind in kinds.items() if kind}

    def schema(self) -> type[pydantic.BaseModel]:
        """The parameters with their types, as something that validates."""
        hints, defaults = get_type_hints(self.factory), self.defaults
        hints |= {name: _inner(kind, defaults.get(name)) for name, kind in self.inner.items()}
        fields: dict[str, Any] = {name: (hints.get(name, Any), defaults.get(name, ...)) for name in self.parameters}
        return pydantic.create_model(self.name, __config__=pydantic.ConfigDict(extra="forbid"), **fields)


def _inner(kind: str, default: Part | None) -> Any:
    """The type of a parameter that is a part; a table without a name changes parameters of the default."""

    def whole(value: Any) -> Any:
        if isinstance(value, Mapping) and "name" not in value and default is not None:
            value = {"name": default["name"], **value}
        return None if value is None else complete(kind, value)

    return Annotated[Part | None, pydantic.BeforeValidator(whole)]


def _plainly(value: Any) -> Any:
    """A partition or a noise as a table; anything else as it is."""
    if is_dataclass(value) and not isinstance(value, type):
        return {"name": _plain(type(value).__name__.lower()), **asdict(value)}
    return value


@cache
def entries(kind: str) -> Mapping[str, Entry]:
    """Everything of a kind, by name."""
    if kind not in KINDS:
        raise ConfigError(f"there are no {kind!r}: {did_you_mean(kind, KINDS)}")
    home = importlib.import_module(KINDS[kind])
    found = {}
    for stem, module in _files(home):
        offered = [getattr(module, name) for name in module.__all__]
        for thing in offered:
            name = _plain(stem if stem and len(offered) == 1 else thing.__name__.lower())
            found[name] = Entry(kind, name, thing)
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
    module, _, attribute = name.partition(":")
    try:
        return Entry(kind, name, getattr(importlib.import_module(module), attribute))
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{kind.removesuffix('s')} {name!r} cannot be imported: {error}") from None


def complete(kind: str, part: str | Mapping[str, Any]) -> Part:
    """A part of an experiment with all its parameters, defaults included, checked against the signature."""
    if isinstance(part, str):
        part = {"name": part}
    if not isinstance(part, Mapping) or not isinstance(part.get("name"), str):
        raise ConfigError(f"{kind.removesuffix('s')} = {part!r}: give a name, or a table with a name and parameters")
    given = {key: _plainly(value) for key, value in part.items() if key != "name"}
    entry = find(kind, part["name"])
    for key in given:
        if key not in entry.parameters:
            hint = did_you_mean(key, entry.parameters) if entry.parameters else "it has none"
            raise ConfigError(f"{kind.removesuffix('s')} {entry.name!r} has no parameter {key!r}: {hint}")
    # As JSON, so that lists may be tuples while a number in quotes stays an error.
    try:
        checked = entry.schema().model_validate_json(json.dumps(given), strict=True)
    except pydantic.ValidationError as error:
        raise ConfigError(f"{kind.removesuffix('s')} {entry.name!r}: {explain(error)}") from None
    except TypeError as error:
        raise ConfigError(f"{kind.removesuffix('s')} {entry.name!r}: {error}") from None
    return {"name": entry.name, **checked.model_dump()}


def explain(error: pydantic.ValidationError) -> str:
    """The first thing that is wrong, in a sentence."""
    first = error.errors()[0]
    where = ".".join(
        str(p) for p in first["loc"] if not str(p).startswith(("function-", "literal[", "int", "float", "str"))
    )
    if first["type"] == "missing":
        return f"{where} is missing"
    return f"{where} = {first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}"


def build(kind: str, part: str | Mapping[str, Any], **supplied: Any) -> Any:
    """The thing itself. `supplied` are values that the experiment knows (the shape of a row, say)."""
    done = complete(kind, part)
    entry = find(kind, done.pop("name"))
    hints = get_type_hints(entry.factory) if is_dataclass(entry.factory) or inspect.isfunction(entry.factory) else {}
    values: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) and "tuple" in str(hints.get(k)) else v for k, v in done.items()
    }
    values |= {k: build(inner, values[k]) for k, inner in entry.inner.items() if values[k] is not None}
    taken = inspect.signature(entry.factory).parameters
    return entry.factory(**values, **{k: v for k, v in supplied.items() if k in taken or k not in OPTIONAL})
