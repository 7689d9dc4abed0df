"""Contents of `commonweal list`, read from the source: importing torch would take seconds."""

import ast
import re
from pathlib import Path

from commonweal.config import catalog
from commonweal.config.catalog import KINDS, Entry

ROOT = Path(__file__).parents[1]
LISTS = (*KINDS, "scores", "metrics")
TABLES = ("SCORES", "AT", "DIAGNOSTICS")  # of commonweal.task.scores
FAMILIES = ("mixture", "online", "direction", "reweighting", "combinator")  # as in docs/rules.md


def summaries(what: str) -> dict[str, str]:
    """The names in a list, each with one line about it."""
    if what == "metrics":
        return _metrics()
    if what == "scores":
        return _scores()
    return {name: first_line(entry.about) for name, entry in catalog.entries(what).items()}


def first_line(text: str) -> str:
    return text.strip().split("\n")[0]


def families() -> dict[str, list[Entry]]:
    """The rules by family, from rules without memory to combinators."""
    lines: dict[str, list[Entry]] = {family: [] for family in FAMILIES}
    for entry in catalog.entries("rules").values():
        kind = re.search(r'kind = Kind\(\s*"(\w+)"', _source(entry.module))  # one per module
        assert kind is not None, entry.module
        lines[kind[1]].append(entry)
    return lines


def _metrics() -> dict[str, str]:
    """The public functions of commonweal.metrics, and their first lines."""
    lines = {}
    for node in _parse("commonweal.metrics").body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            lines[node.name] = first_line(ast.get_docstring(node) or "")
    return lines


def _scores() -> dict[str, str]:
    """The scores of commonweal.task.scores, and what they mean."""
    lines = {}
    for node in _parse("commonweal.task.scores").body:
        if not isinstance(node, ast.Assign) or ast.unparse(node.targets[0]) not in TABLES:
            continue
        assert isinstance(node.value, ast.Dict)
        for key, value in zip(node.value.keys, node.value.values, strict=True):
            assert isinstance(key, ast.Constant)
            assert isinstance(value, ast.Call)
            # The meaning is the only string among the arguments.
            meaning = next(part.value for part in value.args if isinstance(part, ast.Constant))
            lines[str(key.value)] = str(meaning)
    return lines


def _parse(module: str) -> ast.Module:
    return ast.parse(_source(module))


def _source(module: str) -> str:
    path = ROOT.joinpath(*module.split(".")[1:]).with_suffix(".py")
    return path.read_text(encoding="utf-8")
