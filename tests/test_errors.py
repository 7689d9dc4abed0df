"""One tree of errors, and the sentence at the end of each."""

import ast
from functools import cache
from pathlib import Path

import pytest

import commonweal
from commonweal.base import errors
from commonweal.base.errors import CommonwealError, ConfigError, DataError, RunError, did_you_mean

FILES = sorted(Path(commonweal.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("kind", [ConfigError, DataError, RunError])
def test_every_kind_of_error_is_a_commonweal_error(kind: type[CommonwealError]) -> None:
    assert kind.__bases__ == (CommonwealError,)
    with pytest.raises(CommonwealError, match=r"^what is wrong$"):
        raise kind("what is wrong")


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    tree = {
        c.__name__
        for c in vars(errors).values()
        if isinstance(c, type) and issubclass(c, CommonwealError)
    }
    kinds = {"ConfigError", "DataError", "DivergedError", "EncodingError", "LockedError"}
    kinds |= {"RankError", "RunError", "TrustError"}
    assert tree == {"CommonwealError", *kinds}
    assert all(name in (errors.__doc__ or "") for name in tree)


def test_no_error_is_a_builtin_one_that_a_caller_may_swallow_by_accident() -> None:
    assert CommonwealError.__bases__ == (Exception,)


@pytest.mark.parametrize(
    ("name", "known", "end"),
    [
        ("fedagv", ["fedavg", "aaggff-s"], "did you mean 'fedavg'?"),
        ("AAggFF-S", ["fedavg", "aaggff-s"], "did you mean 'aaggff-s'?"),
        ("rouns", ["rounds", "rule"], "did you mean 'rounds'?"),
        ("zzz", ["fedavg", "aaggff-s"], "known: aaggff-s, fedavg"),
        ("", ["b", "a"], "known: a, b"),
    ],
)
def test_did_you_mean(name: str, known: list[str], end: str) -> None:
    assert did_you_mean(name, known) == end


def test_did_you_mean_takes_anything_that_gives_names() -> None:
    assert did_you_mean("lr", {"lr": 1.0}) == "did you mean 'lr'?"
    assert did_you_mean("x", (name for name in ("b", "a"))) == "known: a, b"


@cache
def raises(file: Path) -> list[ast.Raise]:
    """Every `raise` of something in a file; a bare `raise` passes on what came."""
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return [node for node in nodes if isinstance(node, ast.Raise) and node.exc is not None]


def name_of(node: ast.Raise) -> str:
    """The class that a `raise` names."""
    thing = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    assert thing is not None
    return ast.unparse(thing).rpartition(".")[2]


def path_of(file: Path) -> str:
    return file.relative_to(Path(commonweal.__file__).parent).as_posix()


# What never reaches a user as it is: exit codes, Python's protocol for missing attributes, and
# errors that the same file or its callers turn into one of the tree.
INTERNAL = {
    "__init__.py": {"AttributeError"},  # in the module's __getattr__, as in the next two
    "datasets/__init__.py": {"AttributeError"},
    "flower/__init__.py": {"AttributeError"},
    "flower/strategy.py": {"AttributeError"},  # in __getattr__, for names of the legacy API
    "base/files.py": {"OSError"},  # as reading a file raises it; who reads says what the file is
    "base/memory.py": {"kind"},  # a parameter: a class of the tree
    "base/tensors.py": {"ValueError"},  # a damaged checkpoint, caught by `read_checkpoint`
    "base/typed.py": {"ValueError"},  # as parsers raise it: readers say which file it is
    "cli.py": {"Exit"},
    "config/catalog.py": {"ImportError"},
    "data/plain_table.py": {"ValueError"},  # exports carry a copy: it cannot import the tree
    "analysis/rank_pool.py": {"ServedExit", "known"},  # other ranks' end; a class of the tree
    "engines/ranks.py": {"failure", "kind"},  # variables: classes of the tree
    "engines/wire.py": {"DisconnectedError"},  # caught by engines/ranks.py
    "jobs/estimators.py": {"ValueError"},  # as scikit-learn's estimators raise it
    "jobs/job.py": {"kind"},  # a parameter: a class of the tree
    "record/columns.py": {"OSError"},  # a damaged file, caught by its readers
    "record/checkpoint.py": {"KeyError"},  # as parsers raise them: damaged files
    "record/facts.py": {"ValueError"},
    "record/record.py": {"ValueError"},
    "record/rounds.py": {"ValueError"},
    "samplers/trace.py": {"ValueError"},
    "training/local.py": {"KeyError"},  # in a dict's __missing__
}


def test_every_raise_is_of_a_class_in_the_tree() -> None:
    """And each exception from that is in use."""
    others: dict[str, set[str]] = {}
    for file in FILES:
        names = {name_of(node) for node in raises(file)}
        names -= {*errors.__all__, "NotImplementedError"}
        if file.parent.name == "commands":
            names -= {"Exit"}  # an exit code
        if names:
            others[path_of(file)] = names
    assert others == INTERNAL


def test_every_message_says_something_of_the_case() -> None:
    """A constant message cannot hold the value that was given; a few are about what is missing."""
    constant = []
    messages = 0
    for file in FILES:
        for node in raises(file):
            if name_of(node) not in errors.__all__ or not isinstance(node.exc, ast.Call):
                continue
            messages += 1
            message = node.exc.args[0]
            if isinstance(message, ast.Constant):
                text = str(message.value)
                if not any(words in text for words in ("needs", "no ", "not set")):
                    constant.append(f"{path_of(file)}:{node.lineno}: {text}")
    assert constant == []
    assert messages > 300
