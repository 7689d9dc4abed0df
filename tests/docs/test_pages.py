"""Every command and every Python snippet of README.md and docs/, run in the order of its page.

Commands that train run for two rounds and one or two seeds, unless the page shows what they print:
then they run as they are, and the output is compared (page_outputs). What cannot be run here has a
line in NOT_RUN with the reason.
"""

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from commonweal import cli
from commonweal.app.commands import console
from commonweal.data.sources.files import find_file
from own_table import write
from page_outputs import check, same, selected, shown

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELLS = ("sh", "bash", "console", "powershell")
TRAINING = ("run", "compare", "tune")

# What a page takes for granted.
BEFORE = {
    "reading.md": [
        "commonweal run examples/vowel.toml rule=aaggff-s rounds=10 evaluate_every=5",
        "commonweal compare examples/vowel.toml rounds=2 --rules fedavg,aaggff-s --seeds 2",
    ],
}
NOT_RUN = {
    r"pip install|python3? -m (venv|pip|build|twine)|py -m venv|\. \.venv|\.venv": "it installs",
    r"make ": "tested by .ci/run, or takes minutes",
    r"flwr |flower-superlink|flower-supernode": "real processes: tests/flower/test_deployment.py",
    r"commonweal fit patients": "it takes minutes: tests/app/commands, tests/docs/test_own_page.py",
    r"commonweal withdraw .*--verify": "files are left: tests/study/test_withdrawal.py",
    r"commonweal ui": "it serves until it is stopped: tests/app/ui",
    r"commonweal data get": "it downloads: tests/datasets/test_download.py",
    r"(PYTHONPATH\S+ |COMMONWEAL_DATA\S+ )*python3? benchmarks/": "minutes; the file must exist",
    r"python -m benchmarks\.": "minutes, on several hosts",
    r"torchrun |srun |sbatch ": "several processes: tests/engines/test_ranks.py",
    r"COMMONWEAL_DATA": "it needs files that are not here",
    r"python docs/_site|python tests/": "tests/docs/test_site.py, tests/docs/test_own_page.py",
}
DATASETS = {"heart": ("heart", "processed.cleveland.data"), "adult": ("adult", "adult.data")}
DATASETS |= {"fashion-mnist": ("fashion_mnist", "train-images-idx3-ubyte")}
# Pages with pieces of programs, which are no programs.
PIECES = {"design.md"}
# Pages whose commands another test runs, with what they print.
ELSEWHERE = {
    "text.md": "tests/models/test_transformers.py: it needs transformers and peft",
    "own.md": "tests/docs/test_own_page.py",
    "flower.md": "tests/flower/test_strategy.py, test_mods.py: parts of apps",
    "flower-experiment.md": "tests/flower/test_walkthrough.py and test_command.py: real processes",
}


class Step(NamedTuple):
    kind: str  # "command", "python" or a file's name
    text: str


def steps(page: str) -> Iterator[Step]:
    """The commands, snippets and files of a page, in its order."""
    fence = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.M | re.S)
    position = 0
    for found in fence.finditer(page):
        yield from _indented(page[position : found.start()])
        position = found.end()
        text = re.sub(f"^{found[1]}", "", found[3], flags=re.M)
        name = re.match(r"# (\w+\.py)\n", text)
        if found[2] == "python":
            yield Step(name[1] if name else "python", text)
        elif found[2] in SHELLS:
            yield from _commands(text)
    yield from _indented(page[position:])


def _indented(text: str) -> Iterator[Step]:
    blocks = re.findall(r"(?:^    .*\n|^    .*\Z)+", text, re.M)
    for block in blocks:
        yield from _commands(re.sub(r"^    ", "", block, flags=re.M))


def _commands(block: str) -> Iterator[Step]:
    joined = re.sub(r" *\\\n *", " ", block)
    for line in joined.splitlines():
        if re.match(r"(commonweal|python3?|py|pip|make|flwr|flower-\w+) |[A-Z_]+=\S+ ", line):
            yield Step("command", re.sub(r"\s{2,}#.*$", "", line).strip())


def reason(command: str) -> str:
    """Why a command is not run, or nothing."""
    for pattern, why in NOT_RUN.items():
        if re.match(pattern, command):
            return why
    for dataset, (folder, name) in DATASETS.items():
        if re.search(rf"\b{dataset}\b", command) and find_file(folder, name, None) is None:
            return f"the files of {dataset} are not here"
    return ""


def shortened(command: str) -> list[str]:
    """The arguments of a command, with few rounds and seeds where it trains."""
    arguments = shlex.split(command)[1:]
    if arguments[0] == "demo":
        return ["demo", "--seeds", "1", "--rounds", "2"]
    if arguments[0] not in TRAINING or len(arguments) == 1 or "algorithm=glm" in arguments:
        return arguments  # `estimates` refuses a regression that has not converged
    kept = [a for a in arguments if not re.match(r"(rounds|evaluate_every|patience)=", a)]
    changes = ["rounds=2", "evaluate_every=1"]
    short = [*kept[:2], *changes, *kept[2:]]
    for option, value in (("--seeds", "2"), ("--trials", "2")):
        if option in short:
            short[short.index(option) + 1] = value
    return short


def test_steps_are_found_in_their_order() -> None:
    page = "x\n\n    commonweal run a.toml     # why\n    no command\n\n```python\nprint(1)\n```\n"
    page += "1. a\n\n   ```sh\n   commonweal show \\\n       b\n   ```\n\n"
    page += "```python\n# f.py\nx = 1\n```\n"
    assert list(steps(page)) == [
        Step("command", "commonweal run a.toml"),
        Step("python", "print(1)\n"),
        Step("command", "commonweal show b"),
        Step("f.py", "# f.py\nx = 1\n"),
    ]


def test_training_is_shortened() -> None:
    short = shortened(
        "commonweal compare a.toml rounds=50 client.lr=1 --rules 'a,b(c=1)' --seeds 9"
    )
    assert short == shlex.split(
        "compare a.toml rounds=2 evaluate_every=1 client.lr=1 --rules a,b(c=1) --seeds 2"
    )


def test_what_a_page_shows_is_compared_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COMMONWEAL_WRITE_OUTPUTS", raising=False)
    page = tmp_path / "page.md"
    block = "\n<!-- prints{} -->\n\n```text\n{}```\n\nAnd so on.\n"
    command = "    commonweal show a\n" + block
    snippet = "\n```python\nprint(1)\n```\n" + block
    page.write_text(command.format(" 1 3-4", "") + snippet.format("", "1\n"), encoding="utf-8")
    printed = {"commonweal show a": "a 0.700\nb  \n\nc\nd\n", "print(1)\n": "1\n"}
    assert shown(page.read_text(encoding="utf-8")) == {"commonweal show a": "", "print(1)\n": "1\n"}
    with pytest.raises(AssertionError, match=r"page.md shows another output .*commonweal show a"):
        check(page, printed)
    monkeypatch.setenv("COMMONWEAL_WRITE_OUTPUTS", "1")
    check(page, printed)
    monkeypatch.delenv("COMMONWEAL_WRITE_OUTPUTS")
    expected = command.format(" 1 3-4", "a 0.700\n...\n\nc\n...\n") + snippet.format("", "1\n")
    assert page.read_text(encoding="utf-8") == expected
    check(page, printed | {"commonweal show a": "a 0.701\n\n\nc\nd\n"})
    for wrong in ("a 0.72\n\n\nc\nd\n", "b 0.7\n\n\nc\nd\n", "a 0.7\n\n\nc\n"):
        with pytest.raises(AssertionError, match=r"shows another output"):
            check(page, printed | {"commonweal show a": wrong})
    assert same("a │ 1", "a  │  1") and selected("a\nb", "2-") == "...\nb\n"


def test_the_tests_that_hold_promises_exist() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    tests = re.findall(r"`(tests/\S+\.py)::(\w+)`", page)
    assert len(tests) > 20
    for file, name in tests:
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{name}"


def test_the_walk_of_a_sample_names_functions_that_exist() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    walk = page.partition("## From a CSV to the page")[2].partition("\n## ")[0]
    steps = re.findall(r"`(\w+/\w+\.py)` `(\w+)`", walk)
    assert len(steps) >= 10
    for file, name in steps:
        source = (ROOT / "src" / "commonweal" / file).read_text(encoding="utf-8")
        assert re.search(rf"^(?:def|class) {name}\b", source, re.M), f"{file} has no {name}"


@pytest.mark.filterwarnings("default")  # a reader sees them, and goes on
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_command_and_snippet_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if page.name in ELSEWHERE:
        pytest.skip(f"run by {ELSEWHERE[page.name]}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console.out, "width", 80)
    monkeypatch.syspath_prepend(str(tmp_path))
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    write(tmp_path)
    for command in BEFORE.get(page.name, []):
        cli.app(shlex.split(command)[1:], standalone_mode=False)
    names: dict[str, object] = {"__name__": "__main__"}
    text = page.read_text(encoding="utf-8")
    printed = {}
    for step in steps(text):
        capsys.readouterr()
        if step.kind == "command":
            _call(step.text, whole=step.text in shown(text))
        elif step.kind == "python" and page.name not in PIECES:
            exec(compile(step.text, str(page), "exec"), names)
        elif step.kind.endswith(".py"):
            Path(step.kind).write_text(step.text, encoding="utf-8")
        printed[step.text] = capsys.readouterr().out
    check(page, printed)
    for name in [name for name in sys.modules if (tmp_path / f"{name}.py").exists()]:
        del sys.modules[name]


def _call(command: str, whole: bool) -> None:
    why = reason(command)
    for script in re.findall(r"\b(?:benchmarks|examples|tests|docs)/[\w/]+\.(?:py|toml)", command):
        assert (ROOT / script).exists(), f"{command}: there is no {script}"
    if why:
        return
    program = shlex.split(command)[0]
    assert program in ("commonweal", "python"), f"{command}: not run, and no reason is given"
    if program == "commonweal":
        arguments = shlex.split(command)[1:] if whole else shortened(command)
        cli.app(arguments, standalone_mode=False)
        return
    arguments = shlex.split(command)[1:]
    if arguments[:2] == ["-m", "commonweal"]:
        cli.app(shortened(" ".join(arguments[1:])), standalone_mode=False)
    else:
        raise AssertionError(f"{command}: not run, and no reason is given")
