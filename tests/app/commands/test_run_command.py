"""`commonweal run`: what it prints and writes, and how it ends."""

import sys
from pathlib import Path

import pytest

import commonweal
from command_helpers import Command, interrupted, mistake, refusal, strict
from commonweal.base import memory
from commonweal.record.record import Record


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
    record = commonweal.load_run(tmp_path / "r")
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


def test_run_on_ones_own_dataset_counts_clients_without_a_score(
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


def test_run_refuses_a_second_time_and_resume_finds_it_finished(
    command: Command, file: Path, tmp_path: Path
) -> None:
    assert command("run", file, "--out", tmp_path / "r", "-q").code == 0
    assert "holds this run already: continue it with --resume" in mistake(
        command("run", file, "--out", tmp_path / "r")
    )
    result = command("run", file, "--out", tmp_path / "r", "--resume")
    assert result.code == 0
    assert "was finished already" in " ".join(result.err.split())
    assert "mean" in result.out


def test_run_in_another_experiments_folder(command: Command, file: Path, tmp_path: Path) -> None:
    assert command("run", file, "--out", tmp_path / "r", "-q").code == 0
    sentence = mistake(command("run", file, "client.lr=9", "--out", tmp_path / "r", "--resume"))
    assert "holds another experiment" in sentence and "client.lr = 9" in sentence
    sentence = mistake(command("run", file, "rounds=99", "--out", tmp_path / "r"))
    assert "--resume adds rounds" in sentence


LONG = (
    "a folder whose name is so long that a terminal of the usual width breaks it over lines [bold]"
)


def test_ctrl_c_ends_with_130_and_prints_how_to_continue(
    command: Command, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commonweal.jobs.rounds.run", interrupted)
    result = command("run", file, "--out", tmp_path / "r")
    assert result.code == 130
    assert "Traceback" not in result.err
    printed = " ".join(result.err.split())
    assert "stopped after round 2; all rounds are saved in" in printed
    assert "continue with the same command and --resume" in printed
    assert str(tmp_path / LONG) in command("run", file, "--out", tmp_path / LONG).err


def test_run_names_the_folder_so_that_it_can_be_copied(
    command: Command, file: Path, tmp_path: Path
) -> None:
    assert str(tmp_path / LONG) in command("run", file, "--out", tmp_path / LONG).err


def test_a_folder_that_cannot_be_written_is_one_line(command: Command, file: Path) -> None:
    assert "cannot write" in mistake(command("run", file, "--out", file / "below" / "a" / "file"))


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


def test_a_mode_that_is_not_possible_is_refused_with_its_reason(
    command: Command, file: Path, tmp_path: Path
) -> None:
    (tmp_path / "unusual.py").write_text(UNUSUAL)
    arguments = ["run", file, "model=./unusual.py:unusual", "rounds=1"]
    result = command(*arguments, "vectorize=vmap", "--out", tmp_path / "a")
    assert result.code == 0
    assert "vectorize: loop, because the model cannot be run for several clients" in result.err
    assert "vectorize" not in command(*arguments, "--out", tmp_path / "b").err


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


# Mistakes


WRONG = [
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
    (["model=no.such.module:thing"], ""),
    (["dataset=heart", "dataset.dir=nowhere"], ""),
    (["dataset.test=0.0"], ""),
    (["dataset.test=1.5"], ""),
    (["model=mlp", "model.hidden=[0]"], ""),
    (["model=mlp", "model.hidden=[-3]"], ""),
    (["model=mlp", f"model.hidden=[{2**62}]"], ""),
    (["model=mlp", f"model.hidden=[{10**30}]"], ""),
    (["seed=99999999999999999999999"], ""),
    ([f"seed={'1' * 5000}"], ""),
    ([f"client.lr={'[' * 5000}"], ""),
    (["client.lr=1e39"], ""),
    ([f"client.batch={2**63}"], ""),
    ([f"client.batch={10**30}"], ""),
    (["dataset=heart", "model=lstm"], ""),
    (["score=r2"], ""),
    (["dataset=synthetic", "dataset.rows=1000000000"], ""),
    (["dataset=synthetic", "dataset.clients=1000000000"], ""),
    (["dataset=synthetic", "dataset.features=1000000000000"], ""),
    (["dataset=synthetic", "dataset.quantity=1e3"], ""),
    (["dataset=synthetic", f"dataset.rows={10**31}"], ""),
]


def test_a_mistake_in_an_experiment_is_one_line_and_leaves_no_folder(
    command: Command, file: Path, tmp_path: Path
) -> None:
    for arguments, message in WRONG:
        printed = mistake(command("run", file, *arguments, "--out", tmp_path / "r"))
        assert printed == message if message else len(printed) > 10, arguments
        assert not (tmp_path / "r").exists(), arguments
    assert "'[red]x[/red]'" in mistake(command("run", file, "rule=[red]x[/red]"))


def test_a_file_that_is_no_experiment_is_one_line(command: Command, tmp_path: Path) -> None:
    missing = mistake(command("run", "none.toml"))
    assert missing == "cannot read 'none.toml': No such file or directory"
    assert mistake(command("run", tmp_path)).endswith("it is a folder")
    (tmp_path / "x.toml").write_bytes(b"\x89PNG\r\n")
    assert "is not valid TOML" in mistake(command("run", tmp_path / "x.toml"))
    for text in (f"rounds = {'1' * 5000}", f"rounds = {'[' * 5000}", "\udcff", "rounds = nan"):
        content = f'dataset = "vowel"\n{text}\n'.encode(errors="surrogateescape")
        (tmp_path / "x.toml").write_bytes(content)
        refusal(command("run", tmp_path / "x.toml", "--out", "run"))


# What does not fit into memory is refused with the number, before it is allocated


LARGE = [
    (["synthetic", "clients=1000000"], "1,000,000 clients with 50 rows"),
    (["synthetic", "rows=100000"], "100 clients with 100,000 rows"),
    (["synthetic", "clients=1000", "features=1000", "rows=100"], "of 1,000 features each"),
    (["vowel", "model=mlp", "model.hidden=[2000,2000]"], "a cohort of 15 clients with 4,0"),
]


def test_what_does_not_fit_into_memory_is_refused_with_the_number(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available", lambda: 100e6)
    for arguments, message in LARGE:
        printed = mistake(command("run", *arguments, "rounds=1", "--out", "run"))
        assert message in printed and " GB of memory; this machine has 0." in printed, arguments
    (tmp_path / "t.csv").write_text("label,p\n" + "0,1.5\n1,2.5\n" * 20)
    monkeypatch.setattr(memory, "available", lambda: 100.0)
    table = ("run", "table", "path=t.csv", "label=label", "rounds=1", "--out", "run")
    assert "an array of " in mistake(command(*table))


def test_a_changed_key_has_its_own_folder(command: Command, file: Path, tmp_path: Path) -> None:
    for changes in ((), ("client.lr=0.2",), ("rule=term(t=2)",), ("rule=term", "seed=3")):
        assert command("run", file, "rounds=1", *changes, "-q").code == 0
    folders = {path.name for path in (tmp_path / "runs").iterdir()}
    assert folders == {
        "e-aaggff-s-0",
        "e-aaggff-s-client.lr=0.2-0",
        "e-term-rule=term_t=2_-0",
        "e-term-3",
    }


@pytest.mark.parametrize("words", [("--rounds", "5"), ("--rounds=5",)])
def test_a_key_written_as_an_option_is_explained(
    command: Command, file: Path, words: tuple[str, ...]
) -> None:
    assert mistake(command("run", file, *words)) == (
        "there is no option --rounds: keys of the experiment are written without dashes, "
        "as rounds=5"
    )
    assert "No such option" in command("run", file, "--roundz", "5").err
