"""`commonweal compare` and `data`: tables, figures and how to go on."""

from pathlib import Path

import pytest

from command_helpers import Command, interrupted, mistake, strict
from commonweal.config.experiment import Experiment
from commonweal.data.federation import Federation
from commonweal.jobs import job


def test_compare_prints_a_table_and_draws(command: Command, file: Path, tmp_path: Path) -> None:
    picture = tmp_path / "scores.svg"
    arguments = ["compare", file, "--rules", "fedavg,term(t=2)", "--seeds", "2"]
    result = command(*arguments, "--picture", picture)
    assert result.code == 0
    words = " ".join(result.out.split())
    assert "accuracy of 15 clients in %, ± spread over 2 seeds" in words
    assert "term(t=2)" in words
    assert b"<svg" in picture.read_bytes()
    assert (tmp_path / "runs" / "e-compare" / "fedavg" / "seed-1" / "model.safetensors").exists()
    markdown = command(*arguments, "--format", "markdown", "-q")
    assert "| term(t=2) |" in markdown.out
    assert markdown.err == ""
    quiet = command(*arguments, "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    folder = tmp_path / "runs" / "e-compare"
    assert command("show", folder, "--quiet").out == ""
    assert strict(command("show", folder, "--quiet", "--json").out)


def test_compare_with_mistakes_is_one_line(command: Command, file: Path) -> None:
    assert mistake(command("compare", file, "--format", "latx")) == (
        "there is no format 'latx': did you mean 'latex'?"
    )
    assert "no rule is called 'trem'" in mistake(command("compare", file, "--rules", "trem"))
    for empty in ("", ",", ",,,"):
        assert "no rules to compare" in mistake(command("compare", file, "--rules", empty)), empty
    assert "is not the name of a figure" in mistake(command("compare", file, "--picture", "x.foo"))


def test_compare_after_ctrl_c_prints_how_to_continue(
    command: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commonweal.study.compare.run", interrupted)
    result = command("compare", file)
    assert result.code == 130
    assert "the same command continues" in " ".join(result.err.split())


def test_compare_takes_columns_and_decimals(command: Command, file: Path) -> None:
    words = ("compare", file, "--rules", "fedavg", "--seeds", 1, "--no-baselines", "-q")
    result = command(*words, "--columns", "qffl", "--decimals", 2, "--format", "markdown")
    headers = [line for line in result.out.splitlines() if line.startswith("| method")]
    assert headers[1] == "| method | mean by samples | worst 10 % | best 10 % | variance |"
    assert "did you mean 'variance'" in command(*words, "--columns", "varience").err


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


OWN_RULE = """
from dataclasses import dataclass
import torch
from commonweal.rules import Reports, Stateless

@dataclass(frozen=True)
class Soft(Stateless):
    t: float = 1.0
    def weigh(self, reports: Reports) -> torch.Tensor:
        return torch.softmax(reports.losses.double() / self.t, 0)
"""


def test_a_rule_of_ones_own_has_a_name_everywhere(
    command: Command, file: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(OWN_RULE)
    rules = "fedavg,Ours=./mine.py:Soft(t=0.1)"
    words = ("compare", file, "--rules", rules, "--seeds", 2, "--no-baselines", "-q")
    curves = tmp_path / "curves.pdf"
    result = command(*words, "--format", "latex", "--curves", curves)
    assert result.code == 0, result.err
    assert "\nOurs & " in result.out and "mine.py" not in result.out
    assert curves.read_bytes().startswith(b"%PDF")
    shown = command("show", tmp_path / "runs")
    assert "2 seeds" in shown.out  # by content, not by folder
    methods = [line.split()[0] for line in shown.out.splitlines() if line.strip()]
    assert "Ours" in methods and "fedavg" in methods and "name=" not in shown.out
    report = tmp_path / "r.html"
    assert command("report", tmp_path / "runs", "-o", report).code == 0
    assert "Ours" in report.read_text(encoding="utf-8")
    assert "with --trust" in report.read_text(encoding="utf-8")
    assert command("report", tmp_path / "runs", "-o", report, "--trust").code == 0
    assert "with --trust" not in report.read_text(encoding="utf-8")


def test_a_tuned_rule_keeps_its_name(command: Command, file: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN_RULE)
    words = ("--rules", "Ours=./mine.py:Soft", "--grid", "rule.t=0.1,1", "--seeds", 1, "--jobs", 1)
    tuned = command("tune", file, "rounds=2", *words, "-o", "tuned")
    assert tuned.code == 0, tuned.err
    assert f'next: commonweal compare "{file}" --tuned "tuned"' in tuned.out
    further = ("--tuned", "tuned", "--seeds", 1, "--no-baselines", "--format", "csv", "-q")
    for rules in ((), ("--rules", "fedavg,Ours")):
        compared = command("compare", file, "rounds=2", *further, *rules, "-o", "compared")
        assert compared.code == 0, compared.err
        assert "\nOurs," in compared.out and "mine.py" not in compared.out
    (toml,) = (tmp_path / "compared" / "Ours").rglob("experiment.toml")
    assert "t = " in toml.read_text()


def test_compare_builds_the_data_once_per_seed(
    command: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []
    original = job.build_dataset

    def counted(experiment: Experiment) -> Federation:
        built.append(experiment.seed)
        return original(experiment)

    monkeypatch.setattr(job, "build_dataset", counted)
    result = command("compare", file, "rounds=1", "--rules", "fedavg", "--seeds", 2, "-q")
    assert result.code == 0, result.err
    assert built == [0, 1]  # for fedavg, local training and pooled data


def test_show_separates_federations(command: Command, file: Path, tmp_path: Path) -> None:
    command("run", file, "rounds=2", "-q")
    command("run", "digits", "partition=iid", "partition.clients=3", "rounds=2", "-q")
    shown = command("show", tmp_path / "runs")
    assert shown.code == 0, shown.err
    assert "vowel:" in shown.out and "of 3 clients" in shown.out
    refused = mistake(command("report", tmp_path / "runs", "-o", tmp_path / "r.html"))
    assert "no client in common" in refused
