"""The reference: what an experiment can name, the command, and the Python interface.

Names come from the catalog and the command. mkdocstrings renders the docstrings, which follow
Google's style.
"""

import inspect
import re
from collections.abc import Sequence
from pathlib import Path

import typer
from typer.cli import get_docs_for_click

import commonweal
from commonweal.cli import app
from commonweal.config import catalog
from commonweal.config.catalog import KINDS, Entry
from commonweal.config.experiment import Experiment, RunSettings
from commonweal.report import listing

__all__ = ["write"]

# The heading of each page of parts, and what the parts are.
PARTS = {
    "rules": ("Rules", "A rule decides how much each client's update counts."),
    "clients": ("Client methods", "What a client does with the model that it receives."),
    "servers": ("Server optimizers", "How the server moves the model along the direction."),
    "samplers": ("Samplers", "Which clients take part in a round."),
    "channels": ("Channels", "What happens to a reply between a client and the server."),
    "algorithms": ("Algorithms", "The protocol between the server and its clients."),
    "datasets": ("Datasets", "Named federations, and pools of samples for a partition to split."),
    "partitions": ("Partitions", "How the samples of a pool are split among clients."),
    "noises": ("Label noise", "How training labels are corrupted."),
    "models": ("Models", "Functions from the shape of a sample to a module."),
}
MEANINGS = {  # of keys whose fields have no comment
    "rounds": "how many rounds",
    "cohort": "clients per round: a number, a share below 1, or all",
    "score": "one of [Scores](scores.md), or several with commas; by default the dataset's own",
    "loss": "of a regression: squared, huber, absolute or poisson; or a function of your own, as "
    "`./my_losses.py:focal`; by default the dataset's",
    "threshold": "the score for which a threshold of two classes is chosen on validation samples",
    "class_weight": "by what the losses of classes are multiplied: `balanced`, or numbers",
    "seed": "seed of everything that is random",
    "evaluate_every": "rounds from one evaluation to the next",
}
MODULES = ("commonweal.flower", "commonweal.checks", "commonweal.app.export", "commonweal.metrics")


def write(folder: Path) -> None:
    """Write all pages of the reference to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {f"{kind}.md": _parts(kind, *PARTS[kind]) for kind in PARTS}
    pages |= {"experiment.md": _experiment(), "scores.md": _scores()}
    pages |= {"command.md": _command(), "python.md": _python()}
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")


def prose(text: str) -> str:
    """Text as Markdown: what would be markup is shown as it is, except for `code`."""
    pieces = re.split(r"(`[^`\n]+`)", text)
    plain = [p if p.startswith("`") else re.sub(r"([\\*_>|\[\]])", r"\\\1", p) for p in pieces]
    return "".join(plain).replace("<", "&lt;")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _parts(kind: str, title: str, about: str) -> str:
    entries = catalog.entries(kind)
    usage = f"In an experiment: `{KINDS[kind].key} = ...`; in the terminal: `commonweal show NAME`."
    rows = [(_link(name), prose(listing.first_line(e.about))) for name, e in entries.items()]
    contents = _table(("name", "summary"), rows)
    sections = "\n".join(_entry(entry) for entry in entries.values())
    return f"# {title}\n\n{about} {usage}\n\n{contents}\n{sections}"


def _link(name: str) -> str:
    return f"[`{name}`](#{re.sub(r'[^a-z0-9-]', '', name.lower())})"


def _entry(entry: Entry) -> str:
    defaults = entry.defaults
    rows = [
        (f"`{name}`", f"`{defaults[name]!r}`" if name in defaults else "required")
        for name in entry.parameters
    ]
    parameters = _table(("parameter", "default"), rows) if rows else ""
    text = f"## {entry.name}\n\n{prose(entry.about.strip())}\n\n"
    if entry.details and entry.details != entry.about:
        text += f"::: {entry.module}.{entry.attribute}\n    options:\n"
        text += "      show_root_heading: false\n      show_root_toc_entry: false\n"
        text += "      members: false\n      show_bases: false\n\n"
    return text + parameters


def _experiment() -> str:
    """The keys of an experiment, with the comments next to them in the source."""
    pages = {kind.key: name for name, kind in KINDS.items()}
    comments = re.findall(r"^    (\w+):.*?#\s+(.*)$", inspect.getsource(RunSettings), re.M)
    meanings = {name: prose(text) for name, text in comments} | MEANINGS
    rows = []
    for name, field in Experiment.model_fields.items():
        value = field.get_default(call_default_factory=True)
        default = "required" if field.is_required() else f"`{value!r}`"
        page = pages.get(name)
        meaning = f"one of [{PARTS[page][0]}]({page}.md)" if page else meanings[name]
        rows.append((f"`{name}`", default, meaning))
    return (
        "# Experiment\n\nThe keys of an experiment's TOML file, which `key=value` changes on the "
        "command line. Keys of parts (`rule`, `client`, ...) take a name, or a table with `name` "
        f"and parameters.\n\n{_table(('key', 'default', 'meaning'), rows)}"
    )


def _scores() -> str:
    tables = []
    for kind in ("scores", "metrics"):
        rows = [(f"`{name}`", prose(text)) for name, text in listing.summaries(kind).items()]
        tables.append(_table((kind[:-1], "meaning"), rows))
    return (
        "# Scores and metrics\n\nA score is computed for each client (`score = NAME`):\n\n"
        f"{tables[0]}\nA metric summarises the scores of all clients:\n\n{tables[1]}"
    )


def _command() -> str:
    root = typer.main.get_command(app)
    context = typer.Context(root, info_name="commonweal")
    text = get_docs_for_click(obj=root, ctx=context, name="commonweal", title="The command")
    return str(text)


def _python() -> str:
    names = [f"commonweal.{name}" for name in commonweal.__all__ if name != "metrics"]
    sections = "".join(f"::: {name}\n\n" for name in (*names, *MODULES))
    return f"# Python\n\nThe public interface: `import commonweal as cw`.\n\n{sections}"
