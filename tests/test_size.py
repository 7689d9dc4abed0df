"""How large and how dense the package may be. Who reaches a limit takes something out first."""

import ast
import inspect
import tokenize
from functools import cache
from pathlib import Path

import commonweal
from commonweal.engines import Engine
from commonweal.training.client import Client

FOLDER = Path(commonweal.__file__).parent
FILES = sorted(FOLDER.rglob("*.py"))
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT}


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def docstring_lines(file: Path) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree_of(file)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            lines.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return lines


def code_of(file: Path) -> tuple[int, int]:
    """The lines of code, without docstrings, comments and blank lines, and their tokens."""
    docstrings = docstring_lines(file)
    lines: set[int] = set()
    tokens = 0
    with file.open("rb") as source:
        for token in tokenize.tokenize(source.readline):
            outside = token.type in LAYOUT or token.start[0] in docstrings
            if token.string and not outside and token.type != tokenize.ENCODING:
                tokens += 1
                lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines), tokens


def overridable(interface: type) -> list[str]:
    functions = inspect.getmembers(interface, inspect.isfunction)
    return [name for name, _ in functions if not name.startswith("_")]


def test_the_package_stays_within_its_limits() -> None:
    lines = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in FILES}
    code, tokens = map(sum, zip(*map(code_of, FILES), strict=True))
    nodes = [node for file in FILES for node in ast.walk(tree_of(file))]
    comprehensions = sum(isinstance(node, COMPREHENSIONS) for node in nodes)
    counts = {
        "modules at the root": (len(list(FOLDER.glob("*.py"))), 4),
        "lines of the longest file": (max(lines.values()), 700),
        "lines": (sum(lines.values()), 47_000),
        "lines of code": (code, 32_400),
        "tokens per line of code": (tokens / code, 9.5),
        "comprehensions per 1,000 lines of code": (1000 * comprehensions / code, 30),
        "methods of Client": (len(overridable(Client)), 14),
        "methods of Engine": (len(overridable(Engine)), 5),
    }
    assert {name: count for name, count in counts.items() if count[0] > count[1]} == {}
