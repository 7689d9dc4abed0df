"""Clients compute where `device` says, and nowhere do tensors of two devices meet."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import commonweal as cw
from commonweal.base.devices import find_device
from commonweal.base.errors import ConfigError
from commonweal.data.rows import Rows


def test_every_client_method_and_model_family_on_a_pretended_device() -> None:
    program = Path(__file__).parents[1] / "pretended_device.py"
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failed" in done.stdout


@pytest.mark.parametrize("name", ["cuda", "cuda:7", "mps"])
def test_a_device_that_is_not_there_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=f"device = '{name}': .* set device = 'cpu'"):
        find_device(name)


def test_the_second_gpu_of_two_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(ConfigError, match="finds 2 CUDA devices"):
        find_device("cuda:2")


def test_device_is_a_setting_of_an_experiment() -> None:
    assert cw.Experiment(dataset="vowel").device == "cpu"
    assert cw.Experiment(dataset="vowel", device="cuda:1").device == "cuda:1"
    with pytest.raises(ConfigError, match="device"):
        cw.Experiment(dataset="vowel", device="gpu")


def test_run_refuses_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    x, y, client = [[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1], ["a", "a", "b", "b"]
    data = cw.Federation.from_arrays(x, y, client, test=0.5)
    with pytest.raises(ConfigError, match="device = 'cuda'"):
        next(cw.run(cw.Task(torch.nn.Linear(1, 2)), data, device="cuda", rounds=1))


def test_rows_that_are_there_are_not_copied() -> None:
    rows = Rows(torch.zeros(2, 1), torch.zeros(2), torch.tensor([0, 2]))
    assert rows.to("cpu") is rows
