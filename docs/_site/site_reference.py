"""The reference, from code: what an experiment can name, the command, and the Python interface."""

import ast
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path

import click
import typer
from typer.core import TyperArgument, TyperOption

import commonweal
from commonweal.cli import app
from commonweal.config import catalog
from commonweal.config.catalog import KINDS, Entry
from commonweal.config.experiment import Experiment, RunSettings
from commonweal.report import listing

__all__ = ["write"]

# The heading of each page of parts, and what the parts are.
PARTS = {
    "rules": ("Rules", "A rule says how much each client's report counts."),
    "clients": ("Client methods", "What a client does with the model that it receives."),
    "servers": ("Server optimizers", "How the server moves the model along the direction."),
    "samplers": ("Samplers", "Which clients are asked in a round."),
    "channels": ("Channels", "What happens to a reply between a client and the server."),
    "algorithms": ("Algorithms", "The protocol between the server and its clients."),
    "datasets": ("Datasets", "Federations that can be named, and pools that a partition deals."),
    "partitions": ("Partitions", "How the rows of a pool are dealt to clients."),
    "noises": ("Label noise", "How training labels are made wrong."),
    "models": ("Models", "Functions from the shape of a row to a module."),
}
MEANINGS = {  # of keys whose fields have no comment
    "rounds": "how many rounds",
    "seed": "of everything that is random",
    "evaluate_every": "rounds from one evaluation to the next",
}
MODULES = ("commonweal.flower", "commonweal.checks", "commonweal.export")


def write(folder: Path) -> list[str]:
    """Write all pages to a folder. Returns their file names, in the order of the menu."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {"experiment.md": _experiment()}
    pages |= {f"{kind}.md": _parts(kind, *PARTS[kind]) for kind in PARTS}
    pages["scores.md"] = _scores()
    pages["command.md"] = _command()
    pages["python.md"] = _python()
    for name, lines in pages.items():
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return list(pages)


def prose(text: str) -> str:
    """A docstring's words as Markdown: what would be markup is text, except for `code`."""
    pieces = re.split(r"(`[^`\n]+`)", text)
    return "".join(
        piece if piece.startswith("`") else re.sub(r"([\\*_<>|\[\]])", r"\\\1", piece)
        for piece in pieces
    )


def block(text: str) -> list[str]:
    """Text as it stands."""
    return ["```text", text, "```", ""]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [*("| " + " | ".join(line) + " |" for line in lines), ""]


# Parts


def _parts(kind: str, title: str, about: str) -> list[str]:
    entries = catalog.entries(kind)
    key = KINDS[kind].key
    lines = [
        f"# {title}",
        "",
        f"{about} In an experiment: `{key} = ...`; in the terminal: `commonweal show NAME`.",
        "",
        *table(
            ("name", "in a line"),
            [(_link(name), prose(listing.first_line(e.about))) for name, e in entries.items()],
        ),
    ]
    for entry in entries.values():
        lines += _entry(entry)
    return lines


def _link(name: str) -> str:
    return f"[`{name}`](#{re.sub(r'[^a-z0-9-]', '', name.lower())})"


def _entry(entry: Entry) -> Iterator[str]:
    yield from (f"## {entry.name}", "", prose(entry.about.strip()), "")
    if entry.details and entry.details != entry.about:
        yield from block(entry.details.strip())
    parameters = [(f"`{name}`", _default(entry, name)) for name in entry.parameters]
    if parameters:
        yield from table(("parameter", "default"), parameters)
    if entry.paper:
        yield from (f"From: {prose(entry.paper)}.", "")


def _default(entry: Entry, name: str) -> str:
    if name not in entry.defaults:
        return "required"
    return f"`{entry.defaults[name]!r}`".replace("|", "\\|")


def _experiment() -> list[str]:
    """The keys of an experiment, with the comments beside them in the source."""
    pages = {kind.key: name for name, kind in KINDS.items()}
    said = _comments()
    rows = []
    for name, field in Experiment.model_fields.items():
        given = field.get_default(call_default_factory=True)
        default = "required" if field.is_required() else f"`{given!r}`"
        parts = f"one of [{PARTS[pages[name]][0]}]({pages[name]}.md)" if name in pages else ""
        rows.append((f"`{name}`", default, parts or prose(said[name])))
    return [
        "# Experiment",
        "",
        "The keys of an experiment's TOML file, which `key=value` changes on the command line.",
        "Keys of parts (`rule`, `client`, ...) take a name, or a table with `name` and parameters.",
        "",
        *table(("key", "default", "meaning"), rows),
    ]


def _comments() -> Mapping[str, str]:
    """What keys mean: the comments behind the fields in the source."""
    source = inspect.getsource(RunSettings)
    found = dict(re.findall(r"^    (\w+):.*?#\s+(.*)$", source, re.M))
    return MEANINGS | found


def _scores() -> list[str]:
    lines = ["# Scores and metrics", "", "A score is computed for each client. `score = NAME`:", ""]
    scores = listing.summaries("scores").items()
    lines += table(("score", "meaning"), [(f"`{name}`", prose(text)) for name, text in scores])
    metrics = listing.summaries("metrics").items()
    lines += ["A metric sums up the clients' scores:", ""]
    return lines + table(("metric", "meaning"), [(f"`{n}`", prose(text)) for n, text in metrics])


# The command


def _command() -> list[str]:
    root = typer.main.get_command(app)
    lines = ["# The command", "", "`python -m commonweal` is the same as `commonweal`.", ""]
    context = click.Context(root, info_name="commonweal")
    for name, command in _commands(root, context):
        lines += _about_command(name, command)
    return lines


def _commands(group: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """All commands below a group, by their full names."""
    assert isinstance(group, click.Group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from _commands(command, inner)
        else:
            yield inner.command_path, command


def _about_command(name: str, command: click.Command) -> Iterator[str]:
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    words = " ".join(str(argument.make_metavar(click.Context(command))) for argument in arguments)
    yield from (f"## {name}", "", *block(f"{name} [OPTIONS] {words}".strip()))
    yield from (prose(inspect.cleandoc(command.help or "")), "")
    rows = [_parameter(each) for each in command.params if each.name != "help"]
    if rows:
        yield from table(("argument or option", "meaning", "default"), rows)


def _parameter(parameter: click.Parameter) -> tuple[str, str, str]:
    names = ", ".join(f"`{each}`" for each in (*parameter.opts, *parameter.secondary_opts))
    assert isinstance(parameter, TyperArgument | TyperOption)
    help = prose(parameter.help or "").replace("\n", " ")
    default = parameter.default
    shown = "" if default is None or default is False or callable(default) else f"`{default}`"
    if isinstance(parameter, click.Argument):
        names = f"`{parameter.human_readable_name}`"
    return names, help, shown


# Python


def _python() -> list[str]:
    lines = [
        "# Python",
        "",
        "What `import commonweal as cw` offers, and three modules beside it.",
        "",
    ]
    for name in commonweal.__all__:
        if name != "metrics":
            lines += _object(f"commonweal.{name}", getattr(commonweal, name))
    for module in (*MODULES, "commonweal.metrics"):
        try:
            found = import_module(module)
        except ImportError:  # Flower is an extra
            continue
        lines += [f"## {module}", "", prose(inspect.getdoc(found) or ""), ""]
        for name in sorted(found.__all__):
            thing = getattr(found, name)
            if callable(thing) and inspect.getdoc(thing):
                lines += _object(f"{module}.{name}", thing, level=3)
    return lines


def _object(name: str, thing: object, level: int = 2) -> Iterator[str]:
    yield from (f"{'#' * level} {name}", "")
    if callable(thing):
        yield from block(_signature(name, thing))
    doc = inspect.getdoc(thing) or ""
    yield from _docstring(doc)
    if inspect.isclass(thing):
        rows = [
            (f"`{key}`", prose(listing.first_line(inspect.getdoc(member) or "")))
            for key, member in _members(thing)
        ]
        if rows:
            yield from table(("member", "what it is"), rows)


def _docstring(doc: str) -> Iterator[str]:
    """Words as words, and examples as code."""
    for paragraph in doc.split("\n\n"):
        if paragraph.lstrip().startswith(">>>") or "\n    " in paragraph:
            yield from block(paragraph)
        else:
            yield from (prose(paragraph), "")


def _signature(name: str, thing: object) -> str:
    assert callable(thing)
    try:
        text = str(inspect.signature(thing))
    except (TypeError, ValueError):
        return name
    return re.sub(r"<(?:class|function) '?([\w.]+).*?>", r"\1", name + text)


def _members(thing: type) -> Iterator[tuple[str, object]]:
    """The public methods and properties that a class defines itself, in their order."""
    for key, member in vars(thing).items():
        documented = isinstance(member, property | classmethod | staticmethod) or callable(member)
        if not key.startswith("_") and documented and inspect.getdoc(member):
            yield key, member


def names_in_source() -> set[str]:
    """Every name in an ENTRIES of the package, read without importing: for the test."""
    found = set()
    for path in Path(commonweal.__file__).parent.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ENTRIES":
                assert isinstance(node.value, ast.Dict)
                found |= {ast.literal_eval(key) for key in node.value.keys if key}
    return found
