"""The command as a person uses it: what it prints, where, and how it ends."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from torch import nn

import commonweal
from commonweal import cli
from commonweal.commands import console
from commonweal.config import catalog
from commonweal.config.experiment import Experiment
from commonweal.data.federation import Federation
from commonweal.jobs.rounds import Round, run
from commonweal.record.record import Record
from commonweal.report import listing
from commonweal.report.remarks import Remarks
from commonweal.training.task import Task

TEXT = """
dataset = "vowel"
rounds = 3

[rule]
name = "aaggff-s"
"""


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


Command = Callable[..., Result]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """`commonweal ...` in this process and in an empty folder, with a terminal of 100 columns."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object, width: int = 100) -> Result:
        capsys.readouterr()
        out, err = io.StringIO(), io.StringIO()
        monkeypatch.setattr(console, "out", Console(file=out, width=width))
        monkeypatch.setattr(console, "err", Console(file=err, width=width))
        monkeypatch.setattr(sys, "argv", ["commonweal", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as done:
            code = int(done.code or 0)
        printed = capsys.readouterr()
        return Result(code, printed.out + out.getvalue(), printed.err + err.getvalue())

    return call


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "e.toml"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    list(run(Experiment(dataset="vowel", rounds=3, rule="aaggff-s"), out=folder))
    return folder


def mistake(result: Result) -> str:
    """The one sentence of a user's mistake."""
    assert result.code == 2
    assert result.out == ""
    assert "Traceback" not in result.err
    lines = result.err.strip().splitlines()
    assert len(lines) == 1, result.err
    assert lines[0].startswith("commonweal: ")
    return lines[0].removeprefix("commonweal: ")


def test_run_writes_a_folder_and_prints_a_table(
    command: Command, file: Path, tmp_path: Path
) -> None:
    result = command("run", file, "--out", tmp_path / "r")
    assert result.code == 0
    assert "aaggff-s: round 3 of 3, accuracy" in " ".join(result.out.split())
    for word in ("mean", "worst 10 %", "Gini"):
        assert word in result.out
    worst = Record.read(tmp_path / "r").evaluated[-1].metrics["worst"]
    assert f"{100 * worst:.2f} %" in result.out
    assert "saved in" in result.err
    assert (tmp_path / "r" / "model.safetensors").exists()


def test_run_shows_every_client_the_worst_first(
    command: Command, file: Path, tmp_path: Path
) -> None:
    result = command("run", file, "--out", tmp_path / "r")
    table = Record.read(tmp_path / "r").clients()
    pairs = zip(table.evaluation.score.tolist(), table.names, strict=True)
    ranked = [name for _, name in sorted(pairs, key=lambda pair: pair[0])]
    shown = [word for word in result.out.split() if word in ranked]
    assert shown[: len(ranked)] == ranked
    assert "always predicting the most frequent class:" in result.out


def test_run_takes_overrides(command: Command, file: Path, tmp_path: Path) -> None:
    result = command(
        "run", file, "rounds=2", "rule=fedavg", "client.lr=0.05", "--out", tmp_path / "r", "--quiet"
    )
    assert result.code == 0
    record = commonweal.load(tmp_path / "r")
    assert isinstance(record, commonweal.Record)
    assert len(record.rounds) == 2
    assert record.experiment["rule"] == {"name": "fedavg"}
    assert record.experiment["client"]["lr"] == 0.05


def test_run_chooses_a_folder(command: Command, file: Path, tmp_path: Path) -> None:
    assert command("run", file, "seed=7", "rounds=1", "-q").code == 0
    assert (tmp_path / "runs" / "e-aaggff-s-7" / "model.safetensors").exists()


def test_run_quietly_prints_nothing(command: Command, file: Path, tmp_path: Path) -> None:
    result = command("run", file, "--out", tmp_path / "r", "--quiet")
    assert (result.code, result.out, result.err) == (0, "", "")


def strict(text: str) -> Any:
    """JSON as other languages read it: no NaN, no Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_run_as_json(command: Command, file: Path, tmp_path: Path) -> None:
    result = command("run", file, "--out", tmp_path / "r", "--json")
    assert (result.code, result.err) == (0, "")
    value = strict(result.out)
    assert (value["folder"], value["finished"], value["round"]) == (str(tmp_path / "r"), True, 3)
    assert len(value["clients"]) == 15
    assert set(value["clients"][0]) == {"client", "score", "loss"}
    assert value["metrics"]["worst"] == min(c["score"] for c in value["clients"])


LONELY = """
import numpy as np
from commonweal import Federation


def lonely():
    x = np.random.default_rng(0).normal(size=(21, 2))
    return Federation.from_arrays(x, (x[:, 0] > 0).astype(int), ["a"] * 10 + ["b"] * 10 + ["tiny"])
"""


@pytest.fixture
def lonely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a dataset of one's own in which a client has a single row."""
    (tmp_path / "lonely_data.py").write_text(LONELY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "lonely_data", raising=False)
    return "lonely_data:lonely"


def test_run_on_ones_own_dataset_says_who_is_not_scored(
    command: Command, file: Path, tmp_path: Path, lonely: str
) -> None:
    result = command("run", file, f"dataset={lonely}", "--out", tmp_path / "r")
    assert result.code == 0
    assert "1 clients have too few rows" in result.err or "1 client has too few rows" in result.err
    assert "tiny" in result.err


def test_json_knows_no_nan_where_a_client_is_not_scored(
    command: Command, file: Path, tmp_path: Path, lonely: str
) -> None:
    result = command("run", file, f"dataset={lonely}", "--out", tmp_path / "r", "--json")
    clients = strict(result.out)["clients"]
    assert [c["client"] for c in clients] == ["a", "b", "tiny"]
    assert clients[2]["score"] is None


def test_run_refuses_a_second_time_and_resume_says_it_was_finished(
    command: Command, file: Path, tmp_path: Path
) -> None:
    assert command("run", file, "--out", tmp_path / "r", "-q").code == 0
    assert "holds this run already: continue with --resume" in mistake(
        command("run", file, "--out", tmp_path / "r")
    )
    result = command("run", file, "--out", tmp_path / "r", "--resume")
    assert result.code == 0
    assert "was finished already" in " ".join(result.err.split())
    assert "mean" in result.out


def test_run_in_another_experiments_folder(command: Command, file: Path, tmp_path: Path) -> None:
    assert command("run", file, "--out", tmp_path / "r", "-q").code == 0
    sentence = mistake(command("run", file, "rounds=9", "--out", tmp_path / "r", "--resume"))
    assert "holds another experiment" in sentence and "rounds = 9" in sentence


def interrupted(*_: object, **__: object) -> Iterator[Any]:
    """A run in whose third round Ctrl-C is pressed."""
    yield from list(run(Experiment(dataset="vowel", rounds=2)))
    raise KeyboardInterrupt


def test_ctrl_c_ends_with_130_and_says_how_to_continue(
    command: Command, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commonweal.jobs.rounds.run", interrupted)
    result = command("run", file, "--out", tmp_path / "r")
    assert result.code == 130
    assert "Traceback" not in result.err
    said = " ".join(result.err.split())
    assert "stopped after round 2; all rounds are saved in" in said
    assert "continue with the same command and --resume" in said


LONG = (
    "a folder whose name is so long that a terminal of the usual width breaks it over lines [bold]"
)


def test_ctrl_c_names_the_folder_so_that_it_can_be_copied(
    command: Command, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commonweal.jobs.rounds.run", interrupted)
    assert str(tmp_path / LONG) in command("run", file, "--out", tmp_path / LONG).err


def test_run_names_the_folder_so_that_it_can_be_copied(
    command: Command, file: Path, tmp_path: Path
) -> None:
    assert str(tmp_path / LONG) in command("run", file, "--out", tmp_path / LONG).err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["rule=fedagv"], "no rule is called 'fedagv': did you mean 'fedavg'?"),
        (["rule.cfd=normal"], "rule 'aaggff-s' has no parameter 'cfd': did you mean 'cdf'?"),
        (
            ["rounds"],
            "'rounds' is not a change: write key=value, such as rounds=50 or rule.cdf=frechet",
        ),
        (["rouns=3"], "an experiment has no key 'rouns': did you mean 'rounds'?"),
        (["rounds=many"], "rounds = 'many': input should be a valid integer"),
        (["cohort=99"], "cohort = 99 is 99 clients, but there are 15"),
        (["client.lr=-1"], "client lr = -1.0: it must be above 0"),
        (["model=no.such.module:thing"], None),
        (["dataset=heart", "dataset.dir=nowhere"], None),
        (["dataset.test=0.0"], None),
        (["dataset.test=1.5"], None),
        (["seed=99999999999999999999999"], None),
        (["model=mlp", "model.hidden=[0]"], None),
        (["model=mlp", "model.hidden=[-3]"], None),
    ],
)
def test_a_mistake_in_an_experiment_is_one_sentence(
    command: Command, file: Path, tmp_path: Path, arguments: list[str], sentence: str | None
) -> None:
    said = mistake(command("run", file, *arguments, "--out", tmp_path / "r"))
    assert said == sentence if sentence else len(said) > 10
    assert not (tmp_path / "r").exists()


def test_a_mistake_in_markup_is_printed_as_it_is(command: Command, file: Path) -> None:
    assert "'[red]x[/red]'" in mistake(command("run", file, "rule=[red]x[/red]"))


def test_a_missing_file_is_one_sentence(command: Command) -> None:
    assert (
        mistake(command("run", "none.toml")) == "cannot read 'none.toml': No such file or directory"
    )


def test_a_folder_or_a_picture_for_a_file_is_one_sentence(command: Command, tmp_path: Path) -> None:
    assert mistake(command("run", tmp_path)).endswith("it is a folder")
    (tmp_path / "x.toml").write_bytes(b"\x89PNG\r\n")
    assert "is not valid TOML" in mistake(command("run", tmp_path / "x.toml"))


def test_a_folder_that_cannot_be_written_is_one_sentence(command: Command, file: Path) -> None:
    assert "cannot write" in mistake(command("run", file, "--out", file / "below" / "a" / "file"))


def listed(kind: str) -> set[str]:
    return set(listing.summaries(kind))


@pytest.mark.parametrize("kind", listing.LISTS)
def test_list_names_everything_of_a_kind(command: Command, kind: str) -> None:
    result = command("list", kind)
    assert (result.code, result.err) == (0, "")
    first = [line.split()[0] for line in result.out.splitlines() if line.strip()]
    assert listed(kind)
    assert all(name in first for name in listed(kind))


def test_every_kind_of_part_is_listed_and_scores_and_metrics() -> None:
    assert set(listing.LISTS) == {*catalog.KINDS, "scores", "metrics"}


@pytest.mark.parametrize("kind", listing.LISTS)
def test_list_as_json(command: Command, kind: str) -> None:
    value = strict(command("list", kind, "--json").out)
    assert set(value) == listed(kind)
    assert all(isinstance(line, str) and line and "\n" not in line for line in value.values())


def test_list_of_clients_says_what_each_is(command: Command) -> None:
    assert strict(command("list", "clients", "--json").out)["sgd"].startswith("sgd: local SGD")


def test_a_list_of_something_else_is_one_sentence(command: Command) -> None:
    assert mistake(command("list", "rulez")) == "there is no list of 'rulez': did you mean 'rules'?"


def test_show_explains_a_rule(command: Command) -> None:
    result = command("show", "aaggff-s")
    assert (result.code, result.err) == (0, "")
    assert "aaggff-s (rule)" in result.out
    assert "AAggFF-S: an online Newton step" in result.out
    assert "Hahn et al., ICML 2024" in result.out
    for line in ("cdf = 'normal'", "variant = 'paper'", "beta = None"):
        assert line in result.out


@pytest.mark.parametrize(
    "name", sorted({name for kind in catalog.KINDS for name in catalog.entries(kind)})
)
def test_show_explains_everything_that_is_listed(command: Command, name: str) -> None:
    result = command("show", name)
    assert (result.code, result.err) == (0, "")
    assert name in result.out


@pytest.mark.parametrize(
    "name", sorted({name for kind in catalog.KINDS for name in catalog.entries(kind)})
)
def test_show_as_json_is_one_json_value(command: Command, name: str) -> None:
    """Also for a name such as sgd, which is a client and a server."""
    value = strict(command("show", name, "--json").out)
    assert name in json.dumps(value)


def test_show_as_json_gives_kind_and_parameters(command: Command) -> None:
    value = strict(command("show", "aaggff-s", "--json").out)
    value = value[0] if isinstance(value, list) else value
    assert (value["kind"], value["name"]) == ("rules", "aaggff-s")
    start = {"cdf": "normal", "variant": "paper", "beta": None}
    assert value["parameters"].items() >= start.items()
    assert "frechet" in value["grid"]["cdf"]


def test_show_a_run(command: Command, finished: Path) -> None:
    result = command("show", finished)
    assert (result.code, result.err) == (0, "")
    assert "aaggff-s: round 3 of 3, accuracy" in " ".join(result.out.split())
    assert "worst" in result.out


def test_show_a_run_quietly_and_as_json(command: Command, finished: Path) -> None:
    assert command("show", finished, "--quiet").out == ""
    value = strict(command("show", finished, "--json").out)
    assert (value["folder"], value["finished"], value["round"]) == (str(finished), True, 3)


def test_show_the_run_of_ones_own_task(command: Command, tmp_path: Path) -> None:
    f = Federation.from_arrays([[0.0], [1.0], [2.0], [3.0]] * 2, [0, 1] * 4, ["a"] * 4 + ["b"] * 4)
    next(iter(run(Task(nn.Linear(1, 2)), f, rule="aaggff-s", out=tmp_path / "own")))
    result = command("show", tmp_path / "own")
    assert (result.code, result.err) == (0, "")
    assert "round 1 of 100" in " ".join(result.out.split())


def test_show_a_run_that_was_never_evaluated(command: Command, tmp_path: Path) -> None:
    next(iter(run(Experiment(dataset="vowel", rounds=9, evaluate_every=5), out=tmp_path / "early")))
    result = command("show", tmp_path / "early")
    assert (result.code, result.err) == (0, "")
    assert "no round has been evaluated yet" in " ".join(result.out.split())
    value = strict(command("show", tmp_path / "early", "--json").out)
    assert (value["finished"], value["round"], value["clients"]) == (False, None, [])


def test_show_of_an_unknown_name_is_one_sentence(command: Command) -> None:
    assert mistake(command("show", "fedagv")) == (
        "'fedagv' is neither a run's folder nor a known name: did you mean 'fedavg'?"
    )


def test_show_of_a_folder_without_a_run_is_one_sentence(command: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "is neither a run nor a comparison" in mistake(command("show", tmp_path / "empty"))


@pytest.mark.parametrize(
    "arguments",
    [["demo", "--seeds", "0"], ["run"], ["check"], ["nothing"], ["run", "--oops", "x"]],
)
def test_wrong_options_end_with_2(command: Command, arguments: list[str]) -> None:
    result = command(*arguments)
    assert result.code == 2
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["-h"],
        *([name, "-h"] for name in ("run", "compare", "list", "show", "check", "demo", "data")),
        ["data", "show", "-h"],
        ["data", "get", "-h"],
    ],
)
def test_help(command: Command, arguments: list[str]) -> None:
    result = command(*arguments)
    assert result.code == 0
    assert "Usage:" in result.out


def test_the_installed_command_ends_a_mistake_with_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(TEXT)
    main = [sys.executable, "-c", "from commonweal.cli import main; main()"]
    done = subprocess.run(
        [*main, "run", "e.toml", "rule=fedagv"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "commonweal: no rule is called 'fedagv': did you mean 'fedavg'?\n"


def python(
    *arguments: str, cwd: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_version(command: Command) -> None:
    result = command("--version")
    assert (result.code, result.out) == (0, f"commonweal {commonweal.__version__}\n")


def test_the_module_is_the_command(tmp_path: Path) -> None:
    done = python("-m", "commonweal", "--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"commonweal {commonweal.__version__}\n")


IMPORTED = """
import sys
from commonweal.cli import main
try:
    main()
except SystemExit as done:
    code = done.code
slow = {"torch", "numpy", "scipy", "matplotlib", "sklearn"} & set(sys.modules)
print("exit", code, "slow", sorted(slow), file=sys.stderr)
"""


def test_help_joins_the_lines_of_a_paragraph_and_loses_no_word(command: Command) -> None:
    lines = [line.strip() for line in command("compare", "--help").out.splitlines()]
    start = next(k for k, line in enumerate(lines) if line.startswith("Runs that are finished"))
    assert len(lines[start]) > 70  # not broken where the source is
    assert lines[start + 1].endswith("is a line of the result.")
    assert "runs/FILE-compare." in " ".join(lines)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["run", "--help"], 0),
        *((["list", kind], 0) for kind in listing.LISTS),
        (["list", "rules", "--json"], 0),
        (["list", "rulez"], 2),
        (["show", "fedagv"], 2),
        (["rnu"], 2),
        (["run", "e.toml", "rule=fedagv"], 2),
        (["run", "e.toml", "rouns=3"], 2),
        (["run", "none.toml"], 2),
        (["compare", "e.toml", "--rules", "fedavg,fedagv"], 2),
        (["compare", "e.toml", "--format", "word"], 2),
        (["check", "fedagv"], 2),
        (["data", "show", "vowl"], 2),
    ],
)
def test_help_lists_and_mistakes_import_nothing_slow(
    tmp_path: Path, arguments: list[str], code: int
) -> None:
    (tmp_path / "e.toml").write_text(TEXT)
    done = python("-c", IMPORTED, *arguments, cwd=tmp_path)
    assert done.stderr.splitlines()[-1] == f"exit {code} slow []"


COMPLETE = "import sys; sys.argv = ['commonweal']; from commonweal.cli import main; main()"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("commonweal li", "list"),
        ("commonweal list sam", "samplers"),
        ("commonweal show aaggff-", "aaggff-s"),
        ("commonweal compare e.toml --format la", "latex"),
    ],
)
def test_the_shell_completes_words(tmp_path: Path, words: str, expected: str) -> None:
    environment = {
        "_COMMONWEAL_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = python("-c", COMPLETE, cwd=tmp_path, environment=environment)
    assert expected in done.stdout.split()
    assert done.stderr == ""


# Nothing is cropped


@pytest.mark.parametrize("kind", ["rules", "datasets", "clients"])
def test_lists_are_whole_at_eighty_columns(command: Command, kind: str) -> None:
    text = command("list", kind, width=80).out
    assert "…" not in text
    words = " ".join(text.split())
    assert all(line.split()[-1] in words for line in listing.summaries(kind).values())


def test_a_long_name_of_a_client_is_whole_at_eighty_columns(
    command: Command, tmp_path: Path
) -> None:
    names = [f"{letter * 90} hospital" for letter in "ab"]
    f = Federation.from_arrays([[0.0], [1.0]] * 8, [0, 1] * 8, [n for n in names for _ in range(8)])
    list(run(Task(nn.Linear(1, 2)), f, rounds=1, out=tmp_path / "own"))
    text = command("show", tmp_path / "own", width=80).out
    assert "…" not in text
    assert text.count("a") >= 90


def test_nothing_is_cropped_in_a_file(tmp_path: Path) -> None:
    done = python("-m", "commonweal", "list", "rules", cwd=tmp_path)
    assert "…" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) > 100
    help_text = python("-m", "commonweal", "compare", "--help", cwd=tmp_path).stdout
    assert "…" not in help_text


# check


RULES = """
from dataclasses import dataclass, replace
import torch
from commonweal import Decision, Rule


@dataclass(frozen=True)
class MaxMin(Rule):
    \"\"\"weights_i ~ 1 for the largest loss, else share\"\"\"

    share: float = 0.5

    def __call__(self, reports, state):
        losses = reports.losses.double()
        raw = torch.full_like(losses, self.share)
        raw[losses == losses.max()] = 1
        return Decision(raw / raw.sum(), state)


@dataclass(frozen=True)
class Half(Rule):
    \"\"\"half of the weights of uniform\"\"\"

    def __call__(self, reports, state):
        size = len(reports.ids)
        return Decision(torch.full((size,), 0.5 / size, dtype=torch.float64), state)


class Neither:
    pass
"""


@pytest.fixture
def rules_file(tmp_path: Path) -> Path:
    path = tmp_path / "my_rules.py"
    path.write_text(RULES)
    return path


@pytest.mark.parametrize(
    "name", ["./my_rules.py:MaxMin", "./my_rules.py:MaxMin(share=0.2)", "term", "guarded(rule=afl)"]
)
def test_check_names_the_properties_that_hold(
    command: Command, rules_file: Path, name: str
) -> None:
    result = command("check", name)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert len(lines) > 10
    assert "ok  pure" in lines
    assert command("check", name, "--quiet").out == ""


@pytest.mark.parametrize("name", ["sgd", "ditto(lam=0.5)", "commonweal.clients.ditto:Ditto"])
def test_check_takes_client_methods_too(command: Command, name: str) -> None:
    result = command("check", name)
    assert (result.code, result.err) == (0, "")
    assert all(line.startswith("ok  ") for line in result.out.splitlines())
    assert len(result.out.splitlines()) > 5


def test_check_says_which_property_is_broken(command: Command, rules_file: Path) -> None:
    said = mistake(command("check", "./my_rules.py:Half"))
    assert said == "rule Half fails the check 'mixing': mixing is true, but the weights sum to 0.5"


def test_check_of_something_else_is_one_sentence(command: Command, rules_file: Path) -> None:
    assert "neither a subclass of Rule" in mistake(command("check", "./my_rules.py:Neither"))
    assert "did you mean 'term'?" in mistake(command("check", "trem"))
    assert "cannot be used" in mistake(command("check", "./none.py:Rule"))


# compare


def test_compare_prints_a_table_and_draws(command: Command, file: Path, tmp_path: Path) -> None:
    picture = tmp_path / "scores.svg"
    arguments = ["compare", file, "--rules", "fedavg,term(t=2)", "--seeds", "2"]
    result = command(*arguments, "--picture", picture)
    assert result.code == 0
    words = " ".join(result.out.split())
    assert "accuracy over 15 clients in %, mean±std over 2 seeds" in words
    assert "term(t=2)" in words
    assert b"<svg" in picture.read_bytes()
    assert (tmp_path / "runs" / "e-compare" / "fedavg" / "seed-1" / "model.safetensors").exists()
    markdown = command(*arguments, "--format", "markdown", "-q")
    assert "| term(t=2) |" in markdown.out
    assert markdown.err == ""


def test_compare_with_mistakes_is_one_sentence(command: Command, file: Path) -> None:
    assert mistake(command("compare", file, "--format", "latx")) == (
        "there is no format 'latx': did you mean 'latex'?"
    )
    assert "no rule is called 'trem'" in mistake(command("compare", file, "--rules", "trem"))
    assert "no rules to compare" in mistake(command("compare", file, "--rules", ","))
    assert "is not the name of a figure" in mistake(command("compare", file, "--picture", "x.foo"))


def test_compare_after_ctrl_c_says_how_to_continue(
    command: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commonweal.analysis.compare.run", interrupted)
    result = command("compare", file)
    assert result.code == 130
    assert "the same command continues" in " ".join(result.err.split())


# What is said about a run


def test_show_draws_the_regret(command: Command, finished: Path) -> None:
    result = command("show", finished, "--regret")
    assert (result.code, result.err) == (0, "")
    assert "regret after round 3: " in result.out
    assert "the theorem's bound" in result.out
    assert (finished / "regret.png").exists()
    assert "is not a run's folder" in mistake(command("show", "aaggff-s", "--regret"))


UNUSUAL = """
import torch
from torch import nn


class Branching(nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.linear = nn.Linear(features, outputs)

    def forward(self, x):
        if x.sum() > 1e9:  # vmap cannot branch on values
            return self.linear(-x)
        return self.linear(x)


def unusual(shape, outputs):
    return Branching(shape[0], outputs)
"""


def test_a_mode_that_is_not_possible_is_told_with_its_reason(
    command: Command, file: Path, tmp_path: Path
) -> None:
    (tmp_path / "unusual.py").write_text(UNUSUAL)
    arguments = ["run", file, "model=./unusual.py:unusual", "rounds=1"]
    result = command(*arguments, "vectorize=vmap", "--out", tmp_path / "a")
    assert result.code == 0
    assert "vectorize: loop, because the model cannot be run for several clients" in result.err
    assert "vectorize" not in command(*arguments, "--out", tmp_path / "b").err


def round_with(number: int, **what: Any) -> Round:
    (done,) = run(Experiment(dataset="vowel", rounds=1))
    return replace(done, number=number, **what)


SYNTHETIC = """
rounds = 2
dataset = "digits"
partition = { name = "iid", clients = 3 }
model = { name = "energy-cnn", width = 4 }
algorithm = { name = "fedevg", steps = 1, classifier_epochs = 1 }
"""


def test_synthetic_rows_have_a_picture_per_evaluated_round(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "s.toml").write_text(SYNTHETIC)
    arguments = ["run", "s.toml", "--out", "r", "-q"]
    assert command(*arguments).code == 0
    pictures = tmp_path / "r" / "pictures"
    assert sorted(p.name for p in pictures.iterdir()) == ["000001.png", "000002.png"]
    last = (pictures / "000002.png").read_bytes()
    assert last.startswith(b"\x89PNG")
    (pictures / "000002.png").unlink()  # as if it was stopped just before
    assert command(*arguments, "--resume").code == 0
    assert (pictures / "000002.png").read_bytes() == last


def test_runs_without_synthetic_rows_have_no_pictures(finished: Path) -> None:
    assert not (finished / "pictures").exists()


def test_every_kind_of_remark_is_said_once() -> None:
    said: list[str] = []
    remarks = Remarks(said.append)
    first = "vred: beta = 1 makes weights negative; with these losses it must stay below 0.3"
    remarks.about_round(round_with(1, warnings=(first, "adafed: the Gram matrix is singular")))
    remarks.about_round(round_with(2, warnings=(first.replace("0.3", "0.4"),)))
    assert said == [f"round 1: {first}", "round 1: adafed: the Gram matrix is singular"]


def test_dropped_and_capped_clients_are_named_once_and_not_all() -> None:
    said: list[str] = []
    remarks = Remarks(said.append)
    remarks.about_round(round_with(1, dropped={"Jo": "its loss is 200 times the median"}))
    remarks.about_round(round_with(2, dropped={"Jo": "its loss is 300 times the median"}))
    remarks.about_round(round_with(3, capped={"Jo": "its update is 300 times the median"}))
    assert said == [
        "round 1: the reply of Jo was dropped: its loss is 200 times the median",
        "round 3: the reply of Jo was capped: its update is 300 times the median",
    ]
    remarks.about_round(round_with(4, dropped={f"client {k}": "no reply" for k in range(100)}))
    assert said[-1] == "round 4: more replies were dropped: see rounds.jsonl"
    assert len(said) == 2 + 4 + 1
    Remarks(None).about_round(round_with(1, dropped={"Jo": "no reply"}))


# data


def test_data_show_takes_parameters_of_dataset_and_partition(
    command: Command, tmp_path: Path
) -> None:
    changes = ["partition=iid", "partition.clients=4", "test=0.5", "seed=3"]
    value = strict(command("data", "show", "digits", *changes, "--json").out)
    assert value["clients"] == 4
    assert value["picture"] == "digits.png"
    assert (tmp_path / "digits.png").exists()
    text = command("data", "show", "digits", *changes).out
    assert "rows per client" in text
    assert "drawn to digits.png" in text


def test_a_misspelt_command_is_suggested_once(command: Command) -> None:
    for words in (("rnu",), ("data", "shw")):
        assert command(*words).err.count("Did you mean") == 1


def test_compare_takes_columns_and_decimals(command: Command, file: Path) -> None:
    words = ("compare", file, "--rules", "fedavg", "--seeds", 1, "--no-baselines", "-q")
    found = command(*words, "--columns", "qffl", "--decimals", 2, "--format", "markdown")
    header = next(line for line in found.out.splitlines() if line.startswith("| method"))
    assert header == "| method | mean by samples | worst 10 % | best 10 % | variance |"
    assert "did you mean 'variance'" in command(*words, "--columns", "varience").err
