"""The command as a person uses it: what it prints, where, and how it ends."""

import importlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import commonweal
from commonweal import catalog, cli, metrics
from commonweal.experiment import Experiment
from commonweal.federation import Federation
from commonweal.run import run
from commonweal.task import Task

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
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`commonweal ...` in this process and in an empty folder, with an ordinary terminal's width."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Result:
        capsys.readouterr()
        out, err = io.StringIO(), io.StringIO()
        monkeypatch.setattr(cli, "out", Console(file=out, width=100))
        monkeypatch.setattr(cli, "err", Console(file=err, width=100))
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


def test_run_writes_a_folder_and_prints_a_table(command: Command, file: Path, tmp_path: Path) -> None:
    result = command("run", file, "--out", tmp_path / "r")
    assert result.code == 0
    assert "aaggff-s: round 3 of 3, accuracy" in " ".join(result.out.split())
    for word in ("mean", "worst", "gini"):
        assert word in result.out
    assert "saved in" in result.err
    assert (tmp_path / "r" / "model.safetensors").exists()


def test_run_shows_the_three_worst_and_best_clients(command: Command, file: Path, tmp_path: Path) -> None:
    result = command("run", file, "--out", tmp_path / "r")
    record = commonweal.load(tmp_path / "r")
    assert isinstance(record, commonweal.Record)
    ranked = [name for name, _, _ in sorted(record.clients(), key=lambda c: c[1])]
    assert all(name in result.out for name in [*ranked[:3], *ranked[-3:]])
    assert sum(name in result.out.split() for name in ranked) == 6


def test_run_takes_overrides(command: Command, file: Path, tmp_path: Path) -> None:
    result = command("run", file, "rounds=2", "rule=fedavg", "client.lr=0.05", "--out", tmp_path / "r", "--quiet")
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
    assert "holds this run already: go on with --resume" in mistake(command("run", file, "--out", tmp_path / "r"))
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


def test_ctrl_c_ends_with_130_and_says_how_to_go_on(
    command: Command, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("commonweal.run"), "run", interrupted)
    result = command("run", file, "--out", tmp_path / "r")
    assert result.code == 130
    assert "Traceback" not in result.err
    said = " ".join(result.err.split())
    assert "stopped after round 2; all of it is saved in" in said
    assert "go on with the same command and --resume" in said


LONG = "a folder whose name is long enough to be broken over two lines by a terminal of the usual width [bold]"


def test_ctrl_c_names_the_folder_so_that_it_can_be_copied(
    command: Command, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("commonweal.run"), "run", interrupted)
    assert str(tmp_path / LONG) in command("run", file, "--out", tmp_path / LONG).err


def test_run_names_the_folder_so_that_it_can_be_copied(command: Command, file: Path, tmp_path: Path) -> None:
    assert str(tmp_path / LONG) in command("run", file, "--out", tmp_path / LONG).err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["rule=fedagv"], "no rule is called 'fedagv': did you mean 'fedavg'?"),
        (["rule.cfd=normal"], "rule 'aaggff-s' has no parameter 'cfd': did you mean 'cdf'?"),
        (["rounds"], "'rounds' is not an override: write key=value, such as rounds=50 or rule.cdf=frechet"),
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
    assert mistake(command("run", "none.toml")) == "cannot read 'none.toml': No such file or directory"


def test_a_folder_or_a_picture_for_a_file_is_one_sentence(command: Command, tmp_path: Path) -> None:
    assert mistake(command("run", tmp_path)).endswith("Is a directory")
    (tmp_path / "x.toml").write_bytes(b"\x89PNG\r\n")
    assert "is not TOML" in mistake(command("run", tmp_path / "x.toml"))


def test_a_folder_that_cannot_be_written_is_one_sentence(command: Command, file: Path) -> None:
    assert "cannot write" in mistake(command("run", file, "--out", file / "below" / "a" / "file"))


@pytest.mark.parametrize("kind", [*catalog.KINDS, "metrics"])
def test_list_names_everything_of_a_kind(command: Command, kind: str) -> None:
    result = command("list", kind)
    assert (result.code, result.err) == (0, "")
    names = list(metrics.__all__) if kind == "metrics" else list(catalog.entries(kind))
    first = [line.split()[0] for line in result.out.splitlines() if line.strip()]
    assert all(name in first for name in names)


@pytest.mark.parametrize("kind", [*catalog.KINDS, "metrics"])
def test_list_as_json(command: Command, kind: str) -> None:
    value = strict(command("list", kind, "--json").out)
    assert set(value) == set(metrics.__all__ if kind == "metrics" else catalog.entries(kind))
    assert all(isinstance(line, str) and line and "\n" not in line for line in value.values())


def test_list_of_clients_says_what_each_is(command: Command) -> None:
    assert strict(command("list", "clients", "--json").out)["sgd"].startswith("sgd: a few steps of plain SGD")


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


@pytest.mark.parametrize("name", sorted({name for kind in catalog.KINDS for name in catalog.entries(kind)}))
def test_show_explains_everything_that_is_listed(command: Command, name: str) -> None:
    result = command("show", name)
    assert (result.code, result.err) == (0, "")
    assert name in result.out


@pytest.mark.parametrize("name", sorted({name for kind in catalog.KINDS for name in catalog.entries(kind)}))
def test_show_as_json_is_one_json_value(command: Command, name: str) -> None:
    """Also for a name such as sgd, which is a client and a server."""
    value = strict(command("show", name, "--json").out)
    assert name in json.dumps(value)


def test_show_as_json_gives_kind_and_parameters(command: Command) -> None:
    value = strict(command("show", "aaggff-s", "--json").out)
    value = value[0] if isinstance(value, list) else value
    assert (value["kind"], value["name"]) == ("rules", "aaggff-s")
    assert value["parameters"] == {"cdf": "normal", "variant": "paper", "beta": None}


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
    from torch import nn

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
    assert "is not the folder of a run" in mistake(command("show", tmp_path / "empty"))


def test_demo_draws_and_says_who_was_helped(command: Command, tmp_path: Path) -> None:
    result = command("demo", "--seeds", "2", "--rounds", "5", "--out", tmp_path / "d")
    assert result.code == 0
    assert (tmp_path / "d" / "vowel.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert (tmp_path / "d" / "vowel.svg").read_text(encoding="utf-8").lstrip().startswith("<?xml")
    words = " ".join(result.out.split())
    assert "over 2 seeds" in words
    assert all(title in words for title in ("rule", "mean", "worst", "best", "std", "Gini", "gap"))
    rows = [line.replace("│", " ").split() for line in result.out.splitlines()]
    assert {"fedavg", "aaggff-s"} <= {row[0] for row in rows if len(row) > 6}
    assert any(name in words for name in commonweal.dataset("vowel").names)  # whom it helped most


def test_demo_with_one_seed(command: Command, tmp_path: Path) -> None:
    result = command("demo", "--seeds", "1", "--rounds", "2", "--out", tmp_path / "d")
    assert result.code == 0
    assert (tmp_path / "d" / "vowel.png").exists()


def test_demo_quietly_prints_nothing_but_draws(command: Command, tmp_path: Path) -> None:
    result = command("demo", "--seeds", "1", "--rounds", "2", "--out", tmp_path / "d", "--quiet")
    assert (result.code, result.out, result.err) == (0, "", "")
    assert (tmp_path / "d" / "vowel.png").exists()


def test_demo_where_a_file_is_in_the_way_is_one_sentence(command: Command, file: Path) -> None:
    result = command("demo", "--seeds", "1", "--rounds", "1", "--out", file)
    assert result.code == 2
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    "arguments", [["demo", "--seeds", "0"], ["run"], ["list"], ["nothing"], ["run", "--oops", "x"]]
)
def test_wrong_options_end_with_2(command: Command, arguments: list[str]) -> None:
    result = command(*arguments)
    assert result.code == 2
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    "arguments", [["--help"], ["-h"], ["run", "-h"], ["list", "-h"], ["show", "-h"], ["demo", "-h"]]
)
def test_help(command: Command, arguments: list[str]) -> None:
    result = command(*arguments)
    assert result.code == 0
    assert "Usage:" in result.out


def test_the_installed_command_ends_a_mistake_with_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(TEXT)
    main = [sys.executable, "-c", "from commonweal.cli import main; main()"]
    done = subprocess.run(
        [*main, "run", "e.toml", "rule=fedagv"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "commonweal: no rule is called 'fedagv': did you mean 'fedavg'?\n"
