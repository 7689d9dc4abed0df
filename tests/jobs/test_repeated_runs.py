"""The same run again: on other threads, and resumed with another version."""

from pathlib import Path
from typing import Any

import pytest
import torch

from commonweal.base.errors import ResumeWarning
from commonweal.config.experiment import Experiment
from commonweal.jobs.rounds import run
from commonweal.record.record import Record
from run_helpers import contents, federation, stop_after, task


def test_a_run_has_the_same_bytes_on_any_number_of_threads(tmp_path: Path) -> None:
    model = {"name": "mlp", "hidden": [200]}
    experiment = Experiment(dataset="digits", model=model, rounds=1, deterministic=True)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            list(run(experiment, out=tmp_path / str(threads)))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert contents(tmp_path / "1") == contents(tmp_path / "2") == contents(tmp_path / "3")


def test_the_record_has_the_number_of_threads(tmp_path: Path) -> None:
    list(run(task(), federation(), rounds=1, deterministic=False, out=tmp_path / "run"))
    facts = Record.read(tmp_path / "run").facts
    assert facts.threads == torch.get_num_threads() and facts.processor


def test_a_resume_with_another_version_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: dict[str, Any] = {"rounds": 3, "out": tmp_path / "run"}
    with monkeypatch.context() as old:
        old.setattr(torch, "__version__", "1.0")
        stop_after(1, run(task(), federation(), **parts))
    with pytest.warns(ResumeWarning, match=r"began with torch 1\.0, now "):
        list(run(task(), federation(), resume=True, **parts))
