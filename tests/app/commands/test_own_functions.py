"""Losses and scores of one's own, named in an experiment by their import path."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import commonweal as cw
from command_helpers import Command, mistake
from commonweal.base.errors import RunError

CODE = """
import torch
from torch.nn import functional as F

def smooth(outputs, y):
    return F.cross_entropy(outputs, y, label_smoothing=0.2, reduction="none")

def error(outputs, y):
    return (outputs.argmax(1) != y).double()

number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(CODE)
    text = """dataset = "vowel"
rounds = 2
loss = "./mine.py:smooth"
score = "lower:./mine.py:error"
"""
    path = tmp_path / "e.toml"
    path.write_text(text)
    return path


def test_an_experiment_names_a_loss_and_a_score(file: Path, tmp_path: Path) -> None:
    record = cw.run(cw.load_experiment(file), out=tmp_path / "run").result()
    plain = cw.load_experiment(file).change(loss=None, score=None)
    smooth = nn.CrossEntropyLoss(label_smoothing=0.2)
    job, _ = cw.reopen(tmp_path / "run", trust=True)
    outputs, y = torch.randn(5, 11), torch.arange(5)
    assert job.task.own_loss is not None
    assert job.task.own_loss(outputs, y).mean() == pytest.approx(float(smooth(outputs, y)))
    assert record.facts.score == "lower:error"
    other = cw.run(plain, out=tmp_path / "plain").result()
    assert record.state_dict().keys() == other.state_dict().keys()
    changed = [not torch.equal(a, other.state_dict()[n]) for n, a in record.state_dict().items()]
    assert all(changed)  # smoothing moves every weight
    scores = record.clients().evaluation.score
    assert ((scores >= 0) & (scores <= 1)).all()
    with pytest.raises(RunError, match=r"mine\.py:smooth.* is imported only if you trust"):
        cw.reopen(tmp_path / "run")


def test_what_cannot_be_imported_is_explained(file: Path, command: Command) -> None:
    wrong = mistake(command("run", file, "loss=./mine.py:smoth"))
    assert "mine.py:smoth' cannot be used" in wrong
    assert "is 3: name a function" in mistake(command("run", file, "loss=./mine.py:number"))
    assert "did you mean 'huber'" in mistake(command("run", file, "loss=hubr"))


RULE = """
from dataclasses import dataclass
from commonweal import Stateless

@dataclass(frozen=True)
class Mine(Stateless):
    def weigh(self, reports):
        {line}
"""


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("return None", "rule Mine: weights are None, not a tensor"),
        ("return [1.0]", r"rule Mine: weights are \[1\.0\], not a tensor"),
        ("return reports.losses[:1]", r"rule Mine: weights have shape \(1,\) for \d+ reports"),
        ("return reports.ids", r"rule Mine: weights are torch\.int64"),
        ("return reports.losses / 0", "rule Mine: weights are not finite"),
    ],
)
def test_what_a_rule_of_ones_own_may_do(
    command: Command, tmp_path: Path, line: str, sentence: str
) -> None:
    (tmp_path / "my_rule.py").write_text(RULE.format(line=line))
    result = command("run", "vowel", "rounds=2", "rule=./my_rule.py:Mine")
    assert result.code == 2
    assert re.search(sentence, result.err.replace("\n", " ")), result.err


def test_an_error_of_a_rule_of_ones_own_is_shown_as_python_does(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "my_rule.py").write_text(RULE.format(line="raise LookupError('odd')"))
    with pytest.raises(LookupError, match="odd"):
        command("run", "vowel", "rounds=2", "rule=./my_rule.py:Mine")


@pytest.mark.parametrize("line", ["return None", "return 'x'", "raise LookupError('odd')"])
def test_a_score_that_gives_no_number_is_an_error(
    command: Command, tmp_path: Path, line: str
) -> None:
    (tmp_path / "my_rule.py").write_text(f"def score(outputs, y):\n    {line}\n")
    result = command("run", "vowel", "rounds=2", "score=./my_rule.py:score")
    assert result.code == 2 and "my_rule" in result.err and "Traceback" not in result.err


@pytest.mark.parametrize("key", ["algorithm", "rule", "client", "server", "sampler", "model"])
def test_a_function_that_makes_nothing_is_an_error(
    command: Command, tmp_path: Path, key: str
) -> None:
    takes = "shape, outputs" if key == "model" else ""
    (tmp_path / "parts.py").write_text(f"def make({takes}):\n    return None\n")
    result = command("run", "vowel", "rounds=2", f"{key}=./parts.py:make")
    assert result.code == 2 and "make" in result.err and "Traceback" not in result.err


DATASET = """
import numpy as np
from commonweal import Federation

def load(rows: int = 20):
    x = np.arange(4.0 * rows).reshape(2 * rows, 2)
    return Federation.from_arrays(x, np.arange(2 * rows) % 2, ["a", "b"] * rows)
"""


def test_a_dataset_of_ones_own_is_named_instead_of_a_file(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(DATASET)
    result = command("run", "./mine.py:load", "rows=10", "rounds=1")
    assert result.code == 0, result.err
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("mine")
    record = cw.load_run(folder)
    assert record.experiment["dataset"] == {"name": f"{tmp_path}/mine.py:load", "rows": 10}
