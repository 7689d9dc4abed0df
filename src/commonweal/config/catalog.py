"""Names to things: a file registers what it offers in a dict called ENTRIES.

    ENTRIES = {"aaggff-s": AAggFFS}

Names and descriptions are read from the source, so that listing things imports none of them; the
signature of a thing is its configuration. Things outside the package are named
`package.module:callable` or `./file.py:callable`.
"""

import ast
import importlib
import importlib.util
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import pydantic

from commonweal.base.errors import ConfigError, TrustError, did_you_mean

UNTRUSTED = (
    "is a program that the run names: it is imported only if you trust whoever wrote the run "
    "(--trust, or trust=True)"
)


LARGEST = 1e30  # a number in an experiment; float32 ends at 3e38


class Part(dict[str, Any]):
    """A part of an experiment: its name, and its parameters as TOML holds them."""

    complete = ""  # the kind against whose entry it was checked and completed

    @property
    def name(self) -> str:
        """The name of its entry in the catalog."""
        return str(self["name"])


class PartKind(NamedTuple):
    """A kind of part: its key in an experiment, where its entries are, and how it is used."""

    key: str
    homes: tuple[str, ...]  # packages whose files are searched, or modules
    default: str | None = None
    interface: str = ""  # the class by which parts within parts are recognised
    supplied: tuple[str, ...] = ()  # parameters that the experiment supplies, for those who ask
    several: bool = False  # an experiment has a list of them
    unnamed: str = ""  # the name that a table without one stands for

    @property
    def label(self) -> str:
        """The word for one of them."""
        return self.key.removesuffix("s") if self.several else self.key


_MODEL = ("shape", "outputs", "labels", "rounds")
_ALGORITHM = ("task", "rule", "client", "server", "channels", "population", "rounds", "seed")
_SAMPLING = ("cohort_size", "sampler")
_RULE = "commonweal.rules.rule:Rule"
_SERVER = "commonweal.protocols.servers.server:ServerOptimizer"
_RULES = ("commonweal.rules", "commonweal.rules.guard")
_PROTOCOLS = ("commonweal.protocols", "commonweal.protocols.synthetic")

# The parts of an experiment. A new kind is one line.
KINDS = {
    "datasets": PartKind("dataset", ("commonweal.datasets",)),
    "partitions": PartKind("partition", ("commonweal.datasets.partition",), unnamed="dirichlet"),
    "noises": PartKind("label_noise", ("commonweal.datasets.noise",), unnamed="symmetric"),
    "models": PartKind("model", ("commonweal.models",), "logistic", supplied=_MODEL),
    "algorithms": PartKind("algorithm", _PROTOCOLS, "averaging", supplied=_ALGORITHM + _SAMPLING),
    "rules": PartKind("rule", _RULES, "fedavg", interface=_RULE),
    "clients": PartKind("client", ("commonweal.clients",), "sgd"),
    "servers": PartKind("server", ("commonweal.protocols.servers",), "sgd", interface=_SERVER),
    "samplers": PartKind("sampler", ("commonweal.protocols.samplers",), "uniform"),
    "channels": PartKind("channels", ("commonweal.protocols.channels",), several=True),
}


@dataclass(frozen=True)
class Entry:
    """One thing that an experiment can name."""

    kind: str
    name: str
    module: str  # the module, or the path of a file
    attribute: str
    about: str = ""  # the description of its file, or of itself where the file offers several
    details: str = ""  # its own docstring: the formula and the parameters

    @property
    def paper(self) -> str:
        """The paper it comes from: the first sentence after the summary, up to the year."""
        _, _, rest = self.about.partition("\n\n")
        sentence = rest.split("\n\n")[0].replace("\n", " ")
        year = re.search(r"(?:19|20)\d\d\b|under review\)", sentence)
        return sentence[: year.end()] if year else ""

    @cached_property
    def factory(self) -> Callable[..., object]:
        """The class or function itself."""
        try:
            factory: Callable[..., object] = _attribute(self.module, self.attribute)
            inspect.signature(factory)
        except Exception as error:  # a program may raise anything
            raise ConfigError(
                f"{KINDS[self.kind].label} {self.name!r} cannot be used: {error}"
            ) from None
        return factory

    @cached_property
    def hints(self) -> dict[str, object]:
        """The types of the parameters."""
        hints: dict[str, object] = get_type_hints(self.factory)
        if inspect.isclass(self.factory) and not is_dataclass(self.factory):
            hints = get_type_hints(self.factory.__init__)
        return hints

    @cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The parameters that an experiment may set."""
        supplied = KINDS[self.kind].supplied
        signature = inspect.signature(self.factory).parameters
        return {name: p for name, p in signature.items() if name not in supplied}

    @cached_property
    def nested(self) -> dict[str, str]:
        """The parameters that are parts themselves, with their kinds."""
        interfaces = {kind.interface: name for name, kind in KINDS.items() if kind.interface}
        kinds = {}
        for name in self.parameters:
            hint = self.hints.get(name)
            for option in filter(inspect.isclass, (hint, *get_args(hint))):
                path = f"{option.__module__}:{option.__qualname__}"
                if path in interfaces:
                    kinds[name] = interfaces[path]
        return kinds

    @cached_property
    def defaults(self) -> dict[str, object]:
        """The parameters that need not be given, as plain values."""
        defaults = {}
        for name, parameter in self.parameters.items():
            if parameter.default is not inspect.Parameter.empty:
                defaults[name] = _plain(parameter.default)
        return defaults

    @cached_property
    def schema(self) -> type[pydantic.BaseModel]:
        """The parameters with their types, as a pydantic model."""
        hints = self.hints | dict.fromkeys(self.nested, dict[str, Any] | None)
        specification: dict[str, Any] = {}
        for name in self.parameters:
            specification[name] = (hints.get(name, Any), self.defaults.get(name, ...))
        strict = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)
        return pydantic.create_model(self.name, __config__=strict, **specification)


def _attribute(module: str, name: str) -> Any:
    """Return an attribute of a module, or of a file by its path."""
    try:
        is_file = module.endswith(".py")
        return getattr(_import_file(module) if is_file else importlib.import_module(module), name)
    except SystemExit as error:
        raise ImportError(
            f"importing it ends the program (sys.exit({error.code!r})): move that below "
            'if __name__ == "__main__"'
        ) from None


def _import_file(module: str) -> ModuleType:
    path = Path(module).resolve()
    if not path.is_file():
        raise ImportError(f"there is no file {module!r}")
    name = f"commonweal_user_{path.stem}_{abs(hash(str(path)))}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # its name ends with .py
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    try:
        spec.loader.exec_module(loaded)
    except BaseException:
        del sys.modules[name]
        raise
    return loaded


def function(key: str, path: str) -> Callable[..., Any]:
    """A user's function by its import path, as in loss = "./my_losses.py:focal"."""
    if not _trusted.get():
        raise TrustError(f"{key} = {path!r} {UNTRUSTED}")
    module, _, attribute = path.rpartition(":")
    try:
        named: Callable[..., Any] = _attribute(module, attribute)
    except Exception as error:  # a program may raise anything
        raise ConfigError(f"{key} = {path!r} cannot be used: {error}") from None
    if not callable(named):
        raise ConfigError(f"{key} = {path!r} is {named!r:.80}: name a function")
    return named


@cache
def entries(kind: str) -> Mapping[str, Entry]:
    """Everything of a kind, by name. Nothing is imported."""
    if kind not in KINDS:
        raise ConfigError(f"there are no {kind!r}: {did_you_mean(kind, KINDS)}")
    by_name = {}
    for home in KINDS[kind].homes:
        for module, path in _files(home):
            for entry in _parse_file(kind, module, path):
                by_name[entry.name] = entry
    return dict(sorted(by_name.items()))


def _files(home: str) -> list[tuple[str, Path]]:
    """The modules of a package or the module itself, with their paths."""
    path = Path(__file__).parents[1].joinpath(*home.split(".")[1:])
    if not path.is_dir():
        return [(home, path.with_suffix(".py"))]
    others: set[str] = set()
    for kind in KINDS.values():
        others.update(kind.homes)
    modules = [(f"{home}.{file.stem}", file) for file in sorted(path.glob("*.py"))]
    return [module for module in modules if module[0] not in others]


def _parse_file(kind: str, module: str, path: Path) -> list[Entry]:
    """The entries that a file registers, read from its source."""
    source = path.read_text(encoding="utf-8")
    if "\nENTRIES" not in source:
        return []
    tree = ast.parse(source)
    registered: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ENTRIES":
            assert isinstance(node.value, ast.Dict)
            names = map(ast.literal_eval, filter(None, node.value.keys))
            registered = dict(zip(names, map(ast.unparse, node.value.values), strict=True))
    listed = []
    for name, attribute in registered.items():
        own = _docstring(tree, attribute)
        about = (ast.get_docstring(tree) or "") if len(registered) == 1 else own
        listed.append(Entry(kind, name, module, attribute, about, own))
    return listed


def _docstring(tree: ast.Module, name: str) -> str:
    """The docstring of a class or function that a file of the package defines or imports."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return ast.get_docstring(node) or ""
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            (_, path), *_ = _files(node.module or "")
            return _docstring(ast.parse(path.read_text(encoding="utf-8")), name)
    return ""


_trusted: ContextVar[bool] = ContextVar("trusted", default=True)


@contextmanager
def trusting(trust: bool) -> Iterator[None]:
    """Import programs outside of the package, which a text names, meanwhile only with trust."""
    token = _trusted.set(trust and _trusted.get())
    try:
        yield
    finally:
        _trusted.reset(token)


def find_entry(kind: str, name: str) -> Entry:
    """The entry of that name, or of that `package.module:callable` or `./file.py:callable`."""
    known = entries(kind)
    if name in known:
        return known[name]
    if ":" not in name:
        raise ConfigError(f"no {KINDS[kind].label} is called {name!r}: {did_you_mean(name, known)}")
    if not _trusted.get():
        raise TrustError(f"{KINDS[kind].label} = {name!r} {UNTRUSTED}")
    module, _, attribute = name.rpartition(":")
    entry = Entry(kind, name, module, attribute)
    docs = inspect.cleandoc(entry.factory.__doc__ or "")
    return Entry(kind, name, module, attribute, docs, docs)


def parse_part(text: str) -> Part:
    """A part from a name, with parameters in brackets.

    >>> parse_part("aaggff-s(cdf=frechet, beta=0.5)")
    {'name': 'aaggff-s', 'cdf': 'frechet', 'beta': 0.5}
    """
    name, bracket, inside = text.partition("(")
    part = Part(name=name.strip())
    if not bracket:
        return part
    if not inside.rstrip().endswith(")"):
        raise ConfigError(f"{text!r}: close the bracket, as in aaggff-s(cdf=frechet)")
    for assignment in split_list(inside.rstrip()[:-1]):
        key, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigError(f"{text!r}: write parameters as key=value, as in clip(norm=1)")
        part[key.strip()] = parse_value(value)
    return part


def split_name(text: str) -> tuple[str, str]:
    """The name that a user gives to a rule, and the rule; an empty name where there is none.

    >>> split_name("Ours=./mine.py:Soft(t=2)"), split_name("afl(lr=0.5)")
    (('Ours', './mine.py:Soft(t=2)'), ('', 'afl(lr=0.5)'))
    """
    name, equals, rule = text.partition("=")
    if not equals or "(" in name:
        return "", text
    return name.strip(), rule.strip()


def with_name(name: str | None, rule: str) -> str:
    """Invert `split_name`."""
    return f"{name}={rule}" if name else rule


def split_list(text: str) -> list[str]:
    """Split at commas that are outside of brackets.

    >>> split_list("fedavg, aaggff-s(cdf=frechet, beta=0.5)")
    ['fedavg', 'aaggff-s(cdf=frechet, beta=0.5)']
    """
    parts = [""]
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def parse_value(text: str) -> object:
    """A value as TOML writes it; what is not TOML is a string."""
    try:
        values = tomllib.loads(f"value = {text.strip()}")
    except (ValueError, RecursionError):  # not TOML, or a number of thousands of digits
        return text.strip()
    if len(values) > 1:
        raise ConfigError(f"{text!r} has more than one value: write each as its own key=value")
    return values["value"]


def complete(kind: str, part: object) -> Part:
    """A part with all its parameters, defaults included, checked against the signature."""
    if isinstance(part, Part) and part.complete == kind:
        return part
    label = KINDS[kind].label
    table = parse_part(part) if isinstance(part, str) else _plain(part)
    if isinstance(table, Mapping) and "name" not in table and KINDS[kind].unnamed:
        table = {"name": KINDS[kind].unnamed, **table}
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        raise ConfigError(
            f"{label} = {table!r}: give a name, or a table with a name and parameters"
        )
    entry = find_entry(kind, table["name"])
    given = {key: _plain(value) for key, value in table.items() if key != "name"}
    for key, value in given.items():
        _check_parameter(entry, key, value)
    for key, inner_kind in entry.nested.items():
        inner, default = given.get(key), entry.defaults.get(key)
        if isinstance(inner, Mapping) and "name" not in inner and isinstance(default, Mapping):
            inner = {**default, **inner}  # changes parameters of the default
        if inner is not None:
            given[key] = complete(inner_kind, inner)
    # As JSON, so that lists may stand for tuples while a number in quotes stays an error.
    try:
        checked = entry.schema.model_validate_json(json.dumps(given), strict=True)
    except pydantic.ValidationError as error:
        raise ConfigError(f"{label} {entry.name!r}: {explain(error)}") from None
    except pydantic.errors.PydanticSchemaGenerationError:
        raise ConfigError(f"{label} = {part!r:.80}: this is not a {label}") from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{label} {entry.name!r}: {error}") from None
    parts = {key: given[key] for key in entry.nested if key in given}  # completed already
    completed = Part({"name": entry.name} | checked.model_dump() | parts)
    completed.complete = kind
    return completed


def _check_parameter(entry: Entry, key: str, value: object) -> None:
    """Raise ConfigError unless an entry has this parameter, and a TOML file can hold its value."""
    part = f"{KINDS[entry.kind].label} {entry.name!r}"
    known = entry.parameters
    if key not in known:
        hint = did_you_mean(key, known) if known else "it has no parameters"
        raise ConfigError(f"{part} has no parameter {key!r}: {hint}")
    if not isinstance(value, str | int | float | Mapping | list | tuple | None):
        raise ConfigError(
            f"{part}: {key} = {value!r:.60}: give what a TOML file can hold, such as a number or "
            "a name"
        )
    if _is_too_large(key, value):
        raise ConfigError(f"{part}: {key} = {value!r:.60} is too large")


def _is_too_large(key: str, value: object) -> bool:
    """Return whether a number, or one of a list, is larger than torch can hold."""
    if isinstance(value, list | tuple):
        return any(_is_too_large(key, item) for item in value)
    if isinstance(value, int):
        return not -(2**63) <= value < (2**64 if key == "seed" else 2**63)
    return isinstance(value, float) and abs(value) > LARGEST


def _plain(value: object) -> object:
    """A part that is given as the thing itself, as a table; anything else as it is."""
    if is_dataclass(value) and not isinstance(value, type):
        return named_part(value)
    return value


def named_part(thing: object) -> Part:
    """The table that names a thing: its entry, or its class, with the fields that can be given."""
    part = Part(name=_entry_name(type(thing)))
    for field in fields(thing) if is_dataclass(thing) else ():
        if field.init:
            part[field.name] = _plain(vars(thing).get(field.name))
    return part


def _entry_name(cls: type) -> str:
    """The name under which a class is registered, or `module:class`."""
    for kind in KINDS:
        for entry in entries(kind).values():
            if entry.attribute == cls.__name__ and entry.factory is cls:
                return entry.name
    return f"{cls.__module__}:{cls.__qualname__}"


def explain(error: pydantic.ValidationError) -> str:
    """The first thing that is wrong, in a sentence."""
    first = error.errors()[0]
    location = first["loc"]
    positions = [place for place in location[1:] if isinstance(place, int)]
    where = ".".join(map(str, [*location[:1], *positions]))
    if first["type"] == "missing":
        return f"{where} is missing"
    if first["type"] == "literal_error" and isinstance(first["input"], str):
        known = re.findall(r"'([^']*)'", first["ctx"]["expected"])
        return f"{where} = {first['input']!r}: {did_you_mean(first['input'], known)}"
    message = first["msg"]
    return f"{where} = {first['input']!r}: {message[0].lower()}{message[1:]}"


def build(kind: str, part: object, **supplied: object) -> Any:
    """The thing that a part names. supplied: what the experiment knows, for those who ask"""
    values = dict(complete(kind, part))
    entry = find_entry(kind, values.pop("name"))
    for key, inner_kind in entry.nested.items():
        if values[key] is not None:
            values[key] = build(inner_kind, values[key])
    for key, value in values.items():
        hint = entry.hints.get(key)
        if isinstance(value, list) and tuple in [get_origin(h) for h in (hint, *get_args(hint))]:
            values[key] = tuple(value)
    for key in supplied.keys() & inspect.signature(entry.factory).parameters.keys():
        values[key] = supplied[key]
    return entry.factory(**values)
