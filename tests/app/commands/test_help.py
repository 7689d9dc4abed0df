"""The command as a whole: help, version, completion, what it imports, and wrong options."""

import json
from pathlib import Path

import pytest

import commonweal
from command_helpers import TEXT, Command, python, refusal
from commonweal.report import listing


def test_wrong_options_end_with_2(command: Command) -> None:
    for words in ("demo --seeds 0", "run", "check", "nothing", "run --oops x"):
        refusal(command(*words.split()))


def test_help(command: Command) -> None:
    commands = ("run", "compare", "list", "show", "check", "demo", "data", "data show", "data get")
    for words in ("--help", "-h", *(f"{name} -h" for name in commands)):
        result = command(*words.split())
        assert result.code == 0 and "Usage:" in result.out, words


def test_help_explains_arguments(command: Command) -> None:
    shown = " ".join(command("run", "--help").out.replace("│", " ").split())
    assert "experiment" in shown.partition("Arguments")[2].partition("Options")[0]


def test_guides_without_a_network(command: Command, tmp_path: Path) -> None:
    listed = command("docs").out
    assert "own               Your own table, model and dataset\n" in listed
    assert command("docs", "own.md").out.startswith("# Your own table, model and dataset\n")
    assert command("docs", "slurm.sbatch", "-o", "s.sbatch").code == 0
    assert (tmp_path / "s.sbatch").read_text().startswith("#!")
    assert "did you mean 'own'" in refusal(command("docs", "onw"))


def test_the_installed_command_ends_a_mistake_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(TEXT)
    main = "from commonweal.cli import main; main()"
    done = python("-c", main, "run", "e.toml", "rule=fedagv", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "commonweal: no rule is called 'fedagv': did you mean 'fedavg'?\n"


MAIN = """
import json, shlex, sys
from commonweal.cli import main
for line in json.loads(sys.argv[1]):
    sys.argv = ["commonweal", *shlex.split(line)]
    try:
        main()
    except SystemExit as done:
        code = done.code
    slow = {"torch", "numpy", "scipy", "matplotlib", "sklearn"} & set(sys.modules)
    print("exit", code, "slow", sorted(slow), "after", line, file=sys.stderr)
"""


def test_help_lists_and_mistakes_import_nothing_slow(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(TEXT)
    fine = [
        "--help",
        "run --help",
        "list rules --json",
        *(f"list {kind}" for kind in listing.LISTS),
    ]
    wrong = [
        "list rulez",
        "show fedagv",
        "rnu",
        "run e.toml rule=fedagv",
        "run e.toml rouns=3",
        "run none.toml",
        "compare e.toml --rules fedavg,fedagv",
        "compare e.toml --format word",
        "compare e.toml --seeds x",
        "compare e.toml --vary client.lr",
        "compare e.toml rouns=3",
        "tune e.toml rouns=3",
        "check fedagv",
        "data show vowl",
    ]
    done = python("-c", MAIN, json.dumps(fine + wrong), cwd=tmp_path)
    ended = [line for line in done.stderr.splitlines() if line.startswith("exit ")]
    assert ended == [
        *(f"exit 0 slow [] after {line}" for line in fine),
        *(f"exit 2 slow [] after {line}" for line in wrong),
    ]


COMPLETE = "import sys; sys.argv = ['commonweal']; from commonweal.cli import main; main()"


def test_the_shell_completes_words(tmp_path: Path) -> None:
    for words, expected in {
        "commonweal li": "list",
        "commonweal list sam": "samplers",
        "commonweal show aaggff-": "aaggff-s",
        "commonweal compare e.toml --format la": "latex",
    }.items():
        environment = {
            "_COMMONWEAL_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        }
        done = python("-c", COMPLETE, cwd=tmp_path, environment=environment)
        assert expected in done.stdout.split(), words
        assert done.stderr == ""


def test_the_version(command: Command) -> None:
    result = command("--version")
    assert (result.code, result.out) == (0, f"commonweal {commonweal.__version__}\n")


def test_the_module_is_the_command(tmp_path: Path) -> None:
    done = python("-m", "commonweal", "--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"commonweal {commonweal.__version__}\n")


def test_help_joins_the_lines_of_a_paragraph_and_loses_no_word(command: Command) -> None:
    lines = [line.strip() for line in command("compare", "--help").out.splitlines()]
    start = next(k for k, line in enumerate(lines) if line.startswith("Finished runs are"))
    assert len(lines[start]) > 70  # not broken where the source is
    assert "the other runs go on." in " ".join(lines)
    assert "runs/FILE-compare." in " ".join(lines)


def test_nothing_is_cropped_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest-xdist sets it
    done = python("-m", "commonweal", "list", "rules", cwd=tmp_path)
    assert "…" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) > 100
    help_text = python("-m", "commonweal", "compare", "--help", cwd=tmp_path).stdout
    assert "…" not in help_text


def test_a_misspelt_command_is_suggested_once(command: Command) -> None:
    for words in (("rnu",), ("data", "shw")):
        assert command(*words).err.count("Did you mean") == 1
