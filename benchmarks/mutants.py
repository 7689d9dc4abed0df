"""A mutation test of the rules: change one operator or number at a time, and run the rule's tests.

    python -m benchmarks.mutants simplex afl --most 40

A mutant that no test kills is printed with its line. It shows a missing test, or a change that
makes no difference, such as that of a tolerance.
"""

import argparse
import ast
import os
import random
import signal
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import NamedTuple
from unittest.mock import patch

import piqp  # noqa: F401 - imported once, before the forks
import pytest
import scipy.optimize  # noqa: F401

ROOT = Path(__file__).parents[1]
RULES = ROOT / "src" / "commonweal" / "rules"
SECONDS = 300  # a mutant that runs longer is an endless loop, and counts as killed
ONE_WAY: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Mult: ast.Div,
    ast.Pow: ast.Mult,
    ast.USub: ast.UAdd,
    ast.Lt: ast.LtE,
    ast.Gt: ast.GtE,
    ast.Eq: ast.NotEq,
    ast.Is: ast.IsNot,
    ast.In: ast.NotIn,
    ast.And: ast.Or,
}
SWAPS = {new: old for old, new in ONE_WAY.items()} | ONE_WAY


class Mutant(NamedTuple):
    """A changed module."""

    line: int
    change: str
    source: str


def mutants(source: str) -> Iterator[Mutant]:
    """Yield every mutant of the functions of a module."""
    tree = ast.parse(source)
    for node in tree.body:
        statements = node.body if isinstance(node, ast.ClassDef) else [node]
        for function in statements:
            if isinstance(function, ast.FunctionDef):
                for statement in function.body:
                    yield from _within(statement, tree, function.lineno)


def _within(node: ast.AST, tree: ast.Module, line: int) -> Iterator[Mutant]:
    if isinstance(node, ast.Raise | ast.JoinedStr):
        return  # messages
    line = getattr(node, "lineno", line)
    for name, field in ast.iter_fields(node):
        children = field if isinstance(field, list) else [field]
        for k, child in enumerate(children):
            new = _changed(child)
            if new is not None:
                before = ast.unparse(node)
                setattr(node, name, [*children[:k], new, *children[k + 1 :]])
                if field is not children:
                    setattr(node, name, new)
                yield Mutant(line, f"{before}  ->  {ast.unparse(node)}", ast.unparse(tree))
                setattr(node, name, field)
            elif isinstance(child, ast.AST):
                yield from _within(child, tree, line)


def _changed(node: object) -> ast.AST | None:
    """Another operator or number; None: this node is left alone."""
    if isinstance(node, ast.AST) and type(node) in SWAPS:
        return SWAPS[type(node)]()
    if not isinstance(node, ast.Constant) or not isinstance(node.value, bool | int | float):
        return None
    return ast.Constant(not node.value if isinstance(node.value, bool) else node.value + 1)


def survives(name: str, source: str) -> bool:
    """Whether a module's tests pass with this source, in a process of its own."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    signal.alarm(SECONDS)
    for output in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    read = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, module: str) -> CodeType | None:
        if module == f"commonweal.rules.{name}":
            return compile(source, str(RULES / f"{name}.py"), "exec")
        return read(loader, module)

    options = ["-x", "-n", "0", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
    with patch.object(SourceFileLoader, "get_code", get_code):
        code = pytest.main([*options, str(ROOT / "tests" / "rules" / f"test_{name}.py")])
    os._exit(int(code))


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("names", nargs="*", help="modules of rules/; by default all with tests")
    parser.add_argument("--most", type=int, default=40, help="mutants per module, drawn at random")
    options = parser.parse_args()
    tested = sorted(path.stem.removeprefix("test_") for path in ROOT.glob("tests/rules/test_*.py"))
    for name in options.names or [name for name in tested if (RULES / f"{name}.py").exists()]:
        source = (RULES / f"{name}.py").read_text()
        if not survives(name, source):
            raise SystemExit(f"the tests of {name} fail without a mutation")
        every = list(mutants(source))
        drawn = random.Random(0).sample(every, min(options.most, len(every)))
        alive = sorted(mutant for mutant in drawn if survives(name, mutant.source))
        print(f"{name}: {len(drawn)} of {len(every)} mutants, {len(alive)} survive", flush=True)
        for mutant in alive:
            print(f"  {name}.py:{mutant.line}: {mutant.change}", flush=True)


if __name__ == "__main__":
    main()
