"""The package's surface, what importing it costs, and the habits that keep rules and clients pure."""

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import commonweal

FOLDER = Path(commonweal.__file__).parent
PURE = sorted(f for kind in ("rules", "clients") for f in (FOLDER / kind).glob("*.py"))
PUBLIC = {
    "CommonwealError",
    "Experiment",
    "Federation",
    "Record",
    "Reports",
    "Round",
    "Rule",
    "Task",
    "client",
    "dataset",
    "load",
    "metrics",
    "model",
    "rule",
    "run",
    "server",
}


def test_public_names_are_exactly_those_documented() -> None:
    assert sorted(PUBLIC) == commonweal.__all__
    assert all(hasattr(commonweal, name) for name in PUBLIC)


def test_everything_public_says_what_it_is() -> None:
    for name in PUBLIC:
        assert (getattr(commonweal, name).__doc__ or "").strip(), name


def test_run_is_the_function() -> None:
    assert callable(commonweal.run)


def test_the_version_is_that_of_the_package() -> None:
    project = FOLDER.parents[1] / "pyproject.toml"
    if not project.exists():
        pytest.skip("not a checkout")
    assert tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"] == commonweal.__version__


def test_the_package_is_typed() -> None:
    assert (FOLDER / "py.typed").exists()


@pytest.fixture(scope="module")
def imported() -> set[str]:
    """The modules that a fresh process has after `import commonweal`."""
    code = "import json, sys, commonweal, commonweal.cli; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "package", ["flwr", "matplotlib", "pandas", "sklearn", "piqp", "ray", "tensorboard", "IPython"]
)
def test_importing_does_not_pull_in(imported: set[str], package: str) -> None:
    assert "torch" in imported
    assert package not in imported


@pytest.mark.parametrize("file", sorted(FOLDER.rglob("*.py")), ids=lambda f: f.relative_to(FOLDER).as_posix())
def test_modules_say_what_they_are_and_what_they_offer(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
    if file.name != "__init__.py":
        targets = [ast.unparse(t) for node in tree.body if isinstance(node, ast.Assign) for t in node.targets]
        assert "__all__" in targets


def uses(file: Path) -> list[str]:
    """What a pure file must not do, with its line."""
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            found.append(f"{node.lineno}: assigns to {ast.unparse(node)}")
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "print",
            "open",
            "object.__setattr__",
            "setattr",
        ):
            found.append(f"{node.lineno}: calls {ast.unparse(node.func)}")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            banned = ("random", "logging", "time", "datetime", "os", "sys", "pathlib", "warnings")
            found += [f"{node.lineno}: imports {n}" for n in names if n.split(".")[0] in banned]
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in (
            "np.random",
            "torch.random",
            "torch.rand",
            "torch.randn",
        ):
            found.append(f"{node.lineno}: draws from {ast.unparse(node)}")
        elif isinstance(node, ast.Global | ast.Nonlocal):
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


@pytest.mark.parametrize("file", PURE, ids=lambda f: f.relative_to(FOLDER).as_posix())
def test_rules_and_clients_are_pure(file: Path) -> None:
    assert uses(file) == []


def test_the_check_of_purity_can_fail(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(
        "import random\nfrom random import choice\nimport numpy as np\n"
        "def f(self):\n    self.x = 1\n    self.y += 2\n    print(3)\n    return np.random.rand()\n"
    )
    assert [use.partition(": ")[2] for use in uses(bad)] == [
        "imports random",
        "imports random",
        "assigns to self.x",
        "assigns to self.y",
        "calls print",
        "draws from np.random",
    ]
