"""The object that `run` returns: rounds, result, models, and what it says when it is not used."""

import gc
import subprocess
import sys
import typing
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import commonweal as cw
from commonweal.base.errors import ConfigError, RunError, UnusedRunWarning
from commonweal.config.experiment import RunSettings
from commonweal.jobs.job import GIVEN, OwnParts
from run_helpers import federation, task

UNUSED = """
import torch, commonweal as cw
federation = cw.Federation.from_arrays(torch.zeros(8, 2), [0, 1] * 4, [0] * 4 + [1] * 4)
kept = cw.run(cw.Task(torch.nn.Linear(2, 2)), federation, rounds=1)
"""


def test_a_run_gives_its_rounds_once_and_its_result(tmp_path: Path) -> None:
    run = cw.run(task(), federation(), rounds=4, out=tmp_path)
    assert [next(run).number, next(run).number] == [1, 2]
    record = run.result()
    assert record.finished and [each.number for each in record.rounds] == [1, 2, 3, 4]
    assert list(run) == [] and run.result() is record
    assert "4 of 4 rounds" in repr(run)


def test_a_result_without_a_folder_is_deleted_with_the_record() -> None:
    record = cw.run(task(), federation(), rounds=2).result()
    folder = record.folder
    assert len(record.rounds) == 2 and record.clients().names and folder.exists()
    del record
    gc.collect()
    assert not folder.exists()


def test_rounds_that_were_not_saved_have_no_result() -> None:
    run = cw.run(task(), federation(), rounds=3)
    next(run)
    with pytest.raises(RunError, match=r"1 of 3 rounds.*out="):
        run.result()


def test_models_are_modules_and_state_dicts_wherever_they_come_from(tmp_path: Path) -> None:
    t, f = task(), federation()
    run = cw.run(t, f, rounds=2, out=tmp_path)
    with pytest.raises(RunError):
        run.state_dict()
    *_, last = run
    again = cw.run(t, f, rounds=2, out=tmp_path, resume=True)
    record = again.result()
    x = f.test.x[:5]
    for other in (run, again, record):
        tensors = other.state_dict()
        assert tensors.keys() == last.state_dict().keys()
        for name, value in last.state_dict().items():
            assert torch.equal(tensors[name], value)
    for module in (run.module(), again.module()):
        assert isinstance(module, nn.Module) and not module.training
        assert torch.equal(module(x), last.module()(x))
    own = task().module
    own.load_state_dict(record.state_dict())
    assert torch.equal(own(x), last.module()(x))


def test_only_a_run_that_was_never_started_warns() -> None:
    run = cw.run(task(), federation(), rounds=1)
    with pytest.warns(UnusedRunWarning, match=r"never started.*result\(\)"):
        del run
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(cw.run(task(), federation(), rounds=3))  # stopped, but started
        with pytest.raises(ConfigError):
            cw.run(task(), federation(), rounds=0)
        gc.collect()


def test_a_run_that_waits_at_the_end_of_a_program_warns() -> None:
    done = subprocess.run([sys.executable, "-c", UNUSED], capture_output=True, text=True)
    assert done.returncode == 0 and "was never started" in done.stderr, done.stderr


def test_types_of_keywords_are_those_of_the_settings() -> None:
    hints = typing.get_type_hints(OwnParts)
    assert set(hints) == {*GIVEN, *RunSettings.model_fields}
    documented = cw.run.__doc__ or ""
    assert all(f"        {key}: " in documented for key in hints)


def test_runs_and_experiments_are_loaded_by_their_own_functions(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('dataset = "vowel"\nrounds = 3\n')
    experiment = cw.load_experiment(file, "rounds=1", "evaluate_every=1")
    assert experiment.rounds == 1
    record = cw.run(experiment, out=tmp_path / "run").result()
    assert cw.load_run(tmp_path / "run").rounds[0].metrics == record.rounds[0].metrics
    with pytest.warns(DeprecationWarning, match="load_run"):
        assert isinstance(cw.load(tmp_path / "run"), cw.Record)
    with pytest.warns(DeprecationWarning, match="load_experiment"):
        assert isinstance(cw.load(file), cw.Experiment)
    with pytest.raises(RunError):
        cw.load_run(file)


def test_samplers_and_channels_are_built_by_name() -> None:
    size, clip = cw.sampler("size"), cw.channel("clip", norm=0.5)
    by_object = cw.run(task(), federation(), rounds=2, cohort=2, sampler=size, channels=[clip])
    by_name = cw.run(
        task(),
        federation(),
        rounds=2,
        cohort=2,
        sampler="size",
        channels=[{"name": "clip", "norm": 0.5}],
    )
    assert [r.weights for r in by_object] == [r.weights for r in by_name]
    with pytest.raises(ConfigError, match="clip"):
        cw.channel("clpi")


def regression() -> cw.Federation:
    x = torch.linspace(-1, 1, 24)[:, None]
    return cw.Federation.from_arrays(x, 3 * x[:, 0] + 1, [0, 1, 2] * 8)


def test_the_loss_of_a_run_is_that_of_its_task(tmp_path: Path) -> None:
    for loss in ("absolute", "torch.nn.functional:huber_loss"):
        for of_task in ("", "squared"):
            made = cw.Task(nn.Linear(1, 1), loss=of_task)
            run = cw.run(made, regression(), loss=loss, rounds=1)
            record = run.result()
            assert record.facts.task is not None
            assert record.facts.task.loss == loss


def test_a_loss_that_the_task_was_not_made_for_is_an_error() -> None:
    scaled = cw.Task(nn.Linear(1, 1), loss="squared", target=(1.0, 2.0))
    with pytest.raises(ConfigError, match="the task was made for 'squared'"):
        cw.run(scaled, regression(), loss="huber", rounds=1)
    cw.run(scaled, regression(), loss="squared", rounds=1).result()
