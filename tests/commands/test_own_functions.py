"""Losses and scores of one's own, named in an experiment by their import path."""

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
