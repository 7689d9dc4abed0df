"""Notebooks as pages: percent scripts of examples/notebooks, with what they print and draw."""

import ast
import contextlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jupytext

__all__ = ["Cell", "execute", "read", "write"]

NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"


class Cell(NamedTuple):
    is_code: bool
    source: str
    printed: str = ""
    figures: tuple[bytes, ...] = ()  # SVG


def read(path: Path) -> list[Cell]:
    """The cells of a percent script."""
    notebook = jupytext.read(path, fmt="py:percent")
    return [Cell(cell.cell_type == "code", cell.source) for cell in notebook.cells]


def execute(path: Path) -> list[Cell]:
    """Run a notebook's cells in an empty folder. Returns them with what they print and draw."""
    names: dict[str, object] = {"__name__": "__main__"}
    with _empty_folder():
        return [_executed(cell, path, names) for cell in read(path)]


@contextlib.contextmanager
def _empty_folder() -> Iterator[None]:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def _executed(cell: Cell, path: Path, names: dict[str, object]) -> Cell:
    if not cell.is_code:
        return cell
    from matplotlib.figure import Figure

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        value = _run(ast.parse(cell.source), str(path), names)
    if isinstance(value, Figure):
        buffer = io.BytesIO()
        value.savefig(buffer, format="svg", bbox_inches="tight")
        return cell._replace(printed=printed.getvalue(), figures=(buffer.getvalue(),))
    shown = "" if value is None else repr(value)
    return cell._replace(printed=printed.getvalue() + shown)


def _run(tree: ast.Module, path: str, names: dict[str, object]) -> object:
    """Run a cell. Returns the value of its last line, if that is an expression."""
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, path, "exec"), names)
        return None
    exec(compile(ast.Module(tree.body[:-1], []), path, "exec"), names)
    return eval(compile(ast.Expression(last.value), path, "eval"), names)


def write(folder: Path, run: bool = True) -> list[str]:
    """Write each notebook as a page and as .ipynb. Returns the names of the pages."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = sorted(NOTEBOOKS.glob("*.py"))
    for path in paths:
        cells = execute(path) if run else read(path)
        (folder / f"{path.stem}.md").write_text(_page(path, cells, folder), encoding="utf-8")
        jupytext.write(jupytext.read(path, fmt="py:percent"), folder / f"{path.stem}.ipynb")
        shutil.copy(path, folder)
    return [f"{path.stem}.md" for path in paths]


def _page(path: Path, cells: list[Cell], folder: Path) -> str:
    parts = []
    count = 0
    for cell in cells:
        if not cell.is_code:
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        if cell.printed.strip():
            parts.append(f"```text\n{cell.printed.rstrip()}\n```")
        for figure in cell.figures:
            count += 1
            name = f"{path.stem}-{count}.svg"
            (folder / name).write_bytes(figure)
            parts.append(f"![Figure {count}]({name})")
    files = f"This page as [a notebook]({path.stem}.ipynb) or [a script]({path.name})."
    return "\n\n".join([parts[0], files, *parts[1:]]) + "\n"
