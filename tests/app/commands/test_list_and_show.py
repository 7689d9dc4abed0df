"""`commonweal list` and `show`: parts, scores, metrics and runs, in words and as JSON."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

from command_helpers import Command, mistake, strict
from commonweal.config import catalog
from commonweal.config.experiment import Experiment
from commonweal.data.federation import Federation
from commonweal.jobs.rounds import run
from commonweal.report import listing
from commonweal.task.task import Task

NAMES = sorted({name for kind in catalog.KINDS for name in catalog.entries(kind)})


def test_lists_name_everything_of_a_kind_in_words_and_as_json(command: Command) -> None:
    assert set(listing.LISTS) == {*catalog.KINDS, "scores", "metrics"}
    for kind in listing.LISTS:
        names = set(listing.summaries(kind))
        result = command("list", kind)
        assert (result.code, result.err) == (0, ""), kind
        first = [line.split()[0] for line in result.out.splitlines() if line.strip()]
        assert names and names <= set(first), kind
        value = strict(command("list", kind, "--json").out)
        assert set(value) == names, kind
        assert all(isinstance(line, str) and line and "\n" not in line for line in value.values())


def test_lists_are_whole_at_eighty_columns(command: Command) -> None:
    for kind in ("rules", "datasets", "clients"):
        text = command("list", kind, width=80).out
        assert "…" not in text, kind
        words = " ".join(text.split())
        assert all(line.split()[-1] in words for line in listing.summaries(kind).values()), kind


def test_show_explains_everything_that_is_listed_in_words_and_as_json(command: Command) -> None:
    """Also a name such as sgd, which is a client method and a server: it is one JSON value."""
    for name in NAMES:
        result = command("show", name)
        assert (result.code, result.err) == (0, ""), name
        assert name in result.out
        assert name in json.dumps(strict(command("show", name, "--json").out)), name


def test_list_of_clients_has_descriptions(command: Command) -> None:
    assert strict(command("list", "clients", "--json").out)["sgd"].startswith("sgd: local SGD")


def test_a_list_of_something_else_is_one_line(command: Command) -> None:
    assert mistake(command("list", "rulez")) == "there is no list of 'rulez': did you mean 'rules'?"


def test_show_explains_a_rule(command: Command) -> None:
    result = command("show", "aaggff-s")
    assert (result.code, result.err) == (0, "")
    assert "aaggff-s (rule)" in result.out
    assert "AAggFF-S: learns fair weights online by Newton steps" in result.out
    assert "Hahn et al., ICML 2024" in result.out
    for line in ("cdf = 'normal'", "variant = 'paper'", "beta = None"):
        assert line in result.out


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


def test_show_of_an_unknown_name_is_one_line(command: Command) -> None:
    assert mistake(command("show", "fedagv")) == (
        "'fedagv' is neither a run's folder nor a known name: did you mean 'fedavg'?"
    )


def test_show_of_a_folder_without_a_run_is_one_line(command: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "holds no runs" in mistake(command("show", tmp_path / "empty"))


def test_a_long_name_of_a_client_is_whole_at_eighty_columns(
    command: Command, tmp_path: Path
) -> None:
    names = [f"{letter * 90} hospital" for letter in "ab"]
    f = Federation.from_arrays([[0.0], [1.0]] * 8, [0, 1] * 8, [n for n in names for _ in range(8)])
    list(run(Task(nn.Linear(1, 2)), f, rounds=1, out=tmp_path / "own"))
    text = command("show", tmp_path / "own", width=80).out
    assert "…" not in text
    assert text.count("a") >= 90


def test_show_draws_the_regret(command: Command, finished: Path) -> None:
    result = command("show", finished, "--regret")
    assert (result.code, result.err) == (0, "")
    assert "regret after round 3: " in result.out
    assert "the theorem's bound" in result.out
    assert (finished / "regret.png").exists()
    assert "is not a run's folder" in mistake(command("show", "aaggff-s", "--regret"))


@pytest.mark.parametrize("arguments", ["list rules", "show fedavg", "docs"])
def test_nobody_reads_the_output(arguments: str) -> None:
    """It was closed before the command began, or is a pipe whose reader has ended (`| head`)."""
    command = f'"{sys.executable}" -m commonweal {arguments}'
    closed = subprocess.run(f"{command} >&-", shell=True, capture_output=True, text=True)
    assert (closed.stderr, closed.returncode) == ("", 0)
    reader, writer = os.pipe()
    os.close(reader)
    broken = subprocess.run(command, shell=True, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (broken.stderr, broken.returncode) == ("", 1)
