"""The package's surface, what importing it costs, and the habits that keep its parts pure."""

import ast
import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import commonweal

FOLDER = Path(commonweal.__file__).parent
FILES = sorted(FOLDER.rglob("*.py"))
PACKAGES = sorted({file.parent for file in FILES})
PURE = [
    file
    for kind in ("rules", "clients", "servers", "samplers", "channels")
    for file in sorted((FOLDER / kind).glob("*.py"))
]
PUBLIC = [
    "CommonwealError",
    "CommonwealWarning",
    "Decision",
    "Experiment",
    "FederatedClassifier",
    "FederatedRegressor",
    "Federation",
    "Record",
    "Reports",
    "Round",
    "Rule",
    "Run",
    "Stateless",
    "Task",
    "channel",
    "choose",
    "client",
    "compare",
    "dataset",
    "load",
    "load_experiment",
    "load_run",
    "metrics",
    "model",
    "partition",
    "reopen",
    "rule",
    "run",
    "sampler",
    "server",
    "slots",
]


def shown(file: Path) -> str:
    return file.relative_to(FOLDER).as_posix()


def dotted(file: Path) -> str:
    """The name of the module or package of a path."""
    parts = file.relative_to(FOLDER.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


# The surface


def test_public_names_are_exactly_those_documented() -> None:
    assert commonweal.__all__ == PUBLIC
    assert set(PUBLIC) <= set(dir(commonweal))


def test_everything_public_has_a_docstring() -> None:
    assert [name for name in PUBLIC if not getattr(commonweal, name).__doc__] == []


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'rulez'"):
        getattr(commonweal, "rulez")  # noqa: B009


def test_classes_are_imported_from_where_they_are() -> None:
    from commonweal.clients import Ditto
    from commonweal.protocols.servers import SGD
    from commonweal.rules import AAggFFS, Rule

    assert commonweal.rule("aaggff-s") == AAggFFS()
    assert commonweal.Rule is Rule
    assert type(commonweal.client("ditto")) is Ditto
    assert commonweal.server("sgd") == SGD()


def test_the_version_is_that_of_the_package() -> None:
    project = FOLDER.parents[1] / "pyproject.toml"
    if not project.exists():
        pytest.skip("not a checkout")
    declared = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"]
    assert declared == commonweal.__version__


def test_the_package_is_typed() -> None:
    assert (FOLDER / "py.typed").exists()


def test_no_module_is_shadowed() -> None:
    """`commonweal.jobs.rounds` is the module of that name, also where a function could be meant."""
    shadowed = []
    for file in FILES:
        if file.stem.startswith("__"):
            continue
        parent = importlib.import_module(dotted(file.parent))
        module = importlib.import_module(dotted(file))
        if not isinstance(module, ModuleType) or vars(parent)[file.stem] is not module:
            shadowed.append(dotted(file))
    assert shadowed == []


def test_the_only_public_name_of_a_module_at_the_root_is_metrics() -> None:
    modules = {path.stem for path in FOLDER.iterdir()}
    assert modules & set(PUBLIC) == {"metrics"}
    assert commonweal.metrics is importlib.import_module("commonweal.metrics")


# What importing costs


def modules_after(code: str, quiet: bool = True) -> set[str]:
    """The modules that a fresh process has after this code; quiet: it prints no error."""
    printing = f"{code}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    here = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", printing],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": here},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" or not quiet
    return set(json.loads(done.stdout.splitlines()[-1]))


SLOW = ["torch", "numpy", "scipy", "sklearn", "matplotlib", "piqp", "safetensors"]
FOREIGN = ["flwr", "pandas", "ray", "tensorboard", "IPython", "transformers", "pyarrow"]


def test_importing_the_package_and_the_command_pulls_in_nothing_slow() -> None:
    imported = modules_after("import commonweal, commonweal.cli")
    assert not imported & {*SLOW, *FOREIGN}
    assert "commonweal.cli" in imported


def test_an_experiment_is_read_without_torch() -> None:
    code = "import commonweal; commonweal.Experiment; from commonweal.config import catalog; "
    code += "[catalog.entries(kind) for kind in catalog.KINDS]"
    assert not modules_after(code) & {"torch", *FOREIGN}


def test_a_run_pulls_in_torch_only() -> None:
    imported = modules_after("import commonweal; commonweal.run")
    assert "torch" in imported
    assert not imported & {"matplotlib", "sklearn", "piqp", *FOREIGN}


SERVER = """
import numpy as np
from flwr.app import ArrayRecord
from flower_helpers import LocalGrid, configs, distance, mean_app
import commonweal
from commonweal.flower import FairStrategy
grid = LocalGrid(mean_app(lambda k, w, mine: {"loss-before": distance(w, mine)}), configs(3))
strategy = FairStrategy(commonweal.rule("aaggff-s"))
start = ArrayRecord([np.zeros(3, np.float32)])
result = strategy.start(grid=grid, initial_arrays=start, num_rounds=2)
assert abs(result.arrays.to_numpy_ndarrays()[0]).sum() > 0"""


def test_a_flower_server_imports_no_library_of_figures_and_tables() -> None:
    imported = modules_after(SERVER, quiet=False)
    assert "piqp" in imported
    assert not imported & {"matplotlib", "pyarrow", "sklearn", "pandas"}


# Modules


def test_modules_have_a_docstring() -> None:
    assert [shown(file) for file in FILES if not ast.get_docstring(tree_of(file))] == []


def test_what_a_module_offers_exists_and_is_not_private() -> None:
    wrong = []
    for file in FILES:
        if file.name == "__main__.py":
            continue
        module = importlib.import_module(dotted(file))
        for name in vars(module).get("__all__", ()):
            private = name.startswith("_") and name != "__version__"
            if private or getattr(module, name, None) is None:
                wrong.append(f"{dotted(file)}.{name}")
    assert wrong == []


def test_private_modules_are_imported_only_in_their_folder() -> None:
    """What another folder or a test needs is no detail: its module has no underscore."""
    imported = re.compile(r"commonweal\.(\w+)(?:\._[a-z]| import _[a-z])")
    wrong = []
    for file in [*FILES, *Path(__file__).parent.rglob("*.py")]:
        for folder in imported.findall(file.read_text(encoding="utf-8")):
            if file.parent != FOLDER / folder:
                wrong.append(f"{file.name} imports a private module of {folder}")
    assert wrong == []


def test_nothing_outside_the_engines_names_the_simulator() -> None:
    """But the key of an experiment, whose value is a word."""
    naming = re.compile(r"engines\.simulator|\bSimulator\b")
    found = [
        shown(file)
        for file in FILES
        if "engines" not in file.parts and naming.search(file.read_text(encoding="utf-8"))
    ]
    assert found == []


# Interfaces declare their methods: nothing looks for them


def calls(file: Path, function: str) -> int:
    nodes = [node for node in ast.walk(tree_of(file)) if isinstance(node, ast.Call)]
    return sum(ast.unparse(node.func) == function for node in nodes)


def test_nothing_is_found_by_hasattr() -> None:
    assert {shown(file): calls(file, "hasattr") for file in FILES if calls(file, "hasattr")} == {}


# Purity


BANNED_CALLS = ("print", "open", "object.__setattr__", "setattr")
BANNED_MODULES = ("random", "logging", "time", "datetime", "os", "sys", "pathlib", "warnings")
DRAWING = ("np.random", "torch.random", "torch.rand", "torch.randn")


def uses(file: Path) -> list[str]:
    """What a pure file must not do, with its line."""
    tree = tree_of(file)
    # A type such as np.random.Generator is not a draw.
    types = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "Generator"
        for part in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        if id(node) not in types:
            found += [f"{vars(node)['lineno']}: {use}" for use in _impure(node)]
    return found


def _impure(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
        return [f"assigns to {ast.unparse(node)}"]
    if isinstance(node, ast.Call) and ast.unparse(node.func) in BANNED_CALLS:
        return [f"calls {ast.unparse(node.func)}"]
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
        return [f"imports {name}" for name in names if name.split(".")[0] in BANNED_MODULES]
    if isinstance(node, ast.Attribute) and ast.unparse(node) in DRAWING:
        return [f"draws from {ast.unparse(node)}"]
    if isinstance(node, ast.Global | ast.Nonlocal):
        return [ast.unparse(node)]
    return []


# What some files may do all the same.
EXCEPTIONS: dict[str, tuple[str, ...]] = {
    # A trace is read once, before the first round.
    "protocols/samplers/trace.py": ("imports pathlib", "calls open"),
    "clients/client.py": ("assigns to cls.",),  # when a subclass is defined
    "rules/simplex.py": ("assigns to settings.",),  # of a solver that the function itself makes
}


def test_rules_clients_servers_samplers_and_channels_are_pure() -> None:
    impure = []
    for file in PURE:
        allowed = EXCEPTIONS.get(shown(file), ("nothing",))
        for use in uses(file):
            if not use.partition(": ")[2].startswith(allowed):
                impure.append(f"{shown(file)}:{use}")
    assert impure == []


def test_the_check_of_purity_can_fail(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(
        "import random\nfrom random import choice\nimport numpy as np\n"
        "def f(self, rng: np.random.Generator):\n    self.x = 1\n    self.y += 2\n    print(3)\n"
        "    setattr(self, 'z', open('a'))\n    return np.random.rand()\n"
    )
    assert sorted(use.partition(": ")[2] for use in uses(bad)) == [
        "assigns to self.x",
        "assigns to self.y",
        "calls open",
        "calls print",
        "calls setattr",
        "draws from np.random",
        "imports random",
        "imports random",
    ]
